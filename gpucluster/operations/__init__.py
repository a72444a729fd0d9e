"""Operations on a cluster that is deployed: users and groups, backups, container images, draining, status, and the
connection to the controller, which all of them use.

Nothing here creates or deletes a cloud resource. May import `cloud`, `workspace` and what is below them.
"""
