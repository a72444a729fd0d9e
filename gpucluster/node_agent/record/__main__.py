"""`gpucluster-agent record`: what Slurm's prolog and epilog run for the record of a job. It never fails a job."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import syslog
from collections.abc import Sequence
from pathlib import Path

from gpucluster.node_agent.record import node

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The process that sends is ended after so many seconds, whatever it waits for.
_SENDER_S = 60


def _end(options: argparse.Namespace) -> None:
    here = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    record = node.end(os.environ, here, options.folder)
    if not options.controller:
        return
    from gpucluster.node_agent.record import queue  # it needs what the prolog does not

    place = options.queue or queue.FOLDER
    if record is None:
        _log(syslog.LOG_INFO, f"job {node.job_id(os.environ)} has no file of its beginning, so no record")
    else:
        queue.put(record, place)
    if place.is_dir():
        queue.in_background(lambda: _send(options, place))


def _send(options: argparse.Namespace, place: Path) -> None:
    from gpucluster.node_agent.health.client import PORT
    from gpucluster.node_agent.record import queue, sending

    signal.alarm(_SENDER_S)
    try:
        left = queue.send_all(sending.to(options.controller, options.port or PORT), place)
        if left:
            _log(syslog.LOG_WARNING, f"{left} records wait: the controller does not take them now")
    except Exception as error:  # no process waits for this one
        _log(syslog.LOG_ERR, f"records can't be sent: {error!r}")


def _log(level: int, words: str) -> None:
    syslog.openlog("gpucluster-record", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(level, "".join(sign if sign.isprintable() else " " for sign in words)[:1000])


def main(argv: Sequence[str] | None = None) -> int:
    """Run it. The exit status is 0 in any case but a wrong command line."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent record", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    begin = commands.add_parser("begin", help="a job begins on this node (prolog)")
    end = commands.add_parser("end", help="a job has ended on this node (epilog)")
    for command in (begin, end):
        command.add_argument("--folder", type=Path, default=node.FOLDER, help=argparse.SUPPRESS)
    end.add_argument("--controller", default="", metavar="ADDRESS", help="where records are sent; nowhere without it")
    end.add_argument("--port", type=int, help="of its health service")
    end.add_argument("--queue", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    os.environ["PATH"] = os.environ.get("PATH") or _PATH
    try:
        if options.command == "begin":
            node.begin(os.environ, options.folder)
        else:
            _end(options)
    except Exception as error:  # a record is not worth a job
        _log(syslog.LOG_WARNING, f"{options.command}: {error!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
