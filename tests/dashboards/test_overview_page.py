"""The page of the state of a cluster: its sections, what did not answer, and that it is sound for large clusters."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpucluster.dashboards.overview import (
    EndedJob,
    JobSummary,
    NodeSummary,
    Overview,
    SourcePart,
    attention,
)
from gpucluster.dashboards.overview_page import KIND, html
from gpucluster.pages.frame import is_page
from tests.dashboards.overview_samples import HEALTH, VERDICT, sample, silent
from tests.dashboards.test_overview import section
from tests.examples import examples
from tests.pages.reading import read

MEGABYTE = 1_000_000


@pytest.mark.parametrize("made", [sample, silent, lambda: sample(2), lambda: sample(100)])
def test_the_page_is_sound(made: Callable[[], Overview]) -> None:
    page = html(made())
    assert read(page).faults == []
    assert is_page(page, KIND)
    assert not re.search(r"https?://|<script|url\(|@import|\son\w+=", page.replace("onload=x", ""))


def test_a_cluster_without_trouble_reports_it() -> None:
    good = sample(
        nodes=SourcePart((NodeSummary("gpu-1", "idle"),)),
        verdict=SourcePart(replace(VERDICT, status="pass")),
        health=SourcePart(replace(HEALTH, suspects=())),
        rails=SourcePart(),
        facts=replace(sample().facts, pending=()),
    )
    assert attention(good) == []
    assert "Nothing that was asked needs attention." in html(good)


def test_each_section_has_its_facts() -> None:
    page = html(sample())
    assert "2 fail" in section(page, "verdict")
    assert "Replace it: gpucluster replace gpu-3" in section(page, "verdict")
    node = section(page, "nodes")
    assert "Xid 79" in node
    assert "1 h 30 min ago" in node
    assert "stale" in node
    jobs = section(page, "jobs")
    for text in (
        "llama-pretrain",
        "ReqNodeNotAvail, UnavailableNodes:gpu-7",
        "4102_[1-100000]",
        "out of memory",
        "0:15",
    ):
        assert text in jobs
    assert re.search(r"gpu-12 rdma5\s*✕\s*down", section(page, "rails"))
    assert "15 of 16" in section(page, "rails")
    history = section(page, "history")
    for title in ("Nodes by state", "Jobs by state", "GPU utilisation", "RDMA throughput", "GPU utilisation by node"):
        assert title in history
    assert "no capacity for VM.GPU.A10.1" in section(page, "autoscaler")
    assert "Xid 79" in section(page, "health")
    assert "20261122T220000-ffee00" in section(page, "runs")
    assert "BM.GPU.H100.8" in section(page, "cluster")
    assert "16 x 200 Gb/s" in section(page, "cluster")


def test_what_did_not_answer_is_named_in_its_place() -> None:
    page = html(silent())
    for id_ in ("nodes", "jobs", "rails", "history", "autoscaler", "health", "cluster"):
        assert "the controller can't be reached" in section(page, id_), id_
    assert "gpucluster verify" in section(page, "verdict")
    summary = section(page, "summary")
    assert summary.count("the controller can't be reached") == 1
    assert "Slurm's nodes, Slurm's jobs, the accounting, the health service, Prometheus" in summary


def test_without_monitoring_the_page_states_how_to_get_it() -> None:
    off = SourcePart[object](
        why="Monitoring is off. Set monitoring.enabled: true in cluster.yml and run: gpucluster apply"
    )
    found = sample(history=off, rails=off, facts=replace(sample().facts, monitoring=False))
    assert "monitoring.enabled: true" in section(html(found), "history")


@pytest.mark.slow
def test_two_thousand_nodes_are_a_page_that_can_be_read_and_sent() -> None:
    page = html(sample(2000))
    assert len(page.encode()) < 1 * MEGABYTE
    said = section(page, "nodes")
    assert "Pool gpu: 2,000 nodes" in said
    # Each node that exists has its field; the table has those that need attention only.
    fields = [each for each in read(page).all("i") if "title" in each.attributes]
    assert len(fields) == 2000 + 216
    (table,) = re.findall(r"<table><caption[^>]*>Nodes</caption>.*?</table>", page)
    assert table.count("<tr>") == 1 + 4


@pytest.mark.slow
def test_a_cluster_that_is_down_as_a_whole_is_still_a_page() -> None:
    down = tuple(
        NodeSummary(f"gpu-{index}", "down*", pool="gpu", reason="Not responding", stale=True) for index in range(5000)
    )
    page = html(sample(nodes=SourcePart(down)))
    assert len(page.encode()) < 2 * MEGABYTE
    assert "4,880 more are not shown" in section(page, "nodes") or "4880 more are not shown" in section(page, "nodes")


TEXT = st.text(max_size=30)


@examples(40)
@given(TEXT, TEXT, TEXT)
@example("", " ", "")
def test_names_of_users_and_jobs_are_only_text(one: str, two: str, three: str) -> None:
    job = JobSummary(one, two, three, one, 1, two, three, one, two)
    node = NodeSummary(f"x{one}", two, pool=three, reason=one, health=two, failing=(three,), jobs=(one,))
    ended = EndedJob(three, one, two, three, 1, one, two, three, one)
    found = sample(
        1,
        jobs=SourcePart((job,)),
        nodes=SourcePart((node,) * 30),
        ended=SourcePart((ended,)),
        history=SourcePart(why=one),
    )
    assert read(html(found)).faults == []
