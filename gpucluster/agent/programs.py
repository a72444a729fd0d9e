"""The only place of the agent that starts other programs: lists of arguments, never a shell, always with a time limit.

`end_processes` in `users/` is the one exception: it is sent to other hosts as a single file.
"""

from __future__ import annotations

import contextlib
import pwd
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucluster.agent.errors import Failed

#: Seconds for a program that has little to do.
SECONDS = 60.0
#: The status that shells give where there is no such program.
MISSING = 127

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
) -> Completed[bytes]:
    """Run a program that reads or writes files. The caller checks its exit status.

    Args:
        text: what it reads, instead of the file `stdin`.
        user: the system account that it runs as, with only that account's own group.
        seconds: it is killed after this time.

    Raises:
        Failed: it is not installed, or did not end in time.
    """
    more: dict[str, Any] = {"stdin": stdin} if text is None else {"input": text.encode()}
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
    done = call_with_data(*argv, **how)
    if done.returncode != 0:
        raise Failed(f"{Path(argv[0]).name}: {last_words(done)}")
    return done.stdout.decode(errors="replace") if done.stdout is not None else ""


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


def last_words(done: Completed[bytes]) -> str:
    """The last line that a program printed on standard error; its status if it printed nothing."""
    return (done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"])[-1]


def _as_user(name: str) -> dict[str, Any]:
    account = pwd.getpwnam(name)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
