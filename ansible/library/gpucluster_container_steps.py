#!/usr/bin/python
"""A container step on every node, for verify.yml. Returns facts; gpucluster/verdict/ judges them.

Instead of plain tasks: one step on all nodes, then on those that fail one by one, side by side within a time limit,
and the image is removed in any case. A loop of `command` tasks has neither.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: gpucluster_container_steps
short_description: Run a container step on every node, and read a marker in the container
description:
  - Builds a tiny image from this host's shell and a marker, writes it to the share, runs it as a user on the nodes of
    each pool, and removes it. A node that runs the step outside of a container can't read the marker, even if the step
    succeeds.
  - If a step fails, each of its nodes is tried separately, to find the nodes that fail. An elastic node that is
    powered down meanwhile does not count. The module fails only if it can't run steps.
options:
  program: {description: C(gpucluster-agent)., type: path, required: true}
  share: {description: The share that every node mounts., type: path, required: true}
  directory: {description: Name of the directory of the temporary image on the share., type: str, required: true}
  marker: {description: A text that is only in the image., type: str, required: true}
  user: {description: User who runs the step., type: str, required: true}
  job: {description: Name of the jobs., type: str, required: true}
  pools:
    description: The pools to test.
    type: list
    elements: dict
    required: true
    suboptions:
      name: {description: Name of the pool., type: str, required: true}
      partition: {description: Its partition., type: str, required: true}
      nodes: {description: The nodes to test., type: list, elements: str, required: true}
  timeout: {description: Maximum seconds that a step waits and runs., type: int, default: 60}
author: gpucluster
"""

EXAMPLES = """
- name: Run container steps
  gpucluster_container_steps:
    program: /usr/local/bin/gpucluster-agent
    share: /mnt/home
    directory: .gpucluster-verify-containers
    marker: 8f2c
    user: alice
    job: gpucluster-verify
    pools: [{name: compute, partition: compute, nodes: [compute-1, compute-2]}]
"""

RETURN = """
steps:
  description: >-
    For each pool its name (pool), the nodes that read the marker (seen), and the output of those that did not (missed).
  returned: always
  type: list
"""

MARKER = "gpucluster-marker"
# The shell reads the file itself: the image has no other program.
STEP_SCRIPT = f'read -r word </{MARKER} && echo "$word $SLURMD_NODENAME"'
TEXTS = {
    MARKER: "{marker}\n",
    "etc/os-release": "ID=gpucluster-verify\nNAME=gpucluster\n",
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": "root:x:0:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/hostname": "container\n",
    "etc/resolv.conf": "",
    "etc/environment": "",
    "etc/fstab": "",
}
# Mount points of a container engine.
DIRECTORIES = ("dev", "home", "mnt", "opt", "proc", "root", "run", "sys", "tmp", "usr/bin", "var/tmp")
# Nodes that are tried separately at the same time.
MAX_SEPARATE = 16
# States in sinfo of an elastic node that is powered down, or powering down.
GONE = re.compile(r"[~%!]$|POWER", re.IGNORECASE)
# What srun prints about a node that takes no jobs.
BUSY = "Requested nodes are busy"
# Of a line of sinfo: the node, its state, the reason.
COLUMNS = 3
# Maximum characters of the errors of one node.
MAX_REASON = 300


def libraries(program: str) -> list[str]:
    """The shared libraries of a program, its loader included."""
    output = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return sorted(set(re.findall(r"(/\S+)(?= \(0x)", output)))


def build_root(root: Path, marker: str) -> None:
    """Create a root directory with a shell and the marker; no devices, because users can't create them."""
    for name in DIRECTORIES:
        (root / name).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    shell = os.path.realpath("/bin/sh")
    shutil.copy(shell, root / "usr/bin/sh")
    for library in libraries(shell):
        target = root / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    for name, text in TEXTS.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text.format(marker=marker), encoding="utf-8")


def answers(marker: str, output: str) -> set[str]:
    """The nodes that read the marker."""
    pairs = (line.partition(" ") for line in output.splitlines())
    return {node for word, _space, node in pairs if word == marker and node}


