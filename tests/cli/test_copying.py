"""`gpucluster cp`: what is copied where. The scp that is run is in tests/e2e/test_main_path.py."""

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
    """What is run, in a folder with a cluster of two hosts."""
    (tmp_path / "cluster.yml").write_text(LOCAL)
    save_hosts(tmp_path, "demo-controller", "compute-1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("a", "b:c", "folder/b:c"):
        (tmp_path / name).touch()
    made: list[list[str]] = []

    def call(argv: list[str]) -> int:
        made.append(argv)
        return 0

    monkeypatch.setattr(process, "call", call)
    return made


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["a", "controller:/tmp"], ["./a", "demo-controller:/tmp"]),
        (["a", ":"], ["./a", "demo-controller:"]),
        (["/etc", "./b:c", "compute-1:d"], ["/etc", "./b:c", "compute-1:d"]),
        (["compute-1:/var/log", "."], ["compute-1:/var/log", "."]),
        (["compute-1:a", "compute-1:b:c", ".."], ["compute-1:a", "compute-1:b:c", ".."]),
        ([":a b", "-x"], ["demo-controller:a b", "./-x"]),
        (["folder/b:c", "controller:d"], ["./folder/b:c", "demo-controller:d"]),
    ],
    ids=str,
)
def test_one_side_is_a_host_and_the_other_this_machine(
    words: list[str], arguments: list[str], calls: list[list[str]]
) -> None:
    done = CliRunner().invoke(cli, ["cp", "--", *words])
    assert done.exit_code == 0, done.output
    (argv,) = calls
    assert argv[:3] == ["scp", "-r", "-F"]
    assert argv[4:] == ["--", *arguments]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["a"], "at least one source"),
        (["a", "b"], "neither side is on a host"),
        (["controller:a", "compute-1:b"], "both sides are on hosts"),
        (["controller:a", "b", "."], "some sources are on a host, and others here"),
        (["controller:a", "compute-1:b", "."], "several hosts: compute-1, controller"),
        (["a", "other:b"], "there is no host other"),
        (["a", "missing", "controller:"], "there is no such file or folder on this machine (missing)"),
    ],
    ids=str,
)
def test_everything_else_is_refused_before_anything_is_copied(
    words: list[str], error: str, calls: list[list[str]]
) -> None:
    done = CliRunner().invoke(cli, ["cp", *words])
    assert done.exit_code == 2, done.output
    assert error in done.output
    assert calls == []


def test_an_elastic_node_is_not_a_target(calls: list[list[str]], tmp_path: Path) -> None:
    text = LOCAL.replace("    count: 2\n", "    count: 1\n    max_count: 3\n", 1)
    (tmp_path / "cluster.yml").write_text(text)
    done = CliRunner().invoke(cli, ["cp", "a", "compute-e1:"])
    assert done.exit_code == 2, done.output
    assert "is an elastic node" in done.output
    assert "all hosts share" in done.output
