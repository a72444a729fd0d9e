"""Why a task failed, as a run reports it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpucluster.configuration.runner import failure_reason

SHELL = {"message": "alice: '/bin/nosuch' is not a login shell of this host", "hint": "One of: /bin/bash"}


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({"msg": "non-zero return code", "rc": 1, "stderr": "sinfo: down"}, "sinfo: down"),
        ({"msg": "non-zero return code", "rc": 1, "stdout": "it broke"}, "it broke"),
        ({"msg": "non-zero return code", "rc": 7}, "exit code 7"),
        (
            {"msg": "non-zero return code", "rc": 1, "stdout": json.dumps({"error": SHELL})},
            "alice: '/bin/nosuch' is not a login shell of this host. One of: /bin/bash",
        ),
        ({"msg": "no such user"}, "no such user"),
        ({"censored": "x", "msg": "secret"}, "the details are hidden, because they may contain secrets"),
        ({}, "no reason given"),
    ],
)
def test_a_failed_task_has_the_reason_that_its_program_gave(result: dict[str, Any], reason: str) -> None:
    assert failure_reason(result) == reason
