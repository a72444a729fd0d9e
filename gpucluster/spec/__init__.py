"""The desired state of a cluster: a cluster.yml, read and checked.

    spec = load("inventories/local/cluster.yml")      # or InputError with every error at once
    spec.pools["compute"].kind                        # "cluster_network"

From the file to a ClusterSpec: document.py reads YAML and stores the line and column of every value; defaults.py fills
in values that depend on others; model.py and `sections/` define the values of each key; `rules/` checks
rules between keys; messages.py turns errors into text. template.py writes a first file, reference.py the
documentation.

May import `shapes`, `oci`, `controller.rules`, `node_agent.rules`, `errors` and `text`. It reads the files that a
cluster.yml names, and nothing else of the system.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from gpucluster.errors import InputError, InputFinding
from gpucluster.spec import document, messages, other_files, rules
from gpucluster.spec.model import VERSION, ClusterSpec, Scheduler
from gpucluster.spec.reference import json_schema
from gpucluster.spec.rules import warnings
from gpucluster.spec.rules.context import RuleContext
from gpucluster.spec.rules.network import free_network, overlapping_routes
from gpucluster.spec.sections.cloud import LOCAL_IMAGE, PROVIDERS, Cloud, Iam, ProviderName
from gpucluster.spec.sections.fields import Resolved
from gpucluster.spec.sections.kubernetes import Kubernetes
from gpucluster.spec.sections.machines import ControllerSpec, Image, LoginSpec, Platform, PoolKind, PoolSpec
from gpucluster.spec.sections.network import NetworkSpec, Ssh
from gpucluster.spec.sections.slurm import TIME_NAMES, Autoscaler, SlurmSpec
from gpucluster.spec.sections.software import Containers, Nvidia, Software
from gpucluster.spec.sections.state import StateSpec
from gpucluster.spec.sections.storage import Home, LocalDisk, Share, Storage, export_path
from gpucluster.spec.sections.users import UserSpec, UsersSpec
from gpucluster.spec.template import LOCAL_NETWORK, name_of_folder, template
from gpucluster.text import count

__all__ = [
    "LOCAL_IMAGE",
    "LOCAL_NETWORK",
    "PROVIDERS",
    "TIME_NAMES",
    "VERSION",
    "Autoscaler",
    "Cloud",
    "ClusterSpec",
    "Containers",
    "ControllerSpec",
    "Finding",
    "Home",
    "Iam",
    "Image",
    "Kubernetes",
    "LocalDisk",
    "LoginSpec",
    "NetworkSpec",
    "Nvidia",
    "Platform",
    "PoolKind",
    "PoolSpec",
    "ProviderName",
    "Scheduler",
    "Share",
    "SlurmSpec",
    "Software",
    "Ssh",
    "StateSpec",
    "Storage",
    "UserSpec",
    "UsersSpec",
    "export_path",
    "finding",
    "free_network",
    "json_schema",
    "load",
    "loads",
    "name_of_folder",
    "overlapping_routes",
    "template",
    "warnings",
]


def load(path: Path | str) -> ClusterSpec:
    """Read and check one cluster.yml.

    Raises:
        InputError: it can't be read, or is wrong; `findings` holds every error with line and column.
    """
    file = Path(path)
    if file.exists() and not file.is_file() and not file.is_dir():
        # A pipe would be read as soon as a program writes into it, and has no folder for the cluster's state.
        raise InputError(f"{file} is not a regular file", hint="Write the text into a file, and name that")
    try:
        # One byte more than allowed is enough to know that a file is too large.
        with file.open("rb") as stream:
            raw = stream.read(document.MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise InputError(f"there is no file {file}", hint="Create one: gpucluster init") from error
    except IsADirectoryError as error:
        raise InputError(f"{file} is a directory", hint=f"Name the file in it: {file / 'cluster.yml'}") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{file} can't be read: {reason}") from error
    return _checked(raw, str(path), file)


def loads(text: str | bytes, filename: str = "cluster.yml") -> ClusterSpec:
    """Check the text of a cluster.yml as if it were the file `filename`: file names in it are relative to that.

    Raises:
        InputError: it is wrong; `findings` holds every error with line and column.
    """
    return _checked(text, filename, Path(filename))


def finding(spec: ClusterSpec, path: tuple[str, ...], message: str, hint: str = "") -> InputFinding:
    """An error of a key that only a later step can find: `finding(spec, ("network", "vcn_cidr"), "is in use")`."""
    read = document.read(spec.file.read_bytes(), str(spec.file))
    read.error(path, message, hint)
    return read.findings[-1]


def _checked(raw: str | bytes, shown_as: str, file: Path) -> ClusterSpec:
    read = document.read(raw, shown_as)
    if read.data is None:
        _another_language(read, raw)
    if read.data is None or not _a_cluster_file(read) or not _known_version(read):
        raise _input_error(read)
    directory = file.absolute().parent
    invalid = set(read.invalid)
    try:
        ClusterSpec.model_validate(read.data)
    except ValidationError as error:
        invalid |= messages.report(read, error)
    context = RuleContext(read, invalid, directory)
    rules.check(context)
    read.refuse_lines()
    if read.findings:
        raise _input_error(read)
    resolved = Resolved(file, directory, context.public_keys, context.prices, context.certificates)
    return ClusterSpec.model_validate(read.data, context=resolved)


def _a_cluster_file(read: document.Document) -> bool:
    """A file of something else gets one message, and no list of its keys."""
    message, hint = messages.another_file(read.data)
    if message:
        read.findings.clear()
        read.error((), message, hint)
    return not message


def _another_language(read: document.Document, raw: str | bytes) -> None:
    """A file of something else that is not YAML gets one message, too."""
    text = raw if isinstance(raw, str) else raw.decode("utf-8", errors="replace")
    other = other_files.by_lines(text)
    if other is not None:
        read.findings.clear()
        read.error((), other.message, other.hint)


def _known_version(read: document.Document) -> bool:
    """A file of another version is not checked further: what is wrong in this version may be right in that one."""
    version = read.data.get("version")
    if "version" not in read.data or (type(version) is int and version == VERSION):
        return True
    message = f"this gpucluster reads version {VERSION}; got {messages.shown(version)}"
    hint = f"Write `version: {VERSION}`" if version in ("1", True, 1.0) else "Use the gpucluster that fits the file"
    read.error(("version",), message, hint)
    return False


def _input_error(read: document.Document) -> InputError:
    # Errors in the files that it names come after its own.
    findings = sorted(
        set(read.findings), key=lambda each: (each.file != read.file, each.line, each.column, each.path, each.message)
    )
    return InputError(f"{read.file}: {count(len(findings), 'error')}", findings=findings)
