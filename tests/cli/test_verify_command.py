"""The command line of `verify`: what it refuses, and what programs and users read. tests/e2e runs it on clusters."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpucluster.cli import cli
from gpucluster.cli.output import JsonLines, Plain
from gpucluster.cluster import Cluster
from gpucluster.events import Event, EventKind
from gpucluster.lifecycle.result import RunResult
from gpucluster.lifecycle.verification import failed
from gpucluster.spec import template
from gpucluster.workspace.run_log import RunStatus
from tests.verdict import samples


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yml").write_text(template("demo", "local"))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pool", "comptue"], "there is no pool comptue. Did you mean compute?"),
        (["--nodes", "compute-99"], "there is no node compute-99. Did you mean compute-"),
        (["--nodes", "compute-[1-"], "not a list of hosts: 'compute-[1-'"),
        (["--junit", "none/verify.xml"], "there is no such folder (none)"),
        (["--junit", "."], "not a file (.)"),
        (["--record-baseline"], "only level full measures a baseline"),
        (["--level", "deep"], "'deep' is not one of 'quick', 'full'"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_done(folder: Path, words: list[str], message: str) -> None:
    done = CliRunner().invoke(cli, ["verify", "--output", "json", *words])
    assert done.exit_code == 2, done.output
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["kind"], result["status"], result["data"]["exit_code"]) == ("result", "failed", 2)
    assert message in result["message"]
    assert not (folder / ".gpucluster").exists()


def test_the_options_reach_the_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def verify(_cluster: Cluster, **options: Any) -> RunResult:
        asked.append(options)
        return RunResult(
            "verify", RunStatus.SUCCESS, 1.0, {}, verdict=samples.verdict(samples.FULL, samples.facts(samples.FULL))
        )

    monkeypatch.setattr(Cluster, "verify", verify)
    words = ["--level", "full", "--pool", "a", "--pool", "b", "--nodes", "a-[1-2]", "--junit", "x.xml"]
    done = CliRunner().invoke(cli, ["verify", *words])
    assert done.exit_code == 0, done.output
    assert asked[0] == {
        "level": "full", "pools": ("a", "b"), "nodes": "a-[1-2]", "junit": Path("x.xml"), "record_baseline": False,
        "fix": None,
    }  # fmt: skip
    assert "hosts: 4 hosts pass" in done.output


def test_programs_get_every_result_also_when_checks_fail() -> None:
    reported = samples.facts(samples.FULL)
    reported["compute-1"]["firewall"] = {"state": "failed", "words": "no nft"}
    out = io.StringIO()
    verdict = samples.verdict(samples.FULL, reported)
    JsonLines(out, command="verify").error(failed(verdict))
    data = json.loads(out.getvalue())["data"]
    assert (data["error"], data["exit_code"]) == ("VerifyError", 1)
    assert data["verdict"]["hosts"]["compute-1"] == data["verdict"]["status"] == "fail"
    assert len(data["checks"]) == len(verdict.results)
    (bad,) = [check for check in data["checks"] if check["status"] == "fail"]
    assert bad == {
        "name": "firewalls are open to the cluster's hosts", "status": "fail", "message": "no nft", "check": "firewall",
        "scope": "host", "subject": "compute-1", "remedy": "See `journalctl -u gpucluster-firewall` on the host",
        "reaction": "report", "evidence": {},
    }  # fmt: skip


def test_users_get_one_line_a_check_and_the_skipped_ones_on_request() -> None:
    out, verbose = io.StringIO(), io.StringIO()
    for status in ("pass", "warn", "fail", "unknown", "skip"):
        event = Event(EventKind.CHECK, "a check", status, f"it is {status}")
        Plain(out)(event)
        Plain(verbose, verbose=True)(event)
    assert [line[2] for line in out.getvalue().splitlines()] == ["✓", "!", "x", "?"]
    assert verbose.getvalue().splitlines()[-1] == "  · a check: it is skip"
