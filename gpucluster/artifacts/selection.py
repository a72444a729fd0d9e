"""Which files are taken, and why a file can't be taken. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpucluster.artifacts import lock_file
from gpucluster.artifacts.catalogue import Artifact, alternatives
from gpucluster.artifacts.checksums import NO_CLAIM, SUMS, ChecksumClaim
from gpucluster.artifacts.sources import ReleaseSource
from gpucluster.errors import InputError, InputFinding
from gpucluster.text import count

CONTRADICTION_HINT = (
    "Compare them with the `sha256sum` of the file and with what its project publishes. Then remove the wrong lines "
    "there, or add `{}: <the checksum>` to software.checksums in cluster.yml"
)
#: Of a file that no project publishes.
NO_PAGE = "No project publishes it: make it and put it into software.mirror; see docs/how-to/kubernetes.md"


class FileState(StrEnum):
    """Where a file is. The values are those of the JSON output."""

    #: On this machine.
    CACHED = "cached"
    #: In the source, with a known checksum.
    FOUND = "there"
    #: Not in the source.
    MISSING = "missing"
    #: In the source, but its checksum is not known.
    UNCHECKED = "unchecked"
    #: The source does not answer.
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class FileStatus:
    """One file, and what is known about it.

    Args:
        place: its path in the source; empty if the source does not have it, or was not asked.
        sha256: the checksum that the file must have; None if none is known.
        checksum: where `sha256` comes from: software.checksums, pinned, software.lock, a list of the source
            (SHA256SUMS); or unknown.
        claim: the checksum that the source has for an unchecked file.
    """

    artifact: Artifact
    state: FileState
    place: str
    sha256: str | None
    checksum: str
    claim: ChecksumClaim = NO_CLAIM

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        status = {"state": self.state, "place": self.place, "sha256": self.sha256, "checksum": self.checksum}
        return self.artifact.to_dict() | status


def select(statuses: Sequence[FileStatus], origin: ReleaseSource) -> list[FileStatus]:
    """The files to take: those of every format (deb, rpm) that is complete.

    A format of which no file is available is left out if another format is complete.

    Raises:
        InputError: files that are needed are missing or unchecked; `findings` names each.
    """
    by_file = {status.artifact.file: status for status in statuses}
    taken: list[FileStatus] = []
    unavailable: list[FileStatus] = []
    for formats in alternatives([status.artifact for status in statuses]).values():
        groups = [[by_file[artifact.file] for artifact in artifacts] for artifacts in formats.values()]
        complete = [group for group in groups if all(map(_available, group))]
        taken += [status for group in complete for status in group]
        for group in groups:
            if group not in complete and (not complete or any(map(_available, group))):
                unavailable += [status for status in group if not _available(status)]
    if unavailable:
        missing = [status for status in unavailable if status.state is FileState.MISSING]
        kind = (
            "missing" if len(missing) == len(unavailable) else "missing or can't be checked" if missing else "unchecked"
        )
        raise InputError(
            f"{count(len(unavailable), 'release file is', 'release files are')} {kind}",
            where=origin.name,
            hint="The packages of one format (deb or rpm) are enough. How to make a mirror: docs/how-to/mirror.md",
            findings=[_finding(status, origin) for status in unavailable],
        )
    return taken


def _available(status: FileStatus) -> bool:
    return status.state in (FileState.CACHED, FileState.FOUND)


def _finding(status: FileStatus, origin: ReleaseSource) -> InputFinding:
    artifact = status.artifact
    if status.state is FileState.MISSING:
        message = f"it is missing; tried {', '.join(origin.places(artifact))}"
        published = f"Its project publishes it as {artifact.url}"
        return InputFinding(artifact.file, 0, 0, "", message, published if artifact.url else NO_PAGE)
    if status.claim.contradictory:
        return InputFinding(artifact.file, 0, 0, "", status.claim.why, CONTRADICTION_HINT.format(artifact.file))
    hint = (
        f"`gpucluster software lock` downloads it and records its checksum in {lock_file.NAME}, which you keep in Git. "
        f"If you know the checksum from elsewhere, add `{artifact.file}: <the checksum>` to software.checksums "
        f"in cluster.yml, or add it to a {SUMS} in your mirror"
    )
    return InputFinding(artifact.file, 0, 0, "", f"no checksum is known for it{status.claim.why}", hint)
