"""Kubernetes on the local cloud: a control plane and two nodes from nothing, and a pod that waits for its node.

A subcommand of benchmarks/run.py. Kubernetes is real; its programs and the mirror with them are made before the clock
starts (`tests.kubernetes_sources`), and the local cloud's image of the operating system is in the cache.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from gpucluster import load
from gpucluster.cloud.providers import open_cloud
from gpucluster.events import ignore
from gpucluster.paths import ClusterPaths
from gpucluster.waiting import wait_until
from tests.e2e.kubernetes_site import KubernetesSite
from tests.kubernetes_sources import RELEASE, mirror

BUILD_AIM, JOIN_AIM = 120, 20
_IDLE_TIMEOUT = 15
_ELASTIC = (
    f"{{shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 8, count: 0, max_count: 1, idle_timeout: {_IDLE_TIMEOUT}}}"
)
_POD, _SPACE = "waits", "default"
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Came:
    """A pod that waited for its node. Seconds, with those of Kubernetes in whole ones.

    Args:
        total: from the pod to its start. `boot`: from the launch to sshd. `join`: from sshd to the node that is ready.
    """

    total: float
    boot: float
    join: float


def main(runs: int, where: Callable[[dict[str, Any]], str]) -> None:
    """Print the medians.

    Args:
        where: reports for a result of `apply` where the time went.
    """
    mirror()
    _build(runs, where)
    _wait_for_a_node(runs)


def _build(runs: int, where: Callable[[dict[str, Any]], str]) -> None:
    walls: dict[str, list[float]] = {"first apply": [], "second apply": []}
    for _ in range(runs):
        with KubernetesSite("bench", "10.91") as site:
            site.run("local", "start")
            results = {name: _timed(lambda: site.good("apply")) for name in walls}
        for name, (took, _result) in results.items():
            walls[name].append(took)
    print(f"control plane and two nodes, Kubernetes {RELEASE} (aim of the first apply: {BUILD_AIM} s)")
    for name, times in walls.items():
        print(f"{name:<34}{statistics.median(times):8.1f} s   (of {runs}: {min(times):.1f} to {max(times):.1f})")
        print(where(results[name][1]))
    print(f"second / first{statistics.median(walls['second apply']) / statistics.median(walls['first apply']):28.2f}")


def _wait_for_a_node(runs: int) -> None:
    with KubernetesSite("bench", "10.91", work=_ELASTIC) as site:
        os.environ["GPUCLUSTER_HOME"] = site.env["GPUCLUSTER_HOME"]  # for what we ask the cloud ourselves
        site.good("apply")
        came = [_one_pod(site) for _ in range(runs)]
    print(f"a pod that waits for its node (aim of the join: {JOIN_AIM} s)")
    for name in ("total", "boot", "join"):
        times = [getattr(one, name) for one in came]
        print(f"{name:<34}{statistics.median(times):8.1f} s   (of {runs}: {min(times):.1f} to {max(times):.1f})")


def _one_pod(site: KubernetesSite) -> Came:
    listed = site.on(site.controller, "kubeadm", "config", "images", "list", f"--kubernetes-version=v{RELEASE}")
    image = next(line for line in listed.split() if "/pause:" in line)
    container = {"name": "main", "image": image, "imagePullPolicy": "Never"}
    specification = {"containers": [container], "terminationGracePeriodSeconds": 0}
    began = time.time()
    site.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": _POD, "namespace": _SPACE}, "spec": specification}
    )
    started = _await("the pod does not start", lambda: _started(site))
    (node,) = site.nodes()
    now, up = site.on(node, "sh", "-c", "date +%s.%N; cut -d' ' -f1 /proc/uptime").split()
    since = int(site.on(node, "systemctl", "show", "--value", "--property=ActiveEnterTimestampMonotonic", "ssh"))
    sshd = float(now) - float(up) + since / 1e6
    conditions = site.get("node", node)["status"]["conditions"]
    (ready,) = (_time(one["lastTransitionTime"]) for one in conditions if one["type"] == "Ready")
    launched = _launched(site)
    site.kubectl("delete", "pod", _POD, f"--namespace={_SPACE}")
    _await("the node does not go", lambda: not site.nodes() and len(site.hosts()) == 1)
    return Came(started - began, sshd - launched, ready - sshd)


def _started(site: KubernetesSite) -> float | None:
    (status,) = site.get("pod", _POD, f"--namespace={_SPACE}")["status"].get("containerStatuses", [{"state": {}}])
    running = status["state"].get("running")
    return _time(running["startedAt"]) if running else None


def _launched(site: KubernetesSite) -> float:
    """When the cloud accepted the newest instance."""
    access = open_cloud(load(site.file), ClusterPaths.of(site.file), ignore).access()
    listed = access.client("core", "ComputeClient").list_instances(access.compartment_id, limit=1000).data
    latest: float = max(one.time_created.timestamp() for one in listed)
    return latest


def _await(problem: str, found: Callable[[], _Value | None]) -> _Value:
    value = wait_until(found, 300, 0.5)
    if not value:
        raise SystemExit(problem)
    return value


def _timed(run: Callable[[], dict[str, Any]]) -> tuple[float, dict[str, Any]]:
    began = time.perf_counter()
    result = run()
    return time.perf_counter() - began, result


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
