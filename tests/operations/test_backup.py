"""gpucluster.operations.backup: the file on this machine, and what becomes of the controller's words."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import stat
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import GpuClusterError, InputError, ToolError
from gpucluster.operations import backup
from gpucluster.operations.backup import Backups
from gpucluster.spec import loads, template

COUNTS = {"people": 3, "groups": 2, "accounting_jobs": 7, "kubernetes_objects": 12}
MANIFEST = {"version": 1, "cluster": "demo", "time": "2026-01-02T03:04:05Z", "counts": COUNTS, "sha256": {}}


def packed(manifest: Any = MANIFEST, name: str = "manifest.json") -> bytes:
    """The same bytes at any time."""
    out = io.BytesIO()
    content = json.dumps(manifest).encode()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as made:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        made.addfile(member, io.BytesIO(content))
    return out.getvalue()


class ProgramController:
    """A controller whose program is these lines of Python, on this machine."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.asked: list[list[str]] = []

    def ssh_argv(self, _host: str | None, words: list[str]) -> list[str]:
        self.asked.append(words)
        return [sys.executable, "-c", self.program]


SPEC = loads(template(name="demo", provider="local"), "cluster.yml")


def backups(program: str) -> tuple[Backups, ProgramController]:
    controller = ProgramController(program)
    return Backups(SPEC, controller), controller  # type: ignore[arg-type]


def writes(content: bytes, then: str = "") -> str:
    return f"import sys, time; sys.stdout.buffer.write({content!r}); sys.stdout.flush(); {then}"


def says(message: str, status: int) -> str:
    line = json.dumps({"error": {"message": message, "hint": "do this"}})
    return f"import sys; sys.stderr.write('a note\\n' + {line!r} + '\\n'); sys.exit({status})"


def test_a_backup_is_private_from_the_first_byte_on(tmp_path: Path) -> None:
    file = tmp_path / "x.tar.gz"
    look = f"import os; sys.exit(any(one.stat().st_mode & 0o77 for one in os.scandir({str(tmp_path)!r})))"
    some, controller = backups(writes(packed(), look))
    made = some.create(file)
    assert made.to_dict() == {
        "file": str(file), "bytes": len(packed()), "cluster": "demo", "time": "2026-01-02T03:04:05Z", **COUNTS,
    }  # fmt: skip
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert controller.asked == [["sudo -n /usr/local/sbin/gpucluster-backup create"]]
    assert os.listdir(tmp_path) == ["x.tar.gz"]


@pytest.mark.parametrize(
    ("program", "kind", "message"),
    [
        (writes(packed()[:100], "sys.exit(1)"), ToolError, "ended without a reason"),
        (writes(packed(), "sys.exit(255)"), ToolError, "the controller can't be reached"),
        (writes(b"Welcome to the jungle\n"), ToolError, "did not send a backup"),
        (writes(b""), ToolError, "did not send a backup"),
        (says("slapcat: it broke", 1), ToolError, "slapcat: it broke"),
        ("import sys; sys.stderr.write('sudo: x: command not found\\n'); sys.exit(1)", ToolError, "no program"),
    ],
)
def test_of_a_backup_that_failed_no_file_is_left(
    program: str, kind: type[GpuClusterError], message: str, tmp_path: Path
) -> None:
    some, _ = backups(program)
    with pytest.raises(kind, match=message):
        some.create(tmp_path / "x.tar.gz")
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_there_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "x.tar.gz"
    file.write_text("precious")
    some, controller = backups(writes(packed()))
    with pytest.raises(InputError, match="exists already"):
        some.create(file)
    assert (file.read_text(), controller.asked) == ("precious", [])
    # Nor one that comes while the controller writes.
    late = tmp_path / "late.tar.gz"
    some, _ = backups(writes(packed(), f"open({str(late)!r}, 'w').write('mine')"))
    with pytest.raises(InputError, match="exists already"):
        some.create(late)
    assert late.read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["late.tar.gz", "x.tar.gz"]


def test_a_backup_needs_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    file, late = tmp_path / "x.tar.gz", tmp_path / "late.tar.gz"
    some, _ = backups(writes(packed()))
    some.create(file)
    assert file.read_bytes() == packed()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    some, _ = backups(writes(packed(), f"open({str(late)!r}, 'w').write('mine')"))
    with pytest.raises(InputError, match="exists already"):
        some.create(late)
    assert late.read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["late.tar.gz", "x.tar.gz"]


def test_a_folder_that_is_not_there_is_reported(tmp_path: Path) -> None:
    some, _ = backups(writes(packed()))
    with pytest.raises(InputError, match="can't be written there: No such file"):
        some.create(tmp_path / "nowhere" / "x.tar.gz")


@pytest.mark.parametrize(
    "content",
    [b"", b"text", packed()[:40], packed({"x": 1}), packed(name="other.json")],
    ids=["nothing", "text", "cut off", "no manifest of ours", "another name"],
)
def test_what_is_not_a_backup_is_not_sent(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "x.tar.gz"
    file.write_bytes(content)
    some, controller = backups("raise SystemExit(9)")
    with pytest.raises(InputError, match="not a backup of a cluster"):
        some.restore(file)
    with pytest.raises(InputError, match="No such file"):
        some.restore(tmp_path / "nowhere")
    assert controller.asked == []


def test_a_restore_sends_the_whole_file_and_tells_what_there_is_then(tmp_path: Path) -> None:
    file, seen = tmp_path / "x.tar.gz", tmp_path / "seen"
    file.write_bytes(packed() + b"\0" * 3_000_000)
    said = {"kept_aside": "/var/lib/x.tar.gz", "returned": ("bob",), "dropped": (), "unfinished": ("eve: no room",)}
    whole = {**COUNTS, **said, "ended_jobs": 2}
    answer = json.dumps(whole)
    program = f"import sys; open({str(seen)!r}, 'wb').write(sys.stdin.buffer.read()); print({answer!r})"
    some, controller = backups(program)
    assert some.restore(file, force=True).to_dict() == whole
    assert seen.read_bytes() == file.read_bytes()
    assert controller.asked == [["sudo -n /usr/local/sbin/gpucluster-backup restore --force"]]


@pytest.mark.parametrize(("status", "kind"), [(2, InputError), (1, ToolError)])
def test_the_controller_s_reason_and_hint_reach_the_user(
    status: int, kind: type[GpuClusterError], tmp_path: Path
) -> None:
    file = tmp_path / "x.tar.gz"
    file.write_bytes(packed())
    some, _ = backups(says("3 jobs\x1b[31m run", status))
    with pytest.raises(kind) as error:
        some.restore(file)
    assert (error.value.what, error.value.hint) == (r"3 jobs\x1b[31m run", "do this")
    some, _ = backups("print('welcome')")
    with pytest.raises(ToolError, match="can't be read"):
        some.restore(file)


def test_a_manifest_s_words_can_not_move_the_cursor(tmp_path: Path) -> None:
    file = tmp_path / "x.tar.gz"
    file.write_bytes(packed({**MANIFEST, "cluster": "\x1b[2Jdemo"}))
    assert backup.inspect(file).cluster == r"\x1b[2Jdemo"
