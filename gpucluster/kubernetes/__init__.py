"""Kubernetes as the cluster's scheduler: its releases, the configuration of kubeadm, manifests, labels and taints, what
a state of a node or a pod means. Pure: objects and texts from values, no program and no connection.

It imports `shapes`, `systems` and the pure folders below them.
"""
