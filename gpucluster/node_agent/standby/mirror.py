"""Keeps the standby like the host in service. Every step can be repeated after a kill: the next call compares again.

The host in service asks the standby for its list, packs what differs, and sends it over ssh. The standby unpacks it
beside its system and renames each file to its place: a program that runs meanwhile has the old file or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from gpucluster.node_agent import durable_file, programs
from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.standby import manifest, scope
from gpucluster.node_agent.state_volume import layout

#: What the standby runs for the host in service, whatever that asks for.
AGENT = f"{scope.FOLDER}/agent"
_KEY = "id_ed25519"
_STAGING = f"{scope.FOLDER}/staging"
_TAR = ("--xattrs", "--xattrs-include=*", "--numeric-owner")
_LIST_SECONDS = 300.0
_SEND_SECONDS = 3600.0
_LENGTH = 12
#: Paths in an answer: of a standby that was never configured thousands differ.
_SHOWN = 20


# --- on the host in service -----


def public_key(root: Path = Path("/")) -> str:
    """The key with which this host reaches the standby, as `type key`; it is made the first time.

    The key for the nodes is not used: the standby may let that in for every program.
    """
    file = _folder(root) / _KEY
    if not file.is_file():
        part = file.with_name(f"{_KEY}.part")
        part.unlink(missing_ok=True)
        programs.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gpucluster-standby", "-f", str(part))
        part.with_name(f"{part.name}.pub").replace(file.with_name(f"{_KEY}.pub"))
        part.replace(file)
    return " ".join(file.with_name(f"{_KEY}.pub").read_text().split()[:2])


def connection(target: str, host_key: str, folder: Path, root: Path = Path("/")) -> list[str]:
    """The words of ssh with which this host reaches another one, by the key that lets it run one program there.

    Args:
        target: `user@address`.
        host_key: the other host's, as `type key`.
        folder: for a file of known hosts; it must last as long as the connection.
    """
    known = folder / "known_hosts"
    known.write_text(f"standby {host_key}\n")
    kind = host_key.split()[0]
    words = ["ssh", "-F", "none", "-i", str(_folder(root) / _KEY), "-o", "IdentitiesOnly=yes"]
    words += ["-o", f"UserKnownHostsFile={known}", "-o", "HostKeyAlias=standby"]
    # Certificates name the OCID of a host.
    words += ["-o", f"HostKeyAlgorithms={'rsa-sha2-512,rsa-sha2-256' if kind == 'ssh-rsa' else kind}"]
    return [*words, "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", target]


def send(target: str, host_key: str, *, only_compare: bool, root: Path = Path("/")) -> dict[str, Any]:
    """Make the standby like this host. Returns how many paths differed, and some of them.

    Args:
        target: `user@address` of the standby.
        host_key: the standby's, as `type key`.
        only_compare: change nothing there.

    Raises:
        Failed: it can't be reached, or it does not take what was sent.
    """
    with tempfile.TemporaryDirectory(dir=_folder(root)) as folder:
        ssh = connection(target, host_key, Path(folder), root)
        listed = programs.call([*ssh, "list"], seconds=_LIST_SECONDS)
        found = manifest.compare(manifest.listing(root), _document(listed, target))
        if not only_compare:
            with (Path(folder) / "changes").open("w+b") as stream:
                _pack(stream, found, root)
                stream.seek(0)
                taken = programs.call_with_data(*ssh, "take", stdin=stream, seconds=_SEND_SECONDS)
            if taken.returncode != 0:
                text = _words(taken.stderr)
                raise Failed(f"the standby has not taken over what has changed: {text}", "Run: gpucluster apply")
    return {"differing": len(found.paths), "paths": list(found.paths[:_SHOWN])}


def _document(ended: programs.Completed[str], target: str) -> Mapping[str, Any]:
    try:
        document = json.loads(ended.stdout) if ended.returncode == 0 else None
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise Failed(f"the standby ({target}) gave no list of its files: {ended.stderr.strip()}", "Try again")
    return document


def _pack(stream: IO[bytes], found: manifest.Differences, root: Path) -> None:
    """Write what the standby needs: the length of a header, the header, and an archive."""
    fstab = root / scope.ROOTS[0].lstrip("/") / "fstab"
    shares = scope.shares(fstab.read_text()) if fstab.is_file() else []
    header = json.dumps({"remove": found.remove, "send": found.send, "shares": shares}).encode()
    stream.write(b"%0*d" % (_LENGTH, len(header)) + header)
    with tempfile.NamedTemporaryFile(dir=_folder(root)) as names:
        names.write(b"".join(os.fsencode(path.lstrip("/")) + b"\0" for path in found.send))
        names.flush()
        # A file that goes away or is written meanwhile differs at the next comparison.
        words = ["tar", "--create", "--format=posix", *_TAR, "--directory", str(root), "--no-recursion"]
        words += ["--ignore-failed-read", "--warning=no-file-changed", "--null", "--verbatim-files-from"]
        words += ["--files-from", names.name]
        stream.flush()
        packed = programs.call_with_data(*words, stdout=stream, seconds=_SEND_SECONDS)
    if packed.returncode not in (0, 1):
        raise Failed(f"tar failed: {_words(packed.stderr)}", "Try again")
    stream.flush()


# --- on the standby -----


def prepare(program: Path, root: Path = Path("/")) -> None:
    """Keep this program for the calls of the host in service.

    Raises:
        Refused: this host is in service.
    """
    _require_standby(root)
    _folder(root)
    target = root / AGENT.lstrip("/")
    part = target.with_name("agent.part")
    shutil.copyfile(program, part)
    part.replace(target)
    (root / layout.PASSIVE.lstrip("/")).touch()


def show(stream: IO[str], root: Path = Path("/")) -> None:
    """Write the list of this host's files."""
    _require_standby(root)
    json.dump(manifest.listing(root), stream)


