"""Users of this host, and work in their name: what they could not do themselves fails."""

from __future__ import annotations

import os
import pwd
import select
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from gpucluster.node_agent.errors import AgentError, Failed, Refused

_SHOWN = 40
_REAP_SECONDS = 5.0
_CHUNK = 1 << 16
_DONE, _FAILED = b"done ", b"failed "


class Account(NamedTuple):
    """A user, with all groups of the user."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def account(name: Any) -> Account:
    """The user of this name.

    Raises:
        Refused: there is none, or it is root.
    """
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, TypeError, ValueError):
        raise Refused(f"there is no user {str(name)[:_SHOWN]!r}", "Run: gpucluster user list") from None
    return _of(entry)


def account_of(uid: int) -> Account:
    """The user with this number.

    Raises:
        Refused: there is none, or it is root.
    """
    try:
        entry = pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        raise Refused(f"there is no user with the uid {uid}", "Run: gpucluster user list") from None
    return _of(entry)


def _of(entry: pwd.struct_passwd) -> Account:
    if entry.pw_uid == 0:
        raise Refused("root has no jobs", "Name another user: the job has that user's rights")
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir)


def environment(of: Account) -> Mapping[str, str]:
    """The whole environment of a program of the user: nothing of ours, except where programs are."""
    return {
        "HOME": of.home, "USER": of.name, "LOGNAME": of.name, "SHELL": "/bin/sh",
        "PATH": os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin"), "LC_ALL": "C",
    }  # fmt: skip


def work_as(of: Account, work: Callable[[], bytes], *, seconds: float, most: int) -> bytes:
    """The result of a function that runs in a child process with the rights of the user.

    The user may have put anything in the way: links, pipes, mounts that never answer. A link leads only where the user
    may go, and a child that does not answer is given up.

    Args:
        seconds: for the whole of it.
        most: bytes of the result.

    Raises:
        Failed: it failed there, did not end in time, or has a larger result.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _become(of, work, writing, most)
    os.close(writing)
    try:
        answer = _read_all(reading, time.monotonic() + seconds, most + len(_FAILED))
    finally:
        os.close(reading)
    # Users can stop processes of their own, and keep them from ending.
    ended = answer is not None and _reaped(child)
    if not ended:
        os.kill(child, signal.SIGKILL)
        _reaped(child)
    if answer is not None and answer.startswith(_DONE):
        return answer[len(_DONE) :]
    reason = "no answer in time" if answer is None else answer[len(_FAILED) :].decode(errors="replace")
    message, _, hint = reason.partition("\0")
    raise Failed(message or "it has no result", hint)


def _become(of: Account, work: Callable[[], bytes], writing: int, most: int) -> NoReturn:
    answer, failure = b"", ""
    try:
        os.setgroups(of.groups)
        os.setgid(of.gid)
        os.setuid(of.uid)
        os.umask(0o077)
        os.chdir("/")
        answer = _DONE + work()
    except AgentError as error:
        failure = f"{error.message}\0{error.hint}"
    except OSError as error:
        failure = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    except (UnicodeError, shutil.Error) as error:
        failure = str(error)
    finally:
        answer = answer or _FAILED + failure.encode(errors="replace")[:most]
        while answer:
            answer = answer[os.write(writing, answer) :]
        os._exit(0)


def _read_all(pipe: int, until: float, most: int) -> bytes | None:
    """All bytes of a pipe; None if it is not closed in time, or has more."""
    answer = bytearray()
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    while len(answer) <= most:
        left = until - time.monotonic()
        if left <= 0 or not waiting.poll(left * 1000):
            return None
        part = os.read(pipe, _CHUNK)
        if not part:
            return bytes(answer)
        answer += part
    return None


def _reaped(child: int) -> bool:
    """Whether a child has ended; the wait is limited."""
    until = time.monotonic() + _REAP_SECONDS
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True
