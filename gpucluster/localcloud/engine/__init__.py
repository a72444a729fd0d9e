"""What runs instances: the protocol, and engines with Podman containers, with plain processes, and with nothing.

May import `image` and `podman`.
"""
