"""Whether this host is as the last complete apply left it; and the commands that are repeated where all hosts are.

`gpucluster apply` sends this program to each host before it starts Ansible (gpucluster/operations/unchanged_hosts.py).
Standard input has one JSON object: `inputs`, what the run works from, and `update`, whether the commands run. Standard
output gets one: `reason`, why tasks have to run, `differing`, some of what is not as it was, and of the commands
`changed`, how many have changed something, and `outputs`, what they printed, by their names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from ansible.module_utils import gpucluster_applied, gpucluster_updates
from ansible.module_utils.gpucluster_host_facts import UnsuitableHost, collected
from ansible.module_utils.gpucluster_units import Systemd

# A node that does not answer for longer has not just been restarted: its tasks may help it.
PATIENCE = 5.0


class Commands:
    """The part of AnsibleModule that Systemd needs."""

    check_mode = True

    def run_command(self, argv: list[str], environ_update: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        """Run a program: its status, standard output and standard error."""
        environment = {**os.environ, **(environ_update or {})}
        done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
        return done.returncode, done.stdout, done.stderr


def _host(asked: Mapping[str, Any]) -> gpucluster_applied.Host:
    systemd = Systemd(Commands())  # type: ignore[arg-type]
    return gpucluster_applied.Host(collected(asked), asked["hosts"], systemd.show)


def answer(inputs: str, *, update: bool) -> dict[str, Any]:
    """What this host answers.

    Args:
        update: run the commands that a task has noted, up to the first one that fails.
    """
    try:
        seen = gpucluster_applied.look(inputs, _host)
    except UnsuitableHost as error:
        return {"reason": str(error), "differing": []}
    found: dict[str, Any] = {"reason": seen.reason, "differing": list(seen.differing), "changed": 0, "outputs": {}}
    for each in seen.updates if update and not seen.reason else ():
        patience = min(each["seconds"], PATIENCE)
        outcome = gpucluster_updates.run(each, later=True, patience=patience)
        if outcome.fault:
            return {**found, "reason": f"{each['name']}: {outcome.fault}"}
        found["changed"] += outcome.changed
        found["outputs"][each["name"]] = outcome.stdout
    return found


def main() -> int:
    """Entry point."""
    os.umask(0o022)
    os.chdir("/")
    os.environ["LC_ALL"] = "C.UTF-8"
    # As for Ansible's tasks, whatever sudo has left of it. Oracle Linux: secure_path has no /usr/local/bin.
    os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/bin", "/usr/sbin"))
    asked = json.loads(sys.stdin.read())
    sys.stdout.write(json.dumps(answer(asked["inputs"], update=asked["update"])) + "\n")
    return 0
