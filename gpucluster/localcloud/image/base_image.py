"""Base images: a suite of Debian or Ubuntu with everything that the roles install, and traps over it.

Each is built once, then cached: the suite by mmdebstrap as a tar file in the home, the traps as a layer in
Podman's storage.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpucluster import process
from gpucluster.environment import Program
from gpucluster.errors import CloudError, EnvironmentFault
from gpucluster.events import Event, Sink, ignore
from gpucluster.localcloud.image import package_mirror, traps
from gpucluster.localcloud.image.contents import DEBIAN_13, Contents, folder_of
from gpucluster.localcloud.image.package_mirror import Mirror
from gpucluster.localcloud.image.suites import Suite
from gpucluster.localcloud.image.traps import Trap
from gpucluster.localcloud.podman.command import error_text, exists, podman
from gpucluster.localcloud.podman.host import settings

REPOSITORY = "localhost/gpucluster"
# Raise this when a change of this module makes another image from the same files.
_RECIPE = 2
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
# Whose parent has ended before the kernel knew of the bond gets no signal any more, and has another parent.
_SHELL = ("sh", "-c", '[ "$PPID" = "$0" ] || exit 130; trap "exit 130" INT TERM; "$@" 2>&1 & wait $!')
_NAMESPACE = ("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")
_CHANGES = ('--change=CMD ["/sbin/init"]', "--change=STOPSIGNAL SIGRTMIN+3")
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


def reference(contents: Contents = DEBIAN_13) -> str:
    """The image's name. Its tag is a digest of everything that the image is made from."""
    digest = _digest(contents.suite)
    if contents.traps:
        digest = hashlib.sha256(f"{digest} {traps.digest(contents.traps)}\n".encode()).hexdigest()
    return f"{REPOSITORY}/{contents.label}:{digest[:12]}"


@cache
def _digest(suite: Suite) -> str:
    digest = hashlib.sha256(f"{_RECIPE} {suite.name} {platform.machine()}\n".encode())
    for file in [_PACKAGES, *sorted(path for path in _FILES.rglob("*") if path.is_file())]:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(_HERE)} {len(content)}\n".encode() + content)
    for trap in traps.catalogue().values():
        if trap.packages:
            digest.update(f"{trap.name} {trap.packages}\n".encode())
    return digest.hexdigest()


def packages(suite: Suite) -> list[str]:
    """Names of the packages in the image of a suite, without their dependencies."""
    names = []
    for line in _PACKAGES.read_text().splitlines():
        name, _, without = line.partition("#")[0].strip().partition(" ")
        if name and f"!{suite.name}" not in without.strip("[]").split():
            names.append(name)
    return names


def ensure_image(home: Path, on_event: Sink = ignore, contents: Contents = DEBIAN_13) -> BaseImage:
    """Make sure that Podman's storage has a base image. To build a suite takes about a minute, traps some seconds.

    Safe with several callers (one builds, the others wait) and when it is killed (an incomplete image is never used).

    Args:
        home: the local cloud's home; its folder `images/` keeps the suite's tar file.

    Raises:
        EnvironmentFault: network, mirror, disk space or a program is missing; the hint has the remedy.
    """
    began = time.monotonic()
    event = _event(contents)
    present = _inspect(contents, began, cached=True)
    if present is None:
        folder = folder_of(home)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _lock(event, on_event):
            present = _inspect(contents, began, cached=True) or _make(contents, folder, on_event, began)
    status = "cached" if present.cached else "created"
    data = {"image": present.reference, "bytes": present.size_bytes}
    on_event(Event("resource", event, status, present.reference, elapsed=present.seconds, data=data))
    return present


def _event(contents: Contents) -> str:
    return f"image:{contents.label}"


def _inspect(contents: Contents, began: float, *, cached: bool) -> BaseImage | None:
    name = reference(contents)
    # An image that is there is not made again because Podman could not look.
    if not exists("image", name):
        return None
    identifier, size = podman("image", "inspect", "--format", "{{.Id}} {{.Size}}", name).stdout.split()
    return BaseImage(name, identifier, int(size), cached, time.monotonic() - began)


