"""A cluster with container images, whose ssh is a double: it answers what a test sets."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpucluster.cli import cli
from gpucluster.cluster import Cluster
from gpucluster.events import Event
from gpucluster.spec import load
from tests.workspace.known_hosts import save_controller

_SSH = """#!{python} -S
# A double of ssh: writes down its call, and gives the answer of the test.
import json, pathlib, sys
here = pathlib.Path(sys.argv[0]).parent
(here / "call.json").write_text(json.dumps({{"argv": sys.argv[1:], "stdin": sys.stdin.read()}}))
answer = json.loads((here / "answer.json").read_text())
sys.stderr.write(answer["stderr"]); sys.stderr.flush()
sys.stdout.write(answer["stdout"])
sys.exit(answer["status"])
"""


IMAGE: dict[str, Any] = {
    "name": "org+tool+1.0", "path": "/mnt/home/.gpucluster/images/org+tool+1.0.sqsh", "size": 1_400_000_000,
    "created_at": "2026-01-01T00:00:00+00:00", "uri": "docker://registry.example#org/tool:1.0", "user": "alice",
}  # fmt: skip


class Images:
    """A cluster whose controller is the double."""

    def __init__(self, folder: Path, text: str) -> None:
        self.programs = folder / "bin"
        self.file = folder / "cluster.yml"
        self.file.write_text(text)
        self.events: list[Event] = []
        self.cluster = Cluster(load(self.file), on_event=self.events.append)

    @property
    def call(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.programs / "call.json").read_text())
        return found

    @property
    def was_asked(self) -> bool:
        return (self.programs / "call.json").exists()

    def answers(self, answer: Any, *, stderr: str = "", status: int = 0) -> None:
        stdout = answer if isinstance(answer, str) else json.dumps(answer)
        (self.programs / "answer.json").write_text(json.dumps({"stdout": stdout, "stderr": stderr, "status": status}))

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(cli, [*words, "--file", str(self.file)])


def prepared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a cluster, and the double as its ssh."""
    (folder / "bin").mkdir()
    ssh = folder / "bin" / "ssh"
    ssh.write_text(_SSH.format(python=sys.executable))
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(ssh.parent), prepend=":")
    monkeypatch.setenv("GPUCLUSTER_HOME", str(folder / "home"))
    save_controller(folder, "controller")
    return folder
