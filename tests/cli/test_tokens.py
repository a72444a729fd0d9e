"""The command line of `token`: where the secret goes. The controller is a double."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpucluster.cli import cli
from gpucluster.cluster.slurm import SlurmOperations
from gpucluster.operations.rest_tokens import RestToken
from tests.spec.spec_texts import LOCAL

TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdW4iOiJhbGljZSJ9.c2lnbmF0dXJl"
ENDS, SERVER = "2027-01-15T08:00:00Z", "https://demo-controller:6820"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """In a folder with a cluster, which is a double. Returns which tokens were made."""
    made: list[tuple[str, int]] = []

    def token(_slurm: SlurmOperations, user: str, *, seconds: int) -> RestToken:
        made.append((user, seconds))
        return RestToken(user, ENDS, SERVER, TOKEN)

    (tmp_path / "cluster.yml").write_text(LOCAL.replace("  accounting: true", "  accounting: true\n  rest: true"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SlurmOperations, "token", token)
    return made


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["token", *words])


def test_the_token_is_in_a_file_and_in_no_output(asked: list[tuple[str, int]], tmp_path: Path) -> None:
    done = run("alice")
    assert done.output.strip() == f"token-demo-alice.jwt written: a token of alice until {ENDS}, for {SERVER}"
    result = json.loads(run("alice", "ci.jwt", "--lifespan", "7d", "--output", "json").stdout.splitlines()[-1])
    assert result["data"] == {"command": "token", "user": "alice", "expires": ENDS, "server": SERVER, "file": "ci.jwt"}
    assert [(tmp_path / name).read_text() for name in ("token-demo-alice.jwt", "ci.jwt")] == [f"{TOKEN}\n"] * 2
    assert (tmp_path / "ci.jwt").stat().st_mode & 0o777 == 0o600
    assert asked == [("alice", 3600), ("alice", 604800)]


def test_on_request_it_is_the_output_and_in_no_file(asked: list[tuple[str, int]], tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    assert run("alice", "--stdout").stdout == f"{TOKEN}\n"
    assert json.loads(run("alice", "--stdout", "--output", "json").stdout.splitlines()[-1])["data"]["token"] == TOKEN
    assert {file.name for file in set(tmp_path.iterdir()) - before} <= {".gpucluster"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("alice", "--lifespan", "8d"), "for 7 days at most"),
        (("alice", "--lifespan", "soon"), "not a time: soon"),
        (("alice", "x.jwt", "--stdout"), "either FILE or --stdout"),
        (("alice", "cluster.yml"), "it is not a token"),
    ],
)
def test_what_can_t_be_is_refused_before_a_token_is_made(
    words: tuple[str, ...], why: str, asked: list[tuple[str, int]]
) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert why in done.output
    assert asked == []


def test_a_cluster_without_the_api_has_no_tokens(asked: list[tuple[str, int]], tmp_path: Path) -> None:
    (tmp_path / "cluster.yml").write_text(LOCAL)
    done = run("alice")
    assert done.exit_code == 2
    assert "slurm.rest is off" in done.output
    assert asked == []
