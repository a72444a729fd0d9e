"""`gpucluster-agent monitor`: Slurm's metrics, the list of what Prometheus scrapes, and questions to Prometheus."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

from gpucluster.controller import job_records
from gpucluster.controller.http_server import MetricsServer
from gpucluster.controller.monitor import collector, jobs, prometheus, status
from gpucluster.controller.monitor.settings import FILE, FOLDER, HOST, PORT, MonitorSettings
from gpucluster.node_agent.errors import AgentError, Refused, of_system
from gpucluster.node_agent.notify import notify

#: Bytes of a request.
_LONGEST = 4 * 1024 * 1024


def _serve(options: argparse.Namespace) -> int:
    settings = MonitorSettings.load(options.settings)
    lists = collector.Lists(settings, options.folder / "targets")
    lists.write()
    collected = collector.SlurmCollector(settings, collector.SlurmQueries(), lists.update)
    try:
        serving = MetricsServer((HOST, options.port), collected.page)
    except OSError as error:
        raise of_system(error, f"{HOST}:{options.port}") from error
    works = [
        *([collected.nodes, collected.jobs] if settings.slurm else []),
        *([lists.look] if settings.optional else []),
        *([collector.ElasticNodes(prometheus.Prometheus(), lists.update).look] if settings.autoscaler else []),
    ]
    for work in works:
        threading.Thread(target=collector.repeat, args=(work,), daemon=True).start()
    collector.log(f"listening on {HOST}:{options.port}")
    notify("READY=1")
    serving.serve_forever()
    return 0


def _status(options: argparse.Namespace) -> int:
    client = prometheus.Prometheus(port=options.port)
    report = status.settled(lambda: status.of(client, problems=options.problems), options.wait)
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 0


def _query(options: argparse.Namespace) -> int:
    text = sys.stdin.read(_LONGEST + 1)
    if len(text) > _LONGEST:
        raise Refused(f"the request is longer than {_LONGEST // 2**20} MiB")
    queries = prometheus.parse_request(text)
    answers = prometheus.answer(prometheus.Prometheus(port=options.port), queries)
    sys.stdout.write(json.dumps(answers) + "\n")
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

    serve = add("serve", "serve Slurm's metrics and write what is scraped, until stopped (a service)", _serve)
    serve.add_argument("--settings", type=Path, default=FILE, help=argparse.SUPPRESS)
    serve.add_argument("--folder", type=Path, default=FOLDER, help=argparse.SUPPRESS)
    serve.add_argument("--port", type=int, default=PORT, help=f"(default: {PORT})")
    state = add("status", "show what Prometheus scrapes, and its rules, as JSON", _status)
    state.add_argument("--problems", action="store_true", help="only targets that are not up, and rules that fail")
    waits = "seconds to wait for targets that are not up: they may be scraped meanwhile (default: 0)"
    state.add_argument("--wait", type=float, default=0.0, metavar="SECONDS", help=waits)
    state.add_argument("--port", type=int, default=prometheus.PORT, help=argparse.SUPPRESS)
    query = add("query", "ask Prometheus: JSON on standard input, JSON on standard output", _query)
    query.add_argument("--port", type=int, default=prometheus.PORT, help=argparse.SUPPRESS)
    known = add("jobs", "what Slurm, the nodes and its folder have of a job: JSON on standard output", _jobs)
    known.add_argument("job", metavar="JOB", help="its number, or that of a task of an array as 12_3")
    known.add_argument("--records", type=Path, default=job_records.FOLDER, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands; returns the exit status."""
    options = _parser().parse_args(argv)
    try:
        ended: int = options.run(options)
    except AgentError as error:
        sys.stderr.write(f"gpucluster-agent monitor: {error.message}\n")
        if error.hint:
            sys.stderr.write(f"{error.hint}\n")
        return error.status
    return ended
