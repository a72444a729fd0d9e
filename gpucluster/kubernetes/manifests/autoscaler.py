"""The account of the autoscaler in Kubernetes: what it may do, and the token with which it proves who it is.

The rights are those of `autoscaler.daemon.kubernetes` and no others. Who may patch pods may change their images, too:
Kubernetes has no right for annotations alone.
"""

from __future__ import annotations

from gpucluster.kubernetes.manifests import Manifest, metadata

#: The name of each of these objects.
NAME = "gpucluster-autoscaler"
#: System programs are here. Their token is read by administrators of the cluster only.
NAMESPACE = "kube-system"
#: The name of this set of objects for `gpucluster-agent kubernetes apply`.
SET = "autoscaler"
_RBAC = "rbac.authorization.k8s.io"


def account(*, privileged_policy: str | None) -> list[Manifest]:
    """The objects.

    Args:
        privileged_policy: the name of the PodSecurityPolicy of pods that may be privileged; None for releases without
            such policies. They judge a change of a pod, too, by the rights of who makes it.
    """
    rules = [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch", "delete"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "patch"]},
    ]
    if privileged_policy is not None:
        rules.append(
            {
                "apiGroups": ["policy"],
                "resources": ["podsecuritypolicies"],
                "resourceNames": [privileged_policy],
                "verbs": ["use"],
            }
        )
    token = metadata(NAME, NAMESPACE, annotations={"kubernetes.io/service-account.name": NAME})
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(NAME, NAMESPACE),
         "automountServiceAccountToken": False},
        # The controller manager writes the token into it. It is valid until this object is deleted.
        {"apiVersion": "v1", "kind": "Secret", "metadata": token, "type": "kubernetes.io/service-account-token"},
        {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": metadata(NAME), "rules": rules},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": metadata(NAME),
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        },
    ]  # fmt: skip
