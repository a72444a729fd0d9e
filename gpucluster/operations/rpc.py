"""Remote calls of our programs on the controller: the request is one JSON object on standard input, the result is one
on standard output.

No argument and no secret is ever on a command line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from gpucluster import process
from gpucluster.errors import (
    EXIT_UNCONFIRMED,
    InputError,
    LockedError,
    PartlyDone,
    ProcessError,
    ToolError,
    UnconfirmedError,
)
from gpucluster.node_agent import bounded
from gpucluster.ssh import SSH_FAILED, unreachable
from gpucluster.text import printable

# The exit status of a program that refused the request and changed nothing.
_REFUSED = 2

T = TypeVar("T")


@dataclass(frozen=True)
class RemoteProgram:
    """A program on the controller.

    Args:
        command: what ssh runs there.
        absent: the error if it is not installed.
        silent: the error if it does not answer, and the hint.
        own_commands: regular expressions for commands in its texts, each with what operators type here instead.
    """

    command: str
    absent: str
    silent: tuple[str, str]
    own_commands: Sequence[tuple[str, str]] = ()

    def call(
        self,
        ssh_argv: Callable[[Sequence[str]], Sequence[str]],
        kind: type[T],
        operation: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float | None = None,
        on_progress: Callable[[str], None] | None = None,
        relocate: Callable[[], bool] = lambda: False,
    ) -> T:
        """Run one operation and return its result.

        Args:
            ssh_argv: makes the command line that runs a command on the controller.
            kind: the type of the result.
            timeout: seconds; None waits for as long as it takes. Not for operations that report their progress.
            on_progress: called with each line that the program writes while it works.
            relocate: is called if ssh reaches no host; if it returns True, the operation is tried once more.

        Raises:
            InputError: it is refused.
            PartlyDone: a part of it failed. UnconfirmedError: all was done, and not every host has confirmed it.
            ToolError: it failed, or there is no answer.
        """
        request = json.dumps({"operation": operation, "arguments": dict(arguments)})

        def attempt() -> process.Completed:
            argv = ssh_argv([self.command])
            if on_progress is None:
                return process.run(argv, input=request, check=False, timeout=timeout)
            return process.stream(argv, input=request, on_line=lambda _: None, on_error_line=on_progress)

        result = attempt()
        if result.returncode == SSH_FAILED and relocate():
            result = attempt()
        try:
            return TypeAdapter(kind).validate_python(self._result(result, kind))
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"]))
            raise _unreadable(f"`{place}` is missing or of another type") from None

    def _result(self, result: process.Completed, kind: type[Any]) -> Any:
        try:
            answer = bounded.loads(result.stdout)
        except ValueError:
            raise self.no_answer(result) from None
        if isinstance(answer, dict) and "result" in answer:
            return answer["result"]
        failure = answer.get("error") if isinstance(answer, dict) else None
        if not isinstance(failure, dict) or not failure.get("message"):
            raise _unreadable("it is neither a result nor an error")
        error = self.failure(failure, result)
        if "done" in answer:
            partly = UnconfirmedError if result.returncode == EXIT_UNCONFIRMED else PartlyDone
            raise partly(error.what, hint=error.hint, done=TypeAdapter(kind).validate_python(answer["done"]))
        raise error

    def failure(self, failure: Mapping[str, Any], result: process.Completed) -> InputError | ToolError:
        """The error for a failure that the program has reported: {"message", "hint"}."""
        kind = InputError if result.returncode == _REFUSED else ToolError
        hint = self.as_typed_here(printable(str(failure.get("hint") or "")))
        return kind(printable(str(failure["message"])), hint=hint)

    def as_typed_here(self, text: str) -> str:
        """The same text, with the commands that operators type on their own machine."""
        for theirs, ours in self.own_commands:
            text = re.sub(theirs, ours, text)
        return text

    def no_answer(self, result: process.Completed) -> ToolError:
        """The error for a program that gave no answer, with the probable cause."""
        if result.returncode == SSH_FAILED:
            return unreachable("the controller", result.stderr)
        reason = printable(result.stderr.strip().rpartition("\n")[2]) or f"status {result.returncode}"
        if "command not found" in reason:
            return ToolError(self.absent, hint="Run: gpucluster apply")
        what, hint = self.silent
        return ProcessError(
            f"{what}: {reason}", hint=hint, returncode=result.returncode, stdout=result.stdout, stderr=result.stderr
        )


class RemoteConversation:
    """A conversation with a program on the controller that answers many requests.

    Each is one line, and so is each answer: {"result"} or {"error": {"message", "hint", "locked"?, "refused"?}}. Lines
    with {"progress"} come before it.
    """

    def __init__(self, talk: process.ProcessConversation) -> None:
        self._talk = talk

    def ask(self, operation: str, on_progress: Callable[[Any], None] = lambda _: None, **arguments: Any) -> Any:
        """The result of one operation.

        Raises:
            InputError: it is refused.
            LockedError: another run uses what it needs.
            ToolError: it failed, or the answer can't be read; or ssh has met another host key than the known one.
            ProcessError: the program has ended, or can't be reached.
        """
        last: dict[str, Any] = {}

        def on_line(line: str) -> bool:
            nonlocal last
            try:
                document = bounded.loads(line)
            except ValueError:
                document = {}
            last = document if isinstance(document, dict) else {}
            if "progress" not in last:
                return True
            on_progress(last["progress"])
            return False

        try:
            self._talk.ask(json.dumps({"operation": operation, "arguments": arguments}), on_line)
        except ProcessError as error:
            raise _ended(error) from None
        if "result" in last:
            return last["result"]
        failure = last.get("error")
        if not isinstance(failure, dict) or not failure.get("message"):
            raise _unreadable("it is neither a result nor an error")
        kind = LockedError if failure.get("locked") else InputError if failure.get("refused") else ToolError
        raise kind(printable(str(failure["message"])), hint=printable(str(failure.get("hint") or "")))


def _ended(error: ProcessError) -> ToolError:
    """The error for a program on the controller that has ended in the middle of a conversation, or never began one."""
    if error.returncode == SSH_FAILED:
        return unreachable("the controller", error.stderr)
    reason = printable(error.stderr.strip().rpartition("\n")[2]) or f"status {error.returncode}"
    if "command not found" in reason:
        what = "the controller is not configured yet: it lacks the program that does this"
    else:
        what = f"the program on the controller has ended: {reason}"
    hint = "Run: gpucluster apply"
    return ProcessError(what, hint=hint, returncode=error.returncode, stdout=error.stdout, stderr=error.stderr)


def _unreadable(why: str) -> ToolError:
    return ToolError(
        f"the controller's answer can't be read: {why}",
        hint="Its program may be of another version than this one. Run: gpucluster apply",
    )
