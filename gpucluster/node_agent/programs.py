"""The only place of the agent that starts other programs: lists of arguments, never a shell, always with a time limit.

One exception: `on_host` in `users/`, which is sent to other hosts as a single file.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from gpucluster.node_agent.errors import Failed

#: Seconds for a program that has little to do.
SECONDS = 60.0
#: The status that shells give where there is no such program.
MISSING = 127
#: The status of `timeout` where a program did not end in time.
OUT_OF_TIME = 124

Completed = subprocess.CompletedProcess
Running = subprocess.Popen
TimeLimit = subprocess.TimeoutExpired


def call(argv: Sequence[str], text: str = "", seconds: float = SECONDS) -> Completed[str]:
    """Run a program with this text on standard input. The caller checks its exit status, 127 if it is not installed.

    Raises:
        Failed: it did not end in time.
    """
    try:
        return subprocess.run(
            argv, input=text, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(list(argv), MISSING, "", f"{argv[0]} is not installed")
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{argv[0]} did not answer within {seconds:.0f} s", "Try again") from error


def call_with_data(
    *argv: str,
    text: str | None = None,
    stdin: Any = subprocess.DEVNULL,
    stdout: Any = subprocess.PIPE,
    user: str | None = None,
    seconds: float = SECONDS,
    open_too: Sequence[int] = (),
) -> Completed[bytes]:
    """Run a program that reads or writes files. The caller checks its exit status.

    Args:
        text: what it reads, instead of the file `stdin`.
        open_too: descriptors that it inherits, with their numbers.
        user: the system account that it runs as, with only that account's own group.
        seconds: it is killed after this time.

    Raises:
        Failed: it is not installed, or did not end in time.
    """
    more: dict[str, Any] = {"stdin": stdin} if text is None else {"input": text.encode()}
    more["pass_fds"] = open_too
    if user:
        more.update(_as_user(user))
    try:
        return subprocess.run(
            argv, stdout=stdout, stderr=subprocess.PIPE, check=False, cwd="/", timeout=seconds, **more
        )
    except FileNotFoundError:
        raise Failed(f"{argv[0]} is not installed here", "Run `gpucluster apply`") from None
    except subprocess.TimeoutExpired:
        words = " ".join((Path(argv[0]).name, *argv[1:3]))
        raise Failed(f"{words[:80]} did not end within {seconds:.0f} s", "Run: journalctl -e") from None


def run(*argv: str, **how: Any) -> str:
    """Run a program like `call_with_data` and return its standard output.

    Raises:
        Failed: also where its exit status is not 0, with the last line of its own message.
    """
    result = call_with_data(*argv, **how)
    if result.returncode != 0:
        raise Failed(f"{Path(argv[0]).name}: {last_words(result)}")
    return result.stdout.decode(errors="replace") if result.stdout is not None else ""


@contextlib.contextmanager
def daemon(*argv: str, user: str, seconds: float) -> Iterator[Running[bytes]]:
    """Run a program until the end of the block, then terminate it. Its output is not read.

    Args:
        user: the system account that it runs as, with only that account's own group.
        seconds: after this time it is ended in any case, even if this process was killed.

    Raises:
        Failed: its exit status is not 0.
    """
    guarded = ("timeout", f"--kill-after={SECONDS:.0f}", f"{seconds:.0f}", *argv)
    null = subprocess.DEVNULL
    started = subprocess.Popen(guarded, stdin=null, stdout=null, stderr=null, cwd="/", **_as_user(user))
    try:
        yield started
    finally:
        started.terminate()
        status = started.wait()
    if status != 0:
        raise Failed(f"{argv[0]} ended with status {status}")


def start(
    argv: Sequence[str], *, environment: Mapping[str, str], uid: int, gid: int, groups: Sequence[int]
) -> Running[bytes]:
    """Start a program as a user, in a session of its own. Its two outputs come through one pipe."""
    return subprocess.Popen(
        argv, cwd="/", env=environment, user=uid, group=gid, extra_groups=groups,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def stream(argv: Sequence[str]) -> Running[bytes]:
    """Start a program whose output is read while it runs. It ends with our process group.

    Raises:
        OSError: it can't be started.
    """
    null = subprocess.DEVNULL
    return subprocess.Popen(
        argv, stdin=null, stdout=subprocess.PIPE, stderr=null, cwd="/", env={**os.environ, "LC_ALL": "C"}
    )


class ProgramGroup:
    """Programs that several threads wait for, and that can be ended together.

    Each has a session of its own. One that has a limit of its own (`timeout`) passes on the signal that ends it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[Running[bytes]] = set()
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether no program is started any more."""
        return self._stopped

    def run(self, argv: Sequence[str], seconds: float, data: bytes = b"") -> Completed[str]:
        """Run a program; the caller checks its status. It never raises an error: one that is not installed has the
        status of shells, one that did not end in time, or was not started any more, that of `timeout`.

        Args:
            seconds: it is killed after this time.
            data: its standard input.
        """
        words = list(argv)
        with self._lock:
            if self._stopped:
                return Completed(words, OUT_OF_TIME, "", f"{words[0]} was not started: it is not wanted any more")
            try:
                started = subprocess.Popen(
                    words, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                missing = isinstance(error, FileNotFoundError)
                why = f"{words[0]} is not installed" if missing else f"{words[0]} can't be started: {error.strerror}"
                return Completed(words, MISSING, "", why)
            self._running.add(started)
        late = ""
        try:
            output, errors = started.communicate(data, timeout=seconds)
        except TimeLimit:
            _kill(started)
            late = f"{words[0]} did not end within {seconds:.0f} s"
            output, errors = b"", b""
        finally:
            with self._lock:
                self._running.discard(started)
        status = OUT_OF_TIME if late else started.returncode
        return Completed(words, status, output.decode(errors="replace"), late or errors.decode(errors="replace"))

    def stop(self, seconds: float) -> None:
        """Terminate what runs, kill what has not ended after so long, and start nothing any more."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        until = time.monotonic() + seconds
        for started in running:
            started.terminate()
        for started in running:
            while started.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            if started.poll() is None:
                # Who waits for it closes its streams.
                with contextlib.suppress(OSError):
                    os.killpg(started.pid, signal.SIGKILL)


