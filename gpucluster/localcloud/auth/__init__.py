"""Credentials, request signatures, policies and dynamic groups: who calls, and what the caller may do.

May import `state` and below.
"""
