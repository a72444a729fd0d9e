"""Day two on a cluster that stands: users and groups, backups, container images, draining, and the connection to the
controller that they share.

Nothing here creates or deletes a cloud resource. May import `cloud`, `workspace` and what lies below them.
"""
