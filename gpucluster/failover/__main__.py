"""The program on the standby: `gpucluster-failover`. It ends when this host is the controller."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from gpucluster.errors import EXIT_SUCCESS, GpuClusterError
from gpucluster.events import Event
from gpucluster.failover.promotion import Promotion, access_of
from gpucluster.failover.settings import WatchSettings
from gpucluster.failover.watcher import Watcher, log


def main(argv: Sequence[str] | None = None) -> int:
    """Watch until this host is the controller. Returns the exit code (`gpucluster.errors`)."""
    if argv if argv is not None else sys.argv[1:]:
        print("usage: gpucluster-failover", file=sys.stderr)  # noqa: T201
        return 2
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        settings = WatchSettings.load()
    except GpuClusterError as error:
        print(f"gpucluster-failover: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    Watcher(settings, Promotion(settings, access_of(settings), _log)).run()
    return EXIT_SUCCESS


def _log(event: Event) -> None:
    log.info("%s: %s", event.name, event.status)


if __name__ == "__main__":
    sys.exit(main())
