"""The health service's own way to the API server: it reads nodes and writes its results into them, and no more.

The file is not in /etc/kubernetes: kubeadm renews what is there, and does not know this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from gpucluster.controller.kubernetes import service_access
from gpucluster.node_agent.kubernetes.kubectl import Kubectl

FILE = Path("/etc/gpucluster/health.kubeconfig")
ACCOUNT = "gpucluster-health"
_SET = "health"
#: What the service does: read nodes, change their taints and its annotation, and the condition in their status.
_RULES: Sequence[Mapping[str, Any]] = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["update"]},
)


def keep(kubectl: Kubectl, wait: Callable[[float], None], file: Path = FILE, *, enabled: bool = True) -> bool:
    """Create the account and the file of the service, or remove both; returns whether anything was changed.

    Args:
        kubectl: with the rights of the administrator.
        enabled: whether the service runs.

    Raises:
        Failed: the API server gives no answer, or makes no token; or the file can't be written.
    """
    rules = list(_RULES) if enabled else []
    return service_access.keep(kubectl, wait, {"set": _SET, "account": ACCOUNT, "rules": rules, "file": str(file)})


def is_kept(file: Path = FILE) -> bool:
    """Whether the service has its file on this host: it does where `checks` are on."""
    return file.exists()
