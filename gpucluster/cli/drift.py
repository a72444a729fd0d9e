"""The command that reports what of a cluster is not as its file, its state and its last apply have it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from gpucluster.cli.base import Context, cluster_of, command
from gpucluster.errors import EXIT_DRIFT, EXIT_UNSEEN
from gpucluster.text import count

if TYPE_CHECKING:
    from gpucluster.drift.model import DriftFinding, DriftReport

_WIDTH, _SEEN = 80, 36
# Findings, and places that were not compared, for which one screen of 24 lines has room beside a line for each area and
# the summary.
_MOST, _MOST_UNSEEN = 10, 3


@command("drift", short_help="Find what was changed by hand: cloud, hosts, Slurm, users.")
@click.option("--details", is_flag=True, help="Show all findings, each with what was expected and what puts it right.")
def drift(context: Context, details: bool) -> None:
    """Compare the cluster with cluster.yml, Terraform's state and what the last apply left.

    The cloud's resources, each host's files, packages and services, Slurm's running configuration, the directory with
    its users, and Slurm's associations. Nothing is changed. Ends with 10 if something differs, and with 11 if nothing
    does but not everything could be compared: a host that can't be reached may have drift.
    """
    with cluster_of(context) as (cluster, reporter):
        found = cluster.drift()
        data = {"command": "drift", "status": "success" if found.clean else "failed", **found.to_dict()}
        reporter.result(data, drift_text(cluster.spec.name, found, details=details))
    if found.findings:
        sys.exit(EXIT_DRIFT)
    if not found.complete:
        sys.exit(EXIT_UNSEEN)


def drift_text(name: str, found: DriftReport, *, details: bool = False) -> str:
    """The report: a line for each finding, at most a screen of them; with details all, with what puts them right."""
    shown = found.findings if details else found.findings[:_MOST]
    lines: list[str] = []
    area = ""
    for each in shown:
        if each.area != area:
            lines.append(each.area)
            area = each.area
        lines += _with_details(each) if details else [_short(each)]
    more = len(found.findings) - len(shown)
    if more:
        lines.append(f"  and {more} more: gpucluster drift --details")
    unseen = found.unseen if details else found.unseen[:_MOST_UNSEEN]
    lines += [_line(f"? {each.where or each.area}: not compared: {each.reason}", details) for each in unseen]
    if len(found.unseen) > len(unseen):
        lines.append(f"? and {len(found.unseen) - len(unseen)} more that could not be compared: --details")
    lines += [_line(f"  {remark}", details) for remark in found.remarks]
    parts = [f"drift of {name}: {count(len(found.findings), 'finding')} on {count(len(found.hosts), 'host')}"]
    parts += [f"{len(found.unseen)} not compared"] if found.unseen else []
    lines.append("; ".join(parts))
    if found.findings and not details:
        lines.append(f"{_fixes(found.findings)}")
    return "\n".join(lines)


def _place(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _short(finding: DriftFinding) -> str:
    """One line. Of a place that is too long the end stays, which names the thing."""
    seen = finding.seen if len(finding.seen) <= _SEEN else f"{finding.seen[: _SEEN - 3]}..."
    # The id of a resource is in the details.
    name = "" if finding.name.startswith("ocid1.") else finding.name
    place = _place(finding.where, finding.what, name)
    room = _WIDTH - len(seen) - 4
    return f"  {place if len(place) <= room else f'...{place[3 - room :]}'}: {seen}"


def _with_details(finding: DriftFinding) -> Iterator[str]:
    yield f"  {_place(finding.where, finding.what, finding.name)}"
    yield f"    expected: {finding.expected}"
    yield f"    seen:     {finding.seen}"
    yield f"    fix:      {finding.fix}"


def _fixes(findings: Iterable[DriftFinding]) -> str:
    """Which command puts most of it right."""
    from gpucluster.drift.model import APPLY

    by_apply = sum(1 for each in findings if each.fix.startswith(APPLY))
    rest = "the others: gpucluster drift --details"
    total = sum(1 for _ in findings)
    if by_apply == total:
        return f"to put it right: {APPLY}"
    return f"{by_apply} of them: {APPLY}; {rest}" if by_apply else "what helps: gpucluster drift --details"


def _line(text: str, details: bool) -> str:
    return text if details else _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."
