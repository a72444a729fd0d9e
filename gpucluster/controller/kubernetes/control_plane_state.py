"""The state of the control plane in one answer, also where the API server is dead: then the reason is looked for on the
host. `judged` is pure.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpucluster.controller.kubernetes import certificates, containers, namespaces
from gpucluster.controller.kubernetes.certificates import Certificate
from gpucluster.controller.kubernetes.etcd import DATA, Etcd, Space
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import AgentError, Failed
from gpucluster.node_agent.kubernetes.kubectl import Kubectl

#: Bytes that must be free for etcd, which writes before it answers; and the part of etcd's file that may be garbage.
_FREE_BYTES = 200 << 20
#: etcd's file is near its limit of 2 GiB, the default that kubeadm leaves.
NEAR_FULL_BYTES = int(1.6 * (1 << 30))
_RENEW = "Run: gpucluster kubernetes certificates --renew"
_COMPACT = "Run: gpucluster kubernetes compact"
_ROTATION = "https://kubernetes.io/docs/tasks/tls/manual-rotation-of-ca-certificates/"
_NUMBERS = "its numbers: gpucluster ssh -- sudo crictl ps -a --name"


class ControlPlaneFacts(NamedTuple):
    """What was found on the controller; an error stands where something gave no answer.

    Attributes:
        server: "" if the API server is ready, else why not.
        kubelet: whether its unit runs.
        parts: running containers by part; None where containerd gives no answer.
        space: of etcd; None where it gives no answer.
        free: bytes on the disk of etcd.
        certificates: all of them.
        kubelet_expired: whether the certificate of kubelet on this host has expired.
        stuck: namespaces that do not end.
    """

    server: str
    kubelet: bool
    parts: dict[str, int] | None
    space: Space | None
    free: int
    certificates: Sequence[Certificate]
    stuck: Sequence[dict[str, str]] = ()
    kubelet_expired: bool = False


def judged(seen: ControlPlaneFacts, now: float) -> list[dict[str, Any]]:
    """What is wrong, the cause before what follows from it: [{message, hint, serious}]."""
    problems = [*_of_certificates(seen.certificates, now), *_of_space(seen.space, seen.free), *_of_programs(seen)]
    if seen.kubelet_expired:
        text = f"the certificate of kubelet on the controller has expired ({certificates.KUBELET})"
        problems.insert(0, (text, _RENEW))
    if seen.server and not problems:
        problems.append((seen.server, "See: gpucluster ssh -- sudo journalctl --unit kubelet"))
    return [*(_problem(*each) for each in problems), *_of_namespaces(seen.stuck)]


def _problem(message: str, hint: str, *, serious: bool = True) -> dict[str, Any]:
    return {"message": message, "hint": hint, "serious": serious}


def _of_namespaces(stuck: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """One namespace is affected, and everything else goes on."""
    return [_problem(each["message"], each["hint"], serious=False) for each in stuck]


def _of_certificates(read: Sequence[Certificate], now: float) -> Iterator[tuple[str, str]]:
    expired = certificates.to_renew(read, now, 0)
    if expired:
        files = ", ".join(each.file for each in expired[:4])
        text = f"{len(expired)} of the control plane's certificates expired: {files}"
        yield text, _RENEW
    for each in certificates.outlived(read, now):
        text = f"the CA {each.file} ends in {each.days(now):.0f} days, and kubeadm does not renew CAs"
        yield text, f"Replace it by hand: {_ROTATION}"


def _of_space(space: Space | None, free: int) -> Iterator[tuple[str, str]]:
    if space is not None and space.full:
        yield f"etcd is full ({space.size >> 20} MiB): it refuses every change", _COMPACT
    elif space is not None and space.size > NEAR_FULL_BYTES:
        yield f"etcd stores {space.size >> 20} MiB, and refuses changes from 2048 MiB on", _COMPACT
    if free < _FREE_BYTES:
        yield f"the disk of etcd has {free >> 20} MiB left", f"Free space below {DATA} on the controller"


def _of_programs(seen: ControlPlaneFacts) -> Iterator[tuple[str, str]]:
    if not seen.kubelet:
        hint = "See: gpucluster ssh -- sudo journalctl --unit kubelet; then run: gpucluster apply"
        yield "kubelet does not run on the controller, and it starts the control plane", hint
    if seen.parts is None:
        yield (
            "containerd gives no answer on the controller",
            "See: gpucluster ssh -- sudo systemctl status containerd; then run: gpucluster apply",
        )
    elif seen.kubelet:
        for part, number in seen.parts.items():
            if not number:
                yield (
                    f"{part} does not run",
                    f"See its log: gpucluster ssh -- sudo crictl logs NUMBER; {_NUMBERS} {part}",
                )


def _ask(kubectl: Kubectl) -> tuple[str, list[dict[str, str]]]:
    """The reason why the API server is not ready, or "", and namespaces that do not end."""
    try:
        kubectl.run("get", "--raw=/readyz", seconds=5)
        return "", namespaces.look(kubectl)
    except AgentError as error:
        return error.message, []


def look_at_server(kubectl: Kubectl) -> dict[str, Any]:
    """The state of a control plane that Oracle runs, as `look` has it: without etcd and certificates."""
    server, stuck = _ask(kubectl)
    problems = [(server, "See: oci ce cluster get --cluster-id OCID (gpucluster output has oke.id)")] if server else []
    return {
        "ready": not server,
        "problems": [*(_problem(*each) for each in problems), *_of_namespaces(stuck)],
        "etcd": None,
        "certificates": [],
    }


def look(kubectl: Kubectl, etcd: Etcd, folder: Path = certificates.KUBERNETES) -> dict[str, Any]:
    """The state: {ready, problems: [{message, hint, serious}], etcd: {size, used, full} or null, certificates: [...]}.

    Raises:
        Failed: this host has no control plane.
    """
    read = certificates.read(folder)
    server, stuck = _ask(kubectl)
    space, parts = None, None
    try:
        parts = containers.states()
        space = etcd.space()
    except Failed:
        pass
    kubelet = programs.call(["systemctl", "is-active", "--quiet", "kubelet"]).returncode == 0
    free = shutil.disk_usage(etcd.data if etcd.data.exists() else "/").free
    now = time.time()
    seen = ControlPlaneFacts(server, kubelet, parts, space, free, read, stuck, certificates.kubelet_expired(now))
    return {
        "ready": not server,
        "problems": judged(seen, now),
        "etcd": {"size": space.size, "used": space.used, "full": space.full} if space else None,
        "certificates": [each.to_dict(now) for each in read],
    }


def await_ready(kubectl: Kubectl, etcd: Etcd, wait: Callable[[float], None], seconds: float) -> None:
    """Wait until the API server is ready.

    Raises:
        Failed: it is not within this time; what is wrong with the control plane, the cause first.
    """
    try:
        certificates.await_server(kubectl, wait, seconds)
    except Failed:
        problems = look(kubectl, etcd)["problems"]
        if not problems:
            raise
        raise Failed("; ".join(each["message"] for each in problems), problems[0]["hint"]) from None
