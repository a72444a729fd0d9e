"""Where dashboards are found: the addresses of Grafana's pages, and of Prometheus' own where there is no Grafana."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpucluster.dashboards import boards
from gpucluster.errors import InputError

#: Where Grafana listens on the controller, on loopback.
GRAFANA_PORT = 3000
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_JOB = re.compile(r"[0-9]+(_[0-9]+)?([.+][0-9a-z]+)?")


@dataclass(frozen=True)
class Subject:
    """What the user wants to see: the cluster, one job, or one node. At most one of both is set."""

    job: str | None = None
    node: str | None = None

    def __post_init__(self) -> None:
        if self.job is not None and self.node is not None:
            raise InputError("--job and --node are two dashboards", hint="Name one of them")
        if self.job is not None and not _JOB.fullmatch(self.job):
            raise InputError(f"not a job id: {self.job!r}", hint="See the jobs: gpucluster ssh -- squeue")
        if self.node == "":
            raise InputError("the name of the node is empty", hint="See the nodes: gpucluster status")


def in_grafana(subject: Subject) -> str:
    """The path of its dashboard."""
    if subject.job is not None:
        return f"/d/{boards.JOB}?var-job_id={_encoded(subject.job)}"
    if subject.node is not None:
        return f"/d/{boards.NODE}?var-node={_encoded(subject.node)}"
    return f"/d/{boards.CLUSTER}"


#: Before the path of a page of Prometheus 2 that works without its new interface: Debian and Ubuntu build it without
#: that one, and show a notice in its place. Prometheus 3 has no such pages.
CLASSIC = "/classic"


def in_prometheus(subject: Subject) -> str:
    """The path of a plot of what its GPUs do; of the alerts for the cluster."""
    if subject.job is not None:
        expression = f"gpucluster:job_gpu_utilization:ratio{{job_id={_quoted(subject.job)}}}"
    elif subject.node is not None:
        expression = f"gpucluster:gpu_utilization:ratio{{node={_quoted(subject.node)}}}"
    else:
        return "/alerts"
    return f"/graph?g0.expr={_encoded(expression)}&g0.tab=0&g0.range_input=3h"


def _encoded(value: str) -> str:
    """A value in the query of an address (RFC 3986). urllib would do it, and opens connections."""
    return "".join(letter if letter in _PLAIN else _escaped(letter) for letter in value)


def _escaped(letter: str) -> str:
    return "".join(f"%{byte:02X}" for byte in letter.encode(errors="replace"))


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
