"""Runs the checks of a profile on this host: measure, judge, report."""

from __future__ import annotations

import os
from collections.abc import Collection

from gpucluster.node_agent.checks import registry, side_by_side
from gpucluster.node_agent.checks.collect.place import MeasuredHost, Unmeasured, boot_of, measure
from gpucluster.node_agent.checks.model import Finding, HostReport, Profile, Status, evaluate


def run(host: MeasuredHost, profile: Profile, off: Collection[str] = (), name: str = "") -> HostReport:
    """The report of a profile. It takes hardly longer than the profile's limit, whatever hangs.

    Args:
        off: names of checks that do not run, beside those that are switched off in the expectation.
        name: of this host, by default that of the system up to the first dot, as Slurm has it.
    """
    started, begin = host.wall(), host.monotonic()
    subject = name or os.uname().nodename.partition(".")[0]
    silent = {*off, *host.expected.off}
    checks = registry.of_profile(profile)
    active_checks = tuple(
        each for each in checks if each.name not in silent and not each.applies(host.expected, subject)
    )
    measurements = side_by_side.run(
        {
            each: side_by_side.Task(
                lambda left, collector=registry.MEASUREMENTS[each]: measure(collector, host, left),  # type: ignore[misc]
                seconds,
            )
            for each, seconds in registry.limits(active_checks, registry.TOTAL_S[profile]).items()
        }
    )
    findings = tuple(
        Finding(each.name, subject, Status.SKIP, "switched off in cluster.yml")
        if each.name in silent
        else evaluate(each, subject, measurements, host.expected)
        for each in checks
    )
    try:
        boot_id = boot_of(host.root)
    except Unmeasured:
        boot_id = ""
    return HostReport(subject, profile, started, round(host.monotonic() - begin, 3), boot_id, findings)
