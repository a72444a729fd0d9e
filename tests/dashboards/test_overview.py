"""The page of the cluster's state: what it shows, that it is sound, and that it stays readable for large clusters."""

import json
import re
from dataclasses import replace

import pytest

from gpucluster.dashboards.overview import (
    NodeKind,
    NodeSummary,
    SourcePart,
    attention,
    in_order,
    kind_of,
    state_words,
)
from gpucluster.dashboards.overview_page import html
from tests.dashboards.overview_samples import AUTOSCALER, HEALTH, NOW, nodes, sample
from tests.pages.reading import read


def section(page: str, id_: str) -> str:
    """The text of one section."""
    (found,) = [each for each in read(page).all("section") if each.attributes["aria-labelledby"] == id_]
    return re.sub(r"\s+", " ", found.text)


@pytest.mark.parametrize(
    ("state", "kind", "words"),
    [
        ("idle", NodeKind.IDLE, "idle"),
        ("idle~", NodeKind.OFF, "idle, powered down"),
        ("idle%", NodeKind.OFF, "idle, powering down"),
        ("allocated#", NodeKind.STARTING, "allocated, powering up"),
        ("mixed", NodeKind.MIXED, "mixed"),
        ("idle*", NodeKind.DOWN, "idle, does not answer"),
        ("down*", NodeKind.DOWN, "down, does not answer"),
        ("down~", NodeKind.DOWN, "down, powered down"),
        ("drained", NodeKind.DRAINED, "drained"),
        ("draining@", NodeKind.DRAINED, "draining, to be restarted"),
        ("maint", NodeKind.OTHER, "maint"),
        ("", NodeKind.OTHER, ""),
    ],
)
def test_a_state_of_sinfo_has_a_meaning_and_words(state: str, kind: NodeKind, words: str) -> None:
    assert kind_of(state) is kind
    assert state_words(state) == words


def test_what_needs_attention_is_shown_first_and_the_worst_before_the_rest() -> None:
    said = [text for _, text in attention(sample())]
    assert said == [
        "The last verdict failed: GPUs of gpu-3, RDMA links of gpu-12 are up.",
        "Down: gpu-7.",
        "RDMA ports are down: gpu-12 rdma5.",
        "Drained: gpu-3, gpu-11.",
        "Checks fail on: gpu-3, gpu-12.",
        "The check clock fails on 3 nodes of pool burst and passes on none: the check itself is the suspect.",
        "Not configured yet: gpu-16.",
    ]
    summary = section(html(sample()), "summary")
    assert all(text in summary for text in said)


def test_a_breaker_and_an_autoscaler_that_does_not_work_need_attention() -> None:
    breaker = {"pool": "gpu", "drained": 6, "limit": 6, "open": True}
    scaler = {**AUTOSCALER, "problems": ["the daemon has run no reconcile pass yet"], "paused": "by anna"}
    found = sample(health=SourcePart(replace(HEALTH, breakers=(breaker,))), autoscaler=SourcePart(scaler))
    said = " ".join(text for _, text in attention(found))
    assert "The health service drains no more nodes of pool gpu: 6 of at most 6" in said
    assert "The autoscaler: the daemon has run no reconcile pass yet." in said
    assert "The autoscaler is paused: by anna." in said


def test_nodes_with_faults_come_first_and_numbers_count_as_numbers() -> None:
    assert [node.name for node in in_order(nodes(16))][:4] == ["gpu-7", "gpu-3", "gpu-11", "gpu-12"]
    idle = [NodeSummary(f"gpu-{number}", "idle") for number in (10, 9, 100)]
    assert [node.name for node in in_order(idle)] == ["gpu-9", "gpu-10", "gpu-100"]


def test_nodes_that_are_powered_down_are_no_trouble_and_not_listed() -> None:
    found = sample(
        nodes=SourcePart((NodeSummary("burst-e1", "idle~", pool="burst", stale=True), NodeSummary("gpu-1", "idle")))
    )
    assert not [text for _, text in attention(found) if "burst-e1" in text]
    assert "burst-e1" not in section(html(found), "nodes")
    assert "1 and 1 powered down" in section(html(found), "summary")


def test_the_facts_are_json() -> None:
    found = json.loads(json.dumps(sample().to_dict(), allow_nan=False))
    assert found["format"] == 1
    assert found["nodes"]["value"][0]["name"] == "gpu-1"
    assert found["made_at"] == NOW
