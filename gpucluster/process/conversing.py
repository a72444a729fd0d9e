"""A conversation with a program: lines to it and lines from it, until one of both ends."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from gpucluster.errors import ProcessError
from gpucluster.process import signals
from gpucluster.process.completed import UMASK, environment_of, start
from gpucluster.process.lines import PipeLines

_TAIL = 2000


class ProcessConversation:
    """A program that runs for the time of a `with`. It has a session of its own, so that only we receive Ctrl-C.

    The program sees the end of its input when the block ends, and also when this process is killed.

    Args:
        end_s: seconds for the program to end when its input has ended; then it is killed.

    Raises:
        EnvironmentFault: the program is not installed, or can't be started.
    """

    def __init__(self, argv: Sequence[str], *, end_s: float) -> None:
        self._argv = tuple(argv)
        self._end_s = end_s
        self._errors: list[str] = []

    def __enter__(self) -> ProcessConversation:
        pipe = subprocess.PIPE
        with contextlib.ExitStack() as undone:
            with signals.deferred():
                self._child = start(
                    self._argv, env=environment_of(self._argv, None), stdin=pipe, stdout=pipe, stderr=pipe,
                    start_new_session=True, umask=UMASK,
                )  # fmt: skip
                undone.callback(self._child.kill)
                self._reader = threading.Thread(target=self._read_errors, daemon=True)
                self._reader.start()
                assert self._child.stdout is not None
                self._answers = PipeLines(self._child.stdout)
            undone.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        # What it still writes must not keep it from its end.
        drain = threading.Thread(target=self._child.stdout.read, daemon=True)
        drain.start()
        try:
            self._child.wait(self._end_s)
        except BaseException as stopped:
            self._child.kill()
            self._child.wait()
            if not isinstance(stopped, subprocess.TimeoutExpired):
                raise
        drain.join(timeout=5)
        self._reader.join(timeout=5)

    def ask(self, line: str, on_line: Callable[[str], bool]) -> None:
        """Send a line, and pass on the lines that come until `on_line` returns True.

        Raises:
            ProcessError: the program has ended.
            KeyboardInterrupt: the call of this thread was cancelled.
        """
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(line.encode() + b"\n")
            self._child.stdin.flush()
        except OSError as error:
            raise self._ended() from error
        while True:
            answer = self._answers.readline()
            if not answer.endswith(b"\n"):
                raise self._ended()
            if on_line(answer.decode(errors="replace")):
                return

    def _read_errors(self) -> None:
        assert self._child.stderr is not None
        for raw in self._child.stderr:
            self._errors = [*self._errors[-20:], raw.decode(errors="replace")]

    def _ended(self) -> ProcessError:
        try:
            status = self._child.wait(self._end_s)
        except subprocess.TimeoutExpired:
            self._child.kill()
            status = self._child.wait()
        self._reader.join(timeout=5)
        errors = "".join(self._errors).strip()[-_TAIL:]
        return ProcessError(
            f"{self._argv[0]} ended with status {status}: {errors or 'it printed nothing'}",
            where=" ".join(self._argv[:3]),
            returncode=status,
            stdout="",
            stderr=errors,
        )
