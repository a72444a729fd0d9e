"""Count the files of users on NFS shares, by owner: what `gpucluster destroy` would delete. Changes nothing.

On a home share, files of root and those of a new home are none of users. On another share every file counts: an
administrator brings data as root.

gpucluster sends the agent to a host for this, because nothing may be installed there yet. The share is mounted
read-only beside whatever the host has mounted: what lies at the usual place may be another share, or none. Usage:
gpucluster-agent home-files [--all] SHARE..., the ways to one share, such as 10.0.1.2:/home. Prints a JSON object:
{"owners": {"alice": 3}, "complete": true} or {"error": "..."}.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import json
import os
import pwd
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import AgentError, Failed

# Without locks and their daemons; a server that does not answer is an error after half a minute.
OPTIONS = "ro,vers=3,soft,timeo=100,retrans=2,nolock,nosuid,nodev,noexec"
# What the accounts of users add to a home besides the skeleton: authorized keys, the key pair for ssh between hosts.
NEW_HOME_FILES = frozenset(Path(".ssh", name) for name in ("authorized_keys", "id_ed25519", "id_ed25519.pub"))
# OCI shows the snapshots of a file system here. They are counted by gpucluster, through the API.
SNAPSHOTS = ".snapshot"
# Enough to refuse: a count to the end would take hours on a large share.
LIMIT = 100_000
_INSTALLERS = (
    ("apt-get", "install", "--yes", "--quiet", "nfs-common"),
    ("dnf", "install", "--assumeyes", "--quiet", "nfs-utils"),
)
_INSTALL_SECONDS, _MOUNT_SECONDS = 300.0, 120.0


def owner_name(uid: int) -> str:
    """The user's name, or the uid."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def belongs_to_new_home(home_relative: Path, file: Path, skeleton: Path) -> bool:
    """Whether a file is in a home because the home was created with it."""
    if home_relative in NEW_HOME_FILES:
        return True
    model = skeleton / home_relative
    if file.is_symlink() or not model.is_file():
        return False
    try:
        return filecmp.cmp(model, file, shallow=False)
    except OSError:
        return False


def fail(error: OSError) -> None:
    """A directory that can't be read must not look like an empty one."""
    raise error


def users_files(share: Path, skeleton: Path, *, every_file: bool = False) -> Iterator[int]:
    """The uid of the owner of each file and link of users. Files of a new home and files of root are none of theirs.

    Args:
        every_file: count those, too.

    Raises:
        OSError: a directory of the share can't be read.
    """
    for directory, names, files in os.walk(share, onerror=fail):
        if directory == str(share):
            names[:] = [name for name in names if name != SNAPSHOTS]
        links = [name for name in names if Path(directory, name).is_symlink()]
        for name in (*files, *links):
            file = Path(directory, name)
            try:
                uid = file.lstat().st_uid
            except FileNotFoundError:
                continue  # the owner has just removed it
            inside = file.relative_to(share).parts[1:]
            if every_file or (uid != 0 and not (inside and belongs_to_new_home(Path(*inside), file, skeleton))):
                yield uid


@contextlib.contextmanager
def mounted(source: str) -> Iterator[Path]:
    """A share, mounted read-only at a place of its own.

    Raises:
        Failed: it can't be mounted.
    """
    _have_nfs()
    place = tempfile.mkdtemp(prefix="gpucluster-look-")
    try:
        programs.run("mount", "-t", "nfs", "-o", OPTIONS, source, place, seconds=_MOUNT_SECONDS)
        try:
            yield Path(place)
        finally:
            programs.call(["umount", "-l", place])
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(place)


def look(sources: Sequence[str], skeleton: Path, *, every_file: bool = False) -> dict[str, object]:
    """Files by owner, and whether all of them were counted.

    Args:
        sources: the ways to one share, such as "10.0.1.2:/home": the first that can be mounted is used.
        skeleton: the template of new homes.
        every_file: count files of root and of new homes, too.

    Raises:
        Failed: they can't be counted.
    """
    refused = []
    for source in sources:
        with contextlib.ExitStack() as mounts:
            try:
                share = mounts.enter_context(mounted(source))
            except Failed as error:
                refused.append(error.message)
                continue
            return _counted(users_files(share, skeleton, every_file=every_file))
    raise Failed("; ".join(refused) or "no share was named")


def _counted(owners_of_files: Iterator[int]) -> dict[str, object]:
    counts: Counter[int] = Counter()
    number = 0
    try:
        for uid in owners_of_files:
            counts[uid] += 1
            number += 1
            if number >= LIMIT:
                break
    except OSError as error:
        raise Failed(f"{error.filename}: {error.strerror}") from error
    owners = {owner_name(uid): files for uid, files in sorted(counts.items())}
    return {"owners": owners, "complete": number < LIMIT}


def _have_nfs() -> None:
    """Install the NFS client on a host that was never configured."""
    if shutil.which("mount.nfs"):
        return
    for installer in _INSTALLERS:
        if shutil.which(installer[0]):
            programs.run("env", "DEBIAN_FRONTEND=noninteractive", *installer, seconds=_INSTALL_SECONDS)
            return
    raise Failed("this host has no NFS client")


def main(argv: Sequence[str] | None = None) -> int:
    """Print what is found; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent home-files", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shares", metavar="SHARE", nargs="+", help="a way to the share, such as 10.0.1.2:/home")
    parser.add_argument("--all", action="store_true", help="count files of root and of new homes, too")
    options = parser.parse_args(argv)
    try:
        answer = look(options.shares, Path("/etc/skel"), every_file=options.all)
    except AgentError as error:
        answer = {"error": error.message}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0
