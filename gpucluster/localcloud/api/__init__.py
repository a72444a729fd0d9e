"""The REST resources, one module a service; `routes(cloud)` of each yields its operations. A handler checks the request, changes rows
through `compute`, `bastion` and `state`, and returns a reply. May import everything below: bastion, compute, auth, state, engine.
"""
