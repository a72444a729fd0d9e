"""Programs of the controller: users, backup, health, monitor, jobs, images, CA, and the control plane of Kubernetes.

They are delivered with `gpucluster.node_agent`, which they import, as one zipapp: `/usr/local/bin/gpucluster-agent` of
the controller and of Prometheus' host. They run on the host's own Python, 3.9 or later, with the standard library only.
"""
