"""The base image: Debian 13 with everything that the roles install. Built once, then cached."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpucluster import process
from gpucluster.errors import CloudError, EnvironmentFault
from gpucluster.events import Event, Sink, ignore
from gpucluster.localcloud.image import debian_mirror
from gpucluster.localcloud.image.debian_mirror import DebianMirror
from gpucluster.localcloud.podman.command import error_text, podman

SUITE = "trixie"
REPOSITORY = "localhost/gpucluster/debian13"
# Raise this when a change of this module makes another image from the same files.
_RECIPE = 1
_EVENT = "image:debian13"
# One lock for all homes: they share Podman's storage.
_LOCK = Path("/run/gpucluster-image.lock")
_HERE = Path(__file__).resolve().parent
_PACKAGES = _HERE / "packages.txt"
_FILES = _HERE / "image_files"
# The tar file, the directory that it is made from, and the image in Podman's storage take 1.3 GB each.
_BUILD_BYTES = 3_500_000_000
_STORE_BYTES = 1_800_000_000
# The build also ends when this process is killed: the shell gets a signal, then `unshare`, then every process of its
# namespace. With the last process the mounts in the new root are gone, so the leftover folder is safe to remove.
_SHELL = ("sh", "-c", 'trap "exit 130" INT TERM; "$@" 2>&1 & wait $!', "sh")
_NAMESPACE = ("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")
_ENDS_WITH_PARENT = ("setpriv", "--pdeathsig=TERM", "--", *_SHELL, "setpriv", "--pdeathsig=KILL", "--", *_NAMESPACE)
# The lines of mmdebstrap that are shown as progress.
_STEPS = ("I: running apt-get", "I: downloading", "I: extracting", "I: installing", "I: creating tarball")
_NO_SPACE = "No space left on device"
_NO_NETWORK = (
    "Temporary failure resolving",
    "Could not resolve",
    "Could not connect",
    "Connection failed",
    "Connection timed out",
    "Connection refused",
    "Network is unreachable",
    "Unable to connect",
)
_NO_KEY = ("NO_PUBKEY", "is not signed", "Missing key")


@dataclass(frozen=True)
class BaseImage:
    """The base image in Podman's storage. `cached`: it was there before; else it was built or imported in `seconds`."""

    reference: str
    id: str
    size_bytes: int
    cached: bool
    seconds: float


@cache
def reference() -> str:
    """The image's name. Its tag is a digest of everything that the image is made from."""
    digest = hashlib.sha256(f"{_RECIPE} {SUITE} {platform.machine()}\n".encode())
    for file in [_PACKAGES, *sorted(path for path in _FILES.rglob("*") if path.is_file())]:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(_HERE)} {len(content)}\n".encode() + content)
    return f"{REPOSITORY}:{digest.hexdigest()[:12]}"


def packages() -> list[str]:
    """Names of the Debian packages in the image, without their dependencies."""
    lines = (line.partition("#")[0].strip() for line in _PACKAGES.read_text().splitlines())
    return [line for line in lines if line]


def ensure_image(home: Path, on_event: Sink = ignore) -> BaseImage:
    """Make sure that Podman's storage has the base image. To build it takes about a minute.

    Safe with several callers (one builds, the others wait) and when it is killed (an incomplete image is never used).

    Args:
        home: the local cloud's home; its folder `images/` keeps the image's tar file.

    Raises:
        EnvironmentFault: network, mirror, disk space or a program is missing; the hint has the remedy.
    """
    began = time.monotonic()
    present = _inspect(began, cached=True)
    if present is None:
        folder = home / "images"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _lock(on_event):
            present = _inspect(began, cached=True) or _make(folder, on_event, began)
    status = "cached" if present.cached else "created"
    data = {"image": present.reference, "bytes": present.size_bytes}
    on_event(Event("resource", _EVENT, status, present.reference, elapsed=present.seconds, data=data))
    return present


def _inspect(began: float, *, cached: bool) -> BaseImage | None:
    name = reference()
    done = podman("image", "inspect", "--format", "{{.Id}} {{.Size}}", name, check=False)
    if done.returncode != 0:
        return None
    identifier, size = done.stdout.split()
    return BaseImage(name, identifier, int(size), cached, time.monotonic() - began)


