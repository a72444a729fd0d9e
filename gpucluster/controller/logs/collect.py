"""One round of the timer: each host that the controller reaches is asked for its new lines, and they are kept."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpucluster.controller.host_commands import Answer, ReachableHosts
from gpucluster.controller.logs.store import LogStore, day, stamp
from gpucluster.controller.users.config import FILE, Config
from gpucluster.node_agent import bounded, durable_file, journal
from gpucluster.node_agent.errors import AgentError, Failed

#: What the metrics say; docs/reference/metrics.md is made from it.
METRICS = {
    "gpucluster_logs_collected_timestamp_seconds": "When the controller asked the hosts for new journal lines.",
    "gpucluster_logs_silent_hosts": "How many hosts gave none of them, although they were asked.",
    "gpucluster_logs_bytes": "What the kept lines of all hosts take on disk, compressed.",
}
METRICS_FILE = "logs.prom"
#: Of a host that has given nothing yet, the lines of this many seconds are asked for.
FIRST_SECONDS = 24 * 3600.0
#: Hosts that are asked in one go: their answers are in the memory together, each with some megabytes at most.
HOSTS_AT_ONCE = 32
_SECONDS = 90.0
_DAY_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class Round:
    """What a round has led to.

    Args:
        kept: lines, by host. `silent`: why a host gave none, by its name.
    """

    kept: Mapping[str, int]
    silent: Mapping[str, str]


def collect(store: LogStore, now: float) -> Round:
    """Ask all hosts in service for their new lines, and keep them.

    Args:
        now: in seconds since 1970.

    Raises:
        Failed: the hosts of the cluster are not known.
    """
    # Where Slurm does not answer, lines are needed all the more.
    hosts = ReachableHosts.as_far_as_known(Config.load(FILE).hosts)
    kept: dict[str, int] = {}
    silent: dict[str, str] = {}
    names = hosts.names
    for begin in range(0, len(names), HOSTS_AT_ONCE):
        part = names[begin : begin + HOSTS_AT_ONCE]
        for host, answer in _ask(hosts, store, part, now).items():
            try:
                kept[host] = _keep(store, host, answer, now)
            except (AgentError, OSError) as error:
                silent[host] = getattr(error, "message", "") or str(error)
    return Round(kept, silent)


def _ask(hosts: ReachableHosts, store: LogStore, names: list[str], now: float) -> dict[str, Answer]:
    text_by_host = {}
    for host in names:
        known = store.position(host)
        request = {"cursor": known.cursor, "since": known.collected or now - FIRST_SECONDS}
        text_by_host[host] = json.dumps(request)
    return hosts.ask(names, ["journal"], text_by_host, _SECONDS)


def _keep(store: LogStore, host: str, answer: Answer, now: float) -> int:
    if answer.reason:
        raise Failed(answer.reason)
    try:
        found = bounded.loads(answer.text)
        # What a host has sent may hold anything; a line of it stays one line.
        lines, cursor = [" ".join(str(each).splitlines()) for each in found["lines"]], str(found["cursor"])
        cut = bool(found["cut"])
    except (ValueError, KeyError, TypeError) as error:
        raise Failed(f"its answer can't be read: {type(error).__name__}") from error
    if cut:
        lines.insert(0, f"{stamp(now)} {host} gpucluster-logs: only the last {journal.MOST_LINES} lines are kept")
    store.add(host, lines, cursor, now)
    return len(lines)


def first_day(now: float, keep_days: int) -> str:
    """The first day whose lines stay, in UTC: 2026-11-30."""
    return day(now - keep_days * _DAY_SECONDS)


def metrics(found: Round, total: int, now: float) -> str:
    """The text of the file of metrics.

    Args:
        total: bytes of all kept lines. `now`: in seconds since 1970.
    """
    values = zip(METRICS.items(), (f"{now:.0f}", str(len(found.silent)), str(total)))
    return "".join(f"# HELP {name} {text}\n# TYPE {name} gauge\n{name} {value}\n" for (name, text), value in values)


def run(store: LogStore, *, keep_days: int, most_bytes: int, metrics_folder: Path) -> int:
    """One round. Returns the exit status: 0 also where a host was silent, which the journal names.

    Args:
        metrics_folder: of node_exporter's text files, which is there on a cluster with monitoring.

    Raises:
        Failed: the hosts of the cluster are not known.
    """
    now = time.time()
    found = collect(store, now)
    total = store.remove_old(first_day(now, keep_days), most_bytes)
    for host, why in sorted(found.silent.items()):
        sys.stdout.write(f"{host}: no lines: {why}\n")
    if metrics_folder.is_dir():
        durable_file.replace(metrics_folder / METRICS_FILE, metrics(found, total, now), mode=0o644, durable=False)
    return 0
