"""The REST resources, one module a service. `routes(cloud)` of each yields its operations."""
