"""A host's own report counts only if it is whole, of this host, of this profile and of this moment."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from gpucluster.node_agent.checks.model import Finding, HostReport, Profile, Status
from gpucluster.verdict import reports
from gpucluster.verdict.expectation import narrowed
from tests.verdict.samples import BEGAN, FULL, KUBERNETES, NODES, agent_check, facts, lines, report, verdict

HOST = "compute-1"
REPORT = report(HOST)


def _text(**changed: Any) -> str:
    return json.dumps(dataclasses.replace(REPORT, **changed).to_dict())


def _read(raw: Any) -> HostReport:
    return reports.read(raw, HOST, Profile.QUICK)


def test_a_whole_report_of_now_is_read() -> None:
    assert _read(agent_check(_text())) == REPORT
    # 2: something is critical. The report names it.
    assert _read(agent_check(_text(), exit_status=2)) == REPORT


OLD_AGENT = "usage: gpucluster-agent [--version] COMMAND ...\n\n  users  users and groups\n"
TWICE = tuple(Finding("gpu_ecc", HOST, status, "") for status in (Status.FAIL, Status.PASS))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (None, "the probe has sent no report"),
        ({}, "no whole report"),
        ({"busy": True}, "jobs run on it"),
        (agent_check("", exit_status=2, error=OLD_AGENT), "has no checks; run: gpucluster apply"),
        (agent_check("", exit_status=127, error="timeout: failed to run command"), "failed to run command"),
        (agent_check("", exit_status=3), "wrote nothing and ended with 3"),
        (agent_check("", exit_status=124), "no report within 30 s"),
        (agent_check(_text(), exit_status=137), "no report within 30 s"),
        (agent_check(_text()[:-5]), "cut off or damaged"),
        (agent_check("[" * 100_000), "cut off or damaged"),
        (agent_check("[]"), "cut off or damaged"),
        (agent_check("null"), "cut off or damaged"),
        (agent_check(_text(host="compute-2")), "the report is of compute-2"),
        (agent_check(_text(profile=Profile.BOOT)), "of the profile boot"),
        (
            agent_check(_text(findings=(Finding("gpu_ecc", "compute-2", Status.FAIL, "bad"),))),
            "findings about compute-2",
        ),
        (agent_check(_text(findings=TWICE)), "two findings of gpu_ecc"),
        (
            agent_check(_text(findings=(Finding("of_tomorrow", HOST, Status.FAIL, ""),))),
            "another release, with .* of_tomorrow",
        ),
        (agent_check(_text(started=BEGAN - 60)), "of another time"),
        (agent_check(_text(started=BEGAN + 60)), "of another time"),
        (agent_check(_text(started=float("nan"))), "of another time"),
        (agent_check(_text(), ended=BEGAN + 3600), "clock has jumped"),
        (agent_check(_text(), ended=BEGAN - 3600), "clock has jumped"),
    ],
)
def test_anything_else_is_not_a_report_and_reports_why(raw: Any, reason: str) -> None:
    with pytest.raises(reports.ReportError, match=reason):
        _read(raw)
    reported = facts(FULL)
    reported[HOST]["agent_check"] = raw
    line = lines(FULL, reported)["host_report"]
    assert line.status == "unknown"
    assert line.message.startswith(f"{HOST}: ")
    found = verdict(FULL, reported)
    assert (found.hosts[HOST], found.hosts["compute-2"]) == ("unknown", "pass")


def test_every_prefix_of_a_report_is_not_a_report() -> None:
    text = _text()
    for length in range(len(text)):
        with pytest.raises(reports.ReportError):
            _read(agent_check(text[:length]))


def _changed(findings: tuple[Finding, ...]) -> Any:
    reported = facts(FULL)
    reported[HOST]["agent_check"] = agent_check(_text(findings=findings))
    return verdict(FULL, reported)


def test_what_a_host_has_found_is_a_result_with_what_to_do() -> None:
    bad = Finding("gpu_ecc", HOST, Status.FAIL, "GPU 3 has 2 uncorrectable errors", {"gpu": 3})
    found = _changed(tuple(bad if each.check == bad.check else each for each in REPORT.findings))
    (result,) = found.problems
    assert (result.check, result.subject, result.status, result.message) == ("gpu_ecc", HOST, "fail", bad.message)
    assert (result.scope, result.reaction, result.evidence) == ("host", "drain", {"gpu": 3})
    assert result.remedy
    assert (found.hosts[HOST], found.hosts["compute-2"]) == ("fail", "pass")


@pytest.mark.parametrize("name", [finding.check for finding in REPORT.findings])
def test_a_check_that_a_report_lacks_is_unknown(name: str) -> None:
    found = _changed(tuple(each for each in REPORT.findings if each.check != name))
    assert [(each.check, each.subject, each.status) for each in found.problems] == [(name, HOST, "unknown")]


def test_a_warning_does_not_fail_and_is_seen() -> None:
    found = _changed((*REPORT.findings[1:], Finding(REPORT.findings[0].check, HOST, Status.WARN, "nearly full")))
    assert (found.passed, found.status, found.hosts[HOST]) == (True, "warn", "warn")
    assert [line.message for line in found.lines() if line.status == "warn"] == [f"{HOST}: nearly full"]


def test_verify_asks_for_what_it_is_about() -> None:
    assert reports.request(FULL) == {
        "profile": "quick",
        "seconds": 30,
        "pools": None,
        "nodes": None,
        "with_elastic": True,
        "pods": [],
    }
    pool = reports.request(narrowed(FULL, ["compute"]))
    assert (pool["pools"], pool["nodes"], pool["with_elastic"]) == (["compute"], ["compute-1", "compute-2"], True)
    node = reports.request(narrowed(FULL, nodes="compute-2"))
    assert (node["pools"], node["nodes"], node["with_elastic"]) == (["compute"], ["compute-2"], False)
    whole = reports.request(dataclasses.replace(KUBERNETES, profile=Profile.FULL))
    assert whole["pods"] == [{"pool": "compute", "nodes": dict(zip(NODES, NODES, strict=True)), "rdma": {}}]
    assert reports.request(dataclasses.replace(FULL, profile=None))["profile"] is None
