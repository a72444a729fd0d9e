"""What root does for a user's rootless containers.

    gpucluster-agent rootless prepare UID DIRECTORY    a range of subordinate ids, and a directory below DIRECTORY
    gpucluster-agent rootless linger DIRECTORY         keep the services of users who created a file there
    gpucluster-agent rootless stop-all                 stop the containerd of every user

A rootless container needs 65536 ids in addition to the user's own. useradd gives them to local accounts only, and users
of a directory are not made with useradd. So every user who logs in gets a range that follows from the uid, the same on
every host, unless another user holds it: then it is the next free one. Ranges are never taken back, as uids are not.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import grp
import os
import pwd
import re
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import AgentError, Refused
from gpucluster.node_agent.foreign_folder import Folder

# From the end of useradd's range (login.defs, SUB_UID_MAX) to the end of what systemd leaves to containers.
SIZE = 65_536
BASE = 9_158 * SIZE
RANGES = 1_879_048_192 // SIZE - 9_158
NUMBERS = range(BASE, BASE + RANGES * SIZE)
USERS = range(1000, 2**31)
NOBODY = 65_534
_NAME = "gpucluster-agent rootless"
FILES = (Path("/etc/subuid"), Path("/etc/subgid"))
# The lock that useradd and similar programs hold while they change such files (lckpwdf).
LOCK = Path("/etc/.pwd.lock")


def parse(text: str) -> list[tuple[str, int, int]]:
    """(owner, first, count) of each well-formed line."""
    matches = re.findall(r"^([^#:\s][^:\n]*):(\d+):(\d+)\s*$", text, re.MULTILINE)
    return [(owner, int(first), int(count)) for owner, first, count in matches]


def has_range(text: str, owners: Iterable[str]) -> bool:
    """Whether one of these names holds a range of the full size."""
    return any(owner in owners and count >= SIZE for owner, _first, count in parse(text))


def free_start(uid: int, texts: Iterable[str], accounts: Iterable[int] = ()) -> int:
    """The first id of a range that no line overlaps: the one that follows from the uid, or the next free one.

    Args:
        uid: of the user.
        texts: of the files.
        accounts: ids of users and groups. A range must not hold one: files of containers would belong to it.

    Raises:
        Refused: no range is free.
    """
    taken = [(first, first + count) for text in texts for _owner, first, count in parse(text)]
    taken += [(number, number + 1) for number in accounts if number in NUMBERS]
    for step in range(RANGES):
        start = BASE + (uid + step) % RANGES * SIZE
        if all(end <= start or first >= start + SIZE for first, end in taken):
            return start
    raise Refused(f"all {RANGES} ranges are given out; remove the lines of removed users from {FILES[0]}")


def read(path: Path) -> str:
    """The text of a file, empty if there is none."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def append(path: Path, line: str) -> None:
    """Add a line with a rename: a reader sees the old file or the new one."""
    old = read(path)
    text = old + ("" if not old or old.endswith("\n") else "\n") + line + "\n"
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), 0o644)
    os.replace(name, path)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold the lock of all programs that change accounts."""
    with LOCK.open("w") as file:
        LOCK.chmod(0o600)
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def known_accounts() -> set[int]:
    """Ids of the users and groups that this host can list. It can't list a directory's; those ids are refused there."""
    users, groups = pwd.getpwall(), grp.getgrall()
    return {user.pw_uid for user in users} | {user.pw_gid for user in users} | {group.gr_gid for group in groups}


def give_ranges(uid: int, name: str) -> None:
    """Give the user a range in both files. An existing range stays."""
    owners = (str(uid), name)
    if all(has_range(read(file), owners) for file in FILES):
        return
    with locked():
        texts = [read(file) for file in FILES]
        start = free_start(uid, texts, known_accounts())
        for file, text in zip(FILES, texts):
            if not has_range(text, owners):
                # By uid: a name may change, and belong to another user later.
                append(file, f"{uid}:{start}:{SIZE}")


def give_directory(parent: Path, uid: int, gid: int) -> None:
    """Create the user's directory, which only the user can enter. Only root can write to its parent.

    Raises:
        Refused: something else is in its place.
    """
    name = f"user-{uid}"
    with Folder.open(parent) as folder:
        try:
            with folder.make(name, 0o700) as made:
                made.give(uid, gid)
            return
        except FileExistsError:
            pass
        with contextlib.suppress(NotADirectoryError), folder.folder(name) as directory:
            if directory.status().st_uid == uid:
                directory.set_mode(0o700)
                return
    raise Refused(f"{parent / name} is not a directory of user {uid}: move it away")


def prepare(uid: int, parent: Path) -> None:
    """Prepare one user; accounts of the system need nothing.

    Raises:
        Refused: it is not possible; the message is for the journal.
    """
    if uid not in USERS or uid == NOBODY:
        return
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        raise Refused(f"there is no user {uid}") from None
    if uid in NUMBERS:
        raise Refused(
            f"uid {uid} of {account.pw_name} is among {NUMBERS[0]} to {NUMBERS[-1]}, the ids of other users' "
            "containers: give this user another uid"
        )
    give_ranges(uid, account.pw_name)
    give_directory(parent, uid, account.pw_gid)


def linger(requests: Path) -> None:
    """Keep the services of users who asked for it running after their sessions.

    Every user can create files there, so only a file's owner counts, and an error of one request stops no other.
    """
    with Folder.open(requests) as folder:
        for name in folder.names():
            try:
                state = folder.look(name)
                folder.remove(name)
                if state is not None and _asks(name, state):
                    programs.run("loginctl", "enable-linger", name)
            except (OSError, AgentError) as error:
                sys.stderr.write(f"{_NAME}: {name}: {error}\n")


def _asks(name: str, state: os.stat_result) -> bool:
    # With a second name it may be a file of another user.
    own = stat.S_ISREG(state.st_mode) and state.st_nlink == 1
    return own and name == str(state.st_uid) and state.st_uid in USERS


def stop_all() -> None:
    """Stop the containerd of every user with a session."""
    for folder in Path("/run/user").glob("[0-9]*"):
        try:
            user = pwd.getpwuid(int(folder.name)).pw_name
        except KeyError:
            continue  # its account is gone, and its processes ended with it
        # Not --machine=UID@.host: Oracle Linux 8 has systemd 239, and this needs 248.
        systemctl = ["env", f"XDG_RUNTIME_DIR={folder}", "systemctl", "--user", "stop", "containerd", "bypass4netnsd"]
        programs.call(["runuser", "-u", user, "--", *systemctl])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = argparse.ArgumentParser(prog=_NAME, description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    command = verbs.add_parser("prepare")
    command.add_argument("uid", type=int)
    command.add_argument("directory", type=Path)
    verbs.add_parser("linger").add_argument("directory", type=Path)
    verbs.add_parser("stop-all")
    options = parser.parse_args(argv)
    try:
        if options.verb == "prepare":
            prepare(options.uid, options.directory)
        elif options.verb == "linger":
            linger(options.directory)
        else:
            stop_all()
    except (OSError, AgentError) as error:
        sys.stderr.write(f"{_NAME}: {error}\n")
        return 1
    return 0
