"""Credentials, request signatures, policies and dynamic groups: the caller's identity and rights.

May import `state` and below.
"""
