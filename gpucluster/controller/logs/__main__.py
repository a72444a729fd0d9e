"""`gpucluster-agent logs`: keep the journals of all hosts on the controller, and read what is kept."""

from __future__ import annotations

import argparse
import json
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpucluster.controller.logs import collect, reading
from gpucluster.controller.logs.store import LogStore
from gpucluster.node_agent import bounded
from gpucluster.node_agent.errors import AgentError, Refused, report

#: It is on the volume with the controller's state, where there is one.
FOLDER = Path("/var/lib/gpucluster/logs")
_LARGEST_REQUEST = 1 << 16
_MEGABYTE = 10**6


def main(argv: Sequence[str] | None = None, folder: Path = FOLDER) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent logs", description=(__doc__ or "").partition("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    keep = parts.add_parser("collect", help="ask all hosts for their new lines (the timer does it)")
    keep.add_argument("--keep-days", type=int, required=True)
    keep.add_argument("--max-mb", type=int, required=True)
    keep.add_argument("--metrics", type=Path, default=Path("/var/lib/gpucluster/metrics"))
    parts.add_parser("show", help="print the lines that the request on standard input chooses")
    parts.add_parser("hosts", help="print of which hosts there are lines, and when they were collected, as JSON")
    options = parser.parse_args(argv)
    store = LogStore(folder)
    try:
        if options.part == "collect":
            return collect.run(
                store,
                keep_days=options.keep_days,
                most_bytes=options.max_mb * _MEGABYTE,
                metrics_folder=options.metrics,
            )
        if options.part == "hosts":
            answer: dict[str, Any] = {"hosts": {host: store.position(host).collected for host in store.hosts()}}
        else:
            choice = _choice(sys.stdin.read(_LARGEST_REQUEST))
            if choice.host == "controller":
                choice = replace(choice, host=socket.gethostname().split(".")[0])
            answer = {"lines": reading.read(store, choice), "collected": store.position(choice.host).collected}
    except (AgentError, OSError) as error:
        return report(error)
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def _choice(text: str) -> reading.Choice:
    try:
        asked = bounded.loads(text)
        texts = {name: str(asked.get(name, "")) for name in ("host", "since", "until", "grep")}
        return reading.Choice(**texts, lines=int(asked.get("lines", 1000)))
    except (ValueError, TypeError, AttributeError) as error:
        raise Refused(f"the request can't be read: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
