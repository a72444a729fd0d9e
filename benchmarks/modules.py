"""What modules of ours cost beside the plain tasks that they stand for, on this machine, in processor seconds.

    python benchmarks/modules.py [--runs 5]

Each pair does the same in a folder of its own, twice: the second time nothing is to do, which is the case of most
applies. The cost of a run with no task is subtracted. Connection `local`: what ssh costs comes on top, for each task.
Without the forking server of a host (docs/adr/0028-cost-of-a-task.md), which makes each module cheaper. It prints the
median of the runs, and its ratio to that of the plain tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpucluster.paths import ansible_dir

FILES = 6
_PACKAGES = ["openssl", "tar", "gzip", "sed", "grep"]


def pairs(folder: Path) -> dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """By module: its task, and the plain ones."""
    files = [{"path": f"{folder}/{{}}/{number}.conf", "content": f"{number}\n"} for number in range(FILES)]

    def named(name: str, task: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, **task}

    service = [{**each, "path": each["path"].format("ours")} for each in files]
    copies = [{"dest": each["path"].format("plain"), "content": each["content"], "mode": "0644"} for each in files]
    keys = f"{folder}/keys"
    return {
        f"gpucluster_service, {FILES} files": (
            [named("Files", {"gpucluster_service": {"files": service}})],
            [named("File", {"ansible.builtin.copy": each}) for each in copies],
        ),
        f"gpucluster_role_packages, {len(_PACKAGES)} packages that are there": (
            [named("Packages", {"gpucluster_role_packages": {"present": _PACKAGES}})],
            [named("Packages", {"ansible.builtin.apt": {"name": _PACKAGES, "state": "present"}})],
        ),
        "gpucluster_host": (
            [
                named(
                    "Facts",
                    {
                        "gpucluster_host": {
                            "user": "root", "key": ".ssh/none.pub", "agent": "/usr/local/bin/none",
                            "packages": {"Debian-12": {"time": []}}, "purposes": [],
                        },
                        "check_mode": True,
                    },
                )
            ],
            [named("Facts", {"ansible.builtin.setup": {}})],
        ),
        "gpucluster_mesh_keys, 1 pair": (
            [named("Keys", {"gpucluster_mesh_keys": {"directory": f"{keys}/ours", "names": ["id_ed25519"]}})],
            [
                named("Folder", {"ansible.builtin.file": {"path": f"{keys}/plain", "state": "directory"}}),
                named(
                    "Key",
                    {
                        "ansible.builtin.command": {
                            "argv": ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{keys}/plain/id_ed25519"],
                            "creates": f"{keys}/plain/id_ed25519",
                        }
                    },
                ),
                named("Private key", {"ansible.builtin.slurp": {"src": f"{keys}/plain/id_ed25519"}}),
                named("Public key", {"ansible.builtin.slurp": {"src": f"{keys}/plain/id_ed25519.pub"}}),
            ],
        ),
    }  # fmt: skip


def cost(folder: Path, tasks: list[dict[str, Any]]) -> float:
    """Processor seconds of a playbook with these tasks, all its processes together."""
    play = [{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]
    (folder / "play.yml").write_text(json.dumps(play))
    ours = ansible_dir()
    environment = {
        **os.environ,
        "ANSIBLE_LIBRARY": str(ours / "library"),
        "ANSIBLE_MODULE_UTILS": str(ours / "module_utils"),
        "ANSIBLE_ACTION_PLUGINS": str(ours / "action_plugins"),
        "ANSIBLE_LOCALHOST_WARNING": "false",
    }
    program = Path(sys.executable).with_name("ansible-playbook")
    argv = [str(program), "-c", "local", "-i", "localhost,", "-e", "ansible_python_interpreter=/usr/bin/python3"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*argv, str(folder / "play.yml")], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure all pairs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="gpucluster-modules-") as name:
        folder = Path(name)
        for sub in ("ours", "plain", "keys"):
            (folder / sub).mkdir()
        empty = statistics.median(cost(folder, []) for _ in range(runs))
        print(f"no task: {empty:.2f} s")
        for what, (ours, plain) in pairs(folder).items():
            # The first run of each makes what the others find.
            seconds = [
                statistics.median([cost(folder, tasks) for _ in range(runs + 1)][1:]) - empty for tasks in (ours, plain)
            ]
            print(f"{what}: {seconds[0]:.2f} s, plain tasks {seconds[1]:.2f} s, ratio {seconds[1] / seconds[0]:.1f}")


if __name__ == "__main__":
    main()
