"""What stands out in a job."""

from __future__ import annotations

import re

from gpucluster.jobs.report.text import text
from gpucluster.pages.colours import Tone
from tests.jobs.report.made_up import START, answer, known, rails, report, row, run
from tests.jobs.report.test_build import page, said


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
