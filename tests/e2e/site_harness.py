"""A cluster of a test's own on a local cloud of its own: built and used through the command, removed at the end."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from gpucluster.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


#: A check of the machine that runs the tests, whose disk the containers share: little space is a warning.
_OF_THIS_MACHINE = "root_file_system"


def all_pass(result: dict[str, Any]) -> bool:
    """Whether each check of a result has passed or has nothing to check."""
    bad = [check for check in result["checks"] if check["status"] not in ("pass", "skip")]
    return all(check["check"] == _OF_THIS_MACHINE and check["status"] == "warn" for check in bad)


class Site:
    """A folder with a cluster.yml, a local cloud of its own, and the command. It is removed when the block ends."""

    def __init__(self, cluster_yml: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpucluster-e2e-"))
        self.file = self.folder / "cluster.yml"
        self.file.write_text(cluster_yml)
        self.home = self.folder / "cloud"
        self.env = {**os.environ, "GPUCLUSTER_HOME": str(self.home), "PYTHONUNBUFFERED": "1"}

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run("destroy", "--delete-data")
            self.run("local", "stop")
        finally:
            for container in containers(self.home):
                subprocess.run(["podman", "rm", "-f", "-v", "-t", "0", container], check=False, capture_output=True)
            for network in networks(self.home):
                subprocess.run(["podman", "network", "rm", "-f", network], check=False, capture_output=True)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "gpucluster", "--file", str(self.file), "--output", "json", *words]

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._argv(*words), env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, *words: str, timeout: float = 600) -> tuple[int, list[dict[str, Any]]]:
        done = subprocess.run(
            self._argv(*words),
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert "Traceback" not in done.stdout, done.stdout
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return done.returncode, events

    def plain(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command as a person types it."""
        argv = [sys.executable, "-m", "gpucluster", "--file", str(self.file), *words]
        return subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=600, check=False)

    def good(self, *words: str) -> dict[str, Any]:
        code, events = self.run(*words)
        assert code == 0, events[-8:]
        assert events[-1]["kind"] == "result"
        data: dict[str, Any] = events[-1]["data"]
        return data

    def as_alice(self, command: str, stdin: str = "") -> str:
        """Run a command as alice on the controller, logged in as `apply` says at its end."""
        state = self.folder / ".gpucluster"
        controller = json.loads((state / "hosts.json").read_text())["hosts"][0]["name"]
        argv = ["ssh", "-F", str(state / "ssh" / "config"), "-i", str(state / "ssh" / "alice_ed25519")]
        argv += [f"alice@{controller}", command]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def accounted(self, job: str) -> str:
        """State and number of nodes of a job that has ended well, which the accounting has some time after its end."""
        found = ""

        def ended() -> bool:
            nonlocal found
            found = self.as_alice(f"sacct -X -n -j {job} -o State,AllocNodes")
            return "COMPLETED" in found

        assert wait_until(ended, 60, 0.5), found
        return found


def worked_example(name: str, vcn: str) -> str:
    """The text of `inventories/<name>/cluster.yml`, in other addresses: such a cluster may exist on this machine.

    Args:
        vcn: the first two numbers of the VCN's addresses, such as "10.90".
    """
    text = (ROOT / "inventories" / name / "cluster.yml").read_text()
    found = re.search(r"^  vcn_cidr: ([0-9]+\.[0-9]+)\.", text, re.MULTILINE)
    assert found
    return text.replace(f"{found.group(1)}.", f"{vcn}.")


def containers(home: Path) -> list[str]:
    listed = subprocess.run(
        ["podman", "ps", "-a", "-q", "--filter", f"label=gpucluster.home={home}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.split()


def networks(home: Path) -> list[str]:
    listed = subprocess.run(
        ["podman", "network", "ls", "-q", "--filter", f"label=gpucluster.home={home}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.split()


def read_until(process: subprocess.Popen[str], wanted: str, deadline: float) -> list[str]:
    """Lines of a running command up to the first that holds `wanted`."""
    assert process.stdout is not None
    lines: list[str] = []
    until = time.monotonic() + deadline
    while time.monotonic() < until:
        line = process.stdout.readline()
        lines.append(line)
        if wanted in line:
            return lines
        if not line:
            break
    process.kill()
    pytest.fail(f"{wanted!r} was never said: {''.join(lines[-20:])}")
