"""The health service: keeps the last reports of all nodes, and alone drains and undrains nodes for failed checks.

`policy` decides (pure), `journal` and `store` remember, `control` carries out, `service` listens on the controller,
`client` is the side of the nodes. docs/adr/0048-health-service.md has the reasons.
"""
