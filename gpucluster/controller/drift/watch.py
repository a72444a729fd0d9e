"""One look of the controller's timer: at all hosts that it reaches, and at the cluster. Its result is a file of
metrics, and a line in the journal for each finding.

Only the operator's machine compares the cloud with Terraform's state, and hosts with cluster.yml: the controller has
neither the state nor the rights.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpucluster.controller.drift import cluster
from gpucluster.controller.host_commands import ReachableHosts, reasons
from gpucluster.controller.users.config import FILE, Config
from gpucluster.node_agent import bounded
from gpucluster.node_agent.drift.__main__ import of_host
from gpucluster.node_agent.durable_file import replace

#: What the metrics say; docs/reference/metrics.md is made from it.
METRICS = {
    "gpucluster_drift_findings": "How many things differ, by area, and by host for the area hosts.",
    "gpucluster_drift_unknown": "1 where the last look could not see: a host that does not answer, a service.",
    "gpucluster_drift_looked_timestamp_seconds": "When the controller looked for drift the last time.",
}
HOSTS = "hosts"
METRICS_FILE = "drift.prom"
_SECONDS = 60.0

#: By area and host (empty for the cluster), what was seen: `findings`, or `error`.
Seen = Mapping[tuple[str, str], Mapping[str, Any]]


def look() -> dict[tuple[str, str], Mapping[str, Any]]:
    """Look at everything that the controller reaches. Nodes that Slurm has given up are left out."""
    # Elastic nodes have no record of an apply.
    hosts = ReachableHosts.permanent_of(Config.load(FILE).hosts)
    others = [name for name in hosts.permanent if name != hosts.here]
    answers = hosts.ask(others, ["drift"], {}, _SECONDS)
    off = hosts.off(reasons(answers))
    seen: dict[tuple[str, str], Mapping[str, Any]] = {(HOSTS, hosts.here): of_host()}
    for name in sorted(set(others) - set(off)):
        seen[HOSTS, name] = _answer(answers[name].text, answers[name].reason)
    for area, found in cluster.look().items():
        seen[area, ""] = found
    return seen


def _answer(text: str, reason: str) -> Mapping[str, Any]:
    if reason:
        return {"error": reason}
    try:
        answer = bounded.loads(text)
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else {"error": "its answer can't be read"}


def metrics(seen: Seen, now: float) -> str:
    """The text of the file of metrics."""
    lines = []
    for name, text in METRICS.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", *_samples(name, seen, now)]
    return "\n".join(lines) + "\n"


def _samples(metric: str, seen: Seen, now: float) -> Iterator[str]:
    if metric.endswith("_timestamp_seconds"):
        yield f"{metric} {now:.0f}"
        return
    for (area, host), found in sorted(seen.items()):
        label = f'area="{area}",host="{host}"'
        if metric.endswith("_unknown"):
            yield f"{metric}{{{label}}} {int('error' in found)}"
        elif "error" not in found:
            yield f"{metric}{{{label}}} {len(found['findings'])}"


def words(seen: Seen) -> Iterator[str]:
    """A line for each finding, and for each place that could not be seen."""
    for (area, host), found in sorted(seen.items()):
        where = host or area
        if "error" in found:
            yield f"{where}: not known: {found['error']}"
        for each in found.get("findings", ()):
            yield f"{where}: {each['kind']} {each['name']}: expected {each['expected']}, seen {each['seen']}"


def run(folder: Path) -> int:
    """Look, and write what was seen.

    Args:
        folder: of node_exporter's text files.
    """
    seen = look()
    for line in words(seen):
        sys.stdout.write(f"{line}\n")
    replace(folder / METRICS_FILE, metrics(seen, time.time()), mode=0o644, durable=False)
    return 0


def dump(found: Mapping[str, Any]) -> None:
    """Print one JSON object."""
    sys.stdout.write(json.dumps(found) + "\n")
