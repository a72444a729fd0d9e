"""Containers of the control plane, which kubelet starts from files: found and ended through containerd itself, also
while the API server is dead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed

_CTR = ("ctr", "--namespace=k8s.io")
#: The parts of a control plane, in the order in which they end: an API server whose etcd is gone takes a minute to end.
PARTS = ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")
_SECONDS = 30.0
#: Seconds that a part gets to end by itself. etcd writes before it answers, so that it loses nothing when it is killed.
_GRACE_S, _KILLED_WITHIN_S, _POLL_S = 15.0, 15.0, 0.5
_STARTED_WITHIN_S = 60.0


def running(part: str) -> list[str]:
    """The ids of the running containers of a part.

    Raises:
        Failed: containerd gives no answer.
    """
    named = set(_ctr("containers", "list", "--quiet", f'labels."io.kubernetes.container.name"=={part}').split())
    tasks = [line.split() for line in _ctr("tasks", "list").splitlines()[1:]]
    return [words[0] for words in tasks if words and words[0] in named and words[-1] == "RUNNING"]


def end_control_plane() -> None:
    """End all its parts, one after the other. A kubelet that runs starts each again.

    Raises:
        Failed: one did not end.
    """
    for part in PARTS:
        ended = set(running(part))
        if not (_ended(part, ended, "SIGTERM", _GRACE_S) or _ended(part, ended, "SIGKILL", _KILLED_WITHIN_S)):
            raise Failed(f"{part} did not end within {_GRACE_S + _KILLED_WITHIN_S:.0f} s", "Try again")


def start_ended_parts(wait: Callable[[float], None]) -> list[str]:
    """Start the parts that do not run, without the pause that kubelet makes before it starts one again: up to five
    minutes for one that has ended often (CrashLoopBackOff). A kubelet that starts has no such pauses; what runs, runs
    on. Returns the names of the parts.

    Args:
        wait: waits for a number of seconds.

    Raises:
        Failed: one does not run within a minute, or containerd gives no answer.
    """
    ended = [part for part in PARTS if not running(part)]
    if not ended:
        return []
    programs.run("systemctl", "restart", "kubelet", seconds=_SECONDS)
    end = time.monotonic() + _STARTED_WITHIN_S
    while left := [part for part in ended if not running(part)]:
        if time.monotonic() > end:
            raise Failed(
                f"{left[0]} does not run within {_STARTED_WITHIN_S:.0f} s", "Run: gpucluster kubernetes status"
            )
        wait(_POLL_S)
    return ended


def _ended(part: str, ids: set[str], signal: str, seconds: float) -> bool:
    for container in sorted(ids):
        programs.call([*_CTR, "tasks", "kill", f"--signal={signal}", container], seconds=_SECONDS)
    end = time.monotonic() + seconds
    while ids & set(running(part)):
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True


def states() -> dict[str, Any]:
    """How many containers of each part run."""
    return {part: len(running(part)) for part in PARTS}


def _ctr(*words: str) -> str:
    result = programs.call([*_CTR, *words], seconds=_SECONDS)
    if result.returncode != 0:
        why = (result.stderr.strip().splitlines() or [f"status {result.returncode}"])[-1]
        raise Failed(
            f"containerd on the controller gives no answer: {why}",
            "See: gpucluster ssh -- sudo systemctl status containerd",
        )
    return result.stdout
