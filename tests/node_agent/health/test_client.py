"""The checks of a node within their time, and its report on the way to the health service."""

from __future__ import annotations

import json
import socket

import pytest

from gpucluster.node_agent.checks.model import HostReport, Profile, Status
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.health import client, credentials
from tests.addresses import free_port
from tests.controller.health.doubles import report
from tests.waiting import PATIENCE_S, hang

HOME = "127.0.0.1"
BAD, GOOD = {"gpu": Status.FAIL}, {"gpu": Status.PASS}


def test_checks_that_hang_end_in_time_and_blame_no_node() -> None:
    found = client.measure(Profile.PROLOG, 0.3, lambda _profile: hang() or report("x", BAD))  # type: ignore[func-returns-value]
    assert [each.status for each in found.findings] == [Status.UNKNOWN]
    assert "did not end within 0.3 s" in found.findings[0].message


def test_checks_that_break_accuse_nobody() -> None:
    def broken(_profile: Profile) -> HostReport:
        raise RuntimeError("nvidia-smi")

    found = client.measure(Profile.PROLOG, PATIENCE_S, broken)
    assert found.status is Status.UNKNOWN
    assert "nvidia-smi" in found.findings[0].message


def test_the_report_comes_back_whole() -> None:
    sent = report("compute-1", {f"check_{number}": Status.FAIL for number in range(400)})
    assert client.measure(Profile.PERIODIC, PATIENCE_S, lambda _profile: sent) == sent


def test_a_long_report_is_shortened() -> None:
    from dataclasses import replace

    first = report("compute-1", BAD)
    finding = replace(first.findings[0], message="x" * 100_000, evidence={"log": "y" * 100_000})
    raw = client.shortened(replace(first, findings=(finding,)))
    assert len(json.dumps(raw)) < 5000
    assert HostReport.from_dict(raw).status is Status.FAIL


def test_a_service_that_is_not_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "seal", lambda text: text)
    with pytest.raises(Failed):
        client.send(report("compute-1", GOOD), HOME, free_port(), PATIENCE_S)
    with socket.create_server((HOME, 0)) as silent, pytest.raises(Failed):
        client.send(report("compute-1", GOOD), HOME, silent.getsockname()[1], 0.2)
