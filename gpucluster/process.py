"""The only module that runs other programs: an argument list in, never a shell."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpucluster.errors import EnvironmentFault, ProcessError
from gpucluster.waiting import wait_until

_TAIL = 2000
_POLL = 0.1
_CREDENTIALS = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")
# Shown by `--debug`. It must not contain an environment or an input, which may hold secrets.
_log = logging.getLogger(__name__)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Completed:
    """A program that has ended. `stdout` and `stderr` are decoded as UTF-8; invalid bytes are replaced."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


def without_colour(text: str) -> str:
    """The text without the escape sequences for colours of a terminal."""
    return _COLOURS.sub("", text)


def _shown(text: str) -> str:
    """The text for the log: without colour, and without the password in a URL that a user may have configured."""
    return _CREDENTIALS.sub(r"\1:***@", without_colour(text))


def _missing(program: str) -> EnvironmentFault:
    return EnvironmentFault(f"the program {program} was not found", hint="Install it, or put it on PATH")


def _raise_unless_ok(done: Completed) -> None:
    if done.returncode != 0:
        output = (done.stderr.strip() or done.stdout.strip())[-_TAIL:]
        raise ProcessError(
            f"{done.argv[0]} ended with status {done.returncode}: {output or 'it printed nothing'}",
            where=" ".join(done.argv[:3]),
            returncode=done.returncode,
            stdout=done.stdout,
            stderr=done.stderr,
        )


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input: bytes | str | None = None,  # the name of this argument in the standard library
    timeout: float | None = None,
    check: bool = True,
) -> Completed:
    """Run a program to its end and return its output.

    Args:
        env: the whole environment of the program; None passes ours on.
        timeout: seconds after which the program is killed.
        check: raise ProcessError on a status other than zero.

    Raises:
        EnvironmentFault: the program is not installed.
        ProcessError: it was killed after `timeout`, or it failed and `check` is set.
    """
    data = input.encode() if isinstance(input, str) else input
    _log.debug("run: %s", _shown(shlex.join(argv)))
    try:
        done = subprocess.run(
            list(argv),
            env=None if env is None else dict(env),
            cwd=cwd,
            input=data,
            stdin=subprocess.DEVNULL if data is None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as error:
        raise _missing(argv[0]) from error
    except subprocess.TimeoutExpired as error:
        raise ProcessError(
            f"{argv[0]} did not end within {timeout:g} s", where=" ".join(argv[:3]), returncode=124
        ) from error
    result = Completed(
        tuple(argv),
        done.returncode,
        done.stdout.decode(errors="replace"),
        done.stderr.decode(errors="replace"),
    )
    _log_end(result)
    if check:
        _raise_unless_ok(result)
    return result


def transfer(argv: Sequence[str], *, source: IO[bytes] | None = None, target: IO[bytes] | None = None) -> Completed:
    """Run a program that reads from a file or writes into one, of any size. Never raises on its status.

    Args:
        source: its standard input, from the file's present position; None gives it an empty one.
        target: the file for its standard output; None puts it into the result.
    """
    _log.debug("run: %s", _shown(shlex.join(argv)))
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL if source is None else source,
            stdout=subprocess.PIPE if target is None else target,
            stderr=subprocess.PIPE,
            check=False,
        )
    except FileNotFoundError as error:
        raise _missing(argv[0]) from error
    out = (done.stdout or b"").decode(errors="replace")
    result = Completed(tuple(argv), done.returncode, out, done.stderr.decode(errors="replace"))
    _log_end(result)
    return result


def stream(
    argv: Sequence[str],
    *,
    on_line: Callable[[str], None],
    on_error_line: Callable[[str], None] = lambda _: None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input: str | None = None,
    private: bool = False,
    inherited: Sequence[int] = (),
) -> Completed:
    """Run a program and pass on each line of its standard output as it arrives. Never raises on its status.

    The program gets a session of its own, so that only we receive Ctrl-C from the terminal. We pass on one SIGINT and
    wait: a second SIGINT would make Terraform exit without writing its state.

    Args:
        on_error_line: called with each line of its standard error, by another thread.
        input: its standard input, a few kilobytes at most.
        private: files that the program creates are readable for the owner only (umask 077).
        inherited: file descriptors of ours that it gets, too.
    """
    _log.debug("run: %s", _shown(shlex.join(argv)))
    try:
        child = subprocess.Popen(
            list(argv),
            env=None if env is None else dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            umask=0o077 if private else -1,
            pass_fds=inherited,
        )
    except FileNotFoundError as error:
        raise _missing(argv[0]) from error
    assert child.stdout is not None
    assert child.stderr is not None
    errors: list[str] = []
    reader = threading.Thread(target=_read_lines, args=(child.stderr, errors, on_error_line), daemon=True)
    reader.start()
    out: list[str] = []
    try:
        if child.stdin is not None and input is not None:
            _write_input(child.stdin, input)
        _pump(child, out, on_line)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
            child.wait()
        reader.join(timeout=5)
        child.stdout.close()
        child.stderr.close()
    result = Completed(tuple(argv), child.returncode, "".join(out), "".join(errors))
    _log_end(result)
    return result


