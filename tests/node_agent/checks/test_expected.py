"""The file that names what a node should have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent.checks.expected import VERSION, Damaged, NodeExpectation, parse
from tests.node_agent.checks.collect.measured_tree import write
from tests.node_agent.checks.command import check
from tests.node_agent.checks.measured import NODE

GOOD = NODE.to_dict()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        ("", "not JSON"),
        ('{"version": 1', "not JSON"),
        ("[1]", "not a JSON object"),
        (b"\xff\xfe", "decode"),
        (json.dumps({**GOOD, "version": 99}), "its version is 99"),
        *[(json.dumps({key: value for key, value in GOOD.items() if key != left_out}), f"no {left_out}")
          for left_out in GOOD if left_out != "version"],
        *[(json.dumps({**GOOD, "gpus": value}), "gpus is") for value in (-1, "8", None, True, 8.0)],
        *[(json.dumps({**GOOD, "mounts": value}), "mounts is") for value in ("/home", [1], None, {"a": 1})],
        (json.dumps({**GOOD, "hardware_emulated": 1}), "hardware_emulated is"),
    ],
)  # fmt: skip
def test_a_damaged_file(content: Any, why: str, folder: Path) -> None:
    if isinstance(content, str):
        with pytest.raises(Damaged, match=why):
            parse(content)
        if "no shape" not in why and "JSON" not in why:
            return  # one of each kind as a program is enough
    if content is not None:
        write(folder / "checks.json", content)
    done = check(folder, None, "--profile", "prolog")
    assert (done.returncode, done.stdout) == (3, "")
    assert why in done.stderr
    assert "gpucluster apply" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_is_read_as_it_was_written() -> None:
    assert NodeExpectation.from_dict(json.loads(json.dumps(NODE.to_dict()))) == NODE
    assert NodeExpectation.from_dict({**NODE.to_dict(), "of_the_future": 1}) == NODE
    assert NODE.to_dict()["version"] == VERSION
