"""`gpucluster ssh`: which host, and which command. The ssh that is run is in tests/ssh."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpucluster import process
from gpucluster.cli import cli
from tests.spec.spec_texts import LOCAL
from tests.workspace.known_hosts import save_hosts


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is run after `ssh -F CONFIG`, in a folder with a cluster of two hosts."""
    (tmp_path / "cluster.yml").write_text(LOCAL)
    (tmp_path / "other.yml").write_text(LOCAL)
    save_hosts(tmp_path, "demo-controller", "compute-1")
    monkeypatch.chdir(tmp_path)
    made: list[list[str]] = []

    def call(argv: list[str]) -> int:
        made.append(argv[3:])
        return 7

    monkeypatch.setattr(process, "call", call)
    return made


@pytest.mark.parametrize(
    ("words", "host", "command"),
    [
        ([], "demo-controller", []),
        (["controller"], "demo-controller", []),
        (["demo-controller"], "demo-controller", []),
        (["compute-1"], "compute-1", []),
        (["compute-1", "hostname"], "compute-1", ["hostname"]),
        (["controller", "squeue", "--long", "-f", "x"], "demo-controller", ["squeue", "--long", "-f", "x"]),
        (["compute-1", "--", "hostname"], "compute-1", ["hostname"]),
        (["--", "compute-1", "-o", "json"], "demo-controller", ["compute-1", "-o", "json"]),
        (["--", "ls", "--", "x"], "demo-controller", ["ls", "--", "x"]),
        (["compute-1", "grep", "--", "-x"], "compute-1", ["grep", "--", "-x"]),
        (["-f", "other.yml", "compute-1", "id"], "compute-1", ["id"]),
        (["compute-1", "-f", "other.yml", "id", "-u"], "compute-1", ["id", "-u"]),
        (["compute-1", "--file=other.yml"], "compute-1", []),
    ],
    ids=str,
)
def test_the_words_are_read_as_ssh_reads_them(
    words: list[str], host: str, command: list[str], calls: list[list[str]]
) -> None:
    done = CliRunner().invoke(cli, ["ssh", *words])
    assert done.exit_code == 7, done.output
    assert calls == [[host, *(["--", *command] if command else [])]]


def test_a_command_without_a_host_is_told_how_to_be_written(calls: list[list[str]]) -> None:
    done = CliRunner().invoke(cli, ["ssh", "hostname"])
    assert done.exit_code == 2
    assert "gpucluster ssh -- hostname" in done.stderr
    assert calls == []


def test_a_wrong_option_is_a_wrong_option_on_both_sides_of_the_host(calls: list[list[str]]) -> None:
    for words in (["--nonsense", "compute-1"], ["compute-1", "--nonsense"]):
        done = CliRunner().invoke(cli, ["ssh", *words])
        assert (done.exit_code, "--nonsense" in done.stderr) == (2, True)
    assert calls == []
