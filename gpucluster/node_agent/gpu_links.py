"""`gpucluster-agent gpu-links`: links to the GPUs that this host was given, with the names that Slurm knows.

An instance of the local cloud has some of the GPUs of a machine, with the machine's numbers of their device files, such
as /dev/nvidia5. Which ones differs from node to node, and all nodes of a pool have one gres.conf: it names links.
Slurm's numbers are those of the links, 0 and up, as CUDA counts the devices that a process can open. They are in the
folder of divided GPUs (`node_agent.rules.mig`): what asks for the meaning of Slurm's numbers finds them there
(`node_agent.gpu_numbers`).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from gpucluster.node_agent import gpu_numbers
from gpucluster.node_agent.checks import expected
from gpucluster.node_agent.rules import mig

_DEVICE = re.compile(r"nvidia([0-9]{1,3})")


def main(argv: Sequence[str]) -> int:
    """Entry point. The exit status is 1 where the host has another number of GPUs than it should have."""
    parser = argparse.ArgumentParser(
        prog="gpucluster-agent gpu-links",
        description="Make the links that Slurm's gres.conf names, to the GPUs of this host: on hosts of the "
        "local cloud that have GPUs of the machine that runs them. slurmd does it before it starts.",
    )
    parser.add_argument("--expected", default=expected.PATH, help="the file with what this host should have")
    parser.add_argument("--root", default="/", help="where /dev, /proc and /run are")
    options = parser.parse_args(argv)
    try:
        expectation = expected.parse(Path(options.expected).read_text())
        there = make(Path(options.root))
    except (OSError, expected.Damaged) as error:
        sys.stderr.write(f"the links to the GPUs can't be made: {error}\n")
        return 1
    sys.stdout.write(f"{len(there)} of {expectation.gpus} GPUs: {', '.join(there) or 'none'}\n")
    if len(there) != expectation.gpus:
        sys.stderr.write(
            f"This host has {len(there)} device files of GPUs and should have {expectation.gpus}. The machine "
            "that runs it gave them when it was launched: replace the node (gpucluster replace)\n"
        )
        return 1
    return 0


def make(root: Path) -> list[str]:
    """Make the links of a host, in place of all that are there. Returns the device files, in Slurm's order.

    That is the order in which NVIDIA's tools and CUDA count (by PCI address), as far as the driver reports it.
    """
    dev = root / "dev"
    numbers = sorted(int(match[1]) for match in map(_DEVICE.fullmatch, os.listdir(dev)) if match)
    places = gpu_numbers.by_minor(f"{root}/proc/driver/nvidia/gpus")
    unknown = len(places)
    numbers.sort(key=lambda number: int(places[str(number)].number) if str(number) in places else unknown)
    folder = root / mig.FOLDER.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    links = {Path(mig.gpu_link(index)).name: f"/dev/nvidia{number}" for index, number in enumerate(numbers)}
    for name in os.listdir(folder):
        if name not in links:
            (folder / name).unlink()
    for name, target in links.items():
        new = folder / f".{name}"
        if new.is_symlink():
            new.unlink()
        new.symlink_to(target)
        new.replace(folder / name)
    return list(links.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
