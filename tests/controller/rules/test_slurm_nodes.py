"""What `scontrol --oneliner show nodes` prints, in lines as Slurm 22.05 and 24.11 write them."""

from __future__ import annotations

import pytest

from gpucluster.controller.rules import slurm_nodes
from gpucluster.controller.rules.slurm_nodes import NodeLine, node_flags

IDLE = "NodeName=compute-1 Arch=x86_64 NodeAddr=10.0.0.5 NodeHostName=compute-1 State=IDLE ThreadsPerCore=1 Boards=1"
DRAINED = (
    "NodeName=gpu-e1 Arch=x86_64 NodeAddr=gpu-e1 State=IDLE+CLOUD+DRAIN ThreadsPerCore=2 TmpDisk=0"
    " Reason=fan [2] is loud [root@2026-01-02T03:04:05] InstanceId=ocid1.instance.x InstanceType="
)  # fmt: skip


def test_a_node_has_its_name_its_state_and_its_address() -> None:
    assert slurm_nodes.parse_line(IDLE) == NodeLine("compute-1", frozenset({"IDLE"}), "10.0.0.5")


def test_a_reason_is_read_up_to_who_set_it_whatever_it_holds() -> None:
    node = slurm_nodes.parse_line(DRAINED)
    assert (node.reason, node.reason_user, node.instance_id) == ("fan [2] is loud", "root", "ocid1.instance.x")
    hostile = DRAINED.replace("fan [2] is loud", "x State=DOWN NodeAddr=10.9.9.9 ThreadsPerCore=1 InstanceId=theirs")
    node = slurm_nodes.parse_line(hostile)
    assert (node.flags, node.address) == (frozenset({"IDLE", "CLOUD", "DRAIN"}), "gpu-e1")
    assert node.instance_id == "ocid1.instance.x"


def test_an_instance_that_has_not_registered_has_no_id() -> None:
    assert slurm_nodes.parse_line(DRAINED.replace("ocid1.instance.x", "(null)")).instance_id == ""


def test_a_reason_with_line_breaks_is_a_part_of_its_node() -> None:
    text = f"{DRAINED.replace('fan', 'fan' + chr(10) + 'and')}\n{IDLE}\n"
    first, second = slurm_nodes.parse(text)
    assert (first.reason, second.name) == ("fan\nand [2] is loud", "compute-1")
    assert list(slurm_nodes.parse("\n")) == []


@pytest.mark.parametrize("line", ["", "No nodes in the system", "NodeName=a State=IDLE", IDLE[:-30]])
def test_a_line_that_is_cut_off_is_not_a_node(line: str) -> None:
    with pytest.raises(ValueError, match=r"^"):
        slurm_nodes.parse_line(line)


@pytest.mark.parametrize(
    ("state", "flags"),
    [
        ("IDLE", {"IDLE"}),
        ("IDLE*+CLOUD", {"IDLE", "NOT_RESPONDING", "CLOUD"}),
        ("IDLE~", {"IDLE", "POWERED_DOWN"}),
        ("ALLOCATED#*", {"ALLOCATED", "POWERING_UP", "NOT_RESPONDING"}),
        ("MIXED+DRAIN+POWER_DOWN", {"MIXED", "DRAIN", "POWER_DOWN"}),
    ],
)
def test_signs_of_older_versions_are_the_words_of_newer_ones(state: str, flags: set[str]) -> None:
    assert node_flags(state) == flags
