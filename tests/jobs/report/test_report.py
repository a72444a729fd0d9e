"""Reports of jobs: what stands out, what is missing, and what must not be sent on."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpucluster.jobs.report import facts, queries
from gpucluster.jobs.report.build import JobReport, build, request
from gpucluster.jobs.report.page import KIND, html
from gpucluster.jobs.report.text import text
from gpucluster.pages.colours import Tone
from gpucluster.pages.frame import is_page
from tests.jobs.report.made_up import START, answer, known, rails, report, row, run

HOSTILE = "<script>alert(1)</script>\"'|\n\x1b[31m{{7*7}}"


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


def test_a_rail_that_carries_less_and_packets_that_were_sent_again_stand_out() -> None:
    slow = rails(out_of_sequence=1423, rx_prio3_pause=9)
    slow["mlx5_5/1"]["port_xmit_data"] //= 3
    found = report(known(records=[run("gpu-1", rails()), run("gpu-2", slow)]))
    assert "gpu-2: the rail mlx5_5/1 sent 310 GiB, the others 931 GiB." in said(found)
    assert "Retransmits: 1,423" in said(found)
    assert "gpu-2 mlx5_0/1 1,423" in said(found)
    assert "Pause: 9" in said(found)
    # The device with the bad events is the first row.
    assert text(found).partition("NODE")[2].splitlines()[1].split()[:2] == ["gpu-2", "mlx5_0/1"]


def test_a_node_that_sent_less_than_the_others_stands_out() -> None:
    names = [f"gpu-{at}" for at in range(1, 5)]
    runs = [run(name, rails(size=10**12 if name != "gpu-3" else 10**11)) for name in names]
    found = report(known(components=[row(node_list=names)], records=runs))
    assert re.search(r"gpu-3 sent \S+ \S+ through RDMA", said(found))
    assert "gpu-1 sent" not in said(found)


def test_gpus_that_do_nothing_or_less_stand_out() -> None:
    raw = known()
    assert "GPUs did nothing for 40 % of the time" in said(report(raw, answer(raw, idle=0.4)))
    asked = answer(raw)
    for each in asked["results"]["mean:gpu"]:
        if each["labels"]["node"] == "gpu-2":
            each["values"][0][1] = 0.3
    asked["results"]["mean:throttled"] = [
        {"labels": {"node": "gpu-1", "cause": "thermal"}, "values": [[START, 0.2]]},
    ]
    words = said(report(raw, asked))
    assert "gpu-2: its GPUs were used 30 %, those of the others 82 %." in words
    assert "gpu-1: a GPU was slowed down for 20 % of the time, cause: thermal." in words


def test_a_hang_and_gpus_without_a_process_stand_out() -> None:
    raw = known()
    asked = answer(raw)
    rank = {"rank": "2", "process": "1399", "host": "gpu-1"}
    asked["results"]["watch:stuck"] = [
        {"labels": {"state": "straggling", **rank}, "values": [[START, 1.0]]},
        {"labels": {"state": "hung", **rank, "collective": "AllReduce"}, "values": [[START, 1.0]]},
        {"labels": {"state": "hung"}, "values": [[START, 1.0]]},
    ]
    asked["results"]["watch:wasted"] = [{"labels": {}, "values": [[START, 3.25]]}]
    found = report(raw, asked)
    words = said(found)
    assert "The job was hung: rank 2, process 1399 on gpu-1, was behind in AllReduce." in words
    assert "The job was hung." in words
    assert "The job had a straggler: rank 2, process 1399 on gpu-1." in words
    assert "GPUs without a process have cost 3.2 GPU hours." in words
    assert found.remarks[0].tone is Tone.BAD
    assert "hung" not in said(report(raw))


def test_what_the_watcher_reported_and_did_is_in_the_report_also_without_prometheus() -> None:
    line = "2001-09-09 02:03:36 UTC job 12 is hung for 4 minutes (rank 1): rank 1 is behind. It is cancelled"
    earlier = [f"2001-09-09 01:0{minute}:00 UTC job 12 by ann is hung" for minute in range(5)]
    raw = known(told=[*earlier, line])
    found = report(raw, {"prometheus": False})
    assert [each.text for each in found.remarks if "The watcher" in each.text][-1] == f"The watcher: {line}"
    assert earlier[0] not in said(found), "the last lines say how it ended"
    assert line in page(found)
    assert line in text(found)
    assert not re.search(r"\bann\b", said(report(raw, anonymous=True)))


def test_gpus_of_other_jobs_on_the_node_are_not_the_job_s() -> None:
    raw = known()
    for each in raw["records"]:
        each["gpus"] = ["0", "1"]
    assert set(report(raw).means.gpu) == {(node, gpu) for node in ("gpu-1", "gpu-2") for gpu in "01"}


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


def test_gpus_of_other_jobs_on_a_shared_node_that_do_nothing_are_not_those_of_this_one() -> None:
    raw = known()
    for each in raw["records"]:
        each["gpus"] = ["0", "1"]
    asked = answer(raw, idle=0.9)
    for each in asked["results"]["mean:idle"]:
        if each["labels"]["gpu"] in ("0", "1"):
            each["values"][0][1] = 0.1
    assert "GPUs did nothing" not in said(report(raw, asked))
    for each in asked["results"]["mean:idle"]:
        each["values"][0][1] = 0.5 if each["labels"]["gpu"] in ("0", "1") else 0.0
    assert "GPUs did nothing for 50 % of the time" in said(report(raw, asked))


def test_slurm_s_number_of_a_whole_gpu_beside_divided_ones_is_not_that_of_nvidia_s_tools() -> None:
    raw = known()
    for each in raw["records"]:
        each |= {"gpus": ["9"], "divided": {"9": divided()["9"]}}
    assert set(report(raw).means.gpu) == {("gpu-1", "5"), ("gpu-2", "5")}
    for each in raw["records"]:
        each |= {"gpus": ["3", "9"], "divided": divided()}
    assert set(report(raw).means.gpu) == {("gpu-1", "5"), ("gpu-2", "5")}


def test_a_running_job_has_no_record_and_its_instances_are_known_all_the_same() -> None:
    raw = known(records=[])
    asked = answer(raw, idle=0.9)
    asked["results"]["watch:instances"] = [{"labels": {"node": "gpu-1"}, "values": [[START, 2.0]]}]
    found = report(raw, asked)
    assert {node for node, _gpu in found.means.gpu} == {node for node, _gpu in found.means.idle} == {"gpu-2"}
    # DCGM has measured their use.
    assert "was not measured" not in text(found)
    assert "power of instances (MIG) is not measured" in text(found)


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


def test_a_job_that_has_not_begun() -> None:
    pending = row(state="PENDING", started=None, ended=None, elapsed=0, node_list=[], gpus=0)
    raw = known(components=[pending], records=[], steps=[])
    assert request(facts.read(raw)) == []
    found = report(raw, {})
    assert "The job has not begun: it is PENDING." in said(found)
    assert page(found)


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


def test_nothing_at_all() -> None:
    found = build(facts.read({"id": "12"}), {})
    assert text(found)
    assert page(found)


def test_an_array_points_to_its_tasks() -> None:
    tasks = [row(id=str(at), shown_as=f"12_{at}") for at in range(700)]
    raw = known(tasks=tasks)
    assert request(facts.read(raw)) == []
    found = report(raw, {})
    assert any("array" in each for each in found.missing)
    assert "200 more are not shown" in page(found)


# --- sizes -----


@pytest.mark.slow
def test_a_thousand_nodes_and_thousands_of_steps_are_a_page_of_normal_size() -> None:
    names = [f"gpu-{at}" for at in range(1, 1001)]
    raw = known(
        components=[row(node_list=names, gpus=8000)],
        records=[run(name, rails(4)) for name in names],
        steps=[row(step=str(at)) for at in range(2000)],
        steps_left_out=3000,
    )
    asked = request(facts.read(raw))
    assert len(asked) < 60
    assert max(len(each["expr"]) for each in asked) < 20_000
    found = report(raw)
    assert all(len(plot.lines) == len(plot.panel.lines) for plot in found.plots)
    assert len(page(found)) < 1_000_000
    assert "3000 steps of 5000 are not listed." in found.missing
    assert len(text(found).splitlines()) < 200


def test_more_names_than_a_query_may_have_are_not_asked_for() -> None:
    names = [f"a-node-with-a-very-long-name-{at}" for at in range(1000)]
    asked = request(facts.read(known(components=[row(node_list=names)])))
    assert {each["name"] for each in asked} == {
        "job:power", "job:use", "watch:stuck", "watch:wasted", "watch:instances",
    }  # fmt: skip


def test_a_job_of_a_month_has_as_many_points_as_others() -> None:
    assert queries.step_of((0, 30 * 86400)) >= 30 * 86400 / 400
    assert queries.step_of((0, 10)) == queries.SHORTEST_STEP


# --- what must not be sent on -----


def test_hostile_names_are_text() -> None:
    raw = known(components=[row(name=HOSTILE)], steps=[row(step="0", name=HOSTILE)])
    content = page(report(raw))
    assert "<script" not in content
    assert "\x1b" not in content
    assert "default-src &#39;none&#39;" in content or "default-src 'none'" in content
    assert "\x1b" not in text(report(raw))
    assert not re.search(r"(src|href)=\"(?!#)", content)


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


def test_what_programs_read() -> None:
    found = json.loads(json.dumps(report(known()).to_dict()))
    assert found["energy_kwh"] == pytest.approx(9.6)
    assert found["counters"][0]["received"] == 10**12
    assert found["series"]["gpu"][0]["columns"] == ["time", "value"]


@pytest.mark.parametrize(
    "raw", [{}, {"records": [{"node": "a", "job_id": "12", "devices": [3], "changes": ["x"]}]}, {"result": None}]
)
def test_answers_of_another_version_are_survived(raw: dict[str, Any]) -> None:
    assert page(build(facts.read(raw), {"results": {"gpu:": 3, "mean:gpu": ["x"]}}))


def test_only_rules_that_exist_are_asked_for() -> None:
    rules = Path(__file__).parents[3] / "ansible/roles/monitoring/files/rules/recording.yml"
    known_rules = set(re.findall(r"- record: (\S+)", rules.read_text()))
    names = [f"gpu-{at}" for at in range(9)]
    for nodes in (["gpu-1"], names):
        for each in request(facts.read(known(components=[row(node_list=nodes)]))):
            asked = set(re.findall(r"gpucluster:\w+:\w+", each["expr"]))
            assert asked, each
            assert asked <= known_rules


def test_prometheus_understands_every_question(tmp_path: Path) -> None:
    asked = [
        each
        for count in (2, 9)
        for each in request(facts.read(known(components=[row(node_list=[f"gpu-{at}.x" for at in range(count)])])))
    ]
    rules = [{"record": f"a:{number}", "expr": each["expr"]} for number, each in enumerate(asked)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("this machine has no promtool")
    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(asked)} rules found" in done.stdout
