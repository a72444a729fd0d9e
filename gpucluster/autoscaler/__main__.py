"""The program on the controller: `gpucluster-autoscaler`.

`run` and `join` are services of systemd. The other commands are for administrators and monitors, and must be able to
read the daemon's folder (root, or the daemon's own user).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gpucluster.autoscaler.daemon import commands, maintenance, services
from gpucluster.autoscaler.policy import CONFIG_FILE, JOIN_PUBLIC_KEY, POKE_SOCKET, SPOOL_DIRECTORY, STATE_DIRECTORY
from gpucluster.autoscaler.simulation import command as simulate
from gpucluster.controller.maintenance.events import FOLDER as EXCHANGE
from gpucluster.errors import EXIT_FAILED, EXIT_INTERRUPTED, GpuClusterError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpucluster-autoscaler",
        description="Launches the nodes that waiting jobs or pods need, and terminates nodes that are idle.",
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, text: str, run: Callable[[argparse.Namespace], int], *, output: bool = True
    ) -> argparse.ArgumentParser:
        command = subparsers.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        command.add_argument("--config", type=Path, default=CONFIG_FILE, metavar="FILE", help="the policy")
        command.add_argument("--state", type=Path, default=STATE_DIRECTORY, metavar="DIR", help="the daemon's folder")
        command.add_argument("--spool", type=Path, default=SPOOL_DIRECTORY, metavar="DIR", help="the hooks' folder")
        command.add_argument(
            "--poke", type=Path, default=POKE_SOCKET, metavar="SOCKET", help="where hooks wake the daemon"
        )
        if output:
            command.add_argument("--output", choices=("text", "json"), default="text", help="(default: text)")
        return command

    daemon = add("run", "Observe, decide and act, until stopped.", services.run, output=False)
    daemon.add_argument("--metrics", default="127.0.0.1:9811", metavar="HOST:PORT", help="for Prometheus")
    join = add("join", "Configure the new nodes that the daemon asks for (as root).", services.join, output=False)
    join.add_argument("--inventory", type=Path, metavar="FILE", help="the operator's inventory")
    join.add_argument("--work", type=Path, metavar="DIR", help="a folder of root's own")
    for service in (daemon, join):
        service.add_argument(
            "--public-key", type=Path, default=JOIN_PUBLIC_KEY, metavar="FILE", help="of the key that configures nodes"
        )
    command = add("status", "Show whether the autoscaler works, and what it does.", commands.show_status)
    command.add_argument("--check", action="store_true", help="exit with 1 if it is not healthy")
    command = add("plan", "Show what would be done now, and why. Nothing is changed.", commands.plan)
    command.add_argument(
        "--dry-run", action="store_true", required=True, help="required: the command never changes anything"
    )
    command = add("explain", "Show why a job or a node is in its state.", commands.explain)
    command.add_argument("subject", metavar="JOB|NAMESPACE/POD|NODE")
    command = add("pause", "Launch and terminate nothing until `resume`.", commands.pause)
    command.add_argument("reason", nargs="*", default=[], metavar="REASON")
    add("resume", "Go on after a pause.", commands.resume)

    command = subparsers.add_parser("maintenance", help="List the maintenance that Oracle announces, until stopped.")
    command.add_argument("--settings", type=Path, default=maintenance.CONFIG_FILE, metavar="FILE", help="the settings")
    command.add_argument(
        "--exchange", type=Path, default=EXCHANGE, metavar="DIR", help="shared with the health service"
    )
    command.set_defaults(run=maintenance.serve)

    command = subparsers.add_parser("simulate", help="Run past jobs against a policy.")
    simulate.add_arguments(command)
    command.set_defaults(run=simulate.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (gpucluster.errors)."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except GpuClusterError as error:
        print(f"gpucluster-autoscaler: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
