"""What the controller reports of a job: what is left out, unknown, or of another version."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gpucluster.jobs.report import facts
from gpucluster.jobs.report.build import build
from gpucluster.jobs.report.text import text
from tests.jobs.report.made_up import START, answer, known, rails, report, row, run
from tests.jobs.report.test_build import page, said


def test_a_running_job_has_no_record_and_its_instances_are_known_all_the_same() -> None:
    raw = known(records=[])
    asked = answer(raw, idle=0.9)
    asked["results"]["watch:instances"] = [{"labels": {"node": "gpu-1"}, "values": [[START, 2.0]]}]
    found = report(raw, asked)
    assert {node for node, _gpu in found.means.gpu} == {node for node, _gpu in found.means.idle} == {"gpu-2"}
    # DCGM has measured their use.
    assert "was not measured" not in text(found)
    assert "power of instances (MIG) is not measured" in text(found)


def test_nodes_without_a_record_and_counters_that_mean_nothing() -> None:
    found = report(known(records=[run("gpu-1", rails(), booted=True)]))
    assert "1 node of 2 sent no counters (gpu-2)" in "\n".join(found.missing)
    assert "Not all counters can be compared on gpu-1" in said(found)
    assert all(each.received is None for each in found.known.devices)
    assert "rebooted" in text(found)
    assert "the node has booted since the job began" in page(found)


def test_without_accounting_the_nodes_report_what_they_know() -> None:
    raw = known(job=None, components=[], steps=[], problems=["Slurm's accounting gives no answer"])
    found = report(raw)
    assert found.known.nodes == ("gpu-1", "gpu-2")
    assert found.seconds == 3600
    assert found.missing[0] == "Slurm's accounting gives no answer."


def test_addresses_and_places_are_left_out() -> None:
    finding = {"check": "x", "status": "fail", "message": "10.0.12.7 and fd00:1:2:3::5 do not answer, v1.2.3, 12:30:45"}
    raw = known(result={"id": "12", "folder": "/home/ann/x", "findings": [finding]}, problems=["no answer of 10.1.2.3"])
    found = report(raw, {"prometheus": False, "why": "no"})
    content = page(found) + text(found) + json.dumps(found.to_dict())
    assert "10.0.12.7" not in content
    assert "fd00" not in content
    assert "10.1.2.3" not in content
    assert "/home/ann" not in content
    assert "v1.2.3, 12:30:45" in content


def test_names_of_users_can_be_left_out() -> None:
    finding = {"check": "x", "status": "fail", "message": "/home/ann/data is not there, annual"}
    raw = known(components=[row(name="train-ann")], result={"id": "12", "findings": [finding]})
    found = report(raw, anonymous=True)
    content = page(found) + text(found) + json.dumps(found.to_dict())
    assert not re.search(r"\bann\b|research", content)
    assert "user-1" in content
    assert "/home/user-1/data is not there, annual" in content
    assert found.known.nodes == ("gpu-1", "gpu-2")


@pytest.mark.parametrize(
    "raw", [{}, {"records": [{"node": "a", "job_id": "12", "devices": [3], "changes": ["x"]}]}, {"result": None}]
)
def test_answers_of_another_version_are_survived(raw: dict[str, Any]) -> None:
    assert page(build(facts.read(raw), {"results": {"gpu:": 3, "mean:gpu": ["x"]}}))
