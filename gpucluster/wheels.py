"""The Python packages of the autoscaler, as wheels for the controller: one of our own, and what it needs besides.

The controller may have no way to a package index, so this machine brings them: downloaded once for the controller's
Python, or taken from a directory that the operator keeps. Our own wheel is packed from the package that runs now, and
its version ends with a hash of its files: pip sees at once whether there is anything to do.

    <cache>/wheels/packages-<key>/   what was downloaded; complete when wheels.json is there
    <cache>/wheels/set-<key>/        the same (hard links) with our own wheel: what is handed to Ansible
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpucluster import process
from gpucluster.cache import assembling, forget_old, key_of, link, sha256_of
from gpucluster.errors import EnvironmentFault, ProcessError
from gpucluster.events import Event, Sink
from gpucluster.paths import ansible_dir, cache_dir

# What the autoscaler and join.yml import. Ranges, so that what a mirror offers will do.
REQUIREMENTS = (
    "ansible-core>=2.18,<2.19",
    "ClusterShell>=1.9",
    "oci>=2.150",
    "prometheus-client>=0.20",
    "pyyaml>=6.0",
)
# The Python of a controller by its operating system: the system's own where it is new enough, else the newest that the
# system's repositories offer.
_PYTHONS: Mapping[tuple[str, str], str] = {
    ("Debian", "12"): "3.11",
    ("Debian", "13"): "3.13",
    ("Canonical Ubuntu", "22.04"): "3.11",
    ("Canonical Ubuntu", "24.04"): "3.12",
    ("Oracle Linux", "8"): "3.11",
    ("Oracle Linux", "9"): "3.11",
}
# Every system above has glibc 2.28 or newer.
_MANYLINUX = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014")
INDEX = "wheels.json"
_VERSION = 1
# Not for a controller, or no part of the package.
_LEFT_OUT = frozenset({"localcloud", "_data", "__pycache__"})
_KEPT_SETS = 3
_DOWNLOAD_TIMEOUT = 600.0
_HINT = (
    "Let this machine reach a package index (pip's own settings count), or put the wheels into a directory and name it "
    "as software.wheels in cluster.yml; docs/how-to/elastic-nodes.md says how"
)


@dataclass(frozen=True)
class Target:
    """The controller that the wheels are for.

    Args:
        python: the version of its Python, such as 3.13.
        architecture: x86_64 or aarch64.
    """

    python: str
    architecture: str


def python_of(operating_system: str | None, version: str | None) -> str | None:
    """The Python of an image, by its name and version in OCI's catalogue; None if that is not known."""
    system, release = operating_system or "", version or ""
    return _PYTHONS.get((system, release)) or _PYTHONS.get((system, release.partition(".")[0]))


def ensure(target: Target, own_directory: Path | None, version: str, on_event: Sink) -> Path:
    """The directory with every wheel for the controller, and `wheels.json`, which names ours.

    wheels.json: {"version": 1, "python": "3.13", "hash": ..., "wheels": [file names], "sha256": {file name: ...}}

    Args:
        own_directory: take the packages from there, and from no package index.
        version: of the package that runs.

    Raises:
        EnvironmentFault: there are none, and none can be had.
    """
    root = cache_dir() / "wheels"
    with _readable_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        packages = _packages(root, target, own_directory, on_event)
        name, data = _own_wheel(version)
        sums = {**json.loads((packages / INDEX).read_text())["sha256"], name: hashlib.sha256(data).hexdigest()}
        key = key_of([target.python, sums])
        folder = root / f"set-{key}"
        if not (folder / INDEX).exists():
            index = {"version": _VERSION, "python": target.python, "hash": key, "wheels": sorted(sums), "sha256": sums}
            with assembling(folder, INDEX, index) as scratch:
                (scratch / name).write_bytes(data)
                for wheel in packages.glob("*.whl"):
                    link(wheel, scratch / wheel.name)
        os.utime(folder)
        forget_old(root, "set-*", _KEPT_SETS)  # sets differ by our own wheel, which changes with each version
    return folder


@contextmanager
def _readable_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentFault(f"can't keep the controller's packages: {error}", where=str(root)) from error


