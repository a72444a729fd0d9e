"""How a backup is checked before anything is restored from it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.backup import archive
from gpucluster.controller.backup.archive import AUTHORITIES, DIRECTORY, ETCD, read_backup
from gpucluster.node_agent import errors
from gpucluster.node_agent.errors import Refused
from tests.controller.backup.contents import LDIF, manifest


def packed(*members: tuple[str, bytes], kind: bytes = tarfile.REGTYPE) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as made:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size, member.type = len(content), kind
            member.linkname = "/etc/shadow"
            made.addfile(member, io.BytesIO(content))
    out.seek(0)
    return out


def whole(**more: Any) -> io.BytesIO:
    return packed(("manifest.json", json.dumps(manifest(**more)).encode()), ("directory.ldif", LDIF.encode()))


def test_a_good_backup_is_unpacked(tmp_path: Path) -> None:
    assert archive.read_backup(tmp_path, whole()) == manifest()
    assert (tmp_path / "directory.ldif").read_text() == LDIF


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        (lambda: io.BytesIO(b""), "not a backup"),
        (lambda: io.BytesIO(b"not compressed"), "not a backup"),
        (lambda: io.BytesIO(whole().getvalue()[:200]), "not a backup|damaged"),
        (lambda: packed(("directory.ldif", LDIF.encode())), "not a backup"),
        (lambda: packed(("manifest.json", b"{}")), "not a backup"),
        (lambda: packed(("manifest.json", b" " * (1 << 17))), "not a backup"),
        (lambda: packed(("../manifest.json", b"{}")), "does not belong"),
        (lambda: packed(("/etc/passwd", b"root::0:0:::")), "does not belong"),
        (lambda: packed(("manifest.json", b""), kind=tarfile.SYMTYPE), "does not belong"),
        (lambda: packed(("manifest.json", b"{}"), ("manifest.json", b"{}")), "not a backup"),
        (lambda: packed(*[("manifest.json", json.dumps(manifest()).encode())] * 2), "does not belong"),
        (lambda: packed(("manifest.json", json.dumps(manifest()).encode())), "damaged: the checksum of directory.ldif"),
        (lambda: whole(sha256={"directory.ldif": "0" * 64}), "damaged: the checksum of directory.ldif"),
        (lambda: whole(sha256={}), "'directory.ldif' does not belong"),
        (lambda: whole(version=2), "version 2"),
        (lambda: whole(counts={"people": 1}), "not complete"),
        (lambda: whole(suffix="dc=x\nmoduleload y"), "not complete"),
        (lambda: whole(slurm_cluster="x`; DROP DATABASE mysql; --"), "not complete"),
    ],
)
def test_what_is_not_a_whole_backup_is_refused(stream: Callable[[], io.BytesIO], says: str, tmp_path: Path) -> None:
    with pytest.raises(errors.Refused, match=says):
        archive.read_backup(tmp_path, stream())
    assert {file.name for file in tmp_path.iterdir()} <= {"manifest.json", "directory.ldif"}
    assert not any(file.is_symlink() for file in tmp_path.iterdir())


def test_half_of_a_control_plane_is_not_a_backup(tmp_path: Path) -> None:
    import hashlib
    import json

    digests = {DIRECTORY: hashlib.sha256(LDIF.encode()).hexdigest(), ETCD: hashlib.sha256(b"x").hexdigest()}
    said = json.dumps(manifest(sha256=digests)).encode()
    members = [("manifest.json", said), (DIRECTORY, LDIF.encode()), (ETCD, b"x")]
    with pytest.raises(Refused, match=f"the checksum of {ETCD} differs"):
        read_backup(tmp_path, packed(*members))
    whole = tmp_path / "whole"
    whole.mkdir()
    digests[AUTHORITIES] = digests[ETCD]
    members[0] = ("manifest.json", json.dumps(manifest(sha256=digests)).encode())
    assert read_backup(whole, packed(*members, (AUTHORITIES, b"x")))["sha256"] == digests
