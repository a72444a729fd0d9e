"""`gpucluster-agent slurm-place`: put this node under the switch of its place in the RDMA network, in Slurm.

An elastic node calls it after each start of slurmd, as root, whom slurmctld lets change nodes. `slurmd --conf
topology=...` would need no call, and is of no use: slurmctld 26.05.3 reads it only where the node has booted after the
last contact, and sets that to now when a node that it has powered up registers (`validate_node_specs` of
src/slurmctld/node_mgr.c). A node whose place is not known is put where topology.conf has it, whatever Slurm knows of an
earlier instance.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence

from gpucluster.node_agent import metadata, programs
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.rules import rdma_place

_POOL = re.compile(r"[a-z0-9-]{1,63}")


def main(argv: Sequence[str]) -> int:
    """Entry point. The exit status is 1 where Slurm did not take the place: then the node is where it was."""
    parser = argparse.ArgumentParser(
        prog="gpucluster-agent slurm-place",
        description="Put this node under the switch of Slurm that stands for its place in the RDMA network, as OCI's "
        "metadata service reports it. A node calls it when slurmd has started.",
    )
    parser.add_argument("pool", help="the pool of this node")
    options = parser.parse_args(argv)
    if not _POOL.fullmatch(options.pool):
        parser.error(f"{options.pool!r} is not the name of a pool")
    path = rdma_place.path(options.pool, rdma_place.place(metadata.host_document()))
    name = os.uname().nodename.partition(".")[0]
    try:
        done = programs.call(["scontrol", "update", f"nodename={name}", f"topology={path}"])
        error = (done.stderr.strip() or f"exit status {done.returncode}") if done.returncode else ""
    except Failed as failed:
        error = str(failed)
    if error:
        sys.stderr.write(f"Slurm did not take the place {path} of this node: {error}\n")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0
