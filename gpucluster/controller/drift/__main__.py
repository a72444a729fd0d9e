"""`gpucluster-agent drift` on the controller: of this host, of the cluster, or of all that its timer sees.

It changes nothing, except that `watch` writes its metrics.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gpucluster.controller.drift import cluster, watch
from gpucluster.node_agent.drift.__main__ import of_host
from gpucluster.node_agent.errors import AgentError
from gpucluster.node_agent.facts.__main__ import prepare


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent drift", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", nargs="?", choices=("host", "cluster", "watch"), default="host")
    parser.add_argument("--metrics", type=Path, default=Path("/var/lib/gpucluster/metrics"))
    options = parser.parse_args(argv)
    prepare()
    try:
        if options.part == "watch":
            return watch.run(options.metrics)
        watch.dump(cluster.look() if options.part == "cluster" else of_host())
    except AgentError as error:
        sys.stderr.write(f"gpucluster-agent drift: {error.message}\n")
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
