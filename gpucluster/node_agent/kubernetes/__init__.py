"""What hosts of a cluster with Kubernetes run themselves: joining, images, routes to pods, labels, tokens."""
