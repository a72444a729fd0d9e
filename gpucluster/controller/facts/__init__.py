"""The facts of the cluster that `gpucluster verify` and `apply` collect on the controller; gpucluster/verdict/ judges
them.

They are sent with each request, with those of hosts: see `gpucluster.node_agent.facts`.
"""
