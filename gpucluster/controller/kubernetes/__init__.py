"""Kubernetes, as the controller runs it: what gpucluster does through kubectl, kubeadm and etcdctl there.

`serve` answers requests, one JSON object a line, until the connection ends; `__main__` has the table of operations.
`gpucluster.node_agent.kubernetes.kubectl` is the only module that runs kubectl, `faults` beside it explains what its
errors mean, `pods` and `namespaces` what its objects mean. `nodes` and `drain` change nodes. `people` makes namespaces
and access follow the directory, by the objects of `person_objects`; `client_certificates` signs what users and
operators log in with, `kubeconfig` makes the content of their files, and by `own_kubeconfig` users request one.
"""
