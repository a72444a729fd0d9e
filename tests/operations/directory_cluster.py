"""A cluster whose controller is directory_double.py, for the library and for the command line."""

from __future__ import annotations

import json
import shutil
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
from tests.spec.spec_texts import LOCAL
from tests.workspace.known_hosts import save_controller


class DirectoryCluster:
    """The double, and the cluster that it is the controller of."""

    def __init__(self, folder: Path, file: Path) -> None:
        self.folder, self.file = folder, file
        self.events: list[Event] = []
        self.cluster = Cluster(load(file), on_event=self.events.append)

    @property
    def calls(self) -> list[dict[str, Any]]:
        written = self.folder / "calls.jsonl"
        return [json.loads(line) for line in written.read_text().splitlines()] if written.exists() else []

    @property
    def asked(self) -> list[tuple[str, dict[str, Any]]]:
        requests = [json.loads(call["stdin"]) for call in self.calls]
        return [(request["operation"], request["arguments"]) for request in requests]

    def answers(self, stdout: str, stderr: str = "", status: int = 0) -> None:
        answer = {"stdout": stdout, "stderr": stderr, "status": status}
        (self.folder / "answer.json").write_text(json.dumps(answer))

    def run(self, *words: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(cli, [*words, "--file", str(self.file)], input=stdin)

    def json(self, *words: str, stdin: str | None = None) -> tuple[int, dict[str, Any]]:
        done = self.run(*words, "--output", "json", stdin=stdin)
        return done.exit_code, json.loads(done.stdout.splitlines()[-1])["data"]

    def warnings(self) -> list[str]:
        return [event.message for event in self.events if event.status == "warning"]


def directory_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryCluster:
    """A cluster in this folder, whose ssh is the double."""
    programs = tmp_path / "bin"
    programs.mkdir()
    source = (Path(__file__).parent / "directory_double.py").read_text()
    ssh = programs / "ssh"
    ssh.write_text(f"#!{sys.executable} -S\n{source}")
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    file = tmp_path / "cluster.yml"
    file.write_text(LOCAL)
    monkeypatch.setenv("GPUCLUSTER_HOME", str(tmp_path / "home"))
    save_controller(tmp_path, "controller")
    assert shutil.which("ssh") == str(ssh)
    return DirectoryCluster(programs, file)
