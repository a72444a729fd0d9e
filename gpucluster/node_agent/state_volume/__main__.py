"""`gpucluster-agent state-volume attach|mount|save|move-back`: the controller's state on its volume.

The answer is one line of JSON on standard output; an error is a message on standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from gpucluster.node_agent.errors import AgentError, of_system
from gpucluster.node_agent.state_volume.mounting import StateVolume

# OCI attaches a volume within seconds; a host that boots may be a minute ahead of it.
_WAIT = 300.0


def main(argv: Sequence[str]) -> int:
    """Run one of the commands. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent state-volume", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    attach = commands.add_parser("attach", help="mount the volume, and move state to it that is not there")
    attach.add_argument("--device", required=True)
    attach.add_argument("--cluster", required=True)
    attach.add_argument("--user", required=True)
    attach.add_argument("--wait", type=float, default=_WAIT)
    mount = commands.add_parser("mount", help="mount it as at the last apply; for each boot")
    mount.add_argument("--wait", type=float, default=_WAIT)
    commands.add_parser("save", help="copy keys to the volume").add_argument("--user", required=True)
    commands.add_parser("move-back", help="bring the state back to the boot disk")
    options = parser.parse_args(argv)
    os.umask(0o022)
    volume = StateVolume()
    try:
        if options.command == "attach":
            answer = volume.attach(options.device, options.cluster, options.user, options.wait)
        elif options.command == "mount":
            volume.mount(options.wait)
            answer = {}
        elif options.command == "save":
            volume.save(options.user)
            answer = {}
        else:
            answer = {"moved_back": volume.move_back()}
    except AgentError as error:
        sys.stderr.write(f"{error.message}\n{error.hint}\n" if error.hint else f"{error.message}\n")
        return error.status
    except OSError as error:
        problem = of_system(error)
        sys.stderr.write(f"{problem.message}\n{problem.hint}\n")
        return problem.status
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
