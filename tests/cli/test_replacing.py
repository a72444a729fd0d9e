"""The commands that terminate machines ask before they do: the cluster's methods are doubles, which note the call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpucluster.cli import cli
from gpucluster.cli.base import Context
from gpucluster.cluster import Cluster
from gpucluster.lifecycle.repair import Fix
from gpucluster.lifecycle.result import RunResult as ClusterResult
from gpucluster.workspace.run_log import RunStatus

Calls = list[dict[str, Any]]


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What was asked of the cluster, and a user at the terminal."""
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(cli, ["init"])
    calls: Calls = []

    def replace(_self: Cluster, nodes: Sequence[str], *, drain_timeout: float, report: str) -> ClusterResult:
        calls.append({"nodes": list(nodes), "drain_timeout": drain_timeout, "report": report})
        return ClusterResult("replace", RunStatus.SUCCESS, 0.0, {})

    def verify(_self: Cluster, *, fix: Fix | None = None, **_more: Any) -> ClusterResult:
        calls.append({"fix": fix is not None})
        if fix:
            calls[-1] |= {"shadow": fix.shadow, "replace_nodes": fix.replace_nodes, "timeout": fix.drain_timeout}
            fix.confirm(["compute-1"])
            calls[-1]["confirmed"] = True
        return ClusterResult("verify", RunStatus.SUCCESS, 0.0, {})

    monkeypatch.setattr(Cluster, "replace", replace)
    monkeypatch.setattr(Cluster, "verify", verify)
    monkeypatch.setattr(Context, "can_ask", property(lambda self: self.interactive))
    return calls


def _run(*words: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(cli, list(words), input=answer)


def test_replace_asks_and_a_no_changes_nothing(called: Calls) -> None:
    for answer in ("n\n", "\n"):
        refused = _run("replace", "compute-1", answer=answer)
        assert (refused.exit_code, called) == (2, [])
        assert "nothing was replaced" in refused.stderr
    assert _run("replace", "compute-1", "--drain-timeout", "0", answer="y\n").exit_code == 0
    assert called == [{"nodes": ["compute-1"], "drain_timeout": 0.0, "report": ""}]


def test_what_is_reported_is_passed_on_and_an_empty_report_is_refused(called: Calls) -> None:
    refused = _run("replace", "compute-1", "--report", " ", "--yes")
    assert (refused.exit_code, called) == (2, [])
    assert "the report is empty" in refused.stderr
    assert _run("replace", "compute-1", "--report", "no answer", "--yes").exit_code == 0
    assert called[0]["report"] == "no answer"


def test_who_mistypes_a_node_is_not_asked(called: Calls) -> None:
    done = _run("replace", "compute-11", answer="y\n")
    assert (done.exit_code, called) == (2, [])
    assert "there is no node compute-11 (cluster.yml). Did you mean compute-1" in done.stderr
    assert "will be lost" not in done.stderr


@pytest.mark.parametrize("words", [["--yes"], ["--non-interactive"]])
def test_both_can_be_told_not_to_ask(words: list[str], called: Calls) -> None:
    assert _run("replace", "compute-1", *words).exit_code == 0
    assert _run("verify", "--fix", *words).exit_code == 0
    assert called[1]["confirmed"]


def test_verify_repairs_only_when_it_is_told_and_asks_before(called: Calls) -> None:
    assert _run("verify").exit_code == 0
    assert called == [{"fix": False}]
    assert _run("verify", "--fix", answer="n\n").exit_code == 2
    assert called[-1] == {"fix": True, "shadow": False, "replace_nodes": False, "timeout": 3600.0}
    done = _run("verify", "--fix", "--replace-nodes", "--drain-timeout", "5", answer="y\n")
    assert done.exit_code == 0
    assert "What is on the disks of compute-1 will be lost" in done.stderr
    assert called[-1] == {"fix": True, "shadow": False, "replace_nodes": True, "timeout": 5.0, "confirmed": True}


@pytest.mark.parametrize("words", [["--shadow"], ["--replace-nodes"], ["--drain-timeout", "3"], ["--yes"]])
def test_options_of_a_repair_without_one_are_refused(words: list[str], called: Calls) -> None:
    done = _run("verify", *words)
    assert (done.exit_code, called) == (2, [])
    assert "verify --fix" in done.stderr
