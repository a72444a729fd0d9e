"""Reports of jobs: what stands out, what is missing, and what must not be sent on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpucluster.jobs.report import queries
from gpucluster.jobs.report.build import JobReport
from gpucluster.jobs.report.page import KIND, html
from gpucluster.jobs.report.text import text
from gpucluster.pages.frame import is_page
from tests.jobs.report.made_up import START, answer, known, report, row


def said(found: JobReport) -> str:
    return "\n".join(each.text for each in found.remarks)


def page(found: JobReport) -> str:
    return html(found, made_at=START, made_by="gpucluster test")


def test_a_job_without_faults() -> None:
    found = report(known())
    assert said(found) == "Nothing stands out in what was measured."
    assert found.missing == ()
    # 16 GPUs for an hour, 2 nodes of 4800 W.
    assert (found.gpu_hours, round(found.energy or 0, 1)) == (16, 9.6)
    assert round(found.gpu_use or 0, 2) == 0.82
    shown = text(found)
    assert "16 reserved, 13.1 used (82 %)" in shown
    assert "931 GiB" in shown
    assert is_page(page(found), KIND)
    assert page(found).count("<figure") == len(queries.PANELS) + 1


def divided(**more: Any) -> dict[str, dict[str, str]]:
    """What the numbers of a job mean on a node with divided GPUs: 3 is an instance, 9 is GPU 5."""
    return {
        "3": {"number": "1", "uuid": "MIG-1", "instance": "9"},
        "9": {"number": "5", "uuid": "GPU-5", "instance": ""},
        **more,
    }


def test_the_figures_of_a_whole_gpu_are_not_those_of_a_job_with_an_instance_of_it() -> None:
    """Slurm's number of the instance is 3: GPU 3 is of other jobs, and does nothing."""
    raw = known()
    for each in raw["records"]:
        each |= {"gpus": ["3"], "divided": {"3": divided()["3"]}}
    asked = answer(raw, idle=0.9)
    asked["results"]["job:use"] = asked["results"]["job:power"] = []
    found = report(raw, asked)
    assert (found.means.gpu, found.gpu_use, found.energy) == ({}, None, None)
    assert "GPUs did nothing" not in said(found)
    assert "power of instances (MIG) is not measured" in text(found)
    assert "instances of GPUs (MIG) was not measured" in page(found)
    assert "MIG" not in text(report(known()))


def test_slurm_s_number_of_a_whole_gpu_beside_divided_ones_is_not_that_of_nvidia_s_tools() -> None:
    raw = known()
    for each in raw["records"]:
        each |= {"gpus": ["9"], "divided": {"9": divided()["9"]}}
    assert set(report(raw).means.gpu) == {("gpu-1", "5"), ("gpu-2", "5")}
    for each in raw["records"]:
        each |= {"gpus": ["3", "9"], "divided": divided()}
    assert set(report(raw).means.gpu) == {("gpu-1", "5"), ("gpu-2", "5")}


def test_a_job_that_failed() -> None:
    steps = [row(step=str(at), state="FAILED" if at else "COMPLETED", exit_code="9:0") for at in range(6)]
    found = report(known(components=[row(state="OUT_OF_MEMORY", exit_code="0:125")], steps=steps))
    assert "The job ended as OUT_OF_MEMORY with the exit code 0:125." in said(found)
    assert "5 steps failed: 1 (9:0), 2 (9:0), 3 (9:0), and 2 more." in said(found)


def test_the_judgement_of_a_template_and_what_it_should_reach() -> None:
    finding = {"check": "busbw", "status": "fail", "message": "busbw is 11.2 GB/s of 23.14 GB/s"}
    result = {"id": "12", "template": "nccl_tests", "verdict": "fail", "findings": [finding],
              "values": {"busbw": 11.2, "text": "no number"}, "units": {"busbw": "GB/s"}}  # fmt: skip
    found = report(known(result=result))
    assert "busbw is 11.2 GB/s of 23.14 GB/s" in said(found)
    assert found.figures
    assert "11.2 GB/s" in page(found)
    assert report(known(result={**result, "template": "nobody knows"})).figures == ()


# --- what is missing -----


def test_without_prometheus_the_rest_is_there() -> None:
    found = report(known(), {"prometheus": False, "why": "Prometheus does not answer"})
    assert found.plots == ()
    assert (found.energy, found.gpu_use) == (None, None)
    assert "There are no plots: Prometheus does not answer." in "\n".join(found.missing)
    assert "931 GiB" in text(found)
    assert "Over time" not in page(found)


def test_a_job_that_ended_before_its_first_scrape() -> None:
    short = row(ended=START + 4, elapsed=4)
    found = report(known(components=[short]), {"prometheus": True, "results": {}})
    assert "The job ran for 4 s, and nodes are asked every 15 s." in "\n".join(found.missing)
    assert page(found)


def test_one_sample_is_the_power_of_a_short_job() -> None:
    short = known(components=[row(ended=START + 10, elapsed=10)])
    found = report(short, {"prometheus": True, "results": {"job:power": [{"labels": {}, "values": [[START, 3600.0]]}]}})
    assert found.energy == pytest.approx(0.01)


def test_gaps_are_reported_and_count_for_no_energy() -> None:
    raw = known()
    found = report(raw, answer(raw, gap=(START + 900, START + 1800)))
    assert any("times without samples" in each for each in found.missing)
    assert 7.0 < (found.energy or 0) < 7.3
    assert 0.7 < found.measured < 0.8
    assert "samples of 7" in text(found)


def test_a_job_that_runs_still() -> None:
    found = report(known(components=[row(state="RUNNING", ended=None)], records=[]))
    assert "The job still runs" in said(found)
    assert "The counters of the network come with the end of the job." in found.missing
    assert found.seconds == 4000


def test_what_programs_read() -> None:
    found = json.loads(json.dumps(report(known()).to_dict()))
    assert found["energy_kwh"] == pytest.approx(9.6)
    assert found["counters"][0]["received"] == 10**12
    assert found["series"]["gpu"][0]["columns"] == ["time", "value"]
