"""A share of an instance: its hours and its money."""

from __future__ import annotations

from gpucluster.cost.model import Hardware, HostInterval, Share, Use

HOST = HostInterval("id", "gpu-1", "gpu", {"shape": "BM.GPU4.8"}, Hardware(), 0.0)


def test_a_share_is_worth_its_part_of_the_instance() -> None:
    share = Share(0.0, 7200.0, HOST, Use.IDLE, 0.25, 24.0)
    assert (share.hours, share.money) == (0.5, 12.0)
    assert Share(0.0, 7200.0, HOST, Use.IDLE, 0.25, None).money is None
    assert (HOST.shape, HostInterval("id", "x", "gpu", {}, Hardware(), 0.0).shape) == ("BM.GPU4.8", "")
