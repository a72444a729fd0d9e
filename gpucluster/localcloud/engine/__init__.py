"""What runs instances: the protocol, and three engines (Podman containers, plain processes, nothing at all). May import `image` and
`podman`.
"""
