"""Programs on the host of the control plane: what gpucluster does through kubectl, kubeadm and etcdctl there.

`serve` answers requests, one JSON object a line, until the connection ends; `__main__` has the table of operations.
`kubectl` is the only module that runs kubectl; `faults`, `pods` and `namespaces` say what its objects and its errors
mean, `nodes` and `drain` change nodes. `people` makes namespaces and access follow the directory, by the objects of
`person_objects`; `client_certificates` signs what people and operators log in with, `kubeconfig` says what their files
have, and by `own_kubeconfig` people ask for one.
"""
