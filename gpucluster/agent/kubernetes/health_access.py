"""The health service's own way to the API server: a kubeconfig with what it needs, and no more.

The file is not in /etc/kubernetes: kubeadm renews what is there, and does not know this one. Its certificate is
short-lived; `apply` and a timer make a new one long before it ends.
"""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from gpucluster.agent import programs
from gpucluster.agent.errors import Failed
from gpucluster.agent.kubernetes import apply, certificates, client_certificates
from gpucluster.agent.kubernetes.kubectl import Kubectl

FILE = Path("/etc/gpucluster/health.kubeconfig")
USER, _ROLE = "gpucluster:health", "gpucluster-health"
#: For so long a certificate is valid, and with fewer hours left there is a new one. The timer runs every week.
VALID_HOURS, _RENEW_WITHIN_HOURS = client_certificates.MOST_HOURS, 360
_SET = "health"
_GROUP = "rbac.authorization.k8s.io"
#: What the service does: read nodes, change their taints and its annotation, and the condition in their status.
RIGHTS: Sequence[Mapping[str, Any]] = (
    {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": _ROLE},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch"]},
            {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["update"]},
        ],
    },
    {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": _ROLE},
        "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": _ROLE},
        "subjects": [{"apiGroup": _GROUP, "kind": "User", "name": USER}],
    },
)
_CERTIFICATE = re.compile(r'"client-certificate-data": "([A-Za-z0-9+/=]+)"')


def keep(
    kubectl: Kubectl,
    wait: Callable[[float], None],
    file: Path = FILE,
    authority: Path = client_certificates.AUTHORITY,
    now: float | None = None,
) -> bool:
    """Let the service have its rights and its file; returns whether anything was changed.

    Args:
        kubectl: with the rights of the administrator.
        authority: the folder of the control plane's authority.
        now: seconds since 1970; None takes the clock.

    Raises:
        Failed: there is no authority, the API server gives no answer, or a program failed.
    """
    changed = bool(apply.apply(kubectl, wait, _SET, list(RIGHTS))["changed"])
    at = time.time() if now is None else now
    where = {
        "server": kubectl.server(),
        "certificate-authority-data": _base64(_authority(authority)),
    }
    if _is_good(file, where, at):
        return changed
    key, request = _key_and_request()
    signed = client_certificates.sign(request, USER, (), VALID_HOURS, authority, at)
    user = {"client-certificate-data": _base64(signed), "client-key-data": _base64(key)}
    _write(file, where, user)
    return True


def is_kept(file: Path = FILE) -> bool:
    """Whether the service has its file on this host: it does where `checks` are on."""
    return file.exists()


def _authority(folder: Path) -> str:
    try:
        return (folder / "ca.crt").read_text(encoding="utf-8")
    except OSError as error:
        raise Failed(f"there is no authority of Kubernetes in {folder}: {error}", "Run: gpucluster apply") from None


def _is_good(file: Path, where: Mapping[str, str], now: float) -> bool:
    """Whether the file is for this control plane, and valid for some time."""
    try:
        text = file.read_text(encoding="utf-8")
        given = json.loads(text)
        same = given["clusters"][0]["cluster"] == where and file.stat().st_mode & 0o077 == 0
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return False
    found = _CERTIFICATE.search(text)
    if not same or not found:
        return False
    try:
        ends = certificates.end_of(file, base64.b64decode(found[1]))
    except (Failed, ValueError):
        return False
    return ends - now > _RENEW_WITHIN_HOURS * 3600


def _key_and_request() -> tuple[str, str]:
    with tempfile.TemporaryDirectory(prefix="gpucluster-") as folder:
        key = Path(folder) / "key"
        request = programs.run(
            *("openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", f"/CN={USER}", "-keyout", str(key)),
        )
        return key.read_text(encoding="utf-8"), request


def _write(file: Path, where: Mapping[str, str], user: Mapping[str, str]) -> None:
    whole = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": dict(where)}],
        "users": [{"name": USER, "user": dict(user)}],
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": USER}}],
        "current-context": "cluster",
    }
    # mkstemp: the owner alone may read it, from the first byte on.
    handle, fresh = tempfile.mkstemp(dir=str(file.parent), prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(json.dumps(whole, indent=1) + "\n")
        Path(fresh).replace(file)
    except BaseException:
        Path(fresh).unlink()
        raise


def _base64(pem: str) -> str:
    return base64.b64encode(pem.encode()).decode()
