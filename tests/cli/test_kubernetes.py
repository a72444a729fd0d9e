"""The command line of `kubernetes`: what is refused, and what users and programs read."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from gpucluster.cli import cli
from gpucluster.cli.base import Context
from gpucluster.cluster import composition
from gpucluster.operations.kubernetes import (
    ControlPlaneCertificate,
    ControlPlaneClient,
    ControlPlaneProblem,
    ControlPlaneState,
    EtcdSpace,
    KubernetesNode,
)
from gpucluster.spec import template

_CA = ControlPlaneCertificate("/etc/kubernetes/pki/ca.crt", "2036-11-20T00:00:00Z", 3649, authority=True)
_SERVER = ControlPlaneCertificate("/etc/kubernetes/pki/apiserver.crt", "2026-11-22T00:00:00Z", -1, authority=False)


class _PlaneDouble(ControlPlaneClient):
    """Answers as a controller would; it proves nothing of its program (tests/controller/kubernetes does)."""

    def __init__(self, problems: tuple[ControlPlaneProblem, ...] = ()) -> None:
        super().__init__(Mock(), Mock())
        self._state = ControlPlaneState(not problems, problems, EtcdSpace(3 << 20, 1 << 20, full=False), (_CA, _SERVER))

    def state(self) -> ControlPlaneState:
        return self._state

    def certificates(self) -> tuple[ControlPlaneCertificate, ...]:
        return self._state.certificates

    def compact(self) -> tuple[EtcdSpace, EtcdSpace]:
        return EtcdSpace(2 << 30, 1 << 20, full=True), EtcdSpace(2 << 20, 1 << 20, full=False)

    def version(self) -> str:
        return "v1.33.1"

    def nodes(self) -> dict[str, KubernetesNode]:
        roles = {"node-role.kubernetes.io/control-plane": ""}
        return {
            "compute-1": KubernetesNode("compute-1", "True", cordoned=False, version="v1.33.1"),
            "demo-controller": KubernetesNode(
                "demo-controller", "True", cordoned=False, version="v1.33.1", labels=roles
            ),
        }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yml").write_text(template("demo", "local") + "\nscheduler: kubernetes\n")
    return tmp_path


def _run(
    monkeypatch: pytest.MonkeyPatch, *words: str, problems: tuple[ControlPlaneProblem, ...] = ()
) -> tuple[int, str]:
    monkeypatch.setattr(composition, "ControlPlaneClient", lambda *_: _PlaneDouble(problems))
    done = CliRunner().invoke(cli, ["kubernetes", *words])
    return done.exit_code, done.output


def test_a_cluster_with_slurm_has_no_control_plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yml").write_text(template("demo", "local"))
    for words in (
        ["status"],
        ["certificates"],
        ["certificates", "--renew"],
        ["compact"],
        ["upgrade", "--plan"],
        ["upgrade"],
    ):
        done = CliRunner().invoke(cli, ["kubernetes", *words])
        assert done.exit_code == 2
        assert "this cluster has no control plane of Kubernetes" in done.output


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["kubernetes", "status"], "gpucluster kubectl -- get nodes"),
        (["kubernetes", "certificates", "--renew"], "OKE renews the certificates"),
        (["kubernetes", "compact"], "OKE stores and compacts etcd"),
        (["kubernetes", "upgrade", "--plan"], "Change kubernetes.release there, then run: gpucluster apply"),
        (["kubernetes", "upgrade"], "Change kubernetes.release there, then run: gpucluster apply"),
    ],
)
def test_oracles_control_plane_is_not_ours_to_look_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], instead: str
) -> None:
    monkeypatch.chdir(tmp_path)
    section = "\nscheduler: kubernetes\nkubernetes: {control_plane: oke}\n"
    (tmp_path / "cluster.yml").write_text(template("demo", "local") + section)
    done = CliRunner().invoke(cli, words)
    said = " ".join(done.output.split())
    assert done.exit_code == 2
    assert "Oracle runs the control plane" in said
    assert instead in said
    assert "kubernetes.control_plane: oke" in said


def test_the_status_of_a_good_and_of_a_bad_control_plane(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, output = _run(monkeypatch, "status")
    assert status == 0
    assert "etcd: 3 MiB, 1 MiB of it used" in output
    assert output.rstrip().endswith("no problem")
    status, output = _run(
        monkeypatch, "status", problems=(ControlPlaneProblem("etcd is full", "Run: gpucluster kubernetes compact"),)
    )
    assert status == 1
    assert "problem: etcd is full\n  Run: gpucluster kubernetes compact" in output
    assert "the API server is not ready" in output
    left = ControlPlaneProblem("namespace a does not end", "See what is left in it", serious=False)
    status, output = _run(monkeypatch, "status", problems=(left,))
    assert status == 0
    assert "warning: namespace a does not end\n" in output


def test_certificates_and_space(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, output = _run(monkeypatch, "certificates")
    assert "ca.crt: until 2036-11-20T00:00:00Z, 3649 days left, CA" in output
    assert "apiserver.crt: until 2026-11-22T00:00:00Z, expired" in output
    _, output = _run(monkeypatch, "compact")
    assert "2048 MiB, 1 MiB of it used, full before, 2 MiB, 1 MiB of it used now" in output
    _, output = _run(monkeypatch, "certificates", "--output", "json")
    assert json.loads(output.splitlines()[-1])["data"]["certificates"][1]["days"] == -1


def test_the_steps_of_an_upgrade_and_what_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, output = _run(monkeypatch, "upgrade", "--plan", "--to", "1.34.2")
    assert status == 0
    steps = [line.strip() for line in output.split("Steps to 1.34.2:")[1].splitlines() if line]
    assert steps == [f"{host}: 1.33.1 to 1.34.2" for host in ("control plane", "demo-controller", "compute-1")]
    for wanted, words in (("1.32.0", "does not go back"), ("1.35.0", "by way of 1.34"), ("x", "not a release")):
        status, output = _run(monkeypatch, "upgrade", "--plan", "--to", wanted)
        assert status == 2
        assert words in output
    status, output = _run(monkeypatch, "upgrade", "--plan", "--to", "1.33.1")
    assert "Everything is at 1.33.1" in output


def test_an_upgrade_that_is_refused_begins_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted, words in (
        ("1.32.0", "does not go back"), ("1.35.0", "by way of 1.34"), ("1.34.2-rc1", "not a release"),
        ("", "not a release"),
    ):  # fmt: skip
        status, output = _run(monkeypatch, "upgrade", "--yes", "--to", wanted)
        assert (status, words in output) == (2, True), output
    monkeypatch.setattr(Context, "can_ask", True)
    monkeypatch.setattr(composition, "ControlPlaneClient", lambda *_: _PlaneDouble())
    done = CliRunner().invoke(cli, ["kubernetes", "upgrade", "--to", "1.34.2"], input="n\n")
    assert done.exit_code == 2
    assert "compute-1: 1.33.1 to 1.34.2" in done.output
    assert "Pass --yes to skip the question" in done.output
    assert not (folder / ".gpucluster" / "runs").exists()
