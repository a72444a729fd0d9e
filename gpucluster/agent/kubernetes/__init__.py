"""Programs on the host of the control plane: what gpucluster does through kubectl, kubeadm and etcdctl there."""
