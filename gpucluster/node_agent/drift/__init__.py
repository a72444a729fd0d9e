"""Drift of a host: what is not as the last complete apply left it. It reads, and changes nothing.

The operator's machine sends these modules with each request (`artifacts.agent_archive.drift_program`); the controller's
timer calls the installed agent of each host.
"""
