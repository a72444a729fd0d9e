"""The Python packages of the autoscaler, as wheels for the controller: our own, and its dependencies.

The controller may not reach a package index, so this machine provides them: downloaded once for the controller's
Python, each with a version and a checksum that requirements.lock has, or taken from a folder of the operator, who
vouches for it. Our own wheel is built from the package that runs now. Its version ends
with a hash of its files, so pip sees at once whether it is installed already.

    <cache>/wheels/packages-<key>/   what was downloaded; complete if wheels.json exists
    <cache>/wheels/set-<key>/        the same (hard links) with our own wheel, for Ansible
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import json
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gpucluster import events, process
from gpucluster.artifacts.cache import assembling, delete_old, key_of, link, sha256_of
from gpucluster.environment import Program
from gpucluster.errors import EnvironmentFault, ProcessError
from gpucluster.events import Sink
from gpucluster.paths import ansible_dir, cache_dir, requirements_lock
from gpucluster.text import reason_of

# Of the packages that gpucluster requires, those that the autoscaler and join.yml import.
_IMPORTED = frozenset({"ansible-core", "clustershell", "oci", "prometheus-client", "pyyaml"})  # canonical names
# Every supported system has glibc 2.28 or newer.
_MANYLINUX = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014")
INDEX = "wheels.json"
_VERSION = 1
_ENTRY_POINTS = """\
[console_scripts]
gpucluster-autoscaler = gpucluster.autoscaler.__main__:main
gpucluster-failover = gpucluster.failover.__main__:main
"""
# Not needed on a controller, or not part of the package.
_EXCLUDED = frozenset({"localcloud", "_data", "__pycache__"})
_SETS = 3
_DOWNLOAD_TIMEOUT = 600.0
_HINT = (
    "Let this machine reach a package index (with pip's own settings), or put the wheels into a folder and set it as "
    "software.wheels in cluster.yml (docs/how-to/elastic-nodes.md)"
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


def is_imported(needed: Requirement) -> bool:
    """Whether the autoscaler or join.yml imports a package that gpucluster requires."""
    return canonicalize_name(needed.name) in _IMPORTED


def requirements(python: str) -> tuple[str, ...]:
    """What the autoscaler requires on a host with this Python, as its package's metadata states.

    These are version ranges, so that any version of a mirror within them is enough. pip evaluates the markers of a
    requirement for the Python that runs pip, not for the one that it downloads for, so they are evaluated here.
    """
    condition = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    listed = (Requirement(line) for line in importlib.metadata.requires("gpucluster") or ())
    return tuple(
        f"{needed.name}{needed.specifier}"
        for needed in listed
        if is_imported(needed) and (needed.marker is None or needed.marker.evaluate(condition))
    )


def locked(python: str, lock: str) -> tuple[str, ...]:
    """The same and all that they require in turn, with exact versions and hashes, as pip reads them.

    Args:
        lock: the text of requirements.lock, which `tools/lock.py` writes.
    """
    condition = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    section = lock.partition("# -- controller\n")[2].partition("\n# -- ")[0]
    requirements = []
    for entry in section.replace("\\\n", " ").splitlines():
        line, *hashes = entry.split(" --hash=")
        if not line.strip():
            continue
        needed = Requirement(line)
        if needed.marker is None or needed.marker.evaluate(condition):
            requirements.append(" --hash=".join([f"{needed.name}{needed.specifier}", *(one.strip() for one in hashes)]))
    return tuple(requirements)


def ensure(target: Target, own_directory: Path | None, version: str, on_event: Sink) -> Path:
    """The folder with every wheel for the controller, and `wheels.json`, which names ours.

    wheels.json: {"version": 1, "python": "3.13", "hash": ..., "wheels": [file names], "sha256": {file name: ...}}

    Args:
        own_directory: take the packages from this folder and not from a package index.
        version: of the package that runs.

    Raises:
        EnvironmentFault: there are none, and they can't be downloaded.
    """
    root = cache_dir() / "wheels"
    with _readable_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        packages = _packages(root, target, own_directory, on_event)
        name, data = _own_wheel(version, requirements(target.python))
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
        delete_old(root, "set-*", _SETS)  # sets differ by our own wheel, which changes with each version
    return folder


@contextmanager
def _readable_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentFault(
            f"the controller's packages can't be stored: {reason_of(error)}",
            where=str(root),
            hint="Free some space, or make the folder writable for you, and run the same command again",
        ) from error


def _packages(root: Path, target: Target, own_directory: Path | None, on_event: Sink) -> Path:
    local_wheels = (
        sorted(f"{file.name} {file.stat().st_size}" for file in own_directory.glob("*.whl")) if own_directory else []
    )
    needed = requirements(target.python)
    taken = needed if own_directory else locked(target.python, requirements_lock().read_text())
    key = key_of([taken, target.python, target.architecture, str(own_directory), local_wheels])
    folder = root / f"packages-{key}"
    if (folder / INDEX).exists():
        return folder
    events.info(on_event, "wheels", f"downloading the controller's Python packages ({', '.join(needed)})")
    sums: dict[str, str] = {}
    with assembling(folder, INDEX, {"version": _VERSION, "sha256": sums}) as scratch:
        _download(scratch, target, own_directory, taken)
        sums |= {file.name: sha256_of(file) for file in sorted(scratch.glob("*.whl"))}
    return folder


def _download(folder: Path, target: Target, own_directory: Path | None, taken: tuple[str, ...]) -> None:
    python, short = target.python, target.python.replace(".", "")
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet"]
    argv += ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}", f"--dest={folder}"]
    argv += [f"--abi={abi}" for abi in (f"cp{short}", "abi3", "none")]
    argv += [f"--platform={kind}_{target.architecture}" for kind in _MANYLINUX]
    file = folder / "requirements.txt"
    if own_directory is not None:
        argv += ["--no-index", f"--find-links={own_directory}"]
    else:
        argv += ["--require-hashes", "--no-deps"]
    try:
        file.write_text("".join(f"{line}\n" for line in taken))
        environment = process.environment_for(Program.PIP)
        process.run([*argv, f"--requirement={file}"], env=environment, timeout=_DOWNLOAD_TIMEOUT)
    except ProcessError as error:
        if "No module named pip" in error.stderr:
            hint = f"Install it: {sys.executable} -m ensurepip, or the package python3-pip"
            raise EnvironmentFault("pip is missing, which downloads the controller's packages", hint=hint) from error
        errors = [line for line in error.stderr.splitlines() if line.startswith("ERROR:")] or [error.what]
        where = str(own_directory) if own_directory else "pip download"
        what = f"the controller's Python {python} packages are not available: {errors[-1].removeprefix('ERROR: ')}"
        raise EnvironmentFault(what, where=where, hint=_HINT) from error
    finally:
        file.unlink(missing_ok=True)


def _own_wheel(version: str, needed: tuple[str, ...]) -> tuple[str, bytes]:
    """Build a wheel of the running package for the controller. Returns its name and its bytes.

    It only has the entry points and dependencies of the autoscaler and the failover: a controller creates no clusters.
    """
    content = dict(_own_files())
    digest = key_of([needed, {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}])
    version = f"{version}+{digest}"
    info = f"gpucluster-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", "Name: gpucluster", f"Version: {version}", "Requires-Python: >=3.11"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in needed]
    tags = "Wheel-Version: 1.0\nGenerator: gpucluster\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    content |= {
        f"{info}/METADATA": "".join(f"{line}\n" for line in metadata).encode(),
        f"{info}/WHEEL": tags.encode(),
        f"{info}/entry_points.txt": _ENTRY_POINTS.encode(),
    }
    record = [f"{name},sha256={_record_hash(data)},{len(data)}" for name, data in sorted(content.items())]
    content[f"{info}/RECORD"] = "".join(f"{line}\n" for line in [*record, f"{info}/RECORD,,"]).encode()
    return f"gpucluster-{version}-py3-none-any.whl", _zipped(content)


def _own_files() -> Iterator[tuple[str, bytes]]:
    """The name in the wheel and the content of every file, in a fixed order."""
    package = Path(__file__).resolve().parents[1]
    for prefix, root in (("gpucluster", package), ("gpucluster/_data/ansible", ansible_dir())):
        for file in sorted(root.rglob("*")):
            name = file.relative_to(root)
            hidden = any(part.startswith(".") or part in _EXCLUDED for part in name.parts)
            if file.is_file() and not hidden and file.suffix != ".pyc":
                yield f"{prefix}/{name.as_posix()}", file.read_bytes()


def _zipped(content: Mapping[str, bytes]) -> bytes:
    """A zip archive. The same content gives the same bytes: fixed times, order and permissions."""
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
