"""The only module that starts other programs: an argument list in, never a shell."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpucluster.errors import EnvironmentFault, ProcessError

_TAIL = 2000
_CREDENTIALS = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")
# `--debug` shows it. Never an environment and never an input: secrets travel there, and only there.
_log = logging.getLogger(__name__)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Completed:
    """A program that ended. `stdout` and `stderr` are decoded as UTF-8, wrong bytes replaced."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


def without_colour(text: str) -> str:
    """The text without the escape sequences that colour it on a terminal."""
    return _COLOURS.sub("", text)


def _shown(text: str) -> str:
    """The text for the log: without colour, and without the password of a URL that somebody may have configured."""
    return _CREDENTIALS.sub(r"\1:***@", without_colour(text))


def _missing(program: str) -> EnvironmentFault:
    return EnvironmentFault(f"the program {program} was not found", hint="Install it, or put it on PATH")


def _raise_unless_ok(done: Completed) -> None:
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-_TAIL:]
        raise ProcessError(
            f"{done.argv[0]} ended with status {done.returncode}: {said or 'it said nothing'}",
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
    input: bytes | str | None = None,  # the name that the standard library gives it
    timeout: float | None = None,
    check: bool = True,
) -> Completed:
    """Run a program to its end and return what it said.

    Args:
        env: the whole environment of the program; None passes ours on.
        timeout: seconds; the program is killed when they have passed.
        check: raise ProcessError on a status other than zero.
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
    """Run a program that reads from a file, or writes into one, so that no size matters; never raises on its status.

    Args:
        source: its standard input, from where the file stands; None gives it an empty one.
        target: where its standard output goes; None keeps it in the result.
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
) -> Completed:
    """Run a program and hand over each line of its standard output as it comes; never raises on its status.

    The program gets a session of its own, so that Ctrl-C in the terminal reaches only us: we pass on one SIGINT and
    wait, for a program that is told twice (Terraform) gives up its state.

    Args:
        on_error_line: is told each line of its standard error, by another thread.
        input: what it reads, a few kilobytes at most; then its standard input ends.
        private: what the program writes is for its owner only (umask 077).
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
        )
    except FileNotFoundError as error:
        raise _missing(argv[0]) from error
    assert child.stdout is not None
    assert child.stderr is not None
    errors: list[str] = []
    reader = threading.Thread(target=_drain, args=(child.stderr, errors, on_error_line), daemon=True)
    reader.start()
    out: list[str] = []
    try:
        if child.stdin is not None and input is not None:
            _hand_over(child.stdin, input)
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


def _drain(source: Iterable[bytes], lines: list[str], on_line: Callable[[str], None]) -> None:
    for raw in source:
        lines.append(raw.decode(errors="replace"))
        on_line(lines[-1].rstrip("\n"))


def _hand_over(sink: IO[bytes], text: str) -> None:
    # A program may end without having read: what it says then is told by its status.
    with contextlib.suppress(BrokenPipeError), sink:
        sink.write(text.encode())


def _pump(child: subprocess.Popen[bytes], out: list[str], on_line: Callable[[str], None]) -> None:
    """Read lines until the end; a first interruption is passed on and the reading goes on, then it is raised."""
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
    """Run a program on our own terminal (ssh) and return its exit status."""
    _log.debug("run: %s", _shown(shlex.join(argv)))
    try:
        return subprocess.run(list(argv), env=None if env is None else dict(env), check=False).returncode
    except FileNotFoundError as error:
        raise _missing(argv[0]) from error


def spawn_daemon(argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> int:
    """Start a program that outlives us, its output appended to `log` (0600). Returns its pid."""
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
    # The child is not ours to wait for; saying so keeps Popen from warning when it is collected.
    child.returncode = 0
    return child.pid


def identity(pid: int) -> str | None:
    """A name for a process that no later process with the same pid has (boot id and start time); None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    state, start_time = fields[0], fields[19]
    return None if state in ("Z", "X") else f"{boot}:{start_time}"


def marked(variable: str, value: str) -> tuple[int, ...]:
    """The pids of the processes whose environment carries `variable=value`: children of a run of ours that died."""
    wanted = f"{variable}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended, or belongs to another user
    return tuple(sorted(found))


def end(pids: Sequence[int], patience: float) -> tuple[int, ...]:
    """Ask processes to end (SIGINT) and wait up to `patience` seconds. Returns the pids that still run."""
    names = {pid: identity(pid) for pid in pids}
    for pid in names:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
    until = time.monotonic() + patience
    while True:
        left = tuple(pid for pid, name in names.items() if name is not None and identity(pid) == name)
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.1)
