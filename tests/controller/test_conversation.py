"""The lines between a program of the controller and the operator's machine."""

from __future__ import annotations

import pytest

from gpucluster.controller.conversation import Disconnected
from tests.controller.measure.requests import talk


def test_a_line_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpucluster.controller.conversation._MOST", 10)
    conversation, _answers = talk("x" * 100)
    with pytest.raises(Disconnected):
        conversation.request()
