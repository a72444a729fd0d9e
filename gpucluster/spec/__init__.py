"""The wish: a cluster.yml, read and checked.

    spec = load("inventories/local/cluster.yml")      # or InputError with every fault at once
    spec.pools["compute"].kind                        # "cluster_network"

document.py reads YAML with places. model.py says what each key may hold, with its sections in place.py, machines.py,
service.py and software.py, single values in fields.py, and in derive.py what follows from what. rules.py says what keys
demand of one another, with a file for each part: tags, network, existing, storage, nodes, images, elastic, people,
containers, state. wording.py says how a fault is told; template.py and reference.py write the format down for people.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from gpucluster.errors import Finding, InputError
from gpucluster.spec import document, rules, wording
from gpucluster.spec.draft import Draft
from gpucluster.spec.fields import Resolved
from gpucluster.spec.machines import Controller, Home, Image, LocalDisk, Platform, Pool, PoolKind, Storage
from gpucluster.spec.model import VERSION, ClusterSpec
from gpucluster.spec.network import overlapping_routes
from gpucluster.spec.place import Cloud, Iam, Network, Ssh, State
from gpucluster.spec.reference import json_schema
from gpucluster.spec.service import TIME_NAMES, Autoscaler, Person, Slurm, Users
from gpucluster.spec.software import Containers, Nvidia, Software
from gpucluster.spec.template import template

__all__ = [
    "TIME_NAMES",
    "VERSION",
    "Autoscaler",
    "Cloud",
    "ClusterSpec",
    "Containers",
    "Controller",
    "Finding",
    "Home",
    "Iam",
    "Image",
    "LocalDisk",
    "Network",
    "Nvidia",
    "Person",
    "Platform",
    "Pool",
    "PoolKind",
    "Slurm",
    "Software",
    "Ssh",
    "State",
    "Storage",
    "Users",
    "finding",
    "json_schema",
    "load",
    "loads",
    "overlapping_routes",
    "template",
]


def load(path: Path | str) -> ClusterSpec:
    """Read and check one cluster.yml.

    Raises:
        InputError: it can't be read, or is wrong; `findings` holds every fault with line and column.
    """
    file = Path(path)
    try:
        # One byte more than allowed is enough to know that a file is too large.
        with file.open("rb") as stream:
            raw = stream.read(document.MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise InputError(f"there is no file {file}", hint="Make one: gpucluster init") from error
    except IsADirectoryError as error:
        raise InputError(f"{file} is a directory", hint=f"Name the file in it: {file / 'cluster.yml'}") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{file} can't be read: {reason}") from error
    return _checked(raw, str(path), file)


def loads(text: str | bytes, filename: str = "cluster.yml") -> ClusterSpec:
    """Check the text of a cluster.yml that would lie at `filename`: relative file names in it count from there.

    Raises:
        InputError: it is wrong; `findings` holds every fault with line and column.
    """
    return _checked(text, filename, Path(filename))


def finding(spec: ClusterSpec, path: tuple[str, ...], message: str, hint: str = "") -> Finding:
    """A fault that only shows later, at the place of a key: `finding(spec, ("network", "vcn_cidr"), "is in use")`."""
    read = document.read(spec.file.read_bytes(), str(spec.file))
    read.fault(path, message, hint)
    return read.findings[-1]


def _checked(raw: str | bytes, shown_as: str, file: Path) -> ClusterSpec:
    read = document.read(raw, shown_as)
    if read.data is None or not _known_version(read):
        raise _wrong(read)
    directory = file.absolute().parent
    bad = set(read.unfit)
    try:
        ClusterSpec.model_validate(read.data)
    except ValidationError as error:
        bad |= wording.report(read, error)
    draft = Draft(read, bad, directory)
    rules.check(draft)
    if read.findings:
        raise _wrong(read)
    return ClusterSpec.model_validate(read.data, context=Resolved(file, directory, draft.public_keys, draft.prices))


def _known_version(read: document.Document) -> bool:
    """A file of another version is not checked further: what is wrong there may be right."""
    version = read.data.get("version")
    if "version" not in read.data or (type(version) is int and version == VERSION):
        return True
    message = f"this gpucluster reads version {VERSION}; got {wording.shown(version)}"
    hint = f"Write `version: {VERSION}`" if version in ("1", True, 1.0) else "Use the gpucluster that fits the file"
    read.fault(("version",), message, hint)
    return False


def _wrong(read: document.Document) -> InputError:
    # Those of files that it names come after its own.
    findings = sorted(
        set(read.findings), key=lambda one: (one.file != read.file, one.line, one.column, one.path, one.message)
    )
    count = "1 fault" if len(findings) == 1 else f"{len(findings)} faults"
    return InputError(f"{read.file}: {count}", findings=findings)
