"""Operations on a cluster that is deployed: users and groups, backups, container images, draining, status, and the
connection to the controller that they share.

Nothing here creates or deletes a cloud resource. May import `cloud`, `workspace` and what lies below them.
"""