@contextmanager
def _lock(on_event: Sink) -> Iterator[None]:
    """Allow one builder at a time. The kernel releases the lock of a killed builder."""
    with _LOCK.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_event(Event("log", _EVENT, "info", "another run is making the base image; waiting for it"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(folder: Path, on_event: Sink, began: float) -> BaseImage:
    tar = folder / f"debian13-{reference().rpartition(':')[2]}.tar"
    _remove_leftovers(folder, tar)
    if not tar.exists():
        _bootstrap(tar, on_event)
    on_event(Event("resource", _EVENT, "creating", "importing it into Podman"))
    _import(tar)
    made = _inspect(began, cached=False)
    if made is None:
        raise CloudError(
            f"Podman imported {tar} but does not have {reference()}",
            hint="Another program may have removed it. Run the command again",
        )
    return made


def _remove_leftovers(folder: Path, tar: Path) -> None:
    """Remove the folders of killed builds and tar files of earlier recipes. The caller holds the lock."""
    for path in folder.iterdir():
        if path.is_dir() and path.name.startswith("build-"):
            shutil.rmtree(path, ignore_errors=True)
        elif path != tar and path.match("debian13-*.tar"):
            path.unlink()


def _bootstrap(tar: Path, on_event: Sink) -> None:
    """Build the tar file under another name, and rename it when it is complete."""
    mirror = debian_mirror.find(tar.parent / "debian.sources")
    _check_space(tar.parent, _BUILD_BYTES)
    output: list[str] = []

    def progress(line: str) -> None:
        output.append(line)
        if line.startswith(_STEPS):
            on_event(Event("resource", _EVENT, "creating", line.removeprefix("I: ")))

    on_event(Event("resource", _EVENT, "creating", f"making it from {mirror.uri}; this takes about a minute"))
    with tempfile.TemporaryDirectory(dir=tar.parent, prefix="build-", ignore_cleanup_errors=True) as scratch:
        part = Path(scratch) / "image.tar"
        env = {**os.environ, "TMPDIR": scratch, "LC_ALL": "C"}
        done = process.stream(_bootstrap_command(mirror, part), env=env, on_line=progress)
        if done.returncode != 0:
            raise _bootstrap_fault(output, mirror, tar)
        part.replace(tar)


def _bootstrap_command(mirror: DebianMirror, target: Path) -> list[str]:
    options = [
        "--mode=root",
        "--variant=minbase",
        "--dpkgopt=force-unsafe-io",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/info/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        '--aptopt=Acquire::Languages "none"',
        *(f"--aptopt={option}" for option in mirror.apt_options),
        *([f"--keyring={mirror.keyring}"] if mirror.keyring else []),
        f"--include={','.join(packages())}",
        f'--customize-hook=sh {shlex.quote(str(_FILES / "customize.sh"))} "$1"',
    ]
    command = ["mmdebstrap", *options, SUITE, str(target), *mirror.lines(SUITE)]
    return [*_ENDS_WITH_PARENT, *command]


def _bootstrap_fault(lines: list[str], mirror: DebianMirror, tar: Path) -> EnvironmentFault:
    errors = [line for line in lines if line.startswith(("E: ", "Err:", "W: ", "customize.sh: "))] or lines
    text, everything = "\n".join(errors[-8:]), "\n".join(lines)
    what, hint = f"the base image could not be made:\n{text}", "Run the command again"
    if _NO_SPACE in everything:
        what, hint = f"the disk became full while the base image was made in {tar.parent}", "Free 3 GB there"
    elif any(sign in everything for sign in _NO_NETWORK):
        what = f"the packages of the base image could not be fetched from {mirror.uri}:\n{text}"
        hint = (
            f"Check the network and apt's proxy settings, or write a mirror that can be reached into {tar.parent}/"
            f"debian.sources (deb <address> {SUITE} main), or copy {tar.name} there from a machine that has it"
        )
    elif any(sign in everything for sign in _NO_KEY):
        what = f"the signatures of {mirror.uri} could not be checked:\n{text}"
        hint = f"Update the keys of Debian {SUITE}: apt install --only-upgrade debian-archive-keyring"
    return EnvironmentFault(what, where=str(mirror.file), hint=hint)


def _import(tar: Path) -> None:
    changes = ['--change=CMD ["/sbin/init"]', "--change=STOPSIGNAL SIGRTMIN+3"]
    root = podman("info", "--format", "{{.Store.GraphRoot}}").stdout.strip()
    _check_space(Path(root), _STORE_BYTES)
    done = podman("import", "--quiet", *changes, str(tar), reference(), check=False, timeout=900)
    if done.returncode == 0:
        return
    if _NO_SPACE.lower() in done.stderr.lower():
        raise EnvironmentFault("the disk became full while the image was imported", where=root, hint="Free 1 GB there")
    raise CloudError(
        f"Podman did not import the base image: {error_text(done)}",
        where=str(tar),
        hint="Remove this file if it is damaged, then run the command again",
    )


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise EnvironmentFault(
            f"too little space for the base image: {free / 1e9:.1f} GB are free, {needed / 1e9:.1f} GB are needed",
            where=str(folder),
            hint="Free some, for example with `podman image prune`",
        )