def _log_end(done: Completed) -> None:
    """The status and what the program wrote for people; its standard output is data, and may be a whole backup."""
    for line in done.stderr.splitlines():
        _log.debug("%s: %s", done.argv[0], _shown(line))
    _log.debug("%s ended with status %d", done.argv[0], done.returncode)


def _read_lines(source: Iterable[bytes], lines: list[str], on_line: Callable[[str], None]) -> None:
    for raw in source:
        lines.append(raw.decode(errors="replace"))
        on_line(lines[-1].rstrip("\n"))


def _write_input(sink: IO[bytes], text: str) -> None:
    # A program may end before it has read its input. Its status says why.
    with contextlib.suppress(BrokenPipeError), sink:
        sink.write(text.encode())


def _pump(child: subprocess.Popen[bytes], out: list[str], on_line: Callable[[str], None]) -> None:
    """Read lines until the end. The first interruption is passed on, and raised when the program has ended."""
    assert child.stdout is not None
    interrupted: BaseException | None = None
    while True:
        try:
            raw = child.stdout.readline()
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
    _log.debug("run: %s", _shown(shlex.join(argv)))
    try:
        return subprocess.run(list(argv), env=None if env is None else dict(env), check=False).returncode
    except FileNotFoundError as error:
        raise _missing(argv[0]) from error


def spawn_daemon(argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> int:
    """Start a program that runs on after we have ended. Its output is appended to `log` (0600). Returns its pid."""
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    _log.debug("start: %s, its output is in %s", _shown(shlex.join(argv)), log)
    try:
        child = subprocess.Popen(
            list(argv),
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            cwd="/",
        )
    except FileNotFoundError as error:
        raise _missing(argv[0]) from error
    finally:
        os.close(descriptor)
    # We do not wait for the child. With a returncode, Popen does not warn when it is garbage collected.
    child.returncode = 0
    return child.pid


def identity(pid: int) -> str | None:
    """A name that no later process with the same pid has (boot id and start time); None if the process has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    state, start_time = fields[0], fields[19]
    return None if state in ("Z", "X") else f"{boot}:{start_time}"


def pids_with_variable(variable: str, value: str) -> tuple[int, ...]:
    """The pids of processes with `variable=value` in their environment, such as those that a killed run left."""
    assignment = f"{variable}={value}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if assignment in (entry / "environ").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
        except OSError:
            continue  # it has ended, or belongs to another user
    return tuple(sorted(pids))


def end(pids: Sequence[int], timeout: float) -> tuple[int, ...]:
    """Send SIGINT to processes and wait until they have ended. Returns the pids that still run.

    Args:
        timeout: seconds to wait.
    """
    names = {pid: identity(pid) for pid in pids}
    for pid in names:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)

    def running() -> tuple[int, ...]:
        return tuple(pid for pid, name in names.items() if name is not None and identity(pid) == name)

    wait_until(lambda: not running(), timeout, _POLL)
    return running()


class InputProgram:
    """A program that runs beside us until its standard input is closed, for whatever reason: also if we are killed.

    It has a session of its own, so that Ctrl-C does not reach it. Its standard output is dropped.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> None:
        self._argv = tuple(argv)
        _log.debug("run: %s", _shown(shlex.join(argv)))
        # A pipe that nobody reads would stop the program when it is full.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it is read as long as the program runs
        try:
            self._child = subprocess.Popen(
                list(argv),
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise _missing(argv[0]) from error

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
        try:
            self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    @property
    def _input(self) -> IO[bytes]:
        assert self._child.stdin is not None
        return self._child.stdin
