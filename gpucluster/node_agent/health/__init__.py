"""The node's part of the health service: it runs the checks of a profile and reports them.

`client` sends a report to the controller; `node_object` writes it into the Node object of a node of Kubernetes.
"""
