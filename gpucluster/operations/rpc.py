"""How our programs on the controller are asked: one JSON object in, one out, and never a secret on a command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from gpucluster import process
from gpucluster.errors import InputError, PartlyDone, ProcessError, ToolError
from gpucluster.operations.accounts import printable

# The exit status of a program that changed nothing, for what was asked can't be had; and of ssh without a connection.
_REFUSED = 2
_SSH_FAILED = 255

T = TypeVar("T")


@dataclass(frozen=True)
class Program:
    """A program on the controller.

    Args:
        command: what ssh runs there.
        absent: what to say where it is not installed.
        silent: what to say where it gives no answer, and where to look then.
        own_commands: what its hints name, as a regular expression, and what people type here instead.
    """

    command: str
    absent: str
    silent: tuple[str, str]
    own_commands: tuple[str, str] = ("$^", "")

    def ask(
        self,
        login: Callable[[Sequence[str]], Sequence[str]],
        kind: type[T],
        operation: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> T:
        """Ask for one operation.

        Args:
            login: makes of a command the command line that runs it on the controller.
            kind: what the answer is.
            timeout: seconds; None waits for as long as it takes. Not for operations that tell their progress.
            on_progress: is told what the program says while it works, line by line.

        Raises:
            InputError: it is refused.
            PartlyDone: a part of it failed.
            ToolError: it failed, or there is no answer.
        """
        argv = login([self.command])
        asked = json.dumps({"operation": operation, "arguments": dict(arguments)})
        if on_progress is None:
            done = process.run(argv, input=asked, check=False, timeout=timeout)
        else:
            done = process.stream(argv, input=asked, on_line=lambda _: None, on_error_line=on_progress)
        try:
            return TypeAdapter(kind).validate_python(self._result(done, kind))
        except ValidationError as error:
            raise _strange(f"it has no fit {'.'.join(map(str, error.errors()[0]['loc']))}") from None

    def _result(self, done: process.Completed, kind: type[Any]) -> Any:
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            raise self.no_answer(done) from None
        if isinstance(answer, dict) and "result" in answer:
            return answer["result"]
        said = answer.get("error") if isinstance(answer, dict) else None
        if not isinstance(said, dict) or not said.get("message"):
            raise _strange("it is neither a result nor an error")
        error = self.failure(said, done)
        if "done" in answer:
            raise PartlyDone(error.what, hint=error.hint, done=TypeAdapter(kind).validate_python(answer["done"]))
        raise error

    def failure(self, said: Mapping[str, Any], done: process.Completed) -> InputError | ToolError:
        """What the program says of its failure: {"message", "hint"}."""
        kind = InputError if done.returncode == _REFUSED else ToolError
        return kind(
            printable(str(said["message"])), hint=re.sub(*self.own_commands, printable(str(said.get("hint") or "")))
        )

    def no_answer(self, done: process.Completed) -> ToolError:
        """That there is no word of the program, and why that may be."""
        words = printable(done.stderr.strip().rpartition("\n")[2]) or f"status {done.returncode}"
        if "command not found" in words:
            return ToolError(self.absent, hint="Run: gpucluster apply")
        what, hint = self.silent
        if done.returncode == _SSH_FAILED:
            what, hint = "the controller can't be reached", "Look whether it stands: gpucluster status"
        return ProcessError(
            f"{what}: {words}", hint=hint, returncode=done.returncode, stdout=done.stdout, stderr=done.stderr
        )


def _strange(why: str) -> ToolError:
    return ToolError(
        f"the controller's answer can't be read: {why}",
        hint="Its program may be of another version than this one. Run: gpucluster apply",
    )
