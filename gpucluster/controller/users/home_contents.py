"""Changes inside a home directory. They run as its owner, who may have put anything there: links, pipes, mounts."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from gpucluster.controller.users.errors import InHome
from gpucluster.controller.users.state import DirectoryUser
from gpucluster.node_agent.accounts import Account, work_as
from gpucluster.node_agent.errors import Failed

SKELETON = Path("/etc/skel")
KEYS_BEGIN = "# BEGIN gpucluster: these keys come from the cluster's description"
KEYS_END = "# END gpucluster: add your own keys below"
#: sshd reads both files.
_KEY_FILES = ("authorized_keys", "authorized_keys2")
_ASIDE = ".disabled"
#: Suffix of files that are being written.
_FRESH = ".gpucluster"
#: Larger than any file with keys.
LARGEST_BYTES = 1 << 20
#: All other changes wait for this: the lock is held.
_SECONDS = 30.0
_ANSWER_BYTES = 4000


def with_keys(text: str, keys: Sequence[str]) -> str:
    """An authorized_keys file with gpucluster's block of keys; the user's own lines stay."""
    block = "\n".join([KEYS_BEGIN, *keys, KEYS_END, ""]) if keys else ""
    match = re.search(rf"^{re.escape(KEYS_BEGIN)}$.*?^{re.escape(KEYS_END)}$\n?", text, re.MULTILINE | re.DOTALL)
    if match:
        return text[: match.start()] + block + text[match.end() :]
    if text and not text.endswith("\n"):
        text += "\n"
    return block + text


def fill(home: Path, user: DirectoryUser, skeleton: Path = SKELETON) -> bool:
    """Fill a new home from the skeleton; write the keys of the directory.

    Returns:
        Whether anything changed.
    """
    ssh = home / ".ssh"
    changed = not ssh.exists() and _copy_skeleton(skeleton, home)
    if not ssh.is_dir():
        ssh.mkdir(mode=0o700)
        changed = True
    changed = move_keys(ssh, enabled=user.enabled) or changed
    file = ssh / (_KEY_FILES[0] + ("" if user.enabled else _ASIDE))
    old = read(file)
    new = with_keys(old, user.ssh_keys)
    if new != old:
        _write(file, new, 0o600)
        changed = True
    return changed


def _copy_skeleton(skeleton: Path, home: Path) -> bool:
    """Fill an empty home, or complete a home that was only partly filled."""
    present = {name for name in os.listdir(home) if not name.endswith(_FRESH)}
    if not skeleton.is_dir() or not present <= set(os.listdir(skeleton)):
        return False

    def copy(source: str, target: str) -> None:
        if not os.path.lexists(target):
            shutil.copy2(source, target + _FRESH, follow_symlinks=False)
            Path(target + _FRESH).replace(target)

    def links(folder: str, names: list[str]) -> list[str]:
        inside = home / Path(folder).relative_to(skeleton)
        return [name for name in names if (inside / name).is_symlink()]

    mode = home.stat().st_mode
    shutil.copytree(skeleton, home, symlinks=True, dirs_exist_ok=True, copy_function=copy, ignore=links)
    # copytree sets the mode of the skeleton.
    home.chmod(mode)
    return True


def read(file: Path) -> str:
    """A file's text, empty where there is none. Bytes that are no UTF-8 are kept when the text is written again.

    Raises:
        InHome: it is not a regular file, or too large to hold keys.
    """
    try:
        # A pipe must not block. A link leads only where its owner may read.
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise InHome(f"{file} is in the way: it is not a regular file")
        content = b""
        while part := os.read(handle, LARGEST_BYTES + 1 - len(content)):
            content += part
    finally:
        os.close(handle)
    if len(content) > LARGEST_BYTES:
        raise InHome(f"{file} is larger than {LARGEST_BYTES} bytes")
    return content.decode(errors="surrogateescape")


def _write(target: Path, text: str, mode: int) -> None:
    """Write a file as a whole or not at all."""
    fresh = target.with_name(f".{target.name}{_FRESH}")
    with suppress(FileNotFoundError):
        fresh.unlink()
    fresh.write_bytes(text.encode(errors="surrogateescape"))
    fresh.chmod(mode)
    fresh.replace(target)


def move_keys(ssh: Path, *, enabled: bool) -> bool:
    """Set the files with keys aside, or put them back; returns whether one was moved."""
    changed = False
    for name in _KEY_FILES:
        here, aside = ssh / name, ssh / (name + _ASIDE)
        source, target = (aside, here) if enabled else (here, aside)
        if source.is_symlink() or source.is_file():
            # Of two files, the one in place is newer.
            if enabled and target.exists():
                source.unlink()
            else:
                source.replace(target)
            changed = True
    return changed


def delete_keys(ssh: Path) -> int:
    """Delete the files with keys, set aside or not; returns how many keys were in them."""
    keys: set[str] = set()
    for name in _KEY_FILES:
        for file in (ssh / name, ssh / (name + _ASIDE)):
            if file.is_symlink() or file.is_file():
                with suppress(InHome, OSError):
                    keys |= {line for line in read(file).splitlines() if line.strip() and not line.startswith("#")}
                file.unlink()
    return len(keys)


def as_user(user: DirectoryUser, work: Callable[[], int], seconds: float = _SECONDS) -> int:
    """The result of a function that runs in a child process as the user, with no other group.

    Raises:
        InHome: it failed there, or did not end in time.
    """
    owner = Account(user.name, user.uid, user.gid, (user.gid,), user.home)
    try:
        return int(work_as(owner, lambda: str(int(work())).encode(), seconds=seconds, most=_ANSWER_BYTES))
    except Failed as error:
        raise InHome(f"the home of {user.name}: {error.message}", "Fix that and try again") from None
