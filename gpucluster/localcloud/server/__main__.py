"""The server process: `python -m gpucluster.localcloud.server --home DIR`. `localcloud.control` starts and stops it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from gpucluster.errors import GpuClusterError
from gpucluster.localcloud.compute.launch_images import publish_images
from gpucluster.localcloud.server.home import lock, open_authority, open_cloud, open_engine
from gpucluster.localcloud.server.serving import listen, serve
from gpucluster.localcloud.state.cloud import log


def main(argv: list[str] | None = None) -> int:
    """Serve one home. Returns the exit status of the process."""
    parser = argparse.ArgumentParser(prog="gpucluster.localcloud.server")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--engine", choices=("podman", "process", "null"), default="podman", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    home: Path = options.home.resolve()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        held = lock(home)
        authority = open_authority(home)
        cloud = open_cloud(home, open_engine(options.engine, home), authority)
        publish_images(cloud)
        listener = listen(cloud.store)
        asyncio.run(serve(cloud, authority, listener, held))
        log.info("stopping; instances continue to run")
        cloud.close()
        os.close(held)
    except GpuClusterError as error:
        log.error("%s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
