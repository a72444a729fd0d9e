"""Programs of the controller: users, health, monitor, backup, images, jobs, measurements, CA, Kubernetes.

They are delivered with `gpucluster.node_agent` as one zipapp, `/usr/local/bin/gpucluster-agent` of the controller and of
Prometheus' host, and import it. They run on the host's own Python, 3.9 or later, with the standard library only.
"""
