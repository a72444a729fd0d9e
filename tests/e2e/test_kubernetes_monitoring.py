"""Monitoring and node checks on Kubernetes: Prometheus sees every host, and failed checks become conditions and taints.

Prometheus, the exporters and the checks are real. RDMA counters are files beside the kernel's: no device is here.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubernetes_site import KubernetesSite
from tests.e2e.site_harness import PATIENCE_TO_BUILD_S
from tests.node_agent.exporter import trees

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(PATIENCE_TO_BUILD_S)]

UNIT = "gpucluster-exporter"
DROP_IN = f"/run/systemd/system/{UNIT}.service.d/emulated.conf"
EMULATED = "/var/lib/gpucluster/emulated-sys"
CONDITION, TAINT = "GpuclusterHealthy", "gpucluster.io/unhealthy"


def test_prometheus_scrapes_every_host_and_sees_the_rdma_counters_of_a_node(
    kubernetes: KubernetesSite, tmp_path: Path
) -> None:
    hosts = {kubernetes.controller, *kubernetes.nodes()}
    wanted = {(host, job) for host in hosts for job in ("node", "own")}
    kubernetes.until(
        "Prometheus scrapes every host",
        lambda: {each for each, health in _targets(kubernetes).items() if health == "up"} >= wanted,
    )
    kubernetes.until("nothing is down", lambda: set(_targets(kubernetes).values()) == {"up"})
    node = min(kubernetes.nodes())
    counters = trees.port(tmp_path, "mlx5_0", trees.IB, trees.MLX5) / "counters"
    received = f'gpucluster_rdma_received_bytes_total{{node="{node}", device="mlx5_0"}}'
    with _emulated_counters(kubernetes, node, tmp_path):
        for words in (1000, 5000):
            # The kernel counts words of 4 bytes.
            kubernetes.on(
                node, "sh", "-c", f"echo {words} > {EMULATED}/{(counters / 'port_rcv_data').relative_to(tmp_path)}"
            )
            kubernetes.until("Prometheus has the counter", functools.partial(_has, kubernetes, received, 4.0 * words))
        said = _asked(kubernetes, 'gpucluster_rdma_counter_total{counter="out_of_sequence"}')
        (labels,) = (each["labels"] for each in said)
        assert (labels["node"], labels["pool"], labels["shape"]) == (node, "work", "VM.Standard.E5.Flex")
        assert _values(kubernetes, f"increase({received}[5m]) > 0")
    units = 'node_systemd_unit_state{name="kubelet.service", state="active"} == 1'
    # A scrape that comes too late takes the series of its host away, until the next one.
    kubernetes.until(
        "kubelet runs on every host",
        lambda: {each["labels"]["node"] for each in _asked(kubernetes, units)} == hosts,
    )


def test_a_failed_check_taints_its_node_until_it_passes_and_one_node_an_hour_at_most(
    kubernetes: KubernetesSite,
) -> None:
    first, second = sorted(kubernetes.nodes())
    for node in (first, second):
        _check(kubernetes, node)
    kubernetes.until(
        "both nodes are healthy", lambda: [_healthy(kubernetes, node) for node in (first, second)] == ["True", "True"]
    )
    try:
        kubernetes.on(first, "umount", "--lazy", "/mnt/home")
        _check(kubernetes, first)
        assert _healthy(kubernetes, first) == "False"
        kubernetes.until("the first node has the taint", lambda: _taints(kubernetes, first) == {TAINT: "mounts"})
        # The breaker of the pool: a node an hour. The second one has the condition alone.
        kubernetes.on(second, "umount", "--lazy", "/mnt/home")
        _check(kubernetes, second)
        assert _healthy(kubernetes, second) == "False"
        kubernetes.until("the service knows of it", lambda: second in _failing(kubernetes))
        # Whether it gets the taint is decided in the service's next two rounds.
        for _ in range(2):
            before = _round(kubernetes)
            kubernetes.until("the service's next round", lambda before=before: _round(kubernetes) != before)  # type: ignore[misc]
        assert TAINT not in _taints(kubernetes, second)
        said = kubernetes.on(kubernetes.controller, "gpucluster-agent", "health", "status")
        assert second in said
    finally:
        for node in (first, second):
            kubernetes.on(node, "sh", "-c", "mountpoint -q /mnt/home || mount /mnt/home")
            _check(kubernetes, node)
    kubernetes.until(
        "no node has the taint", lambda: not any(TAINT in _taints(kubernetes, node) for node in (first, second))
    )
    assert [_healthy(kubernetes, node) for node in (first, second)] == ["True", "True"]


def _failing(site: KubernetesSite) -> set[str]:
    """The nodes of which the health service on the controller knows that a check fails."""
    said = json.loads(site.on(site.controller, "gpucluster-agent", "health", "status", "--output", "json"))
    return {row["node"] for row in said["nodes"] if row["failing"]}


def _round(site: KubernetesSite) -> str:
    """When the health service last wrote its metrics, which it does in each round."""
    return site.on(site.controller, "stat", "--format=%y", "/var/lib/gpucluster/health/metrics.prom")


@contextmanager
def _emulated_counters(site: KubernetesSite, node: str, tree: Path) -> Iterator[None]:
    """Let the exporter of a node read a tree of files in place of /sys."""
    unit = site.on(node, "systemctl", "cat", UNIT)
    start = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    text = f"[Service]\nExecStart=\n{start} --sysfs-root {EMULATED}\n"
    files = {str(file.relative_to(tree)): file.read_text() for file in tree.rglob("*") if file.is_file()}
    write = (
        "import json, pathlib, sys\n"
        "for name, text in json.load(sys.stdin).items():\n"
        f"    file = pathlib.Path('{EMULATED}', name)\n"
        "    file.parent.mkdir(parents=True, exist_ok=True)\n"
        "    file.write_text(text)\n"
    )
    restart = f"systemctl daemon-reload && systemctl restart {UNIT}"
    site.on(node, "python3", "-c", write, stdin=json.dumps(files))
    site.on(node, "sh", "-c", f"mkdir -p $(dirname {DROP_IN}) && cat > {DROP_IN} && {restart}", stdin=text)
    try:
        yield
    finally:
        site.on(node, "sh", "-c", f"rm -r {DROP_IN} {EMULATED} && {restart}")


def _targets(site: KubernetesSite) -> dict[tuple[str, str], str]:
    """What Prometheus scrapes: the health by the name of the host and the exporter."""
    said = json.loads(site.on(site.controller, "gpucluster-agent", "monitor", "status"))
    assert said["prometheus"], said["why"]
    return {(each["node"], each["job"]): each["health"] for each in said["targets"]}


def _asked(site: KubernetesSite, expression: str) -> list[dict[str, Any]]:
    """The series that Prometheus has for an expression."""
    request = json.dumps({"queries": [{"name": "it", "expr": expression}]})
    said = json.loads(site.on(site.controller, "gpucluster-agent", "monitor", "query", stdin=request))
    assert said["errors"] == {}
    found: list[dict[str, Any]] = said["results"]["it"]
    return found


def _values(site: KubernetesSite, expression: str) -> list[float]:
    return [series["values"][-1][1] for series in _asked(site, expression)]


def _has(site: KubernetesSite, expression: str, value: float) -> bool:
    return _values(site, expression) == [value]


def _check(site: KubernetesSite, node: str) -> None:
    """Let a node check itself now, as its timer does."""
    # A look of the timer may run, which had seen the node as it was before.
    site.on(node, "sh", "-c", "systemctl stop gpucluster-checks.service; systemctl start gpucluster-checks.service")


def _healthy(site: KubernetesSite, node: str) -> str:
    conditions = site.get("nodes", node)["status"]["conditions"]
    return next((each["status"] for each in conditions if each["type"] == CONDITION), "")


def _taints(site: KubernetesSite, node: str) -> dict[str, str]:
    return {each["key"]: each.get("value", "") for each in site.get("nodes", node)["spec"].get("taints", ())}
