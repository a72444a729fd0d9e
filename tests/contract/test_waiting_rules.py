"""Tests wait for events: one way to wait, no pause that stands for an event, no bound on what a clock shows.

How long something takes shows how busy the machine is. What may be slow belongs to benchmarks/; the growth of work to
tests/processor.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
#: The modules that the rules are about.
OWNERS = {"waiting.py", "processor.py", "test_waiting.py", "contract/test_waiting_rules.py"}
CLOCKS = {
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
    "thread_time",
}
#: Seconds: the patience of tests. What is given less ends by chance on a busy machine.
SHORTEST_TIMEOUT = 180
#: Methods and functions that wait for another process or thread.
WAITING = {
    "communicate",
    "wait",
    "join",
    "run",
    "check_output",
    "check_call",
    "urlopen",
    "settimeout",
    "create_connection",
    "get",
}
#: In the text of a program: it hangs until a user ends it, or it does not sleep.
SHORT_SLEEP = re.compile(r"\bsleep[ (]+([0-9]*\.?[0-9]+)\b")
LEAST_SLEEP = 60
_WALL_CLOCK = "time.time()"
#: It writes the time into its result.
_WITH_NOW = "gzip.compress"
_NOW = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
#: What each finding has in its text. Most modules have none of it and need no syntax tree.
SUSPECT = re.compile(
    r"\b(?:time|asyncio)\s*\.\s*(?:sleep|time|" + "|".join(sorted(CLOCKS)) + r")\b"
    r"|\bgzip\.compress\b|\bdatetime\.(?:now|utcnow|today)\b|\bfrom\s+time\b|\bgpucluster\.waiting\b|\bsleep[ (]+[0-9.]"
    r"|\btimeout\s*=\s*(?:[0-9.]|True|False)|\.\s*(?:wait|join|settimeout)\s*\(\s*(?:[0-9.]|True|False)"
)


def findings(source: str) -> list[tuple[int, str]]:
    """What breaks a rule in the text of a module: line and reason."""
    if not SUSPECT.search(source):
        return []
    tree = ast.parse(source)
    found = [*_found(tree, _modules_that_wait(tree)), *_read_at_import(tree)]
    # The text of an expression is dear, and few files have this.
    return sorted([*found, *(_wall_clock(tree) if _WALL_CLOCK in source else ())])


def _modules_that_wait(tree: ast.AST) -> set[str]:
    """Names under which `subprocess` and `urllib.request` are used: their functions take a timeout of ours."""
    names = {"subprocess", "request", "socket"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {one.asname for one in node.names if one.asname and one.name in ("subprocess", "urllib.request")}
    return names


def _found(tree: ast.AST, modules: set[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield from _clocks(node, node.func)
            yield from _short_timeouts(node, modules)
        elif isinstance(node, ast.ImportFrom):
            yield from _imports(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for number in SHORT_SLEEP.findall(node.value):
                if 0 < float(number) < LEAST_SLEEP:
                    yield (
                        node.lineno,
                        f"a program that sleeps {number} s: it waits for an event, or hangs",
                    )


def _wall_clock(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.While):
            bound = node.test if isinstance(node, ast.While) else node
            if _WALL_CLOCK in ast.unparse(bound):
                yield node.lineno, f"a loop or a bound with {_WALL_CLOCK}"


def _read_at_import(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """A test may run half an hour after its module was imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
                yield from _read_at_import(ast.Expression(part))
        elif isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            continue
        elif not isinstance(node, ast.Lambda):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in _NOW:
                yield node.lineno, f"{ast.unparse(node.func)}() at import: read it in the test"
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == _WITH_NOW and not _has(node, "mtime"):
                # Workers that import it in two seconds have different tests, and none of them runs.
                yield node.lineno, f"{_WITH_NOW}() at import has the time in it: mtime=0"
            yield from _read_at_import(node)


def _has(node: ast.Call, name: str) -> bool:
    return any(each.arg == name for each in node.keywords)


def _imports(node: ast.ImportFrom) -> Iterator[tuple[int, str]]:
    bad = {one.name for one in node.names} & (CLOCKS | {"sleep"})
    if node.module == "time" and bad:
        yield node.lineno, f"from time import {', '.join(sorted(bad))}"
    if node.module == "gpucluster.waiting":
        yield node.lineno, "gpucluster.waiting: tests wait with tests.waiting"


def _clocks(node: ast.Call, function: ast.Attribute) -> Iterator[tuple[int, str]]:
    module = function.value.id if isinstance(function.value, ast.Name) else ""
    if module in ("time", "asyncio") and function.attr == "sleep":
        yield node.lineno, "a pause: wait_for() an event, or hang() until somebody ends it"
    if module == "time" and function.attr in CLOCKS:
        yield (
            node.lineno,
            f"time.{function.attr}(): no bound on time (benchmarks/, tests/processor.py, a clock of the test)",
        )


def _short_timeouts(node: ast.Call, modules: set[str]) -> Iterator[tuple[int, str]]:
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in WAITING:
        return
    if node.func.attr == "run" and not (isinstance(node.func.value, ast.Name) and node.func.value.id in modules):
        return
    given = [word.value for word in node.keywords if word.arg == "timeout"]
    if node.func.attr in ("wait", "join", "settimeout"):
        given += node.args[:1]
    for value in given:
        if isinstance(value, ast.Constant) and isinstance(value.value, int | float) and value.value < SHORTEST_TIMEOUT:
            yield node.lineno, f"a timeout of {value.value} s: PATIENCE_S of tests.waiting"


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(1)",
        "import asyncio\nasync def f():\n    await asyncio.sleep(1)",
        "from time import sleep",
        "import time\nassert time.monotonic() - began < 5",
        "import time\nwhile time.time() < end: pass",
        "from gpucluster.waiting import wait_until",
        "import subprocess\nsubprocess.run(argv, timeout=5)",
        "child.wait(5)",
        "thread.join(timeout=1)",
        "site.as_alice('sleep 3; date')",
        "code = 'import time; time.sleep(0.5)'",
        "SOON = time.time() + 600",
        "@pytest.mark.parametrize('at', [datetime.now(UTC)])\ndef test_it(at): pass",
        "@pytest.mark.parametrize('data', [gzip.compress(b'')])\ndef test_it(data): pass",
    ],
)
def test_each_rule_finds_what_it_is_about(source: str) -> None:
    assert findings(source)


@pytest.mark.parametrize(
    "source",
    [
        "wait_for('it runs', lambda: True)",
        "subprocess.run(argv, timeout=PATIENCE_S)",
        "process.run(argv, timeout=0.2)",  # a timeout under test
        "':'.join(['a'])",
        "site.as_alice('sleep 600')",
        "def test_it():\n    stamp = time.time()",
        "DATA = gzip.compress(b'', mtime=0)",
        "def test_it():\n    data = gzip.compress(b'')",
        "soon = lambda: time.time() + 600",
    ],
)
def test_what_is_right_is_not_found(source: str) -> None:
    assert findings(source) == []


def test_tests_wait_for_events() -> None:
    found = {}
    for file in sorted(TESTS.rglob("*.py")):
        name = str(file.relative_to(TESTS))
        if name not in OWNERS:
            found.update({f"tests/{name}:{line}": reason for line, reason in findings(file.read_text())})
    assert found == {}, "\n".join(f"{place}: {reason}" for place, reason in found.items())
