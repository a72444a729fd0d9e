"""The REST API: one module for each group of resources; `routes(cloud)` of a module returns its operations.

A handler checks the request, changes rows through `compute`, `bastion` and `state`, and returns a reply. May import
those, `auth` and `engine`.
"""
