"""The calls that divide GPUs, from what is there. `test_apply.py` carries them out with a double of nvidia-smi."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucluster.node_agent.mig import plan
from gpucluster.node_agent.mig.collect import Card, There
from gpucluster.node_agent.mig.plan import OFF, ON, NotPossible
from gpucluster.node_agent.rules import mig
from gpucluster.node_agent.rules.mig import MigInstance

WHOLE = Card(0, "GPU-0", OFF, OFF, (), ())
SMALL, LARGE = MigInstance("1g.10gb", 0), MigInstance("3g.40gb", 4)
DIVIDED = Card(1, "GPU-1", ON, ON, (There(SMALL, 7, 0, "MIG-7"), There(LARGE, 2, 0, "MIG-2")), ())
PARTS = "1g.10gb:0,3g.40gb:4"


def calls(card: Card, words: str) -> list[str]:
    return [" ".join(step.words) for step in plan.steps([card], [words])]


@pytest.mark.parametrize(
    ("card", "words", "expected"),
    [
        (WHOLE, "", []),
        (DIVIDED, PARTS, []),
        (WHOLE, PARTS, ["-i 0 -mig 1", f"mig -i 0 -cgi {PARTS} -C"]),
        (DIVIDED, "", ["mig -i 0 -dci", "mig -i 0 -dgi", "-i 0 -mig 0"]),
        (DIVIDED, "1g.10gb:0", ["mig -i 0 -dci", "mig -i 0 -dgi", "mig -i 0 -cgi 1g.10gb:0 -C"]),
        # After a boot the mode may be kept and the instances are lost.
        (replace(DIVIDED, instances=()), PARTS, [f"mig -i 0 -cgi {PARTS} -C"]),
        # One without a compute instance is made again.
        (replace(DIVIDED, instances=(There(SMALL, 7, None, ""),)), "1g.10gb:0",
         ["mig -i 0 -dgi", "mig -i 0 -cgi 1g.10gb:0 -C"]),
        # A mode that waits for a restart is asked for again.
        (replace(WHOLE, pending=ON), "", ["-i 0 -mig 0"]),
        (replace(WHOLE, mode="N/A", pending="N/A"), "", []),
    ],
)  # fmt: skip
def test_what_is_done_follows_from_what_is_there(card: Card, words: str, expected: list[str]) -> None:
    assert calls(card, words) == expected
    assert plan.is_right(card, mig.parse(words)) is not bool(expected)


def test_only_calls_that_change_the_mode_need_a_gpu_that_no_program_holds() -> None:
    assert [(step.gpu, step.mode) for step in plan.steps([DIVIDED, WHOLE], [PARTS, PARTS])] == [(1, True), (1, False)]


@pytest.mark.parametrize(
    ("cards", "parts", "message"),
    [
        ([WHOLE], [PARTS, PARTS], "the driver sees 1 of 2 GPUs"),
        ([replace(WHOLE, mode="N/A")], [PARTS], "GPU 0 can't be divided: nvidia-smi has 'N/A'"),
        ([DIVIDED, replace(WHOLE, processes=("7 (python)",))], [PARTS, PARTS], r"GPU 1 is in use .*7 \(python\)"),
    ],
)
def test_what_is_not_possible_names_the_gpu(cards: list[Card], parts: list[str], message: str) -> None:
    with pytest.raises(NotPossible, match=message):
        plan.steps(cards, parts)


def test_a_process_is_no_obstacle_where_nothing_changes() -> None:
    assert plan.steps([replace(DIVIDED, processes=("7 (python)",))], [PARTS]) == ()


def test_differences_name_each_instance() -> None:
    card = replace(DIVIDED, instances=(There(SMALL, 7, None, ""), There(LARGE, 2, 0, "MIG-2")))
    desired = (SMALL, MigInstance("2g.20gb", 2))
    assert plan.differences(card, desired) == [
        "2g.20gb at 2 is missing", "1g.10gb at 0 has no compute instance", "3g.40gb at 4 should not exist",
    ]  # fmt: skip


def test_links_lead_to_the_device_files_of_each_instance() -> None:
    devices = mig.devices([PARTS, ""], "h100")
    minors = {"gpu1/gi7/access": 70, "gpu1/gi7/ci0/access": 71, "gpu1/gi2/access": 20, "gpu1/gi2/ci0/access": 21}
    by_link = plan.links([DIVIDED, WHOLE], devices, minors)
    assert [by_link[link] for link in devices[0].links] == [
        "/dev/nvidia-caps/nvidia-cap70", "/dev/nvidia-caps/nvidia-cap71", "/dev/nvidia1",
    ]  # fmt: skip
    assert by_link[devices[2].link] == "/dev/nvidia0"
    assert len(by_link) == 7
    assert plan.names([DIVIDED, WHOLE], devices) == {0: "MIG-7", 1: "MIG-2", 2: "GPU-0"}


def test_an_instance_without_a_device_file_or_a_compute_instance_has_no_link() -> None:
    devices = mig.devices([PARTS], "h100")
    with pytest.raises(NotPossible, match="mig-minors of the driver has no gpu1/gi7"):
        plan.links([DIVIDED], devices, {"gpu1/gi7/access": 70})
    with pytest.raises(NotPossible, match=r"GPU 0: 1g\.10gb is not there"):
        plan.names([replace(DIVIDED, instances=(There(SMALL, 7, None, ""),))], devices)
