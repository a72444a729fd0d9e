"""The release files that hosts need, on this machine: taken from a mirror or from their projects' pages, checked, kept.

    software = ensure(wanted_by(spec, ...), spec.software.mirror_location, on_event)    # for the inventory
    check(...)      # would ensure succeed? looks, and fetches nothing
    survey(...)     # the same, file by file, for people
    fetch(...)      # fills a directory that can serve as mirror elsewhere

A file is only taken with a checksum: of software.checksums, else of catalogue.toml, else of the mirror's SHA256SUMS.
The mirror is asked for its word each time, since it may change it; when it does not answer, what it said last counts.

    <cache>/software/files/         what was fetched and found right, and who said so (downloads.py)
    <cache>/software/set-<key>/     hard links to all files of a cluster, and software.json: for Ansible
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gpucluster.artifacts.cache import assembling, copy_whole, forget_old, key_of, link, sha256_of
from gpucluster.artifacts.catalogue import Artifact, alternatives
from gpucluster.artifacts.sources import (
    SILENT,
    SUMS,
    Source,
    Word,
    checksums_of,
    dispute,
    parse_sums,
    source,
    write_sums,
)
from gpucluster.artifacts.store import Store, readable_errors
from gpucluster.errors import EnvironmentFault, Finding, GpuClusterError, InputError, PreflightFinding
from gpucluster.events import Event, Sink
from gpucluster.paths import cache_dir

INDEX = "software.json"
_KEPT_SETS = 5

State = Literal["cached", "there", "missing", "unchecked", "unknown"]


@dataclass(frozen=True)
class Software:
    """What is on this machine now.

    Args:
        directory: the folder that holds all of the files; None when nothing is wanted.
        files: as the inventory's `software_files`.
    """

    directory: Path | None
    files: tuple[Mapping[str, str], ...]


@dataclass(frozen=True)
class Seen:
    """One file, and what is known of it.

    Args:
        state: `cached` on this machine; `there`, at `place`; `missing`; `unchecked`: there, but of unknown checksum;
            `unknown`: the source does not answer.
        place: what the source calls it; empty if it is not there, or was not looked for.
        checksum: who says `sha256`: software.checksums, pinned, the mirror's SHA256SUMS; or unknown.
        word: what the source says of an `unchecked` one.
    """

    artifact: Artifact
    state: State
    place: str
    sha256: str | None
    checksum: str
    word: Word = SILENT

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        mine = {"state": self.state, "place": self.place, "sha256": self.sha256, "checksum": self.checksum}
        return self.artifact.to_dict() | mine


def ensure(wanted: Sequence[Artifact], mirror: str | None, on_event: Sink) -> Software:
    """Every wanted file, checked, in one directory. What is kept already is not fetched again, and needs no source.

    Of the formats of a component (deb, rpm) those are taken that the source has; one is enough.

    Args:
        mirror: an absolute path or an http(s) URL; None for the projects' own pages.

    Raises:
        InputError: files are missing, have no checksum, or another one; `findings` names each.
        EnvironmentFault: no network, no space.
    """
    if not wanted:
        return Software(None, ())
    origin, store = source(mirror), Store(cache_dir() / "software")
    with readable_errors(store.root):
        taken = _choose(_look(store, origin, wanted, on_event), origin)
        for seen in taken:
            _keep(store, origin, seen, on_event)
        folder = _set_of(store, taken)
        forget_old(store.root, "set-*", _KEPT_SETS)
        store.forget_unused()
    return Software(folder, tuple(_entry(seen) for seen in taken))


def survey(wanted: Sequence[Artifact], mirror: str | None, on_event: Sink) -> tuple[Seen, ...]:
    """Every file, and where it stands. Nothing is fetched; a file that is kept here is not asked for.

    Raises:
        EnvironmentFault: the mirror does not answer, and what is kept here is not enough.
    """
    if not wanted:
        return ()
    store = Store(cache_dir() / "software")
    with readable_errors(store.root):
        return tuple(_look(store, source(mirror), wanted, on_event))


def check(wanted: Sequence[Artifact], mirror: str | None) -> tuple[PreflightFinding, ...]:
    """What would keep `ensure` from succeeding, or should be known before, for preflight. Nothing is fetched."""
    if not wanted:
        return ()
    said: list[Event] = []
    try:
        origin = source(mirror)
        taken = _choose(survey(wanted, mirror, said.append), origin)
    except InputError as error:
        found = error.findings or (Finding("", 0, 0, "", error.what, error.hint),)
        texts = [(f"{one.file}: {one.message}" if one.file else one.message, one.hint) for one in found]
        return tuple(PreflightFinding("error", "software", text, hint or error.hint) for text, hint in texts)
    except GpuClusterError as error:
        where = f" ({error.where})" if error.where else ""
        return (PreflightFinding("error", "software", f"{error.what}{where}", error.hint),)
    warnings = [PreflightFinding("warning", "software", event.message) for event in said]
    believed = [seen.artifact.file for seen in taken if seen.checksum == SUMS]
    if origin.forgeable and believed:
        warnings.append(PreflightFinding("warning", "software", _FORGEABLE.format(origin.name), _believe(believed)))
    return tuple(warnings)


_FORGEABLE = "{} sends files and their checksums by plain http, and who is on the way can change both"


def _believe(files: Sequence[str]) -> str:
    return f"Serve it by https, or say in software.checksums of cluster.yml what these must be: {', '.join(files)}"


def fetch(
    wanted: Sequence[Artifact], mirror: str | None, folder: Path, *, trust_download: bool, on_event: Sink
) -> tuple[Seen, ...]:
    """Fill a directory that can serve as mirror, SHA256SUMS included. What is there already, and right, stays.

    Args:
        mirror: where the files come from; the directory itself counts as none.
        trust_download: also take files whose checksum nobody says; theirs is then what was downloaded.

    Returns:
        The files as they lie in `folder`; `checksum` is `unknown` for those that were taken on trust.

    Raises:
        InputError: as `ensure`; or what came by plain http was to be taken on trust.
        EnvironmentFault: as `ensure`.
    """
    origin = source(None if mirror is not None and Path(mirror).resolve() == folder.resolve() else mirror)
    if trust_download and origin.forgeable:
        raise InputError(
            "--trust-download takes nothing that came by plain http: who is on the way can change it",
            where=origin.name,
            hint="Take the option away, or name a mirror by https, or none, in software.mirror of cluster.yml",
        )
    store = Store(cache_dir() / "software")
    with readable_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        known = parse_sums((folder / SUMS).read_text()) if (folder / SUMS).exists() else {}
        # What the directory's own list says of a file counts as if the mirror had said it.
        asked = [one if one.sha256 else replace(one, sha256=_noted(known, one.file, folder)) for one in wanted]
        right = {one.file for one in asked if one.sha256 and _has(folder / one.file, one.sha256)}
        looked = [_seen(one, "cached", str(folder / one.file)) for one in asked if one.file in right]
        looked += _look(store, origin, [one for one in asked if one.file not in right], on_event)
        if trust_download:
            looked = [_trusted(store, origin, seen, on_event) for seen in looked]
        taken = _choose(looked, origin)
        for seen in taken:
            if seen.artifact.file not in right:
                _keep(store, origin, seen, on_event)
                copy_whole(store.path(_sum(seen), seen.artifact.file), folder / seen.artifact.file)
            known[seen.artifact.file] = {_sum(seen)}
            write_sums(folder / SUMS, known)
    return tuple(taken)


# --- looking and choosing -----


def _look(store: Store, origin: Source, wanted: Iterable[Artifact], on_event: Sink) -> list[Seen]:
    """In what is kept here first, then at the source. One that does not answer is asked once.

    Raises:
        GpuClusterError: it does not answer, and what is kept is not enough.
    """
    looked: list[Seen] = []
    away: GpuClusterError | None = None
    for artifact in wanted:
        if away is None:
            try:
                looked.append(_look_for(store, origin, artifact))
                continue
            except (EnvironmentFault, InputError) as error:
                away = error
        looked.append(_remembered(store, origin, artifact))
    if away is not None:
        try:
            _choose(looked, origin)
        except InputError:
            raise away from None
        words = f"{origin.name} can't be asked ({away.what}); the files that are kept on this machine are taken"
        on_event(Event("log", "software", "warning", words))
    return looked


def _remembered(store: Store, origin: Source, artifact: Artifact) -> Seen:
    """By what the source said when the file was taken from it."""
    checksum = artifact.sha256 or store.remembered(origin.name, artifact.file)
    if checksum is None or not store.has(checksum, artifact.file):
        return _seen(artifact, "unknown")
    return Seen(artifact, "cached", "", checksum, artifact.checksum if artifact.sha256 else SUMS)


def _look_for(store: Store, origin: Source, artifact: Artifact) -> Seen:
    if artifact.sha256 and store.has(artifact.sha256, artifact.file):
        return _seen(artifact, "cached")
    place = origin.find(artifact)
    if place is None:
        return _seen(artifact, "missing")
    if artifact.sha256:
        return _seen(artifact, "there", place)
    word = origin.sum_of(artifact, place)
    if word.sha256 is None:
        return replace(_seen(artifact, "unchecked", place), word=word)
    return Seen(artifact, "cached" if store.has(word.sha256, artifact.file) else "there", place, word.sha256, SUMS)


def _seen(artifact: Artifact, state: State, place: str = "") -> Seen:
    said_by_list = artifact.sha256 is not None and artifact.checksum == "unknown"
    return Seen(artifact, state, place, artifact.sha256, SUMS if said_by_list else artifact.checksum)


def _choose(looked: Sequence[Seen], origin: Source) -> list[Seen]:
    """The files of every format that is whole. A format of which nothing can be had is left out if another is whole.

    Raises:
        InputError: something is missing or unchecked that is needed.
    """
    by_file = {seen.artifact.file: seen for seen in looked}
    taken, faulty = [], []
    for formats in alternatives([seen.artifact for seen in looked]).values():
        groups = [[by_file[artifact.file] for artifact in artifacts] for artifacts in formats.values()]
        whole = [group for group in groups if all(_good(seen) for seen in group)]
        taken += [seen for group in whole for seen in group]
        for group in groups:
            if group not in whole and (not whole or any(_good(seen) for seen in group)):
                faulty += [seen for seen in group if not _good(seen)]
    if faulty:
        count = f"{len(faulty)} release files are" if len(faulty) > 1 else "a release file is"
        missing = [seen for seen in faulty if seen.state == "missing"]
        kind = "missing" if len(missing) == len(faulty) else "missing or can't be checked" if missing else "unchecked"
        raise InputError(
            f"{count} {kind}",
            where=origin.name,
            hint="All packages of one format (deb or rpm) are enough; docs/how-to/mirror.md says how to make a mirror",
            findings=[_finding(seen, origin) for seen in faulty],
        )
    return taken


def _good(seen: Seen) -> bool:
    return seen.state in ("cached", "there")


def _finding(seen: Seen, origin: Source) -> Finding:
    artifact = seen.artifact
    if seen.state == "missing":
        message = f"it is not there; looked at {', '.join(origin.places(artifact))}"
        return Finding(artifact.file, 0, 0, "", message, f"Its project publishes it as {artifact.url}")
    if seen.word.disputed:
        return Finding(artifact.file, 0, 0, "", seen.word.why, _DISPUTED.format(artifact.file))
    hint = (
        f"Download {artifact.url}, compare what `sha256sum` says of it with what its project says, and put the line "
        f"`{artifact.file}: <the checksum>` into software.checksums of cluster.yml, or the file into a mirror: "
        f"`sha256sum {artifact.file} >> {SUMS}` there, and its directory as software.mirror. "
        f"`gpucluster software fetch DIR --trust-download` makes such a mirror"
    )
    return Finding(artifact.file, 0, 0, "", f"nobody says what its checksum must be{seen.word.why}", hint)


_DISPUTED = (
    "Compare them with what `sha256sum` says of the file and what its project says, and leave the right line alone "
    "there, or put `{}: <the checksum>` into software.checksums of cluster.yml"
)


# --- files -----


def _keep(store: Store, origin: Source, seen: Seen, on_event: Sink) -> None:
    store.keep(origin, seen.place, seen.artifact.file, _sum(seen), seen.checksum, on_event)
    if seen.artifact.sha256 is None and seen.checksum == SUMS:
        store.remember(origin.name, seen.artifact.file, _sum(seen))


def _noted(known: Mapping[str, set[str]], file: str, folder: Path) -> str | None:
    """What the list of the directory that is filled says of a file."""
    said = checksums_of([file], known)
    if len(said) > 1:
        raise InputError(dispute(str(folder / SUMS), said), where=file, hint=_DISPUTED.format(file))
    return next(iter(said), None)


def _trusted(store: Store, origin: Source, seen: Seen, on_event: Sink) -> Seen:
    """A file that nobody vouches for, with the checksum that it has."""
    if seen.state != "unchecked" or seen.word.disputed:
        return seen
    found = store.keep_unchecked(origin, seen.place, seen.artifact.file, on_event)
    return replace(seen, state="cached", sha256=found)


def _sum(seen: Seen) -> str:
    assert seen.sha256 is not None  # _choose takes no other
    return seen.sha256


def _entry(seen: Seen) -> Mapping[str, str]:
    artifact = seen.artifact
    return {
        "component": artifact.component,
        "version": artifact.version,
        "file": artifact.file,
        "sha256": _sum(seen),
        "format": artifact.format,
        "architecture": artifact.architecture,
    }


def _set_of(store: Store, taken: Sequence[Seen]) -> Path:
    files = [_entry(seen) for seen in taken]
    folder = store.root / f"set-{key_of(files)}"
    if not (folder / INDEX).exists():
        kept = [store.path(file["sha256"], file["file"]) for file in files]
        for path, file in zip(kept, files, strict=True):
            if not _has(path, file["sha256"]):  # a disk that forgets, or somebody's editor
                path.unlink(missing_ok=True)
                raise EnvironmentFault("a file has changed since it was fetched", where=str(path), hint="Run it again")
        with assembling(folder, INDEX, {"files": files}) as scratch:
            for path in kept:
                link(path, scratch / path.name)
    os.utime(folder)
    return folder


def _has(file: Path, checksum: str) -> bool:
    return file.is_file() and sha256_of(file) == checksum