def reason(output: str, seconds: int) -> str:
    """The output of a failed step, in one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    useful = [
        line for line in lines if not re.search(r"^srun: (job \d+ (queued|has been)|Force|Job step aborted)", line)
    ]
    return " | ".join(useful or lines)[:MAX_REASON] or f"no response within {seconds} seconds"


def states(nodes: Iterable[str]) -> dict[str, dict[str, str]]:
    """State and reason of these nodes. Slurm has a reason only for nodes that are drained or down."""
    names = ",".join(nodes)
    if not names:
        return {}
    argv = ["sinfo", "--noheader", "--Node", f"--nodes={names}", "--format=%N %T %E"]
    output = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL).stdout
    rows = (line.split(None, 2) for line in output.splitlines() if len(line.split(None, 2)) == COLUMNS)
    return {node: {"node": node, "state": state, "reason": reason.strip()} for node, state, reason in rows}


def gone(rows: dict[str, dict[str, str]]) -> set[str]:
    """Those of these nodes that Slurm has powered down, or is powering down."""
    return {node for node, row in rows.items() if GONE.search(row["state"])}


def closed(rows: dict[str, dict[str, str]]) -> list[dict[str, str]]:
    """Those of these nodes that Slurm gives a reason for. `none` is its word for no reason."""
    return [row for _node, row in sorted(rows.items()) if row["reason"] != "none"]


class Steps:
    """The steps of one verification."""

    def __init__(self, module: AnsibleModule, image: Path) -> None:
        self.params: dict[str, Any] = module.params
        self.image = image

    def run(self, pool: dict[str, Any], nodes: list[str]) -> tuple[set[str], str]:
        """Run one step on these nodes; returns those that read the marker, and the other output."""
        limit = self.params["timeout"]
        argv = ["timeout", str(limit), "runuser", f"--user={self.params['user']}", "--", "srun"]
        argv += [f"--immediate={limit // 2}", "--time=2", f"--job-name={self.params['job']}", "--chdir=/", "--mem=64"]
        argv += [f"--partition={pool['partition']}", f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}"]
        argv += [f"--ntasks={len(nodes)}", "--ntasks-per-node=1", f"--container-image={self.image}"]
        argv += ["--no-container-mount-home", "/bin/sh", "-c", STEP_SCRIPT]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        seen = answers(self.params["marker"], done.stdout) & set(nodes)
        return seen, reason(done.stderr, limit)

    def pool(self, pool: dict[str, Any]) -> dict[str, Any]:
        """Run one step on all nodes of a pool; retry the nodes that failed, each separately."""
        seen, words = self.run(pool, pool["nodes"])
        missed = {node: words for node in pool["nodes"] if node not in seen}
        if missed and len(pool["nodes"]) > 1:
            with ThreadPoolExecutor(MAX_SEPARATE) as threads:
                separate = dict(zip(missed, threads.map(lambda node: self.run(pool, [node]), missed)))
            seen |= {node for node, (found, _words) in separate.items() if found}
            # A node whose plugin is missing is drained by the first step: the second one only finds it busy.
            missed = {node: words if BUSY in again else again for node, (found, again) in separate.items() if not found}
        rows = states(missed)
        for node in gone(rows):
            del missed[node], rows[node]
        return {"pool": pool["name"], "seen": sorted(seen), "missed": missed, "closed": closed(rows)}


def main() -> None:
    """Entry point."""
    pool = {
        "name": {"type": "str", "required": True},
        "partition": {"type": "str", "required": True},
        "nodes": {"type": "list", "elements": "str", "required": True},
    }
    module = AnsibleModule(
        argument_spec={
            "program": {"type": "path", "required": True},
            "share": {"type": "path", "required": True},
            "directory": {"type": "str", "required": True},
            "marker": {"type": "str", "required": True},
            "user": {"type": "str", "required": True},
            "job": {"type": "str", "required": True},
            "pools": {"type": "list", "elements": "dict", "required": True, "options": pool},
            "timeout": {"type": "int", "default": 60},
        }
    )
    place = [module.params["share"], module.params["directory"]]
    name = f"{module.params['marker']}.sqsh"
    # By the agent: root of a node can exchange what is on the share while root of this host works there.
    agent = [module.params["program"], "share"]
    try:
        with tempfile.TemporaryDirectory(prefix="gpucluster-verify-") as scratch:
            root, image = Path(scratch, "root"), Path(scratch, "image")
            build_root(root, module.params["marker"])
            root.chmod(0o755)
            argv = ["mksquashfs", str(root), str(image), "-all-root", "-no-progress", "-noappend", "-no-xattrs"]
            module.run_command(argv, check_rc=True)
            module.run_command([*agent, "put", *place, name], data=image.read_bytes(), binary_data=True, check_rc=True)
        steps = Steps(module, Path(*place, name))
        with ThreadPoolExecutor(MAX_SEPARATE) as threads:
            found = list(threads.map(steps.pool, module.params["pools"]))
    finally:
        module.run_command([*agent, "remove", *place])
    module.exit_json(changed=False, steps=found)


if __name__ == "__main__":
    main()
