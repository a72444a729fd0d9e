"""The metadata service: what an instance is told about itself at 169.254.169.254.

May import `compute`, `auth` and `state`. Only `server` imports this folder.
"""