@contextmanager
def _lock(event: str, on_event: Sink) -> Iterator[None]:
    """Allow one builder at a time. The kernel releases the lock of a killed builder."""
    with _LOCK.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_event(Event("log", event, "info", "another run is making a base image; waiting for it"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(contents: Contents, folder: Path, on_event: Sink, began: float) -> BaseImage:
    suite = Contents(contents.suite)
    if _inspect(suite, began, cached=True) is None:
        tar = folder / f"{suite.label}-{reference(suite).rpartition(':')[2]}.tar"
        _remove_leftovers(folder, suite, tar)
        if not tar.exists():
            _bootstrap(contents.suite, tar, on_event)
        on_event(Event("resource", _event(suite), "creating", "importing it into Podman"))
        _import(tar, reference(suite))
    if contents.traps:
        on_event(Event("resource", _event(contents), "creating", f"laying {', '.join(contents.traps)}"))
        _lay_traps(contents)
    made = _inspect(contents, began, cached=False)
    if made is None:
        raise CloudError(
            f"Podman made {reference(contents)} but does not have it",
            hint="Another program may have removed it. Run the command again",
        )
    return made


def _remove_leftovers(folder: Path, suite: Contents, tar: Path) -> None:
    """Remove the folders of killed builds and tar files of earlier recipes. The caller holds the lock."""
    for path in folder.iterdir():
        if path.is_dir() and path.name.startswith("build-"):
            shutil.rmtree(path, ignore_errors=True)
        elif path != tar and path.match(f"{suite.label}-*.tar"):
            path.unlink()


def _lay_traps(contents: Contents) -> None:
    """Run the traps in a container of the suite, and commit it."""
    scratch = f"gpucluster-traps-{secrets.token_hex(4)}"
    there = "/run/localcloud-traps"
    options = [f"--name={scratch}", "--network=none", "--pull=never", f"--volume={traps.FOLDER}:{there}:ro"]
    # Without --no-hosts the layer has an empty /etc/hosts, where Podman mounted one.
    options += [*settings().run_options(), "--no-hosts"]
    command = ["sh", f"{there}/{traps.LAY.name}", *contents.traps]
    suite = reference(Contents(contents.suite))
    try:
        result = podman("--runtime", settings().runtime, "run", *options, suite, *command, check=False)
        if result.returncode != 0:
            raise CloudError(
                f"the traps {', '.join(contents.traps)} could not be installed: {error_text(result)}", where=suite
            )
        podman("commit", "--quiet", *_CHANGES, scratch, reference(contents))
    finally:
        podman("rm", "--force", "--volumes", "--time=0", scratch, check=False)


def _bootstrap(suite: Suite, tar: Path, on_event: Sink) -> None:
    """Build the tar file under another name, and rename it when it is complete."""
    mirror = package_mirror.find(suite, tar.parent)
    _check_space(tar.parent, _BUILD_BYTES)
    output: list[str] = []
    event = _event(Contents(suite))

    def progress(line: str) -> None:
        output.append(line)
        if line.startswith(_STEPS):
            on_event(Event("resource", event, "creating", line.removeprefix("I: ")))

    on_event(Event("resource", event, "creating", f"making it from {mirror.uri}; this takes about a minute"))
    with tempfile.TemporaryDirectory(dir=tar.parent, prefix="build-", ignore_cleanup_errors=True) as scratch:
        part = Path(scratch) / "image.tar"
        env = {**process.environment_for(Program.TOOLS), "TMPDIR": scratch, "LC_ALL": "C"}
        result = process.stream(_bootstrap_command(suite, mirror, part), env=env, on_line=progress)
        if result.returncode != 0:
            raise _bootstrap_fault(output, suite, mirror, tar)
        part.replace(tar)


def _bootstrap_command(suite: Suite, mirror: Mirror, target: Path) -> list[str]:
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
        f"--include={','.join(packages(suite))}",
        *(f"--customize-hook={_keep_packages(trap)}" for trap in traps.catalogue().values() if trap.packages),
        f'--customize-hook=sh {shlex.quote(str(_FILES / "customize.sh"))} "$1"',
    ]
    command = ["mmdebstrap", *options, suite.name, str(target), *mirror.lines(suite)]
    return _ending_with_us(["setpriv", "--pdeathsig=KILL", "--", *_NAMESPACE, *command])


def _ending_with_us(argv: Sequence[str]) -> list[str]:
    return ["setpriv", "--pdeathsig=TERM", "--", *_SHELL, str(os.getpid()), *argv]


def _keep_packages(trap: Trap) -> str:
    """A hook that downloads the packages of a trap into the root `$1`, so that laying it needs no network."""
    folder = f'"$1"{traps.PACKAGES}/{trap.name}'
    fetch = f"apt-get -qq -y --no-install-recommends -o Dir::Cache::archives={folder} --download-only install"
    return (
        f"mkdir -p {folder}/partial && APT_CONFIG=$MMDEBSTRAP_APT_CONFIG {fetch} {' '.join(trap.packages)} "
        f"&& rm -r {folder}/partial {folder}/lock"
    )


def _bootstrap_fault(lines: list[str], suite: Suite, mirror: Mirror, tar: Path) -> EnvironmentFault:
    errors = [line for line in lines if line.startswith(("E: ", "Err:", "W: ", "customize.sh: "))] or lines
    text, everything = "\n".join(errors[-8:]), "\n".join(lines)
    what, hint = f"the base image could not be made:\n{text}", "Run the command again"
    if _NO_SPACE in everything:
        what, hint = f"the disk became full while the base image was made in {tar.parent}", "Free 3 GB there"
    elif any(sign in everything for sign in _NO_NETWORK):
        what = f"the packages of the base image could not be fetched from {mirror.uri}:\n{text}"
        hint = (
            "Check the network and apt's proxy settings, or write a mirror that can be reached into "
            f"{package_mirror.own_file(suite, tar.parent)} (deb <address> {suite.name} {suite.components}), or copy "
            f"{tar.name} there from a machine that has it"
        )
    elif any(sign in everything for sign in _NO_KEY):
        what = f"the signatures of {mirror.uri} could not be checked:\n{text}"
        keyring = f"{suite.distribution.lower()}-{'archive-' if suite.distribution == 'Debian' else ''}keyring"
        hint = (
            f"Update the keys of {suite.system} (apt install {keyring}), or name the mirror's keyring: [signed-by=...]"
        )
    return EnvironmentFault(what, where=str(mirror.file), hint=hint)


def _import(tar: Path, name: str) -> None:
    root = podman("info", "--format", "{{.Store.GraphRoot}}").stdout.strip()
    _check_space(Path(root), _STORE_BYTES)
    result = podman("import", "--quiet", *_CHANGES, str(tar), name, check=False, timeout=900)
    if result.returncode == 0:
        return
    if _NO_SPACE.lower() in result.stderr.lower():
        raise EnvironmentFault("the disk became full while the image was imported", where=root, hint="Free 1 GB there")
    raise CloudError(
        f"Podman did not import the base image: {error_text(result)}",
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
