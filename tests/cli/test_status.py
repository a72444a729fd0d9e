"""The screen of `status --watch`. A real terminal is a pseudo-terminal here; the cluster is a double."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
from typing import Any

import pytest

from gpucluster.cli.status import screen
from gpucluster.paths import import_root
from tests.cli.test_summaries import STATUS
from tests.waiting import PATIENCE_S, wait_for

NODES = [
    {"node": f"n-{number}", "state": state, "partition": "gpu"}
    for number, state in enumerate(["idle", "idle", "allocated", "mixed-", "drained", "down*", "idle~", "new"])
]


def _lines(width: int = 120, height: int = 40, **more: Any) -> list[str]:
    return screen({**STATUS, **more}, width=width, height=height, note="next look in 5 s").plain.splitlines()


def test_a_partition_is_a_bar_of_what_its_nodes_do() -> None:
    shown = screen({**STATUS, "slurm": NODES}, width=120, height=40, note="")
    (bar,) = [line for line in shown.plain.splitlines() if "█" in line]
    assert re.match(r"gpu +7 nodes +█+ +allocated 1, down\* 1, drained 1, idle 2, mixed- 1, new 1$", bar)
    colours = {str(span.style) for span in shown.spans if "█" in shown.plain[span.start : span.end]}
    assert colours == {"green", "blue", "red", "yellow"}


def test_one_bad_node_of_a_thousand_is_seen() -> None:
    nodes = [{"node": "a", "state": "idle", "partition": "p"}] * 999 + [
        {"node": "b", "state": "down*", "partition": "p"}
    ]
    shown = screen({**STATUS, "slurm": nodes}, width=80, height=24, note="")
    assert "red" in {str(span.style) for span in shown.spans if "█" in shown.plain[span.start : span.end]}


def test_nodes_of_kubernetes_have_a_bar_for_each_pool() -> None:
    nodes = [
        {"node": "a", "state": "Ready", "pool": "gpu", "version": "1"},
        {"node": "b", "state": "NotReady", "pool": None, "version": "1"},
    ]
    bars = [line for line in _lines(kubernetes=nodes) if "█" in line]
    assert [bar.split()[0] for bar in bars] == ["gpu", "-"]


def test_what_does_not_fit_is_counted_and_the_last_line_stays() -> None:
    hosts = [{"name": f"h{number}", "address": "10.0.0.2", "instance": "RUNNING"} for number in range(60)]
    lines = _lines(height=20, hosts=hosts)
    assert len(lines) == 20
    assert lines[0].startswith("cluster demo: partial")
    assert re.fullmatch(r"\.\.\. \d+ more lines: gpucluster status", lines[-2])
    assert lines[-1] == "next look in 5 s"


@pytest.mark.parametrize(("width", "height"), [(1, 1), (10, 3), (40, 10)])
def test_a_small_terminal_breaks_nothing(width: int, height: int) -> None:
    assert len(_lines(width, height, slurm=NODES)) <= max(height, 2)


def test_on_40_columns_every_word_is_on_the_screen() -> None:
    lines = _lines(40, 60, slurm=NODES, pending=["a run was not completed, and it has to be done again"])
    assert max(map(len, lines)) <= 40
    text = " ".join(" ".join(lines).split())
    assert "allocated 1, down* 1, drained 1, idle 2, mixed- 1, new 1" in text
    assert "a run was not completed, and it has to be done again" in text


def test_characters_of_a_state_do_not_reach_the_terminal() -> None:
    row = {"node": "a", "state": "id\x1b[2Jle", "partition": "p\x1b[2J"}
    assert "\x1b" not in "".join(_lines(slurm=[row]))


_PROGRAM = """
import json, sys
from gpucluster.cli.status import watch
asked = []
def ask():
    asked.append(1)
    return {**json.loads(sys.argv[1]), "name": f"look-{len(asked)}"}
print("last:", watch(ask, 1.0)["name"])
"""


@pytest.mark.parametrize("ends", [b"q", b"\x03"])
def test_it_looks_again_until_the_user_ends_it_and_gives_the_terminal_back(ends: bytes) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    # The terminal becomes that of the program's session: Ctrl-C reaches it.
    argv = ["setsid", "--ctty", "--wait", sys.executable, "-c", _PROGRAM, json.dumps(STATUS)]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=import_root()) as program:
        shown = bytearray()

        def seen(text: bytes) -> bool:
            while select.select([ours], [], [], 0)[0]:
                shown.extend(os.read(ours, 65536))
            return text in shown

        try:
            wait_for("a second look", lambda: seen(b"look-2"), state=lambda: shown[-300:])
            os.write(ours, ends)
            wait_for("its end", lambda: seen(b"last: look-") and program.poll() is not None, state=lambda: shown[-300:])
        finally:
            program.kill()
    assert program.wait(PATIENCE_S) == 0
    assert b"Traceback" not in shown
    assert termios.tcgetattr(theirs)[3] == before[3], "keys are shown again"
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["status", "--watch"], "shows the status on a terminal"),
        (["status", "--watch", "--output", "json"], "is for a terminal"),
        (["status", "--every", "3"], "--every needs --watch"),
        (["status", "--watch", "--every", "0"], "0.0 is not in the range"),
    ],
)
def test_it_is_refused_where_it_makes_no_sense(words: list[str], error: str) -> None:
    argv = [sys.executable, "-m", "gpucluster", "--file", "inventories/local/cluster.yml", *words]
    ended = subprocess.run(
        argv, cwd=import_root(), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert ended.returncode == 2
    assert error in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
