"""What is refused as a request for measurements."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.controller.measure import request
from gpucluster.node_agent.errors import Refused
from tests.controller.measure.requests import NCCL


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": []}, {"nodes": ["a", "a"]}, {"nodes": ["a;reboot"]}, {"nodes": "gpu-1"}, {"minutes": 0},
        {"minutes": 100_000}, {"gpus": 0}, {"kind": "shell"}, {"program": "$(reboot)"}, {"settings": ["a"]},
        {"partition": "x y"}, {"id": None}, {"arguments": ["`id`"]}, {"image": "a b"}, {"minutes": True},
        {"kind": "rdma", "devices": []}, {"kind": "rdma", "devices": ["mlx5_0"], "nodes": ["gpu-1"]},
    ],
)  # fmt: skip
def test_what_is_not_a_measurement_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        request.read({**NCCL, **change})


@pytest.mark.parametrize("given", [None, [], "x", {}, {"id": "1"}])
def test_what_is_not_a_request_is_refused(given: Any) -> None:
    with pytest.raises(Refused):
        request.read(given)
