"""What the library waits for can be cancelled: its pauses are those of `gpucluster.cancellation` (ADR 0116)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "gpucluster"
#: What runs on hosts, or as a service of its own.
ELSEWHERE = ("autoscaler", "controller", "failover", "localcloud", "node_agent")
#: The pauses themselves; and one of half a millisecond in a thread of its own.
OWNERS = ("cancellation.py", "process/signals.py")
#: Functions that wait, by their modules, with what takes their place.
INSTEAD = {
    ("time", "sleep"): "cancellation.sleep",
    ("futures", "wait"): "cancellation.completed",
    ("concurrent.futures", "wait"): "cancellation.completed",
}
SUSPECT = re.compile(r"\btime\.sleep\b|\bfrom time\b|\bfutures\b")


def findings(source: str) -> Iterator[str]:
    """What waits in the text of a module, and can't be cancelled."""
    if not SUSPECT.search(source):
        return  # a syntax tree is dear
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and (instead := INSTEAD.get((ast.unparse(node.value), node.attr))):
            yield f"line {node.lineno}: use {instead}"
        if isinstance(node, ast.ImportFrom):
            for one in node.names:
                if instead := INSTEAD.get((str(node.module), one.name)):
                    yield f"line {node.lineno}: use {instead}"


def _modules() -> list[str]:
    names = (file.relative_to(PACKAGE).as_posix() for file in PACKAGE.rglob("*.py"))
    return sorted(name for name in names if name.partition("/")[0] not in ELSEWHERE and name not in OWNERS)


def test_the_library_pauses_where_it_can_be_cancelled() -> None:
    found = {name: lines for name in _modules() if (lines := [*findings((PACKAGE / name).read_text())])}
    assert found == {}
    assert len(_modules()) > 200


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ("import time\ntime.sleep(pause)", 1),
        ("from time import sleep", 1),
        ("def f(sleep=time.sleep): ...", 1),
        ("futures.wait(these)", 1),
        ("from concurrent.futures import wait", 1),
        ("cancellation.sleep(pause)\ntime.monotonic()\nevent.wait(1)", 0),
    ],
)
def test_what_can_not_be_cancelled_is_found(source: str, number: int) -> None:
    assert len([*findings(source)]) == number
