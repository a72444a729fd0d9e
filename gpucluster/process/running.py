"""Run a program to its end."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from gpucluster import cancellation
from gpucluster.errors import ProcessError
from gpucluster.process import signals
from gpucluster.process.completed import (
    UMASK,
    Completed,
    environment_of,
    log_end,
    raise_unless_ok,
    start,
)
from gpucluster.process.lines import PipeLines
from gpucluster.process.outliving import in_memory

_STOP_POLL = 0.2  # seconds between two looks whether a program shall be stopped


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input: bytes | str | None = None,  # the name of this argument in the standard library
    timeout: float | None = None,
    check: bool = True,
    stop: threading.Event | None = None,
    inherited: Sequence[int] = (),
) -> Completed:
    """Run a program to its end and return its output.

    Args:
        env: the whole environment of the program; None: what of ours programs get, see `gpucluster.environment`.
        timeout: seconds after which the program is killed.
        check: raise ProcessError on a status other than zero.
        stop: kills the program when it is set, for a program that a thread waits for.
        inherited: file descriptors of ours that it gets, too.

    Raises:
        EnvironmentFault: the program is not installed, or can't be started.
        ProcessError: it was killed, or it failed and `check` is set.
    """
    data = input.encode() if isinstance(input, str) else input
    with ExitStack() as ends:
        source: int | IO[bytes] = subprocess.DEVNULL if data is None else subprocess.PIPE
        if data and (stop is not None or cancellation.active()):
            # Popen does not go on with an input after a look whether to stop.
            source = ends.enter_context(in_memory("input"))
            source.write(data)
            source.seek(0)
            data = None
        child = _begin(
            ends,
            argv,
            env=environment_of(argv, env),
            cwd=cwd,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            umask=UMASK,
            pass_fds=inherited,
        )
        out, err = _communicate(child, data, timeout, stop)
    result = Completed(tuple(argv), child.returncode, out.decode(errors="replace"), err.decode(errors="replace"))
    log_end(result)
    if check:
        raise_unless_ok(result)
    return result


def _begin(ends: ExitStack, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program that is killed if `ends` is left before it has ended. No stop comes between the two."""
    with signals.deferred():
        child = start(argv, **options)
        ends.enter_context(child)

        def kill(kind: type[BaseException] | None, *_more: object) -> None:
            if kind is not None:
                child.kill()

        ends.push(kill)
    return child


def _communicate(
    child: subprocess.Popen[bytes], data: bytes | None, timeout: float | None, stop: threading.Event | None
) -> tuple[bytes, bytes]:
    words = child.args
    assert isinstance(words, list)
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        left = None if until is None else max(until - time.monotonic(), 0.0)
        step = cancellation.step(left)
        try:
            return child.communicate(data, step if stop is None else min(_STOP_POLL, step or _STOP_POLL))
        except subprocess.TimeoutExpired as error:
            cancellation.check()
            reason = f"did not end within {timeout:g} s" if until is not None and time.monotonic() >= until else ""
            if stop is not None and stop.is_set():
                reason = "was stopped"
            if reason:
                raise ProcessError(f"{words[0]} {reason}", where=" ".join(words[:3]), returncode=124) from error


def transfer(argv: Sequence[str], *, source: IO[bytes] | None = None, target: IO[bytes] | None = None) -> Completed:
    """Run a program that reads from a file or writes into one, of any size. Never raises on its status.

    Args:
        source: its standard input, from the file's present position; None gives it an empty one.
        target: the file for its standard output; None puts it into the result.
    """
    with ExitStack() as ends:
        child = _begin(
            ends,
            argv,
            env=environment_of(argv, None),
            stdin=subprocess.DEVNULL if source is None else source,
            stdout=subprocess.PIPE if target is None else target,
            stderr=subprocess.PIPE,
        )
        out, errors = _communicate(child, None, None, None)
    result = Completed(
        tuple(argv), child.returncode, (out or b"").decode(errors="replace"), errors.decode(errors="replace")
    )
    log_end(result)
    return result


def stream(
    argv: Sequence[str],
    *,
    on_line: Callable[[str], None],
    on_error_line: Callable[[str], None] = lambda _: None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input: str | None = None,
) -> Completed:
    """Run a program and pass on each line of its standard output as it arrives. Never raises on its status.

    The program gets a session of its own, so that only we receive Ctrl-C from the terminal. We pass on one SIGINT, at
    Ctrl-C or when the call is cancelled, and wait until it has ended.

    Args:
        on_error_line: called with each line of its standard error, by another thread.
        input: its standard input, a few kilobytes at most.
    """
    errors: list[str] = []
    out: list[str] = []
    with ExitStack() as ends:
        with signals.deferred():
            child = start(
                argv,
                env=environment_of(argv, env),
                cwd=cwd,
                stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                umask=UMASK,
            )
            assert child.stderr is not None
            reader = threading.Thread(target=_read_lines, args=(child.stderr, errors, on_error_line), daemon=True)
            reader.start()
            ends.callback(_end_stream, child, reader)
        if child.stdin is not None and input is not None:
            _write_input(child.stdin, input)
        _pump(child, out, on_line)
    result = Completed(tuple(argv), child.returncode, "".join(out), "".join(errors))
    log_end(result)
    return result


def _end_stream(child: subprocess.Popen[bytes], reader: threading.Thread) -> None:
    assert child.stdout is not None
    assert child.stderr is not None
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        child.wait()
    reader.join(timeout=5)
    child.stdout.close()
    child.stderr.close()


def _read_lines(source: Iterable[bytes], lines: list[str], on_line: Callable[[str], None]) -> None:
    for raw in source:
        lines.append(raw.decode(errors="replace"))
        on_line(lines[-1].rstrip("\n"))


def _write_input(sink: IO[bytes], text: str) -> None:
    # A program may end before it has read its input. Its status shows why.
    with contextlib.suppress(BrokenPipeError), sink:
        sink.write(text.encode())


def _pump(child: subprocess.Popen[bytes], out: list[str], on_line: Callable[[str], None]) -> None:
    """Read lines until the end. The first interruption is passed on, and raised when the program has ended."""
    assert child.stdout is not None
    output = PipeLines(child.stdout)
    interrupted: BaseException | None = None
    while True:
        try:
            raw = output.readline()
            if not raw:
                child.wait()
                break
            line = raw.decode(errors="replace")
            out.append(line)
            on_line(line.rstrip("\n"))
        except KeyboardInterrupt as stop:
            if interrupted is None:
                interrupted = stop
                child.send_signal(signal.SIGINT)
    if interrupted is not None:
        raise interrupted


def call(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> int:
    """Run a program on our own terminal (such as ssh) and return its exit status."""
    with ExitStack() as ends:
        child = _begin(ends, argv, env=environment_of(argv, env, terminal=True))
        while True:
            try:
                return child.wait(cancellation.step(None))
            except subprocess.TimeoutExpired:
                cancellation.check()
