"""`gpucluster-agent mig`: divide the GPUs of this node as its pool defines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gpucluster.node_agent.checks import expected
from gpucluster.node_agent.mig import apply, plan


def main(argv: Sequence[str]) -> int:
    """Entry point. The exit status is 1 where the GPUs are not divided as they should be."""
    parser = argparse.ArgumentParser(
        prog="gpucluster-agent mig",
        description="Divide the GPUs of this node (MIG) as cluster.yml defines (gpus.mig of its pool). Make the links "
        "that Slurm's gres.conf names. With Kubernetes the device plugin is restarted. Nothing is done where they are "
        "divided already, and never while a program runs on a GPU that must change, or a pod has one.",
    )
    parser.add_argument("command", choices=["apply"])
    parser.add_argument("--expected", default=expected.PATH, help="the file with what this host should have")
    options = parser.parse_args(argv)
    try:
        expectation = expected.parse(Path(options.expected).read_text())
    except (OSError, expected.Damaged) as error:
        sys.stderr.write(f"{options.expected} can't be used: {error}\n")
        return 1
    if expectation.hardware_emulated:
        return 0
    try:
        for line in apply.apply(apply.here(), expectation):
            sys.stdout.write(f"{line}\n")
    except plan.NotPossible as error:
        sys.stderr.write(f"The GPUs are not divided as they should be: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
