"""The backup file: how it is written, and how it is checked when it is read."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import tarfile
import time
import zlib
from pathlib import Path
from typing import IO, Any, cast

from gpucluster.controller.backup.entries import count_entries
from gpucluster.controller.backup.site import Site
from gpucluster.controller.backup.work import CHUNK, digest
from gpucluster.node_agent.bounded import Counted, Unpacked, loads
from gpucluster.node_agent.errors import Failed, Refused

VERSION = 1
MANIFEST, DIRECTORY, ACCOUNTING = "manifest.json", "directory.ldif", "accounting.sql"
ETCD, AUTHORITIES = "kubernetes-etcd.db", "kubernetes-authorities.tar"
CONTENT = (DIRECTORY, ACCOUNTING, ETCD, AUTHORITIES)
# A manifest has some hundred bytes.
LARGEST_MANIFEST = 1 << 16


def write_backup(site: Site, work: Path, out: IO[bytes]) -> None:
    """Write a backup of the present directory and accounting, and of the control plane of Kubernetes."""
    site.directory.dump(work / DIRECTORY)
    names = [DIRECTORY]
    counts: dict[str, int | None] = {**count_entries(work / DIRECTORY, site.directory.suffix), "accounting_jobs": None}
    if site.accounting:
        accounting = site.accounting
        before = accounting.jobs(accounting.database, accounting.cluster)
        accounting.dump(work / ACCOUNTING)
        # Jobs start while it is written, and old ones are purged: it holds at least this many.
        counts["accounting_jobs"] = min(before, accounting.jobs(accounting.database, accounting.cluster))
        names.append(ACCOUNTING)
    counts["kubernetes_objects"] = None
    if site.control_plane:
        counts["kubernetes_objects"] = site.control_plane.dump(work / ETCD, work / AUTHORITIES)
        names += [ETCD, AUTHORITIES]
    manifest = {
        "version": VERSION,
        "cluster": site.cluster,
        "suffix": site.directory.suffix,
        "slurm_cluster": site.accounting.cluster if site.accounting else None,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "counts": counts,
        "sha256": {name: digest(work / name) for name in names},
    }
    (work / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    with tarfile.open(fileobj=out, mode="w|gz") as archive:
        for name in (MANIFEST, *names):
            archive.add(work / name, arcname=name, filter=plain)


def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A member without the owner and the mode that the file has here."""
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mode = 0o600
    return member


def read_backup(work: Path, stream: IO[bytes]) -> dict[str, Any]:
    """Unpack a backup and check all of it. The manifest comes first: nothing else is unpacked before it is good.

    Returns:
        Its manifest.

    Raises:
        Refused: it is not a backup, or not complete.
    """
    manifest: dict[str, Any] = {}
    packed = Counted(stream)
    try:
        with gzip.GzipFile(fileobj=cast("IO[bytes]", packed), mode="rb") as unpacked:
            limited = Unpacked(cast("IO[bytes]", unpacked), packed)
            with tarfile.open(fileobj=cast("IO[bytes]", limited), mode="r|") as archive:
                for member in archive:
                    _take(archive, member, work, manifest)
                    manifest = manifest or _manifest(work)
            while limited.read():  # what follows the archive belongs to the checksum of the whole
                pass
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, OSError) and error.errno and not isinstance(error, FileNotFoundError):
            message = f"the backup can't be unpacked on the controller: {error.strerror}"
            raise Failed(message, "Is its disk full?") from error
        raise Refused(f"this is not a backup, or only a part of one: {error}", "Choose another file") from error
    if not manifest:
        raise Refused("this is not a backup, or only a part of one: it has no manifest", "Choose another file")
    present = {name: digest(work / name) for name in CONTENT if (work / name).exists()}
    halves = (ETCD in present) is not (AUTHORITIES in present)
    checksums = dict(manifest["sha256"])
    if present != checksums or DIRECTORY not in present or halves:
        bad = sorted({name for name, _ in present.items() ^ checksums.items()} or {ETCD if halves else DIRECTORY})
        raise Refused(f"the backup was damaged: the checksum of {', '.join(bad)} differs", "Choose another file")
    return manifest


def _take(archive: tarfile.TarFile, member: tarfile.TarInfo, work: Path, manifest: dict[str, Any]) -> None:
    """Unpack one member, if it belongs into a backup with this manifest; the first one is the manifest itself."""
    known = member.name in (manifest["sha256"] if manifest else (MANIFEST,)) and not (work / member.name).exists()
    content = archive.extractfile(member) if known and member.isreg() else None
    if content is None or (member.name == MANIFEST and member.size > LARGEST_MANIFEST):
        message = f"this is not a backup: {member.name[:60]!r} does not belong in one"
        raise Refused(message, "Choose another file")
    if member.size > shutil.disk_usage(work).free:
        message = f"the backup has {member.size} bytes of {member.name}, and there is less free space on the controller"
        raise Failed(message, "Free some space on its disk")
    with (work / member.name).open("xb") as file:
        shutil.copyfileobj(content, file, CHUNK)


def _manifest(work: Path) -> dict[str, Any]:
    """The manifest of a backup, checked."""
    manifest: dict[str, Any] = loads((work / MANIFEST).read_text(encoding="utf-8"), LARGEST_MANIFEST)
    version, sums, counts = manifest["version"], dict(manifest["sha256"]), dict(manifest["counts"])
    if version != VERSION:
        raise Refused(
            f"the backup is of version {repr(version)[:20]}, and this program reads {VERSION}",
            "Run `gpucluster apply`",
        )
    texts = (
        (manifest["cluster"], r"[A-Za-z0-9-]{1,63}"),
        (manifest["time"], r"[0-9TZ:.+-]{1,40}"),
        (manifest["suffix"], r"dc=[A-Za-z0-9-]+(,dc=[A-Za-z0-9-]+)*"),
        (manifest["slurm_cluster"] or "", r"[A-Za-z0-9_-]*"),
        *((each, r"[0-9a-f]{64}") for each in sums.values()),
    )
    complete = {"people", "groups", "accounting_jobs"} <= set(counts) and set(sums) <= set(CONTENT)
    if not complete or not all(re.fullmatch(pattern, text) for text, pattern in texts):
        raise Refused("the backup's manifest is not complete", "Choose another file")
    return manifest
