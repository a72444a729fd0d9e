"""Batch systems, and how the ranks of a program are started: data (`Launcher` of `model`), and shell in jinja.

Each module has the constant LAUNCHERS. May import `model`.
"""
