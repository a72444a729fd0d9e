"""The release files that hosts need, on this machine: from a mirror or their projects' pages, checked and stored.

    releases = ensure(needed_by(spec, ...), spec.software.mirror_location, on_event)    # for the inventory
    check(...)      # would ensure succeed? Downloads nothing
    survey(...)     # the same, file by file, for the operator
    fetch(...)      # fills a folder that can serve as a mirror elsewhere
    lock(...)       # writes the lock file

A file is only taken with a checksum: from software.checksums, else from catalogue.toml, else from the lock file beside
cluster.yml, else from a list of the source: the mirror's SHA256SUMS, or what the project publishes. The source is asked
for its list in each run, because it may change. If it does not answer, the checksums that it had last are used.

    <cache>/software/files/         what was downloaded and checked (`store`)
    <cache>/software/set-<key>/     hard links to all files of a cluster, and software.json: for Ansible
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpucluster.artifacts import catalogue, lock_file
from gpucluster.artifacts.cache import assembling, copy_whole, delete_old, key_of, link, sha256_of
from gpucluster.artifacts.catalogue import Artifact, ChecksumOrigin
from gpucluster.artifacts.checksums import SUMS, checksums_of, contradiction, parse_sums, write_sums
from gpucluster.artifacts.lock_file import LockedFile
from gpucluster.artifacts.lookup import locate, status_of
from gpucluster.artifacts.selection import CONTRADICTION_HINT, FileState, FileStatus, select
from gpucluster.artifacts.sources import ProjectPages, ReleaseSource, source
from gpucluster.artifacts.store import ArtifactStore, readable_errors
from gpucluster.errors import EnvironmentFault, GpuClusterError, InputError, InputFinding, PreflightFinding
from gpucluster.events import Event, Sink
from gpucluster.paths import cache_dir
from gpucluster.spec import ClusterSpec

INDEX = "software.json"
_SETS = 5  # of different clusters and versions, that are not deleted


@dataclass(frozen=True)
class ReleaseSet:
    """The release files of one cluster, on this machine.

    Args:
        directory: the folder that holds all of the files; None if the cluster needs none.
        files: as the inventory's `software_files`.
    """

    directory: Path | None
    files: tuple[Mapping[str, str], ...]


def needed_by(spec: ClusterSpec, *, hardware_emulated: bool) -> tuple[Artifact, ...]:
    """The files that the hosts of a cluster need, with the checksums of its lock file.

    Args:
        hardware_emulated: hosts do not have the GPUs of their shapes (the local cloud).

    Raises:
        InputError: the lock file is damaged, or cluster.yml names a release that does not exist.
    """
    locked = lock_file.read(lock_file.path_of(spec.file))
    sums = {name: each.sha256 for name, each in locked.items()}
    return catalogue.needed_by(spec, hardware_emulated=hardware_emulated, locked=sums)


def ensure(needed: Sequence[Artifact], mirror: str | None, on_event: Sink) -> ReleaseSet:
    """Every needed file, checked, in one folder. A file that is stored already is not downloaded again.

    A component has several formats (deb, rpm). Those that the source has are taken; one is enough.

    Args:
        mirror: an absolute path or an http(s) URL; None for the projects' own pages.

    Raises:
        InputError: files are missing, have no checksum, or the wrong one; `findings` names each.
        EnvironmentFault: the source does not answer, or the disk is full.
    """
    if not needed:
        return ReleaseSet(None, ())
    origin, store = source(mirror), ArtifactStore(cache_dir() / "software")
    with readable_errors(store.root):
        taken = select(locate(store, origin, needed, on_event), origin)
        for status in taken:
            _store(store, origin, status, on_event)
        folder = _set_of(store, taken)
        delete_old(store.root, "set-*", _SETS)
        store.remove_unused()
    return ReleaseSet(folder, tuple(_entry(status) for status in taken))


def dataset(spec: ClusterSpec, name: str, on_event: Sink) -> tuple[Path, Artifact]:
    """The file of a data set of the catalogue, on this machine: from the mirror, else from its own page.

    Raises:
        InputError, EnvironmentFault: as `ensure`; or it is not in the catalogue.
    """
    artifact = catalogue.dataset(name, checksums=spec.software.checksums)
    release_set = ensure([artifact], spec.software.mirror_location, on_event)
    assert release_set.directory is not None
    return release_set.directory / artifact.file, artifact


def survey(
    needed: Sequence[Artifact], mirror: str | None, on_event: Sink, *, partly: bool = False
) -> tuple[FileStatus, ...]:
    """The status of every file. Nothing is downloaded, and the source is not asked for files that are in the store.

    Args:
        partly: go on without a source that does not answer, for who only wants to see the list.

    Raises:
        EnvironmentFault: the mirror does not answer, and the files on this machine are not enough.
    """
    if not needed:
        return ()
    store = ArtifactStore(cache_dir() / "software")
    with readable_errors(store.root):
        return tuple(locate(store, source(mirror), needed, on_event, partly=partly))


def check(needed: Sequence[Artifact], mirror: str | None) -> tuple[PreflightFinding, ...]:
    """For preflight: why `ensure` would fail, and what the operator should know before. Nothing is downloaded."""
    if not needed:
        return ()
    announced: list[Event] = []
    try:
        origin = source(mirror)
        taken = select(survey(needed, mirror, announced.append), origin)
    except InputError as error:
        findings = error.findings or (InputFinding("", 0, 0, "", error.what, error.hint),)
        texts = [
            (f"{finding.file}: {finding.message}" if finding.file else finding.message, finding.hint)
            for finding in findings
        ]
        return tuple(PreflightFinding("error", "software", text, hint or error.hint) for text, hint in texts)
    except GpuClusterError as error:
        where = f" ({error.where})" if error.where else ""
        return (PreflightFinding("error", "software", f"{error.what}{where}", error.hint),)
    warnings = [PreflightFinding("warning", "software", event.message) for event in announced]
    trusted = [status.artifact.file for status in taken if status.checksum == SUMS]
    if origin.forgeable and trusted:
        reason = (
            f"{origin.name} sends files and their checksums by plain http: an attacker in the network can change both"
        )
        action = f"Serve it by https, or set the checksums in software.checksums of cluster.yml: {', '.join(trusted)}"
        warnings.append(PreflightFinding("warning", "software", reason, action))
    return tuple(warnings)


def fetch(
    needed: Sequence[Artifact], mirror: str | None, folder: Path, *, trust_download: bool, on_event: Sink
) -> tuple[FileStatus, ...]:
    """Fill a folder that can serve as a mirror, with a SHA256SUMS. Files that are there with the right checksum stay.

    Args:
        mirror: where the files come from; the folder itself counts as none.
        trust_download: also take files whose checksum is not known; it is then that of the download.

    Returns:
        The files in `folder`; `checksum` is `unknown` for those that were taken on trust.

    Raises:
        InputError: as `ensure`; or files that come by plain http should be taken on trust.
        EnvironmentFault: as `ensure`.
    """
    origin = source(None if mirror is not None and Path(mirror).resolve() == folder.resolve() else mirror)
    if trust_download and origin.forgeable:
        raise _forgeable(origin, "--trust-download", "Run the command without the option, or set")
    store = ArtifactStore(cache_dir() / "software")
    with readable_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        known = parse_sums((folder / SUMS).read_text()) if (folder / SUMS).exists() else {}
        # The folder's own list counts as if it were the mirror's.
        files = [file if file.sha256 else replace(file, sha256=_listed(known, file.file, folder)) for file in needed]
        valid = {file.file for file in files if file.sha256 and _has(folder / file.file, file.sha256)}
        statuses = [status_of(file, FileState.CACHED, str(folder / file.file)) for file in files if file.file in valid]
        statuses += locate(store, origin, [file for file in files if file.file not in valid], on_event)
        if trust_download:
            statuses = [_trusted(store, origin, status, on_event) for status in statuses]
        taken = select(statuses, origin)
        for status in taken:
            if status.artifact.file not in valid:
                _store(store, origin, status, on_event)
                copy_whole(store.path(_sum(status), status.artifact.file), folder / status.artifact.file)
            known[status.artifact.file] = {_sum(status)}
            write_sums(folder / SUMS, known)
    return tuple(taken)


@dataclass(frozen=True)
class LockChange:
    """One line of what `lock` changed; `before` or `after` is None where the lock file did not have the file, or has it
    no more."""

    file: str
    before: LockedFile | None
    after: LockedFile | None


def lock(
    spec: ClusterSpec, *, hardware_emulated: bool, upgrade: bool, on_event: Sink
) -> tuple[tuple[FileStatus, ...], tuple[LockChange, ...]]:
    """Write the lock file: the checksum of every needed file that neither cluster.yml nor catalogue.toml has.

    A checksum that the source has in a list is taken from there. A file without one is downloaded, and its checksum is
    recorded: from then on every run takes that file only. Files that are locked stay as they are.

    Args:
        hardware_emulated: as `needed_by`.
        upgrade: find all checksums again, whatever the lock file has.

    Returns:
        The files that the lock file now has, and what changed in it.

    Raises:
        InputError: as `ensure`; or files would come by plain http. The lock file is unchanged.
        EnvironmentFault: as `ensure`.
    """
    file = lock_file.path_of(spec.file)
    before = lock_file.read(file)
    kept = {} if upgrade else {name: each.sha256 for name, each in before.items()}
    needed = catalogue.needed_by(spec, hardware_emulated=hardware_emulated, locked=kept)
    origin, store = source(spec.software.mirror_location), ArtifactStore(cache_dir() / "software")
    with readable_errors(store.root):
        statuses = locate(store, origin, needed, on_event)
        if origin.forgeable and any(status.place and status.artifact.sha256 is None for status in statuses):
            raise _forgeable(origin, "the lock file", "Set")
        statuses = [_trusted(store, origin, status, on_event) for status in statuses]
        taken = [
            status
            for status in select(statuses, origin)
            if status.artifact.checksum not in (ChecksumOrigin.CONFIGURED, ChecksumOrigin.PINNED)
        ]
        for status in taken:
            if status.artifact.checksum is not ChecksumOrigin.LOCKED:
                _store(store, origin, status, on_event)
    after = {status.artifact.file: _locked(status, origin, before) for status in taken}
    if after != before:
        lock_file.write(file, after)
    names = sorted({*before, *after})
    changes = (LockChange(name, before.get(name), after.get(name)) for name in names)
    return tuple(taken), tuple(change for change in changes if change.before != change.after)


def _locked(status: FileStatus, origin: ReleaseSource, before: Mapping[str, LockedFile]) -> LockedFile:
    """The entry of a file. One that is as before keeps its source."""
    old = before.get(status.artifact.file)
    if old is not None and old.sha256 == _sum(status):
        return old
    where = status.artifact.url if isinstance(origin, ProjectPages) else f"{origin.name}: {status.place}"
    return LockedFile(_sum(status), f"{'listed' if status.checksum == SUMS else 'downloaded'} at {where}")


def _forgeable(origin: ReleaseSource, who: str, hint: str) -> InputError:
    return InputError(
        f"{who} takes nothing that comes by plain http: an attacker in the network can change it",
        where=origin.name,
        hint=f"{hint} an https URL or no software.mirror in cluster.yml",
    )


def _store(store: ArtifactStore, origin: ReleaseSource, status: FileStatus, on_event: Sink) -> None:
    store.fetch(origin, status.place, status.artifact.file, _sum(status), status.checksum, on_event)
    if status.artifact.sha256 is None and status.checksum == SUMS:
        store.save_claim(origin.name, status.artifact.file, _sum(status))


def _listed(known: Mapping[str, set[str]], file: str, folder: Path) -> str | None:
    """The checksum that the list in the folder has for a file."""
    claimed = checksums_of([file], known)
    if len(claimed) > 1:
        what = contradiction(str(folder / SUMS), claimed)
        raise InputError(what, where=file, hint=CONTRADICTION_HINT.format(file))
    return next(iter(claimed), None)


def _trusted(store: ArtifactStore, origin: ReleaseSource, status: FileStatus, on_event: Sink) -> FileStatus:
    """An unchecked file is downloaded, and gets the checksum that it has."""
    if status.state is not FileState.UNCHECKED or status.claim.contradictory:
        return status
    checksum = store.fetch_unchecked(origin, status.place, status.artifact.file, on_event)
    return replace(status, state=FileState.CACHED, sha256=checksum)


def _sum(status: FileStatus) -> str:
    assert status.sha256 is not None  # `select` takes no other
    return status.sha256


def _entry(status: FileStatus) -> Mapping[str, str]:
    artifact = status.artifact
    return {
        "component": artifact.component,
        "version": artifact.version,
        "file": artifact.file,
        "sha256": _sum(status),
        "format": artifact.format,
        "architecture": artifact.architecture,
    }


def _set_of(store: ArtifactStore, taken: Sequence[FileStatus]) -> Path:
    """The folder with these files, for Ansible. The same files have the same folder."""
    files = [_entry(status) for status in taken]
    folder = store.root / f"set-{key_of(files)}"
    if not (folder / INDEX).exists():
        paths = [store.path(file["sha256"], file["file"]) for file in files]
        for path, file in zip(paths, files, strict=True):
            if not _has(path, file["sha256"]):  # the disk is faulty, or the file was edited
                path.unlink(missing_ok=True)
                raise EnvironmentFault(
                    "a file has changed since it was downloaded",
                    where=str(path),
                    hint="Run the same command again: it downloads the file again",
                )
        with assembling(folder, INDEX, {"files": files}) as scratch:
            for path in paths:
                link(path, scratch / path.name)
    os.utime(folder)
    return folder


def _has(file: Path, checksum: str) -> bool:
    return file.is_file() and sha256_of(file) == checksum
