"""`gpucluster-agent standby prepare|receive|key|send|again|end`: the standby is kept like the host in service.

The answer is one line of JSON on standard output; an error is a message on standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpucluster.node_agent.errors import AgentError, report
from gpucluster.node_agent.host_name import name_host
from gpucluster.node_agent.standby import keeping, mirror, operator_keys


def main(argv: Sequence[str]) -> int:
    """Run one of the commands. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent standby", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare", help="on the standby: be ready for the calls of the host in service")
    prepare.add_argument("--name", required=True)
    prepare.add_argument("--user", required=True, help="the login user of the image")
    prepare.add_argument("--operator-key", action="append", default=[], help="a public key that logs in as this user")
    receive = commands.add_parser("receive", help="on the standby: what ssh runs for the host in service")
    receive.add_argument("what", choices=("list", "take"))
    commands.add_parser("key", help="on the host in service: the key with which it reaches the standby")
    send = commands.add_parser("send", help="on the host in service: make the standby like it")
    send.add_argument("--to", required=True)
    send.add_argument("--host-key", required=True)
    send.add_argument("--only-compare", action="store_true")
    commands.add_parser("again", help="on the host in service: the same as last time, for a timer")
    commands.add_parser("end", help="on the host in service: it has no standby any more")
    options = parser.parse_args(argv)
    os.umask(0o022)
    try:
        if options.command == "receive":
            if options.what == "list":
                mirror.show(sys.stdout)
            else:
                mirror.take(sys.stdin.fileno())
            return 0
        if options.command == "prepare":
            mirror.prepare(Path(sys.path[0]))
            name_host(options.name)
            operator_keys.give(options.user, options.operator_key)
            answer: dict[str, Any] = {}
        elif options.command == "key":
            answer = {"key": mirror.public_key()}
        elif options.command == "again":
            answer = keeping.again()
        elif options.command == "end":
            keeping.end()
            answer = {}
        else:
            if not options.only_compare:
                # Before: the standby has these units as well.
                keeping.keep(options.to, options.host_key)
            answer = mirror.send(options.to, options.host_key, only_compare=options.only_compare)
    except (AgentError, OSError) as error:
        return report(error)
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