# --- what comes from elsewhere -----


def _packages(root: Path, target: Target, own_directory: Path | None, on_event: Sink) -> Path:
    given = (
        sorted(f"{file.name} {file.stat().st_size}" for file in own_directory.glob("*.whl")) if own_directory else []
    )
    key = key_of([REQUIREMENTS, target.python, target.architecture, str(own_directory), given])
    folder = root / f"packages-{key}"
    if (folder / INDEX).exists():
        return folder
    on_event(Event("log", "wheels", "info", f"fetching the controller's Python packages ({', '.join(REQUIREMENTS)})"))
    sums: dict[str, str] = {}
    with assembling(folder, INDEX, {"version": _VERSION, "sha256": sums}) as scratch:
        _download(scratch, target.python, target.architecture, own_directory)
        sums |= {file.name: sha256_of(file) for file in sorted(scratch.glob("*.whl"))}
    return folder


def _download(folder: Path, python: str, architecture: str, own_directory: Path | None) -> None:
    short = python.replace(".", "")
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet"]
    argv += ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}", f"--dest={folder}"]
    argv += [f"--abi={abi}" for abi in (f"cp{short}", "abi3", "none")]
    argv += [f"--platform={kind}_{architecture}" for kind in _MANYLINUX]
    if own_directory is not None:
        argv += ["--no-index", f"--find-links={own_directory}"]
    try:
        process.run([*argv, *REQUIREMENTS], timeout=_DOWNLOAD_TIMEOUT)
    except ProcessError as error:
        if "No module named pip" in error.stderr:
            hint = f"Install it: {sys.executable} -m ensurepip, or the package python3-pip"
            raise EnvironmentFault("pip is not there to fetch the controller's packages", hint=hint) from error
        said = [line for line in error.stderr.splitlines() if line.startswith("ERROR:")] or [error.what]
        where = str(own_directory) if own_directory else "pip download"
        what = f"the controller's Python {python} packages can't be had: {said[-1].removeprefix('ERROR: ')}"
        raise EnvironmentFault(what, where=where, hint=_HINT) from error


# --- our own -----


def _own_wheel(version: str) -> tuple[str, bytes]:
    """Pack the running package for the controller: the wheel's name and its bytes.

    It has the autoscaler's entry point alone and asks for its packages alone: a controller makes no clusters.
    """
    content = dict(_own_files())
    digest = key_of([REQUIREMENTS, {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}])
    version = f"{version}+{digest}"
    info = f"gpucluster-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", "Name: gpucluster", f"Version: {version}", "Requires-Python: >=3.11"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in REQUIREMENTS]
    tags = "Wheel-Version: 1.0\nGenerator: gpucluster\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    content |= {
        f"{info}/METADATA": "".join(f"{line}\n" for line in metadata).encode(),
        f"{info}/WHEEL": tags.encode(),
        f"{info}/entry_points.txt": b"[console_scripts]\ngpucluster-autoscaler = gpucluster.autoscaler.__main__:main\n",
    }
    record = [f"{name},sha256={_record_hash(data)},{len(data)}" for name, data in sorted(content.items())]
    content[f"{info}/RECORD"] = "".join(f"{line}\n" for line in [*record, f"{info}/RECORD,,"]).encode()
    return f"gpucluster-{version}-py3-none-any.whl", _zipped(content)


def _own_files() -> Iterator[tuple[str, bytes]]:
    """Name in the wheel and content of every file, in order."""
    package = Path(__file__).resolve().parent
    for prefix, root in (("gpucluster", package), ("gpucluster/_data/ansible", ansible_dir())):
        for file in sorted(root.rglob("*")):
            inside = file.relative_to(root)
            hidden = any(part.startswith(".") or part in _LEFT_OUT for part in inside.parts)
            if file.is_file() and not hidden and file.suffix != ".pyc":
                yield f"{prefix}/{inside.as_posix()}", file.read_bytes()


def _zipped(content: Mapping[str, bytes]) -> bytes:
    """The same content gives the same bytes: no times, a fixed order, fixed rights."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def _record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
