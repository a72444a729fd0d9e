"""A host that has booted: a container of the base image with systemd, for roles with services and sessions of users.

Playbooks run as in tests/ansible/in_container.py, and so does all that is looked at.
"""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpucluster.artifacts import agent_archive
from tests.ansible.in_container import Host
from tests.containers import base_image, of_this_run, provide_python
from tests.waiting import PATIENCE_S, wait_for

#: Builds the root file system of a container: programs of the booted host with their libraries. For `sh`, as root.
ROOTFS = """
set -e
mkdir -p /root/rootfs && cd /root/rootfs
for program in /bin/sh /bin/cat /bin/id /bin/echo /bin/sleep /bin/true $*; do
    for file in $program $(ldd $program | grep -o '/[^ ]*'); do mkdir -p .$(dirname $file); cp -L $file .$file; done
done
mkdir -p tmp proc sys dev etc root run
"""


class Booted(Host):
    """One such container."""

    def __init__(self, name: str, pid: int, folder: Path) -> None:
        super().__init__(pid, folder)
        self.name = name

    def sh(self, script: str, *, check: bool = True, user: str = "") -> str:
        """A shell's command, as root or in a new session of a user, which PAM makes as it does for ssh."""
        program = ["sh", "-c", script]
        if user:
            # A service with PAMName is like a login: it gets groups, a runtime directory, the user's own systemd.
            program = [
                *("systemd-run", "--quiet", "--wait", "--pipe", "--collect", f"--uid={user}"),
                *("--property=PAMName=login", "--property=WorkingDirectory=/tmp", *program),
            ]
        done = subprocess.run(
            ["podman", "exec", "--env=LC_ALL=C.UTF-8", self.name, *program],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert done.returncode == 0 or not check, f"{script}: {said}"
        return said

    def put(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        """Write a file in the container."""
        self.sh(f"mkdir -p $(dirname {path})")
        source = self.folder / f"put-{secrets.token_hex(4)}"
        source.write_bytes(content.encode() if isinstance(content, str) else content)
        source.chmod(mode)
        subprocess.run(["podman", "cp", str(source), f"{self.name}:{path}"], check=True, capture_output=True)

    def install_agent(self) -> None:
        """The agent of a node, as the role base installs it."""
        self.put("/usr/local/bin/gpucluster-agent", agent_archive.of_node(), 0o755)


@contextlib.contextmanager
def booted(*options: str) -> Iterator[Booted]:
    """One to the end of the block, with more options of `podman run`. Without containers: skipped."""
    from gpucluster.localcloud.podman.host import settings

    image = base_image()
    name = f"gpucluster-booted-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix="gpucluster-booted-") as folder:
        argv = [
            *("podman", "--runtime", settings().runtime, "run", "--rm", "--detach", "--pull=never", "--network=none"),
            *(f"--name={name}", "--hostname=compute-1", of_this_run(), *settings().boot_options()),
            *options,
            image,
        ]
        try:
            subprocess.run(argv, check=True, capture_output=True, timeout=PATIENCE_S)
            pid = subprocess.run(
                ["podman", "inspect", "--format={{.State.Pid}}", name], check=True, capture_output=True, text=True
            ).stdout
            node = Booted(name, int(pid), Path(folder))
            # "degraded" is fine, too: cloud-init has no instance to configure.
            wait_for(
                "the host has booted",
                lambda: node.sh("systemctl is-system-running", check=False).split()[:1] in (["running"], ["degraded"]),
                interval=0.2,
                state=lambda: node.sh("systemctl list-jobs", check=False),
            )
            provide_python(node.run)
            yield node
        finally:
            subprocess.run(["podman", "rm", "--force", "--volumes", "--time=0", name], capture_output=True, check=False)
