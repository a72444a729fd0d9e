"""Which GPU a job's number means, on nodes with whole and with divided GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.node_agent.gpu_numbers import UNKNOWN, Gpu, Numbers
from gpucluster.node_agent.rules import mig
from tests.node_agent.mig.divided import Divided
from tests.node_agent.mig.smi import uuid
from tests.node_agent.mig.test_apply import PARTS


@pytest.fixture
def node(tmp_path: Path) -> Divided:
    return Divided(tmp_path)


def test_each_number_means_the_instance_that_slurm_gives(node: Divided) -> None:
    """Slurm's numbers go by type: 1g.10gb of both GPUs, 2g.20gb, 3g.40gb, and the whole one."""
    numbers = node.numbers()
    made = [{(each.profile, each.start): each.number for each in card.made} for card in node.place.smi.cards]
    for device in mig.devices(PARTS, "h100"):
        found = numbers.meaning(str(device.number))
        if device.instance is None:
            # /dev/nvidia1 is the GPU that nvidia-smi calls 2.
            assert found == Gpu("2", "GPU-00000001")
            continue
        minor = node.place.smi.cards[device.gpu].minor
        instance = str(made[device.gpu][device.instance])
        assert found == Gpu(str(device.gpu), uuid(minor, *device.instance), instance)
        assert not found.whole
    assert len(numbers.instances) == 11


def test_a_number_that_no_link_has_is_not_a_gpu(node: Divided) -> None:
    for name in ("12", "99", "MIG-of-somewhere-else"):
        found = node.numbers().meaning(name)
        assert (found.instance, found.words) == (UNKNOWN, "")
        assert not found.number.isdigit()


def test_an_instance_is_found_by_its_name(node: Divided) -> None:
    numbers = node.numbers()
    assert numbers.meaning(numbers.meaning("3").uuid) == numbers.meaning("3")
    assert numbers.meaning("GPU-00000001") == Gpu("2", "GPU-00000001")


def test_what_the_driver_or_the_node_does_not_report_is_unknown_and_no_other_gpu(node: Divided) -> None:
    (node.root / "proc/driver/nvidia-caps/mig-minors").unlink()
    (Path(node.links) / "names").unlink()
    assert node.numbers().meaning("0").instance == UNKNOWN
    assert node.numbers().meaning("11") == Gpu("2", "GPU-00000001")
    link = Path(node.links) / "gpu01"
    link.unlink()
    link.write_text("no link")
    assert node.numbers().meaning("1").instance == UNKNOWN


def test_links_that_can_not_be_seen_are_not_taken_for_none(node: Divided, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_folder: str) -> list[str]:
        raise PermissionError

    monkeypatch.setattr("gpucluster.node_agent.gpu_numbers.os.listdir", refused)
    assert node.numbers().meaning("0").instance == UNKNOWN


def test_a_node_whose_gpus_are_whole_again_counts_device_files(node: Divided) -> None:
    node.place.apply(("", "", ""))
    numbers = node.numbers()
    assert not numbers.divided
    assert [numbers.meaning(name) for name in ("0", "1", "2", "7")] == [
        Gpu("0", "GPU-00000000"), Gpu("2", "GPU-00000001"), Gpu("1", "GPU-00000002"), Gpu("7", ""),
    ]  # fmt: skip


def test_a_node_without_anything(tmp_path: Path) -> None:
    assert Numbers(str(tmp_path), str(tmp_path / "none")).meaning("3") == Gpu("3", "")
