"""`gpucluster-agent state-volume COMMAND`: the controller's state on its volume.

The answer is one line of JSON on standard output; an error is a message on standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from gpucluster.node_agent.errors import AgentError, report
from gpucluster.node_agent.state_volume.mounting import StateVolume

# OCI attaches a volume within seconds; a host that boots may be a minute ahead of it.
_WAIT = 300.0


def main(argv: Sequence[str]) -> int:
    """Run one of the commands. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent state-volume", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    attach = commands.add_parser("attach", help="mount the volume, and move state to it that is not there")
    take_over = commands.add_parser("take-over", help="on a standby: mount the volume, and start the services")
    take_over.add_argument("--name", required=True)
    for parser_of in (attach, take_over):
        parser_of.add_argument("--device", required=True)
        parser_of.add_argument("--cluster", required=True)
        parser_of.add_argument("--user", required=True)
        parser_of.add_argument("--wait", type=float, default=_WAIT)
        parser_of.add_argument("--address", default="")
        parser_of.add_argument("--network", action="append", default=[])
    mount = commands.add_parser("mount", help="mount it as at the last apply; for each boot")
    mount.add_argument("--wait", type=float, default=_WAIT)
    commands.add_parser("late", help="wait for it, mount it and start the services, where a boot has not found it")
    commands.add_parser("release", help="end the services, and unmount the volume")
    commands.add_parser("save", help="copy keys to the volume").add_argument("--user", required=True)
    commands.add_parser("move-back", help="bring the state back to the boot disk")
    options = parser.parse_args(argv)
    os.umask(0o022)
    volume = StateVolume()
    try:
        if options.command in ("attach", "take-over"):
            where = (options.device, options.cluster, options.user)
            how: dict[str, Any] = {"wait": options.wait, "address": options.address, "networks": options.network}
            is_over = options.command == "take-over"
            answer = volume.take_over(*where, **how, name=options.name) if is_over else volume.attach(*where, **how)
        elif options.command == "release":
            answer = volume.release()
        elif options.command == "mount":
            volume.mount(options.wait)
            answer = {}
        elif options.command == "late":
            answer = {"mounted": volume.mount_late()}
        elif options.command == "save":
            volume.save(options.user)
            answer = {}
        else:
            answer = {"moved_back": volume.move_back()}
    except (AgentError, OSError) as error:
        return report(error)
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
