"""The only module that runs other programs: an argument list in, never a shell."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpucluster import environment, signals
from gpucluster.errors import EnvironmentFault, ProcessError
from gpucluster.paths import write_private

_TAIL = 2000
# Of the programs that we start, whatever the caller's is: the local cloud and its images need files that others can
# read. What is private is made so explicitly.
_UMASK = 0o022
# By program: its packages on Debian and on Red Hat.
_PACKAGES = {
    "ssh": ("openssh-client", "openssh-clients"),
    "ssh-keygen": ("openssh-client", "openssh-clients"),
    "ip": ("iproute2", "iproute"),
}
_TOLD = 50  # remembered processes that got SIGINT
_STOP_POLL = 0.2  # seconds between two looks whether a program shall be stopped
_READ = 0.05  # seconds between two looks at the output of a program that writes into a file
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


def _not_started(argv: Sequence[str], error: OSError) -> EnvironmentFault:
    """Why a program could not be started."""
    if isinstance(error, FileNotFoundError) and error.filename in (argv[0], None):
        return EnvironmentFault(f"the program {argv[0]} was not found", hint=_install(Path(argv[0]).name))
    return EnvironmentFault(
        f"the program {argv[0]} can't be started: {error.strerror}",
        where=str(error.filename or argv[0]),
        hint=f"Try it by hand: {argv[0]}",
    )


def _install(program: str) -> str:
    if program not in _PACKAGES:
        return "Install it, or put it on PATH"
    debian, redhat = _PACKAGES[program]
    return f"Install it: apt install {debian}, or dnf install {redhat}"


def _environment_of(argv: Sequence[str], env: Mapping[str, str] | None) -> dict[str, str] | None:
    """The environment of a program: ssh gets ours without what would change connections, others as they are given."""
    if env is None and argv[0] in ("ssh", "ssh-keygen"):
        return environment_for(environment.Program.SSH)
    return None if env is None else dict(env)


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


def environment_for(program: environment.Program) -> dict[str, str]:
    """Our environment without what would break or redirect a program; see `gpucluster.environment`."""
    home = os.path.expanduser("~")
    return environment.child(os.environ, program, home=home if home.startswith("/") else "/")


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input: bytes | str | None = None,  # the name of this argument in the standard library
    timeout: float | None = None,
    check: bool = True,
    stop: threading.Event | None = None,
) -> Completed:
    """Run a program to its end and return its output.

    Args:
        env: the whole environment of the program; None passes ours on.
        timeout: seconds after which the program is killed.
        check: raise ProcessError on a status other than zero.
        stop: kills the program when it is set, for a program that a thread waits for.

    Raises:
        EnvironmentFault: the program is not installed, or can't be started.
        ProcessError: it was killed, or it failed and `check` is set.
    """
    data = input.encode() if isinstance(input, str) else input
    _log.debug("run: %s", _shown(shlex.join(argv)))
    try:
        child = subprocess.Popen(
            list(argv),
            env=_environment_of(argv, env),
            cwd=cwd,
            stdin=subprocess.DEVNULL if data is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            umask=_UMASK,
        )
    except OSError as error:
        raise _not_started(argv, error) from error
    with child:
        try:
            out, err = _communicate(child, data, timeout, stop)
        except BaseException:
            child.kill()
            raise
    result = Completed(tuple(argv), child.returncode, out.decode(errors="replace"), err.decode(errors="replace"))
    _log_end(result)
    if check:
        _raise_unless_ok(result)
    return result


def _communicate(
    child: subprocess.Popen[bytes], data: bytes | None, timeout: float | None, stop: threading.Event | None
) -> tuple[bytes, bytes]:
    words = child.args
    assert isinstance(words, list)
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        left = None if until is None else max(until - time.monotonic(), 0.0)
        try:
            return child.communicate(data, left if stop is None else min(_STOP_POLL, left or _STOP_POLL))
        except subprocess.TimeoutExpired as error:
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
    _log.debug("run: %s", _shown(shlex.join(argv)))
    try:
        done = subprocess.run(
            list(argv),
            env=_environment_of(argv, None),
            stdin=subprocess.DEVNULL if source is None else source,
            stdout=subprocess.PIPE if target is None else target,
            stderr=subprocess.PIPE,
            check=False,
        )
    except OSError as error:
        raise _not_started(argv, error) from error
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
) -> Completed:
    """Run a program and pass on each line of its standard output as it arrives. Never raises on its status.

    The program gets a session of its own, so that only we receive Ctrl-C from the terminal. We pass on one SIGINT and
    wait until it has ended.

    Args:
        on_error_line: called with each line of its standard error, by another thread.
        input: its standard input, a few kilobytes at most.
    """
    _log.debug("run: %s", _shown(shlex.join(argv)))
    try:
        child = subprocess.Popen(
            list(argv),
            env=_environment_of(argv, env),
            cwd=cwd,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            umask=_UMASK,
        )
    except OSError as error:
        raise _not_started(argv, error) from error
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


def follow(
    argv: Sequence[str],
    *,
    output: IO[bytes],
    errors: IO[bytes],
    on_line: Callable[[str], None],
    on_stop: Callable[[int], None],
    told: Path,
    env: Mapping[str, str],
    cwd: Path,
    inherited: Sequence[int] = (),
) -> Completed:
    """Run a program that must come to its own end, whatever happens to us. Never raises on its status.

    It writes into files, and we read along: if we are killed, it works on and writes what it has to. It has a session
    of its own, and the files that it creates are readable for the owner only (umask 077). Stop signals are passed on to
    it once, as SIGINT, and only to it, not to its children. Then we wait until it has ended.

    Args:
        output: open for reading and writing, and empty.
        errors: the same for its standard error; may be the same file.
        on_line: called with each line of `output`.
        on_stop: called at each stop signal, with their number so far.
        told: see `interrupt_once`.
        inherited: file descriptors of ours that it gets, too.

    Raises:
        KeyboardInterrupt: there was a stop signal. The program has ended.
    """
    _log.debug("run: %s", _shown(shlex.join(argv)))
    with signals.counted() as stops:
        try:
            child = subprocess.Popen(
                list(argv),
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                umask=0o077,
                pass_fds=inherited,
            )
        except OSError as error:
            raise _not_started(argv, error) from error
        reader = _Reader(output, on_line)
        try:
            _until_the_end(child, reader, stops, on_stop, told)
        except BaseException:
            # An error of ours, such as a closed pipe that events are written to.
            interrupt_once(child.pid, told)
            child.wait()
            raise
    result = Completed(tuple(argv), child.returncode, _all_of(output), "" if errors is output else _all_of(errors))
    _log_end(result)
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
    told: Path,
) -> None:
    seen = 0
    ended = os.pidfd_open(child.pid)
    try:
        while child.poll() is None:
            reader.pass_on()
            if stops() > seen:
                seen = stops()
                interrupt_once(child.pid, told)
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
    except OSError as error:
        raise _not_started(argv, error) from error


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
            umask=_UMASK,
            cwd="/",
        )
    except OSError as error:
        raise _not_started(argv, error) from error
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


def interrupt_once(pid: int, told: Path) -> None:
    """Send SIGINT to a process, unless it got one from us before: a second one makes Terraform drop its state.

    Args:
        told: the file that remembers the processes that got one, also those of an earlier run.
    """
    started = identity(pid)
    if started is None:
        return
    name = f"{pid}:{started}"
    try:
        before = told.read_text().split()
    except OSError:
        before = []
    if name not in before:
        with contextlib.suppress(EnvironmentFault):  # on a full disk it must end all the more
            write_private(told, "\n".join([*before[-_TOLD:], name]))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)


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
        except OSError as error:
            raise _not_started(argv, error) from error

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
