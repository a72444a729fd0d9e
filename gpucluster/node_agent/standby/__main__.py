"""`gpucluster-agent standby prepare|receive|key|send|again|end|...`: the standby is kept like the host in service.

The answer is one line of JSON on standard output; an error is a message on standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from gpucluster.node_agent.errors import AgentError, report
from gpucluster.node_agent.host_name import name_host
from gpucluster.node_agent.standby import keeping, mirror, operator_keys, watching


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpucluster-agent standby", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare", help="on the standby: be ready for the calls of the host in service")
    prepare.add_argument("--name", required=True)
    prepare.add_argument("--user", required=True, help="the login user of the image")
    prepare.add_argument("--operator-key", action="append", default=[], help="a public key that logs in as this user")
    receive = commands.add_parser("receive", help="on the standby: what ssh runs for the host in service")
    receive.add_argument("what", choices=("list", "take", "pause", "watched"))
    commands.add_parser("key", help="on the host in service: the key with which it reaches the standby")
    send = commands.add_parser("send", help="on the host in service: make the standby like it")
    send.add_argument("--to", required=True)
    send.add_argument("--host-key", required=True)
    send.add_argument("--only-compare", action="store_true")
    send.add_argument("--automatic", action="store_true", help="the standby goes on by itself")
    commands.add_parser("again", help="on the host in service: the same as last time, for a timer")
    commands.add_parser("end", help="on the host in service: it has no standby any more")
    watch = commands.add_parser("watch", help="on the standby: go on by itself when the controller is lost")
    watch.add_argument("--settings", required=True, help="what gpucluster.failover.settings reads")
    commands.add_parser("unwatch", help="on the standby: do not")
    commands.add_parser("announce", help="on the host in service: it is shut down, and comes back")
    witness = commands.add_parser("witness", help="on another host: whether it reaches the controller")
    witness.add_argument("address", nargs="+")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run one of the commands. Returns the exit status."""
    options = _parser().parse_args(argv)
    os.umask(0o022)
    try:
        if options.command == "receive":
            return _receive(options.what)
        answer = _COMMANDS[options.command](options)
    except (AgentError, OSError) as error:
        return report(error)
    sys.stdout.write(json.dumps(answer or {}) + "\n")
    return 0


def _prepare(options: argparse.Namespace) -> dict[str, Any]:
    mirror.prepare(Path(sys.path[0]))
    name_host(options.name)
    operator_keys.give(options.user, options.operator_key)
    return {}


def _send(options: argparse.Namespace) -> dict[str, Any]:
    if not options.only_compare:
        # Before: the standby has these units as well.
        keeping.keep(options.to, options.host_key, automatic=options.automatic)
    return mirror.send(options.to, options.host_key, only_compare=options.only_compare)


#: Each returns the answer as a JSON object; None is an empty one.
_COMMANDS: Mapping[str, Callable[[argparse.Namespace], Any]] = {
    "prepare": _prepare,
    "key": lambda _options: {"key": mirror.public_key()},
    "send": _send,
    "again": lambda _options: keeping.again(),
    "end": lambda _options: keeping.end(),
    "watch": lambda options: watching.watch(options.settings),
    "unwatch": lambda _options: watching.unwatch(),
    "announce": lambda _options: keeping.announce(),
    "witness": lambda options: watching.witness(options.address),
}


def _receive(what: str) -> int:
    """What ssh runs for the host in service."""
    if what == "list":
        mirror.show(sys.stdout)
    elif what == "take":
        mirror.take(sys.stdin.fileno())
    elif what == "pause":
        watching.pause()
    else:
        sys.stdout.write(json.dumps(watching.status()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
