"""Entry point of `gpucluster-image`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from gpucluster.controller import images
from gpucluster.controller.images.importer import Importer
from gpucluster.controller.images.requester import RequesterGone
from gpucluster.node_agent.errors import AgentError, Refused

CONFIG = "/etc/gpucluster/images.json"
MAX_REQUEST = 64 * 1024
INTERRUPTED = 130
_STOPPED_BY = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _stop(*_: Any) -> NoReturn:
    # The clean-up that follows must not be interrupted.
    for number in _STOPPED_BY:
        signal.signal(number, signal.SIG_IGN)
    raise RequesterGone


def serve(config: Path) -> int:
    """Answer the one request; returns the exit status."""
    for number in _STOPPED_BY:
        signal.signal(number, _stop)
    try:
        try:
            request = json.loads(sys.stdin.read(MAX_REQUEST))
        except ValueError:
            raise Refused("the request is not a JSON object", 'Write {"operation": ..., "arguments": {...}}') from None
        if not isinstance(request, dict):
            raise Refused("the request is not a JSON object", 'Write {"operation": ..., "arguments": {...}}')
        importer = Importer(json.loads(config.read_text()))
        answer, status = {"result": importer.do(request.get("operation"), request.get("arguments", {}))}, 0
    except AgentError as error:
        answer, status = {"error": {"message": error.message, "hint": error.hint}}, error.status
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        answer, status = {"error": {"message": f"{where}{error.strerror}", "hint": "Correct that, and run it again"}}, 1
    except RequesterGone:
        return INTERRUPTED
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-image", description=(images.__doc__ or "").partition("\n")[0])
    parser.add_argument("--config", type=Path, default=Path(CONFIG))
    parser.add_argument("kind", choices=["request"])
    options = parser.parse_args(argv)
    if os.geteuid() != 0:
        sys.stderr.write("gpucluster-image: only root can run this\n")
        return 1
    return serve(options.config)


if __name__ == "__main__":
    sys.exit(main())
