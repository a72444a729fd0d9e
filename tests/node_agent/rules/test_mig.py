"""Divided GPUs as a node and Slurm name them."""

from __future__ import annotations

import pytest

from gpucluster.node_agent.rules import mig as rules
from gpucluster.node_agent.rules.mig import MigInstance


def test_the_text_of_a_gpu_is_read_as_it_is_written() -> None:
    placed = (MigInstance("3g.40gb", 0), MigInstance("1g.10gb", 4))
    assert rules.text(placed) == "3g.40gb:0,1g.10gb:4"
    assert rules.parse(rules.text(placed)) == placed
    assert rules.parse("") == ()


@pytest.mark.parametrize("words", ["3g.40gb", "3g.40gb:", "3g.40gb:x", "3g.40gb:0:1"])
def test_what_is_not_the_text_of_a_gpu_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        rules.parse(words)


def test_devices_are_numbered_by_type_then_by_gpu() -> None:
    parts = ("3g.40gb:4,1g.10gb:0", "", "1g.10gb:1,1g.10gb:0")
    found = rules.devices(parts, "h100")
    assert [(device.number, device.type, device.gpu) for device in found] == [
        (0, "1g.10gb", 0), (1, "1g.10gb", 2), (2, "1g.10gb", 2), (3, "3g.40gb", 0), (4, "h100", 1),
    ]  # fmt: skip
    assert [device.instance for device in found[1:3]] == [MigInstance("1g.10gb", 0), MigInstance("1g.10gb", 1)]
    assert rules.gres(found) == "gpu:1g.10gb:3,gpu:3g.40gb:1,gpu:h100:1"


def test_slurms_type_has_no_plus() -> None:
    assert rules.gres(rules.devices(("1g.10gb+me:0",), "h100")) == "gpu:1g.10gb.me:1"


def test_an_instance_has_three_links_and_a_whole_gpu_one() -> None:
    instance, whole = rules.devices(("1g.10gb:0", ""), "h100")
    assert instance.links == tuple(f"/run/gpucluster/mig/{name}" for name in ("gpu00", "compute00", "card00"))
    assert whole.links == ("/run/gpucluster/mig/gpu01",)
    assert rules.gpu_links(2) == ("/run/gpucluster/mig/gpu00", "/run/gpucluster/mig/gpu01")
