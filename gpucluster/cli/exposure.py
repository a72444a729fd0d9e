"""The command that reports what is known against the versions that hosts run."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from gpucluster.cli.base import Context, cluster_of, command
from gpucluster.errors import EXIT_FAILED
from gpucluster.text import count

if TYPE_CHECKING:
    from gpucluster.operations.exposure import Exposure

T = TypeVar("T")


@command("exposure", short_help="Say what is known against the versions of all hosts.")
def exposure(context: Context) -> None:
    """Ask every host which versions it runs, and say what is known against them.

    Slurm, Enroot, Pyxis, containerd, runc, Kubernetes, NVIDIA's container toolkit and driver, and the kernel, against a
    dated table of advisories. Ends with 1 if something is known against a host, or if one does not answer.
    """
    with cluster_of(context) as (cluster, reporter):
        found = cluster.exposure()
        data = {"command": "exposure", "status": "success" if found.clean else "failed", **found.to_dict()}
        reporter.result(data, exposure_text(cluster.spec.name, found))
    if not found.clean:
        sys.exit(EXIT_FAILED)


def exposure_text(name: str, found: Exposure) -> str:
    """What hosts run, what is known against it, and whom to ask. Hosts with the same are named together."""
    from gpucluster.advisories.evaluate import Standing, sentence
    from gpucluster.cli.output import table

    runs = _together((each, host.host) for host in found.hosts for each in host.installed)
    rows = [
        [each.product, each.version, f"package {each.package}" if each.package else "-", _names(hosts)]
        for each, hosts in sorted(runs.items(), key=lambda item: (item[0].product, item[0].version))
    ]
    lines = [table(rows, ["PRODUCT", "VERSION", "OF THE DISTRIBUTION", "HOSTS"]), ""] if rows else []
    faults = _together((fault, host.host) for host in found.hosts for fault in host.faults)
    marks = ((Standing.KNOWN, "!"), (Standing.ASK, "?"))
    lines += [
        f"{mark} {_names(hosts)}: {sentence(fault)} ({fault.source})"
        for standing, mark in marks
        for fault, hosts in faults.items()
        if fault.standing is standing
    ]
    silent = _together((host.error, host.host) for host in found.hosts if host.error)
    lines += [f"! {_names(hosts)}: unknown: {error}" for error, hosts in silent.items()]
    bad = sum(1 for host in found.hosts if host.known)
    unknown = sum(map(len, silent.values()))
    asked = sum(1 for fault in faults if fault.standing is Standing.ASK)
    parts = [
        f"something is known against {bad} of {count(len(found.hosts), 'host')}",
        *([f"{count(asked, 'question')} to the distribution"] if asked else []),
        *([f"{count(unknown, 'host')} did not answer"] if unknown else []),
    ]
    return "\n".join([*lines, f"exposure of {name}: {', '.join(parts)}; sources searched until {found.searched}"])


def _together(pairs: Iterable[tuple[T, str]]) -> dict[T, list[str]]:
    found: dict[T, list[str]] = {}
    for what, host in pairs:
        found.setdefault(what, []).append(host)
    return found


def _names(hosts: Iterable[str]) -> str:
    return ", ".join(hosts)
