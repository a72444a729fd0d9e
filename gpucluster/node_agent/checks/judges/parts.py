"""What judges share: several things of one kind on a host (GPUs, ports) make one outcome."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple

from gpucluster.node_agent.checks import refusals
from gpucluster.node_agent.checks.model import CheckOutcome, Status, worst

#: What programs print where there is no value.
NO_VALUE = (
    "",
    "n/a",
    "[n/a]",
    "not supported",
    "[not supported]",
    "unknown error",
    "[unknown error]",
    "err!",
    "unknown",
)
# Those of them that mean that the thing has no such value. With an error it may have one.
_NOT_THERE = ("n/a", "[n/a]", "not supported", "[not supported]")
_MOST_NAMED = 4
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


class Absent(Exception):
    """A value that a judge needs is not in the measurement."""


class NoValue(Absent):
    """The program reports that this thing has no such value, such as the counters of a memory without ECC."""


class Broken(Exception):
    """The program reports that the thing itself does not work; the message has its words."""


class PartResult(NamedTuple):
    """The result for one thing: a GPU, a port, a drive."""

    status: Status
    message: str


def leaf(leaves: Mapping[str, str], path: str) -> str:
    """A value by its path.

    Raises:
        Broken: the program reports instead that the thing does not work.
        NoValue: the program reports that the thing has none.
        Absent: there is none, or the program reports that it could not be read.
    """
    text = str(leaves.get(path, "")).strip()
    if is_broken(text):
        raise Broken(text)
    if text.lower() in NO_VALUE:
        name = path.rsplit("/", 1)[-1]
        # A text may stand in place of a whole group of values.
        groups = [path.rsplit("/", cut)[0] for cut in range(1, path.count("/") + 1)]
        answer = text or next((str(leaves[group]).strip() for group in groups if group in leaves), "")
        kind = NoValue if answer.lower() in _NOT_THERE else Absent
        raise kind(f"{name} is {text!r}" if text else f"there is no {name}")
    return text


def is_broken(text: str) -> bool:
    """Whether nvidia-smi has this instead of a value, because the GPU does not work."""
    return any(words in text.lower() for words in refusals.WORDS)


def number(text: Any) -> float:
    """The number at the start of a text such as "16x" or "26.562 GB/s".

    Raises:
        Absent: it starts with none.
    """
    match = _NUMBER.match(str(text).strip())
    if match is None:
        raise Absent(f"{str(text)[:40]!r} is not a number")
    return float(match.group())


def yes(text: str) -> bool:
    """The value of a yes or no.

    Raises:
        Absent: it is neither.
    """
    answers = {"yes": True, "no": False, "enabled": True, "disabled": False, "active": True, "not active": False}
    if text.lower() not in answers:
        raise Absent(f"{text[:40]!r} is neither yes nor no")
    return answers[text.lower()]


def each(
    things: Mapping[str, Any], judge_one: Callable[[Any], Iterable[PartResult]], good: str, *, any_model: bool = False
) -> CheckOutcome:
    """Judge things one by one, and sum up. What is absent in one makes that one unknown.

    Args:
        any_model: nothing is known of the model of the things: a value that one does not have is skipped.
        things: by the name that messages have for it.
        good: the message where nothing is wrong.
    """
    parts: list[PartResult] = []
    for name, thing in things.items():
        try:
            thing_parts = [PartResult(status, f"{name}: {message}") for status, message in judge_one(thing)]
        except Broken as error:
            thing_parts = [PartResult(Status.FAIL, f"{name}: {error}")]
        except NoValue as error:
            thing_parts = [PartResult(Status.SKIP if any_model else Status.UNKNOWN, f"{name}: {error}")]
        except Absent as error:
            thing_parts = [PartResult(Status.UNKNOWN, f"{name}: {error}")]
        parts += thing_parts or [PartResult(Status.PASS, "")]
    return sum_up(parts, good)


def sum_up(parts: Sequence[PartResult], good: str) -> CheckOutcome:
    """The worst status with the messages that belong to it. Of nothing at all: unknown."""
    status = worst(part.status for part in parts)
    if not parts:
        return CheckOutcome(status, "nothing was measured")
    if status is Status.PASS:
        return CheckOutcome(status, good)
    messages = [part.message for part in parts if part.status is status]
    more = f" (and {len(messages) - _MOST_NAMED} more)" if len(messages) > _MOST_NAMED else ""
    evidence = {"messages": [f"{part.status.value}: {part.message}" for part in parts if part.message][:64]}
    return CheckOutcome(status, "; ".join(messages[:_MOST_NAMED]) + more, evidence)
