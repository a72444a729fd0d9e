"""A host for roles: a container of the base image, and ansible-playbook on it as root. No sshd, no systemd.

What Ansible takes for ssh is a script that enters the container's namespaces. The network is this machine's, so that a
mirror on its loopback address is in reach.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ansible.loading import ANSIBLE, read
from tests.containers import base_image, of_this_run, provide_python
from tests.waiting import PATIENCE_S

_GROUP_VARS = {key for file in (ANSIBLE / "group_vars" / "all").glob("*.yml") for key in read(file)}
# The first process: it reaps orphans, and exits when its parent is gone.
_INIT = """
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.write(1, b"up")
while os.read(0, 4096): pass
"""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SSH = """#!/bin/bash
# Ansible calls ssh with options, a name, and the command last. A login has none of this machine's variables.
enter="nsenter --target={pid} {network} --mount --pid --uts --ipc --wdns=/root"
exec $enter -- env -i HOME=/root USER=root PATH="{path}" /bin/sh -c "${{@: -1}}"
"""
# The product's own ansible-playbook, which keeps what it has compiled.
_PLAYBOOK = (sys.executable, "-P", "-m", "gpucluster.configuration.ansible_playbook")


@functools.cache
def _ansible_home() -> tempfile.TemporaryDirectory[str]:
    """Where ansible-playbook keeps compiled templates and packed modules: one folder for all plays of this process.

    Not shared with other processes: each run removes parts of files, as a crash leaves them.
    """
    return tempfile.TemporaryDirectory(prefix="gpucluster-ansible-home-")


@dataclass(frozen=True)
class Played:
    """The result of a run of ansible-playbook: the number of changed tasks, and the whole output."""

    changed: int
    said: str


class Host:
    """One container, and the folder of this machine with its playbooks."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.pid = pid
        self.folder = folder
        self._ssh = folder / "ssh"
        self.connect()
        (folder / "vars").symlink_to(ANSIBLE / "vars")
        (folder / "group_vars").symlink_to(ANSIBLE / "group_vars")
        (folder / "templates").symlink_to(ANSIBLE / "templates")

    def connect(self, network: str = "") -> None:
        """Write what Ansible takes for ssh; with `--net` its programs have the container's own network."""
        self._ssh.write_text(_SSH.format(pid=self.pid, network=network, path=_PATH))
        self._ssh.chmod(0o755)

    def run(
        self,
        *argv: str,
        check: bool = True,
        uid: int = 0,
        environment: Mapping[str, str] | None = None,
        patience: float = PATIENCE_S,
    ) -> str:
        """Run a command in the container; returns both outputs."""
        words = [f"{name}={value}" for name, value in (environment or {}).items()]
        who = [f"--setuid={uid}", f"--setgid={uid}"] if uid else []
        done = subprocess.run(
            [
                *("nsenter", f"--target={self.pid}", "--mount", "--pid", "--uts", "--ipc", "--wdns=/tmp", *who, "--"),
                *("env", "-i", f"PATH={_PATH}", *words, *argv),
            ],
            capture_output=True,
            text=True,
            timeout=patience,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0 or not check, f"{argv}: {said}"
        return said

    def read(self, path: str) -> str:
        return self.run("cat", path)

    def exists(self, path: str) -> bool:
        return self.run("sh", "-c", f"[ -e '{path}' ] || [ -L '{path}' ] && echo yes || echo no").strip() == "yes"

    def state(self, path: str) -> str:
        """The uid of the owner and the mode."""
        return self.run("stat", "-c", "%u %a", path).strip()

    def play(
        self,
        tasks: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *options: str,
        check: bool = True,
        name: str = "compute-1",
        patience: float = 3 * PATIENCE_S,
    ) -> Played:
        """Run tasks on the host, which is `compute-1` of pool `compute` or the controller, as named."""
        # Those of group_vars are stronger than an inventory's.
        stronger = {key: value for key, value in variables.items() if key in _GROUP_VARS}
        playbook = [{"hosts": name, "vars": stronger, "tasks": list(tasks)}]
        connection = {
            "ansible_connection": "ssh",
            "ansible_user": "root",
            "ansible_ssh_executable": str(self._ssh),
            "ansible_ssh_transfer_method": "piped",
        }
        hosts = {"controller": "demo-controller", "compute": "compute-1", "pool_compute": "compute-1"}
        groups: dict[str, Any] = {group: {"hosts": {name: {}}} for group, name in hosts.items()}
        (self.folder / "play.yml").write_text(json.dumps(playbook))
        (self.folder / "inventory.json").write_text(
            json.dumps({"all": {"vars": {**variables, **connection}, "children": groups}})
        )
        done = subprocess.run(
            [*_PLAYBOOK, "--inventory=inventory.json", "play.yml", *options],
            cwd=self.folder,
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"),
                "ANSIBLE_HOME": _ansible_home().name,
                "ANSIBLE_NOCOLOR": "1",
            },
            capture_output=True,
            text=True,
            timeout=patience,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0 or not check, said[-6000:]
        counted = re.search(r"changed=(\d+)", said.rpartition("PLAY RECAP")[2])
        return Played(int(counted[1]) if counted else -1, said)


@contextlib.contextmanager
def host() -> Iterator[Host]:
    """A container to the end of the block. Without containers: skipped."""
    from gpucluster.localcloud.podman.host import settings

    image = base_image()
    name = f"gpucluster-role-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix="gpucluster-role-") as folder:
        pidfile = Path(folder, "pid")
        argv = [
            *("podman", "--runtime", settings().runtime, "run", "--rm", "--interactive", "--pull=never"),
            *("--network=none", f"--name={name}", of_this_run(), f"--pidfile={pidfile}"),
            *settings().run_options(),
            *("--entrypoint=python3", image, "-c", _INIT),
        ]
        container = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        assert container.stdin is not None
        assert container.stdout is not None
        try:
            said = container.stdout.read(2)
            assert said == b"up", (said + container.stdout.read()).decode(errors="replace")
            node = Host(int(pidfile.read_text()), Path(folder))
            # As systemd would write it at the boot of an instance.
            node.run("sh", "-c", "mkdir -p /run/systemd && echo podman > /run/systemd/container")
            provide_python(node.run)
            yield node
        finally:
            with contextlib.suppress(BrokenPipeError):
                container.stdin.close()
            # Its first process ends with its input; one that does not is ended here.
            subprocess.run(["podman", "rm", "--force", "--volumes", "--time=0", name], capture_output=True, check=False)
            container.wait(timeout=PATIENCE_S)
            container.stdout.close()