def _kill(started: Running[bytes]) -> None:
    """Kill a program with its session, and do not wait for what the kernel does not end."""
    with contextlib.suppress(OSError):
        os.killpg(started.pid, signal.SIGKILL)
    with contextlib.suppress(TimeLimit):
        started.wait(_BURIAL_S)
    for stream in (started.stdin, started.stdout, started.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def end(started: Running[bytes], seconds: float) -> bool:
    """Terminate a program of `start` or `stream`, and kill it if it has not ended after so long.

    Its output is not read any more.

    Returns:
        whether it has ended. One that hangs in the kernel does not end, and nothing waits for it.
    """
    started.terminate()
    if started.stdout is not None:
        started.stdout.close()  # else it could wait for a reader
    for last in (seconds, _BURIAL_S):
        with contextlib.suppress(TimeLimit):
            started.wait(last)
            return True
        started.kill()
    return False


class ProgramAnswer(NamedTuple):
    """How a program ended that had limits.

    Attributes:
        status: its exit status, minus the signal that ended it; None where it was not seen to end.
        output: its standard output; the first part of it where there is a fault.
        errors: the first part of its standard error.
        fault: "" or why the output is not whole: "nvidia-smi gave no answer within 5 s".
    """

    status: int | None
    output: bytes
    errors: bytes
    fault: str


# How much of standard error is kept, and how long a killed program is waited for, in seconds.
_ERRORS_KEPT = 4096
_BURIAL_S = 0.2


def ask(argv: Sequence[str], seconds: float, most: int, stdin: Any = subprocess.DEVNULL) -> ProgramAnswer:
    """Run a program with hard limits. It never raises an error and never takes much longer than the limit.

    The program is in a session of its own. At a limit the whole group is killed, and the caller does not wait for a
    program that the kernel does not end: one that sleeps on a device or a file server that is gone. It holds no file of
        ours open.

    Args:
        seconds: it is killed after this time.
        most: bytes of output; a program that prints more is killed.
        stdin: the file that it reads.
    """
    name = Path(argv[0]).name
    try:
        started = subprocess.Popen(
            argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/",
            env={**os.environ, "LC_ALL": "C"}, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        what = "is not installed" if isinstance(error, FileNotFoundError) else f"can't be started: {error.strerror}"
        return ProgramAnswer(None, b"", b"", f"{name} {what}")
    output, errors = bytearray(), bytearray()
    fault = _read_both(started, (output, errors), time.monotonic() + seconds, most)
    if fault:
        fault = f"{name} {fault.format(seconds=seconds, most=most)}"
    with contextlib.suppress(OSError):
        # The group has the program's number as long as the program is not waited for.
        os.killpg(started.pid, signal.SIGKILL)
    with contextlib.suppress(TimeLimit):
        started.wait(_BURIAL_S)
    status = started.returncode
    if status is None and not fault:
        fault = f"{name} closed its output and did not end"
    for stream in (started.stdout, started.stderr):
        if stream is not None:
            stream.close()
    return ProgramAnswer(status, bytes(output[:most]), bytes(errors), fault)


def _read_both(started: Running[bytes], into: tuple[bytearray, bytearray], end: float, most: int) -> str:
    """Read until the program ended, or until a limit; returns which one. A descendant may hold the output open for
    ever.
    """
    with selectors.DefaultSelector() as selector:
        for stream, buffer in zip((started.stdout, started.stderr), into):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, buffer)
        while True:
            left = end - time.monotonic()
            if left <= 0:
                return "gave no answer within {seconds:g} s"
            ready = selector.select(min(left, 0.05))
            for key, _events in ready:
                if not _took(key.fileobj, key.data, most if key.data is into[0] else _ERRORS_KEPT):
                    selector.unregister(key.fileobj)
            if len(into[0]) > most:
                return "printed more than {most} bytes"
            if not ready and _ended(started.pid):
                return ""
            if not selector.get_map() and _ended(started.pid, wait_until=end):
                return ""


def _took(stream: Any, buffer: bytearray, most: int) -> bool:
    """Whether there was something to read, or may be later."""
    file: IO[bytes] = stream
    data = os.read(file.fileno(), 1 << 16)
    buffer += data[: max(0, most + 1 - len(buffer))]
    return bool(data)


def _ended(pid: int, wait_until: float = 0.0) -> bool:
    """Whether the program has ended. It stays to be waited for."""
    try:
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() >= wait_until:
                return False
            time.sleep(0.002)
    except ChildProcessError:  # the process that started us ignores the end of children, and so do we
        pass
    return True


def last_words(result: Completed[bytes]) -> str:
    """The last line that a program printed on standard error; its status if it printed nothing."""
    return (result.stderr.decode(errors="replace").strip().splitlines() or [f"status {result.returncode}"])[-1]


def _as_user(name: str) -> dict[str, Any]:
    account = pwd.getpwnam(name)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
