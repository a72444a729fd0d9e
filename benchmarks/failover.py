"""A controller that gives way to its standby on the local cloud: from the command to Slurm's next answer.

A subcommand of benchmarks/run.py.
"""

from __future__ import annotations

import statistics

from tests.e2e.controller_site import cluster_yml
from tests.e2e.site_harness import Site

#: Seconds, on a machine that does nothing else.
AIM = 60
_CONTROLLER = "controller: {shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16, state_volume_gb: 50, standby: true}"


def main(runs: int) -> None:
    """Print the median of this many failovers, to the standby and back."""
    seconds = []
    with Site(cluster_yml("bench", _CONTROLLER)) as site:
        for _ in range(runs):
            site.good("apply")
            seconds.append(float(site.good("controller", "failover", "--yes")["seconds"]))
        site.good("destroy", "--delete-data")
    took = statistics.median(seconds)
    print(f"{'failover':<34}{took:8.1f} s   (of {runs}: {min(seconds):.1f} to {max(seconds):.1f}; aim {AIM} s)")
