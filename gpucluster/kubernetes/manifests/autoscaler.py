"""What the autoscaler may do in Kubernetes; `controller.kubernetes.service_access` makes its account.

The rights are those of `autoscaler.daemon.kubernetes` and no others. Who may patch pods may change their images, too:
Kubernetes has no right for annotations alone.
"""

from __future__ import annotations

from typing import Any

ACCOUNT = "gpucluster-autoscaler"
#: The name of the set of the account's objects for `gpucluster-agent kubernetes access`.
SET = "autoscaler"


def rules(*, privileged_policy: str | None) -> list[dict[str, Any]]:
    """The rules of its ClusterRole.

    Args:
        privileged_policy: the name of the PodSecurityPolicy of pods that may be privileged; None for releases without
            such policies. They judge a change of a pod, too, by the rights of who makes it.
    """
    cluster_rules: list[dict[str, Any]] = [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch", "delete"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "patch"]},
    ]
    if privileged_policy is not None:
        names = [privileged_policy]
        cluster_rules.append(
            {"apiGroups": ["policy"], "resources": ["podsecuritypolicies"], "resourceNames": names, "verbs": ["use"]}
        )
    return cluster_rules
