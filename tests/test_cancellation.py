"""Calls that another thread cancels: every wait ends, once, and what may not be interrupted comes to its end."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from gpucluster import cancellation, process
from gpucluster.cancellation import Cancellation
from gpucluster.errors import Interrupted
from gpucluster.events import Event, EventKind, ignore, one_at_a_time
from gpucluster.operations.inquiry import Inquiry
from gpucluster.paths import ClusterPaths
from gpucluster.process import signals
from gpucluster.workspace import run as runs
from tests.cancelled_calls import calling
from tests.waiting import wait_for

# Prints "ready", counts SIGINT, and ends at the first one or at the end of its input.
_PROGRAM = """
import signal, sys
def stop(*_):
    print("saved", flush=True)
    sys.exit(3)
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
signal.pause()
"""
_MARK = "PROGRAM_OF_A_CANCELLED_CALL"


def _program(folder: Path) -> list[str]:
    return ["env", f"{_MARK}={folder}", sys.executable, "-c", _PROGRAM]


def _pids(folder: Path) -> tuple[int, ...]:
    return process.pids_with_variable(_MARK, str(folder))


def _conversation(argv: list[str]) -> None:
    with process.ProcessConversation(argv, end_s=0.1) as talk:
        talk.ask("begin", lambda _line: False)


def _transfer(argv: list[str]) -> None:
    with open(os.devnull, "wb") as target:
        process.transfer(argv, target=target)


WAITS_FOR_A_PROGRAM: dict[str, Callable[[list[str]], object]] = {
    "run": process.run,
    "run with a time limit": lambda argv: process.run(argv, timeout=1000),
    "run with an input": lambda argv: process.run(argv, input="x" * 1_000_000),
    "run with a stop of its own": lambda argv: process.run(argv, stop=threading.Event()),
    "transfer": _transfer,
    "call": process.call,
    "stream": lambda argv: process.stream(argv, on_line=lambda _line: None),
    "conversation": _conversation,
}


@pytest.mark.parametrize("name", WAITS_FOR_A_PROGRAM)
def test_a_wait_for_a_program_ends_and_so_does_the_program(tmp_path: Path, name: str) -> None:
    with calling(lambda: WAITS_FOR_A_PROGRAM[name](_program(tmp_path))) as call:
        wait_for("the program runs", lambda: _pids(tmp_path))
        error = call.cancel("enough")
    assert isinstance(error, Interrupted)
    assert str(error).startswith("the call was cancelled: enough. Nothing is lost")
    assert error.exit_code == 130
    assert not _pids(tmp_path)


_answer = threading.Event()
WAITS: dict[str, Callable[[], object]] = {
    "sleep": lambda: cancellation.sleep(86400),
    "a future": lambda: cancellation.completed([Future[int]()]),
    "an inquiry": lambda: Inquiry(_answer.wait).result(86400),
}


@pytest.fixture(scope="module", autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    _answer.set()


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_ends(name: str) -> None:
    begun = threading.Event()

    def work() -> object:
        begun.set()
        return WAITS[name]()

    with calling(work) as call:
        wait_for("it has begun", begun.is_set)
        assert str(call.cancel()).startswith("the call was cancelled. Nothing is lost")


def test_what_ends_before_it_asks_has_its_result() -> None:
    mine = Cancellation()

    def work(number: int, *, factor: int) -> int:
        mine.cancel()
        return number * factor

    assert mine.call(work, 3, factor=2) == 6


def test_nothing_is_begun_in_one_that_is_cancelled() -> None:
    mine = Cancellation()
    assert not mine.cancelled
    mine.cancel("too late")
    mine.cancel("the first reason counts")
    assert (mine.cancelled, mine.reason) == (True, "too late")
    with pytest.raises(Interrupted, match="cancelled before it began: too late"):
        mine.call(lambda: pytest.fail("it was begun"))


def test_of_two_calls_one_is_cancelled_and_of_one_cancellation_all() -> None:
    with calling(lambda: cancellation.sleep(86400)) as one, calling(lambda: cancellation.sleep(86400)) as other:
        third: list[BaseException] = []

        def work() -> None:
            try:
                one.cancellation.call(cancellation.sleep, 86400)
            except Interrupted as error:
                third.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        wait_for("both run", lambda: len(one.cancellation._calls) == 2 and len(other.cancellation._calls) == 1)
        assert isinstance(one.cancel(), Interrupted)
        wait_for("the other call of this cancellation ends", lambda: third)
        thread.join()
        assert other.running


def test_the_inner_and_the_outer_of_two_nested_calls_end_each_its_own() -> None:
    outer, inner = Cancellation(), Cancellation()

    def cancelled(which: Cancellation, reason: str) -> None:
        which.cancel(reason)
        cancellation.sleep(86400)

    def work() -> None:
        with pytest.raises(Interrupted, match="of the inner"):
            inner.call(cancelled, inner, "of the inner")
        Cancellation().call(cancelled, outer, "of the outer")

    with pytest.raises(Interrupted, match="of the outer"):
        outer.call(work)
    assert not cancellation.active()


def test_a_stop_signal_stays_one() -> None:
    def work() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Cancellation().call(work)


@pytest.mark.parametrize(("patience", "raised"), [(math.inf, 1), (0.0, 3)])
def test_it_raises_once_and_again_only_for_who_insists(
    monkeypatch: pytest.MonkeyPatch, patience: float, raised: int
) -> None:
    monkeypatch.setattr(cancellation, "PATIENCE", patience)
    mine = Cancellation()
    seen = []

    def work() -> None:
        for _ in range(3):
            mine.cancel()
            try:
                cancellation.sleep(0)
                cancellation.check()
            except KeyboardInterrupt:
                seen.append(cancellation.reason_if_cancelled())

    mine.call(work)
    assert seen == [""] * raised


def test_what_may_not_be_interrupted_comes_to_its_end() -> None:
    mine = Cancellation()
    done = []

    def step() -> None:
        mine.cancel()
        cancellation.sleep(0)
        cancellation.check()
        done.append("step")

    def work() -> None:
        signals.surely(step)
        with signals.deferred():
            cancellation.sleep(0)
            done.append("deferred")
        cancellation.sleep(86400)

    with pytest.raises(Interrupted):
        mine.call(work)
    assert done == ["step", "deferred"]


@pytest.mark.parametrize("in_main_thread", [True, False])
def test_who_counts_acts_on_it_and_nothing_raises_then(*, in_main_thread: bool) -> None:
    mine = Cancellation()

    def work() -> list[int]:
        with signals.counted() as stops:
            counts = [stops()]
            mine.cancel()
            counts += [stops(), stops()]
        cancellation.sleep(0)
        return counts

    if in_main_thread:
        assert mine.call(work) == [0, 1, 1]
    else:
        with calling(lambda: mine.call(work)) as call:
            assert call.result() == [0, 1, 1]


def test_an_event_is_where_a_cancelled_call_ends() -> None:
    mine = Cancellation()
    seen: list[Event] = []

    def on_event(event: Event) -> None:
        seen.append(event)
        mine.cancel("seen enough")

    report = one_at_a_time(on_event)

    def work() -> None:
        for name in "ab":
            report(Event(EventKind.LOG, name, "info"))

    with pytest.raises(Interrupted, match="seen enough"):
        mine.call(work)
    assert [event.name for event in seen] == ["a"]


def test_a_program_that_must_end_by_itself_is_told_once(tmp_path: Path) -> None:
    lines: list[str] = []
    stops: list[int] = []

    def work() -> Any:
        with process.in_memory("output") as output:
            return process.follow(
                [sys.executable, "-c", _PROGRAM], output=output, errors=output, on_line=lines.append,
                on_stop=stops.append, interrupts_file=tmp_path / "told", env=dict(os.environ), cwd=tmp_path,
            )  # fmt: skip

    with calling(work) as call:
        wait_for("the program is ready", lambda: "ready" in lines)
        assert isinstance(call.cancel(), Interrupted)
    assert (lines, stops) == (["ready", "saved"], [1])


def test_a_streamed_program_is_told_and_its_last_words_are_heard(tmp_path: Path) -> None:
    lines: list[str] = []
    with calling(lambda: process.stream(_program(tmp_path), on_line=lines.append)) as call:
        wait_for("the program is ready", lambda: "ready" in lines)
        assert isinstance(call.cancel(), Interrupted)
    assert lines == ["ready", "saved"]


@pytest.mark.parametrize(("reason", "text"), [("", "cancelled"), ("a limit of 2 h", "cancelled: a limit of 2 h")])
def test_a_run_states_that_it_was_cancelled_and_lets_the_cluster_go(tmp_path: Path, reason: str, text: str) -> None:
    paths = ClusterPaths(tmp_path / "state")
    statuses: list[tuple[str, str]] = []
    begun = threading.Event()

    def work() -> None:
        on_event = lambda event: statuses.append((event.name, event.status))  # noqa: E731
        with runs.run("apply", paths, on_event) as run, run.phase("waiting"):
            begun.set()
            cancellation.sleep(86400)

    with calling(work) as call:
        wait_for("it waits", begun.is_set)
        error = call.cancel(reason)
    assert str(error) == f"apply was {text}. Nothing is lost: run the same command again to continue"
    assert statuses == [("waiting", "started"), ("waiting", "interrupted")]
    (log,) = paths.runs.glob("*.json")
    assert (json.loads(log.read_text())["status"], json.loads(log.read_text())["error"]) == ("interrupted", text)
    with runs.run("apply", paths, ignore):
        pass


def test_without_a_call_a_wait_is_as_usual() -> None:
    assert not cancellation.active()
    assert cancellation.step(5.0) == 5.0
    assert cancellation.step(None) is None
    assert cancellation.reason_if_cancelled() is None
    cancellation.check()
    assert not cancellation.completed([Future[int]()], 0)
    done: Future[int] = Future()
    done.set_result(1)
    assert cancellation.completed([done])
    assert Cancellation().call(cancellation.step, 86400.0) == cancellation.POLL


def test_a_thread_that_a_call_starts_has_no_call() -> None:
    seen: list[bool] = []

    def work() -> None:
        thread = threading.Thread(target=lambda: seen.append(cancellation.active()))
        thread.start()
        thread.join()
        seen.append(cancellation.active())

    Cancellation().call(work)
    assert seen == [False, True]
