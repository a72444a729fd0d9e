"""The health service: keeps the last reports of all nodes, and alone drains and undrains nodes for failed checks.

`policy` decides (pure), `journal` and `store` remember, `control` carries out, `service` listens on the controller. The
side of the nodes is `gpucluster.node_agent.health`. docs/adr/0048-health-service.md has the reasons.
"""
