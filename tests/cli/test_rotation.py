"""`gpucluster rotate`: what people and programs read, and when it asks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpucluster.cli import cli
from gpucluster.cli.base import Context
from gpucluster.cluster.secrets import SecretOperations
from gpucluster.cluster.state import StateOperations
from gpucluster.errors import UnconfirmedError
from gpucluster.operations.rotation import RotatableSecret, RotatedSecret, Rotation
from tests.spec.spec_texts import LOCAL

DONE = RotatedSecret("munge", True, 3, ("compute-2",), ())


@pytest.fixture
def rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """In a folder with a cluster, which is a double. Returns what was rotated."""
    asked: list[Sequence[str]] = []

    def rotate(_secrets: SecretOperations, what: Sequence[str]) -> Rotation:
        asked.append(what)
        return Rotation((DONE,))

    (tmp_path / "cluster.yml").write_text(LOCAL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SecretOperations, "rotate", rotate)
    monkeypatch.setattr(StateOperations, "require_own", lambda _self: None)
    return asked


def run(*words: str, text: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["rotate", *words], input=text)


def test_hosts_that_are_off_are_named(rotated: list[Sequence[str]]) -> None:
    done = run("munge")
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == "munge: changed on 3 hosts; off, they get it at their boot: compute-2"
    result = json.loads(run("all", "--output", "json").stdout.splitlines()[-1])
    assert result["data"]["secrets"] == [DONE.to_dict()]
    assert rotated == [("munge",), ("all",)]


def test_what_is_done_is_shown_where_hosts_have_not_confirmed_it(
    rotated: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Rotation((DONE, RotatedSecret("passwords", True, 2, ("compute-2",), ("compute-1",))))

    def rotate(_secrets: SecretOperations, _what: Sequence[str]) -> Rotation:
        raise UnconfirmedError("not every host has taken it", done=done)

    monkeypatch.setattr(SecretOperations, "rotate", rotate)
    result = run("all", "--output", "json")
    assert result.exit_code == 8
    assert json.loads(result.stdout.splitlines()[-1])["data"]["done"] == done.to_dict()
    text = run("all").output
    assert "passwords: changed on 2 hosts; not confirmed: compute-1; off, the one before is valid there" in text
    assert rotated == []


def test_on_a_terminal_it_asks(rotated: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "can_ask", True)
    refused = run("munge", text="n\n")
    assert refused.exit_code == 2
    assert "slurmctld stops for some seconds; jobs run on. Rotate munge" in refused.output
    assert "nothing was rotated" in refused.output
    assert "Rotate munge, passwords, host-keys, ssh-ca" in " ".join(run("all", text="n\n").output.split())
    assert run("munge", text="y\n").exit_code == run("munge", "--yes").exit_code == 0
    assert len(rotated) == 2


def test_what_can_not_be_rotated_is_refused_before_the_question(
    rotated: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Context, "can_ask", True)
    done = run("sshd")
    assert (done.exit_code, rotated) == (2, [])
    assert "sshd can't be rotated" in done.output
    listed = "directory-ca, controller-key, container-keys, join-key, grafana, kubernetes, all"
    assert f"One or more of: munge, jwt, passwords, host-keys, ssh-ca, {listed}" in done.output


def test_without_a_name_it_lists_and_says_how_to_complete_what_was_interrupted(
    rotated: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(*rows: RotatableSecret) -> str:
        monkeypatch.setattr(SecretOperations, "list", lambda _secrets: rows)
        return run().stdout

    when = "2026-11-29T10:00:00Z"
    assert listed(RotatableSecret("munge", when, "complete")).splitlines()[1].split() == [
        "munge", when, "-", "complete",
    ]  # fmt: skip
    text = listed(RotatableSecret("munge", when, "unconfirmed", ("compute-1", "compute-2")))
    assert "not confirmed by compute-1, compute-2" in text
    assert "To complete it: gpucluster rotate munge" in text
    assert "interrupted before the switch" in listed(RotatableSecret("munge", when, "prepared"))
    assert rotated == []
