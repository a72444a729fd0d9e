"""`gpucluster-agent monitor`: Slurm's metrics, the list of what Prometheus scrapes, and questions to Prometheus."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

from gpucluster.agent.errors import AgentError, Refused
from gpucluster.agent.monitor import jobs, prometheus
from gpucluster.agent.record import kept

#: Bytes of a request.
_LONGEST = 4 * 1024 * 1024


def _query(options: argparse.Namespace) -> int:
    text = sys.stdin.read(_LONGEST + 1)
    if len(text) > _LONGEST:
        raise Refused(f"the request is longer than {_LONGEST // 2**20} MiB")
    queries = prometheus.parse_request(text)
    found = prometheus.answer(prometheus.Prometheus(port=options.port), queries)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def _jobs(options: argparse.Namespace) -> int:
    sys.stdout.write(json.dumps(jobs.describe(options.job, options.records)) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="gpucluster-agent monitor", description=summary)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        return command

    query = add("query", "ask Prometheus: JSON on standard input, JSON on standard output", _query)
    query.add_argument("--port", type=int, default=prometheus.PORT, help=argparse.SUPPRESS)
    known = add("jobs", "what Slurm, the nodes and its folder say of a job: JSON on standard output", _jobs)
    known.add_argument("job", metavar="JOB", help="its number, or that of a task of an array as 12_3")
    known.add_argument("--records", type=Path, default=kept.FOLDER, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands; returns the exit status."""
    options = _parser().parse_args(argv)
    try:
        status: int = options.run(options)
    except AgentError as error:
        sys.stderr.write(f"gpucluster-agent monitor: {error.message}\n")
        if error.hint:
            sys.stderr.write(f"{error.hint}\n")
        return error.status
    return status
