"""What runs behind a cluster of Kubernetes Engine: release files, certificates, the control plane, its tokens.

May import `compute` and below.
"""
