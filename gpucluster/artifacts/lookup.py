"""Where each release file is: in the store on this machine, or in the source. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpucluster.artifacts.catalogue import Artifact, ChecksumOrigin
from gpucluster.artifacts.checksums import SUMS
from gpucluster.artifacts.selection import FileState, FileStatus, select
from gpucluster.artifacts.sources import ReleaseSource
from gpucluster.artifacts.store import ArtifactStore
from gpucluster.errors import EnvironmentFault, GpuClusterError, InputError
from gpucluster.events import Sink, warn


def locate(
    store: ArtifactStore, origin: ReleaseSource, needed: Iterable[Artifact], on_event: Sink, *, partly: bool = False
) -> list[FileStatus]:
    """Find each file: first in the store on this machine, then in the source.

    If the source does not answer, it is not asked again. Then the checksums that it had in earlier runs are used,
    with a warning.

    Args:
        partly: go on without a source that does not answer, whatever the store has; the status of what it lacks is
            unknown.

    Raises:
        GpuClusterError: the source does not answer, and the files in the store are not enough.
    """
    statuses: list[FileStatus] = []
    failure: GpuClusterError | None = None
    for artifact in needed:
        if failure is None:
            try:
                statuses.append(_locate_file(store, origin, artifact))
                continue
            except (EnvironmentFault, InputError) as error:
                failure = error
        statuses.append(_locate_in_store(store, origin, artifact))
    if failure is not None:
        try:
            select(statuses, origin)
        except InputError:
            if not partly:
                raise failure from None
        message = f"{origin.name} does not answer ({failure.what}); the files on this machine are used"
        warn(on_event, "software", message)
    return statuses


def _locate_in_store(store: ArtifactStore, origin: ReleaseSource, artifact: Artifact) -> FileStatus:
    """By the checksum that the source had when the file was taken from it."""
    checksum = artifact.sha256 or store.saved_claim(origin.name, artifact.file)
    if checksum is None or not store.has(checksum, artifact.file):
        return status_of(artifact, FileState.UNKNOWN)
    return FileStatus(artifact, FileState.CACHED, "", checksum, artifact.checksum if artifact.sha256 else SUMS)


def _locate_file(store: ArtifactStore, origin: ReleaseSource, artifact: Artifact) -> FileStatus:
    if artifact.sha256 and store.has(artifact.sha256, artifact.file):
        return status_of(artifact, FileState.CACHED)
    place = origin.find(artifact)
    if place is None:
        return status_of(artifact, FileState.MISSING)
    if artifact.sha256:
        return status_of(artifact, FileState.FOUND, place)
    claim = origin.claim(artifact, place)
    if claim.sha256 is None:
        return replace(status_of(artifact, FileState.UNCHECKED, place), claim=claim)
    state = FileState.CACHED if store.has(claim.sha256, artifact.file) else FileState.FOUND
    return FileStatus(artifact, state, place, claim.sha256, SUMS)


def status_of(artifact: Artifact, state: FileState, place: str = "") -> FileStatus:
    """The status of a file by the artifact's own checksum, if it has one."""
    from_list = artifact.sha256 is not None and artifact.checksum is ChecksumOrigin.UNKNOWN
    return FileStatus(artifact, state, place, artifact.sha256, SUMS if from_list else artifact.checksum)
