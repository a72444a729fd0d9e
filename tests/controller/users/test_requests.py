"""What is refused as a request to the users program."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from gpucluster.controller.users import requests


def no_service() -> Any:
    """It is never used: what is asked for is not an operation."""


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "nul", '{"operation": 5}', '{"operation": "user.add", "more": 1}', "[" * 100_000]
)
def test_what_is_not_a_request_is_refused(text: str) -> None:
    target = io.StringIO()
    assert requests.serve(no_service, io.StringIO(text), target) == 2
    said = json.loads(target.getvalue())["error"]
    assert said["message"]
    assert said["hint"]
