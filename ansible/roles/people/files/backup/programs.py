"""The one door to other programs, and how it is said that something did not work."""

from __future__ import annotations

import contextlib
import hashlib
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHUNK = 1 << 20
# Seconds for a program that has little to do, for a daemon that starts or ends (systemd itself gives up before), and
# for one that reads or writes all of a database.
SECONDS, UNIT_SECONDS, DATA_SECONDS = 60.0, 300.0, 6 * 3600.0


class Failed(Exception):
    """It did not work: what happened, and what to do next."""

    status = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class Refused(Failed):
    """It must not be done like this; nothing was changed."""

    status = 2


def call(
    *argv: str,
    text: str | None = None,
    stdin: Any = subprocess.DEVNULL,
    stdout: Any = subprocess.PIPE,
    user: str | None = None,
    seconds: float = SECONDS,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end; its exit status is the caller's matter.

    Args:
        text: what it reads, instead of the file `stdin`.
        user: the account of the system that it runs as, with that account's own group alone.
        seconds: it is killed when they have passed.

    Raises:
        Failed: it is not there, or did not end in time.
    """
    account = pwd.getpwnam(user) if user else None
    more: dict[str, Any] = {"stdin": stdin} if text is None else {"input": text.encode()}
    if account:
        more |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    try:
        return subprocess.run(
            argv, stdout=stdout, stderr=subprocess.PIPE, check=False, cwd="/", timeout=seconds, **more
        )
    except FileNotFoundError:
        raise Failed(f"{argv[0]} is not installed here", "Run `gpucluster apply`") from None
    except subprocess.TimeoutExpired:
        words = " ".join((Path(argv[0]).name, *argv[1:3]))
        raise Failed(f"{words[:80]} did not end within {seconds:.0f} s", "Look at: journalctl -e") from None


def run(*argv: str, **how: Any) -> str:
    """Run a program like `call`, and return what it said.

    Raises:
        Failed: also where it failed, with the last of its own words.
    """
    done = call(*argv, **how)
    if done.returncode != 0:
        raise Failed(f"{Path(argv[0]).name}: {last_words(done)}")
    return done.stdout.decode(errors="replace") if done.stdout is not None else ""


@contextlib.contextmanager
def program(*argv: str, user: str, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs until the end of the block, and is told to end there; what it says is not read.

    Args:
        user: the account of the system that it runs as, with that account's own group alone.
        seconds: after these it is ended in any case, also when nobody is there any more who would end it.

    Raises:
        Failed: it did not end well.
    """
    account = pwd.getpwnam(user)
    guarded = ("timeout", f"--kill-after={SECONDS:.0f}", f"{seconds:.0f}", *argv)
    null = subprocess.DEVNULL
    started = subprocess.Popen(
        guarded, stdin=null, stdout=null, stderr=null, cwd="/",
        user=account.pw_uid, group=account.pw_gid, extra_groups=[],
    )  # fmt: skip
    try:
        yield started
    finally:
        started.terminate()
        status = started.wait()
    if status != 0:
        raise Failed(f"{argv[0]} ended with status {status}")


def last_words(done: subprocess.CompletedProcess[bytes]) -> str:
    """The last line of what a program said of its failure."""
    return (done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"])[-1]


def digest(file: Path) -> str:
    """The SHA-256 of a file."""
    found = hashlib.sha256()
    with file.open("rb") as stream:
        for chunk in iter(lambda: stream.read(CHUNK), b""):
            found.update(chunk)
    return found.hexdigest()


def note(words: str) -> None:
    """Say something on the way; the last line of standard error is the one that counts."""
    with contextlib.suppress(OSError):
        sys.stderr.write(words + "\n")
        sys.stderr.flush()
