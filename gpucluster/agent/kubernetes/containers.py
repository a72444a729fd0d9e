"""Containers of the control plane, which kubelet starts from files: found and ended through containerd itself, also
while the API server is dead.
"""

from __future__ import annotations

from typing import Any

from gpucluster.agent import programs
from gpucluster.agent.errors import Failed

_CTR = ("ctr", "--namespace=k8s.io")
#: The parts of a control plane that read certificates, the one first that the others need.
PARTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_SECONDS = 30.0


def running(part: str) -> list[str]:
    """The ids of the running containers of a part.

    Raises:
        Failed: containerd gives no answer.
    """
    named = set(_ctr("containers", "list", "--quiet", f'labels."io.kubernetes.container.name"=={part}').split())
    tasks = [line.split() for line in _ctr("tasks", "list").splitlines()[1:]]
    return [words[0] for words in tasks if words and words[0] in named and words[-1] == "RUNNING"]


def restart_control_plane() -> None:
    """End all its parts; kubelet starts each again."""
    for part in PARTS:
        for container in running(part):
            programs.call([*_CTR, "tasks", "kill", "--signal=SIGTERM", container], seconds=_SECONDS)


def states() -> dict[str, Any]:
    """How many containers of each part run."""
    return {part: len(running(part)) for part in PARTS}


def _ctr(*words: str) -> str:
    done = programs.call([*_CTR, *words], seconds=_SECONDS)
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise Failed(
            f"containerd on the controller gives no answer: {why}",
            "See: gpucluster ssh -- sudo systemctl status containerd",
        )
    return done.stdout