def take(descriptor: int, root: Path = Path("/")) -> None:
    """Read what `send` has packed, and make this host like that.

    Raises:
        Refused: this host is in service.
        Failed: the data end too early, or a file can't be written.
    """
    _require_standby(root)
    with _alone(root):
        _take(descriptor, root)


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Wait for an earlier call: one whose connection has ended may still work here."""
    with (_folder(root) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _take(descriptor: int, root: Path) -> None:
    header = json.loads(_exactly(descriptor, int(_exactly(descriptor, _LENGTH))))
    staging = root / _STAGING.lstrip("/")
    shutil.rmtree(staging, ignore_errors=True)
    _folder(root)
    staging.mkdir(mode=0o700)
    words = ("tar", "--extract", "--preserve-permissions", *_TAR, "--directory", str(staging))
    unpacked = programs.call_with_data(*words, stdin=descriptor, seconds=_SEND_SECONDS)
    if unpacked.returncode != 0:
        raise Failed(f"tar failed: {_words(unpacked.stderr)}", "Try again")
    for path in header["send"]:
        if not scope.is_own(path):
            _place(staging / path.lstrip("/"), root / path.lstrip("/"))
    for path in sorted(header["remove"], reverse=True):
        if scope.is_exact(path) and not scope.is_own(path):
            _remove(root / path.lstrip("/"))
    _set_times(staging, root, header["send"])
    shutil.rmtree(staging)
    _set_shares(root / "etc/fstab", header["shares"])
    os.sync()
    if root == Path("/"):
        programs.call(["systemctl", "daemon-reload"])
        programs.call(["systemctl", "try-reload-or-restart", "ssh.service", "sshd.service"])


def _require_standby(root: Path) -> None:
    if os.path.ismount(root / layout.MOUNT.lstrip("/")):
        raise Refused(
            "this host is in service: it has the volume with the state, and is not overwritten", "Run: gpucluster apply"
        )


def _folder(root: Path) -> Path:
    folder = root / scope.FOLDER.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _words(stderr: bytes) -> str:
    """What a program said, as one line."""
    return " ".join(stderr.decode(errors="replace").split())


def _exactly(descriptor: int, length: int) -> bytes:
    """The next `length` bytes and no more: the archive follows."""
    data = b""
    while len(data) < length:
        part = os.read(descriptor, length - len(data))
        if not part:
            raise Failed("the data of the host in service ended too early", "Try again")
        data += part
    return data


def _place(source: Path, target: Path) -> None:
    """Move one entry to its place. Folders are made, and what is in them comes later."""
    try:
        status = source.lstat()
    except FileNotFoundError:
        return  # it has gone on the host in service
    if stat.S_ISDIR(status.st_mode):
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            target.unlink()
        target.mkdir(parents=True, exist_ok=True)
        os.chown(target, status.st_uid, status.st_gid)
        os.chmod(target, stat.S_IMODE(status.st_mode))
        return
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(source, target)
    except OSError as error:
        # /etc/hosts may be a mount of its own, as in a container.
        if error.errno not in (errno.EBUSY, errno.EXDEV) or source.is_symlink():
            raise
        with source.open("rb") as reader, target.open("r+b") as writer:
            shutil.copyfileobj(reader, writer)
            writer.truncate()
        shutil.copystat(source, target)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        with contextlib.suppress(OSError):  # it has something of this host's own
            path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _set_times(staging: Path, root: Path, paths: Sequence[str]) -> None:
    """Give folders the times that they have on the other host, deepest first."""
    for path in sorted(paths, reverse=True):
        source, target = staging / path.lstrip("/"), root / path.lstrip("/")
        if source.is_dir() and not source.is_symlink() and target.is_dir():
            shutil.copystat(source, target)


def _set_shares(fstab: Path, shares: Sequence[str]) -> None:
    before = fstab.read_text() if fstab.is_file() else ""
    after = scope.with_shares(before, shares)
    if after != before and (before or shares):
        durable_file.replace(fstab, after, mode=0o644)
    if fstab == Path("/etc/fstab"):
        for line in shares:
            Path(line.split()[1]).mkdir(parents=True, exist_ok=True)
