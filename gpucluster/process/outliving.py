"""Programs that live on if we are killed: Terraform, which must write its state, and daemons."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from gpucluster import cancellation
from gpucluster.process import signals
from gpucluster.process.completed import UMASK, Completed, environment_of, log_end, logger, start
from gpucluster.process.processes import interrupt_once
from gpucluster.waiting import wait_until

_POLL = 0.02  # seconds between two looks whether a program has ended
_READ = 0.05  # seconds between two looks at the output of a program that writes into a file


def follow(
    argv: Sequence[str],
    *,
    output: IO[bytes],
    errors: IO[bytes],
    on_line: Callable[[str], None],
    on_stop: Callable[[int], None],
    interrupts_file: Path,
    env: Mapping[str, str],
    cwd: Path,
    inherited: Sequence[int] = (),
) -> Completed:
    """Run a program that must come to its own end, whatever happens to us. Never raises on its status.

    It writes into files, and we read along: if we are killed, it works on and writes what it has to. It has a session
    of its own, and the files that it creates are readable for the owner only (umask 077). Stop signals are passed on to
    it once, as SIGINT, and only to it, not to its children; so is the cancellation of the call. Then we wait until it
    has ended.

    Args:
        output: open for reading and writing, and empty.
        errors: the same for its standard error; may be the same file.
        on_line: called with each line of `output`.
        on_stop: called at each stop signal and cancellation, with their number so far.
        interrupts_file: see `interrupt_once`.
        inherited: file descriptors of ours that it gets, too.

    Raises:
        KeyboardInterrupt: there was a stop signal, or the call was cancelled. The program has ended.
    """
    cancellation.check()
    with signals.counted() as stops:
        child = start(
            argv,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
            umask=0o077,
            pass_fds=inherited,
        )
        reader = _Reader(output, on_line)
        try:
            _until_the_end(child, reader, stops, on_stop, interrupts_file)
        except BaseException:
            # An error of ours, such as a closed pipe that events are written to.
            interrupt_once(child.pid, interrupts_file)
            child.wait()
            raise
    result = Completed(tuple(argv), child.returncode, _all_of(output), "" if errors is output else _all_of(errors))
    log_end(result)
    if stops():
        raise KeyboardInterrupt
    return result


class _Reader:
    """Passes on each complete line of a file that another process appends to."""

    def __init__(self, file: IO[bytes], on_line: Callable[[str], None]) -> None:
        self._descriptor = file.fileno()
        self._on_line = on_line
        self._read = 0
        self._begun = b""

    def pass_on(self, *, last: bool = False) -> None:
        """Read what is new. A line without an end is passed on if it is the `last`."""
        while chunk := os.pread(self._descriptor, 1 << 16, self._read):
            self._read += len(chunk)
            *lines, self._begun = (self._begun + chunk).split(b"\n")
            for line in lines:
                self._on_line(line.decode(errors="replace"))
        if last and self._begun:
            self._on_line(self._begun.decode(errors="replace"))


def _until_the_end(
    child: subprocess.Popen[bytes],
    reader: _Reader,
    stops: Callable[[], int],
    on_stop: Callable[[int], None],
    interrupts_file: Path,
) -> None:
    seen = 0
    ended = os.pidfd_open(child.pid)
    try:
        while child.poll() is None:
            reader.pass_on()
            if stops() > seen:
                seen = stops()
                interrupt_once(child.pid, interrupts_file)
                on_stop(seen)
            select.select([ended], [], [], _READ)
        reader.pass_on(last=True)
    finally:
        os.close(ended)


def _all_of(file: IO[bytes]) -> str:
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode(errors="replace")


def in_memory(name: str) -> IO[bytes]:
    """A file for `follow` that is on no disk, for output that may hold secrets. It lives as long as it is open."""
    return os.fdopen(os.memfd_create(name), "w+b", buffering=0)


class InputProgram:
    """A program that runs beside us until its standard input is closed, for whatever reason: also if we are killed.

    It has a session of its own, so that Ctrl-C does not reach it. Its standard output is dropped.

    Args:
        inherited: file descriptors of ours that it gets, too.
    """

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, inherited: Sequence[int] = ()
    ) -> None:
        self._argv = tuple(argv)
        # A pipe that no process reads would stop the program when it is full.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it is read as long as the program runs
        self._child = start(
            argv,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,
            pass_fds=inherited,
        )

    @property
    def pid(self) -> int:
        """Of the program."""
        return self._child.pid

    @property
    def input_descriptor(self) -> int:
        """Our end of its standard input. It runs as long as any process has a copy of it open."""
        return self._input.fileno()

    def send(self, text: str) -> None:
        """Write to its standard input. What it does not read any more is lost."""
        with contextlib.suppress(BrokenPipeError):
            self._input.write(text.encode())
            self._input.flush()

    def ended(self) -> Completed | None:
        """How it ended; None if it runs."""
        status = self._child.poll()
        if status is None:
            return None
        self._errors.seek(0)
        return Completed(self._argv, status, "", self._errors.read().decode(errors="replace"))

    def close(self, timeout: float) -> None:
        """Close its standard input and wait until it has ended; kill it after `timeout` seconds."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        if not wait_until(lambda: self._child.poll() is not None, timeout, _POLL):
            self._child.kill()
            self._child.wait()

    @property
    def _input(self) -> IO[bytes]:
        assert self._child.stdin is not None
        return self._child.stdin


def spawn_daemon(argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> int:
    """Start a program that runs on after we have ended. Its output is appended to `log` (0600). Returns its pid."""
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        child = start(
            argv,
            env=environment_of(argv, env),
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            umask=UMASK,
            cwd="/",
        )
        logger.debug("its output is in %s", log)
    finally:
        os.close(descriptor)
    # We do not wait for the child. With a returncode, Popen does not warn when it is garbage collected.
    child.returncode = 0
    return child.pid
