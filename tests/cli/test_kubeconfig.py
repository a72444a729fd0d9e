"""The command lines of `kubeconfig` and `kubectl`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpucluster import process
from gpucluster.cli import cli
from gpucluster.operations.controller import ControllerConnection
from gpucluster.spec import template


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yml").write_text(template("demo", "local") + "\nscheduler: kubernetes\n")
    return tmp_path


@pytest.mark.parametrize("words", [["kubeconfig"], ["kubectl", "--", "get", "nodes"]])
def test_a_cluster_with_slurm_has_no_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yml").write_text(template("demo", "local"))
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2
    assert "this cluster has no control plane of Kubernetes" in done.output


@pytest.mark.parametrize("dashes", [[], ["--"]])
def test_the_words_and_the_exit_code_are_those_of_kubectl(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dashes: list[str]
) -> None:
    def ssh_argv(_self: object, _host: object = None, command: tuple[str, ...] = ()) -> list[str]:
        return ["ssh", *command]

    called: list[list[str]] = []
    monkeypatch.setattr(ControllerConnection, "ssh_argv", ssh_argv)

    def call(argv: list[str]) -> int:
        called.append(argv)
        return 3

    monkeypatch.setattr(process, "call", call)
    done = CliRunner().invoke(cli, ["kubectl", *dashes, "get", "pods", "-o", "json", "--all-namespaces"])
    assert done.exit_code == 3
    assert called[0][-1].endswith(" get pods -o json --all-namespaces")


def test_a_wrong_user_and_a_wrong_file_are_refused(folder: Path) -> None:
    (folder / "config").write_text("clusters: [{name: other}]")
    for words, what in ((["--user", "No Name"], "not a user name"), (["config"], "not a kubeconfig of demo alone")):
        done = CliRunner().invoke(cli, ["kubeconfig", *words])
        assert (done.exit_code, what in done.output) == (2, True)
