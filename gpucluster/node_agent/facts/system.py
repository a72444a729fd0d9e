"""File systems, users, the results of user data, certificates and secrets of a host, as it sees them."""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import re
import shlex
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# The settings of user data for this host, and the results of its scripts: see gpucluster/handover/user_data.py.
NODE_DATA = Path("/etc/gpucluster/node.conf")
OUTCOMES = Path("/run/gpucluster")
BLOCK_DEVICES = Path("/sys/class/block")
# What only the controller has, for Terraform's state: certificates of its CAs, and its secrets.
CERTIFICATES = {
    "directory": Path("/etc/gpucluster/authority/ca.pem"),
    "ssh": Path("/etc/gpucluster/authority/ssh_ca.pub"),
}
SECRETS = {"munge": Path("/etc/gpucluster/munge.key")}
# NFS may show an old listing of a directory for a moment.
TOKEN_SECONDS = 10.0
# SSSD caches for a while that a new user did not exist a moment ago, or that the server did not answer.
USERS_SECONDS = 40.0
_AGAIN_SECONDS = 0.25


def unescape(field: str) -> str:
    """Undo the octal escapes of mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), field)


def home_fs(mountinfo: str, path: str) -> dict[str, Any]:
    """The file system that is mounted at the path."""
    found: dict[str, Any] = {"source": "", "fstype": "", "mounted": False}
    for line in mountinfo.splitlines():
        fields, _dash, rest = line.partition(" - ")
        if unescape(fields.split()[4]) == path:
            fstype, source = rest.split()[:2]
            found = {"source": unescape(source), "fstype": fstype, "mounted": True}
    return found


def node_data(text: str) -> dict[str, str]:
    """The shell assignments in the file."""
    pairs = (word.partition("=") for word in shlex.split(text, comments=True))
    return {name: value for name, equals, value in pairs if equals}


def read(path: Path) -> str:
    """The text of a file, empty if it does not exist."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _generation(secret: bytes) -> str:
    """Another one for another secret. The secrets are random and long, so trying does not find them."""
    return hashlib.sha256(secret).hexdigest()[:12]


def certificates(files: Mapping[str, Path] = CERTIFICATES) -> dict[str, str]:
    """The certificates of a host that has made them."""
    return {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.is_file()}


def secrets(files: Mapping[str, Path] = SECRETS) -> dict[str, str]:
    """A word for each secret of a host that has made it, which is another one for another secret."""
    return {name: _generation(file.read_bytes()) for name, file in files.items() if file.is_file()}


def outcome(name: str) -> dict[str, str]:
    """The result of a script of user data; no state if it has not ended."""
    state, _newline, words = read(OUTCOMES / name).strip().partition("\n")
    return {"state": state, "words": words}


def drives_below(source: str) -> int:
    """The number of block devices of a file system: one, or those of a volume over several."""
    name = os.path.basename(os.path.realpath(source))
    try:
        return len(os.listdir(BLOCK_DEVICES / name / "slaves")) or 1
    except OSError:
        return 1


def local_disk(mountinfo: str, data: Mapping[str, str]) -> dict[str, Any] | None:
    """The file system on the local drives, None if none is configured."""
    path = data.get("local_disk_mount_path")
    if not path:
        return None
    found: dict[str, Any] = {"path": path, **home_fs(mountinfo, path), **outcome("local-disk"), "drives": 0, "bytes": 0}
    if found["mounted"]:
        size = os.statvfs(path)
        found.update({"drives": drives_below(found["source"]), "bytes": size.f_blocks * size.f_frsize})
    return found


def _short_text(file: Path) -> str:
    """The begin of a regular file on the share, where root of another host may have put a link or a pipe."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return os.read(descriptor, 1024).decode(errors="replace").strip() if regular else ""
    finally:
        os.close(descriptor)


def sees(file: Path, token: str) -> bool:
    """Whether the file appears with this content."""
    until = time.monotonic() + TOKEN_SECONDS
    while True:
        try:
            # A listing asks the server; a lookup may be answered from a cache.
            os.listdir(file.parent)
            if _short_text(file) == token:
                return True
        except OSError:
            pass  # not there yet, or missing
        if time.monotonic() > until:
            return False
        time.sleep(_AGAIN_SECONDS)


def share(mountinfo: str, asked: Mapping[str, str]) -> dict[str, Any]:
    """The mount at the homes, and whether it is the same share as on the controller.

    Args:
        asked: the `path` of the mount; where there is one, the `file` that the controller has written with a `token`.
    """
    home = home_fs(mountinfo, asked["path"].rstrip("/"))
    if not asked.get("token"):
        return {"home_fs": home}
    return {"home_fs": home, "home_token_seen": home["mounted"] and sees(Path(asked["file"]), asked["token"])}


def ids(name: str) -> str:
    """`uid:gid` as this host resolves it, empty for an unknown user."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return ""
    return f"{entry.pw_uid}:{entry.pw_gid}"


def await_users(names: Sequence[str]) -> None:
    """Wait until the users can be resolved; not for ever."""
    until = time.monotonic() + USERS_SECONDS
    while not all(map(ids, names)) and time.monotonic() < until:
        time.sleep(_AGAIN_SECONDS)


def group_id(name: str) -> str:
    """The gid of a group as this host resolves it, empty for an unknown one."""
    try:
        return str(grp.getgrnam(name).gr_gid)
    except KeyError:
        return ""


def groups(name: str) -> list[str]:
    """The names of the user's groups."""
    try:
        numbers = os.getgrouplist(name, pwd.getpwnam(name).pw_gid)
        return sorted(grp.getgrgid(number).gr_name for number in numbers)
    except KeyError:
        return []
