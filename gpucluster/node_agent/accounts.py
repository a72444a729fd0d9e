"""Users of this host, and work in their name: what they could not do themselves fails."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gpucluster.node_agent import in_child
from gpucluster.node_agent.errors import AgentError, Failed, Refused

_SHOWN = 40
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
    try:
        answer = in_child.bytes_of(lambda: _answer(of, work, most), seconds, most + len(_FAILED))
    except TimeoutError:
        raise Failed("no answer in time") from None
    except ValueError:
        raise Failed(f"the result has more than {most} bytes") from None
    if answer.startswith(_DONE):
        return answer[len(_DONE) :]
    message, _, hint = answer[len(_FAILED) :].decode(errors="replace").partition("\0")
    raise Failed(message or "it has no result", hint)


def _become(of: Account) -> None:
    os.setgroups(of.groups)
    os.setgid(of.gid)
    os.setuid(of.uid)
    os.umask(0o077)
    os.chdir("/")


def _answer(of: Account, work: Callable[[], bytes], most: int) -> bytes:
    try:
        _become(of)
        return _DONE + work()
    except AgentError as error:
        failure = f"{error.message}\0{error.hint}"
    except OSError as error:
        failure = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    except (UnicodeError, shutil.Error) as error:
        failure = str(error)
    return _FAILED + failure.encode(errors="replace")[:most]
