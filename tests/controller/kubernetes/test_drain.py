"""What is left of a drain that did not end. `test_api_server.py` drains nodes of a real API server."""

from __future__ import annotations

from gpucluster.controller.kubernetes.drain import Left, unfinished


def test_an_unfinished_drain_names_what_is_left_and_how_to_go_on() -> None:
    left = Left([f"user-a/train-{number}" for number in range(7)], {"default/web": ("web can't go", "Edit it")})
    error = unfinished(["n1"], left, 60)
    assert "n1 can't be drained: after 60 s" in error.message
    assert "user-a/train-4 and 2 more" in error.message
    assert error.hint.startswith("Edit it. ")
    assert "--drain-timeout 0" in error.hint
