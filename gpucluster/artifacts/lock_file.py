"""`software.lock` beside cluster.yml: the checksums of release files whose projects publish none, written once, kept in
Git.

    # a comment
    version = 1

    ["enroot_4.1.2-1_amd64.deb"]
    sha256 = "..."
    source = "https://..."

Every later run, on any machine, takes only files that are equal to these.
"""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpucluster.errors import EnvironmentFault, InputError

NAME = "software.lock"
_VERSION = 1
_HEADER = """\
# Checksums of release files, written by `gpucluster software lock`. Keep this file in Git: every run, on any machine,
# takes only files that are equal to these.
"""


@dataclass(frozen=True)
class LockedFile:
    """One file of the lock file.

    Args:
        sha256: in lower case.
        source: for the operator: who vouches for the checksum, or from where the file was downloaded.
    """

    sha256: str
    source: str


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    source: str = ""


def path_of(cluster_yml: Path) -> Path:
    """The lock file of the cluster that `cluster_yml` describes."""
    return cluster_yml.resolve().parent / NAME


def read(file: Path) -> dict[str, LockedFile]:
    """The locked files by name; none if there is no lock file.

    Raises:
        InputError: it can't be read, or it was damaged (such as by a merge conflict).
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        version = content.pop("version", None)
        if version != _VERSION:
            raise ValueError(f"version is {version}; this gpucluster knows version {_VERSION}")
        entries = {name: _Entry.model_validate(entry) for name, entry in content.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(
            f"the lock file can't be read: {error.strerror}", where=str(file), hint="Make it readable for you"
        ) from error
    except (ValidationError, ValueError) as error:
        raise InputError(
            f"the lock file is damaged: {_in_words(error)}",
            where=str(file),
            hint="Restore it from Git. Without a good version of it, delete it and run `gpucluster software lock`",
        ) from error
    return {name: LockedFile(entry.sha256, entry.source) for name, entry in entries.items()}


def write(file: Path, files: Mapping[str, LockedFile]) -> None:
    """Write it, whole or not at all. The same files give the same text.

    Raises:
        EnvironmentFault: the disk is full, or the folder can't be written; an existing file is unchanged.
    """
    entries = (
        # A JSON string is a TOML string as well.
        f"\n[{json.dumps(name)}]\nsha256 = {json.dumps(locked.sha256)}\nsource = {json.dumps(locked.source)}\n"
        for name, locked in sorted(files.items())
    )
    try:
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".new-") as scratch:
            new = Path(scratch) / file.name
            new.write_text(f"{_HEADER}version = {_VERSION}\n{''.join(entries)}", encoding="utf-8")
            new.replace(file)
    except OSError as error:
        raise EnvironmentFault(
            f"the lock file can't be written: {error.strerror}",
            where=str(file),
            hint="Free some space or make the folder writable for you, and run the same command again",
        ) from error


def _in_words(error: ValidationError | ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'an entry'}: {first['msg']}"
