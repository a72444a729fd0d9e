"""Encrypted backups: listed and fetched from a controller that is a double, decrypted by the real openssl."""

from __future__ import annotations

import json
import os
import pty
import select
import stat
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import GpuClusterError, InputError, ToolError
from gpucluster.operations.backup_decryption import plain_backup
from gpucluster.operations.scheduled_backups import ScheduledBackups
from tests.operations.test_backup import COUNTS, SPEC, ProgramController, backups, packed, says, writes
from tests.waiting import wait_for

NEW = {"name": "demo-20260102T023000Z.tar.gz.cms", "time": "2026-01-02T02:30:00Z", "bytes": 6}
OLD = {"name": "demo-20260101T023000Z.tar.gz.cms", "time": "2026-01-01T02:30:00Z", "bytes": 3}


class Shelf(ProgramController):
    """A controller with these backups, which sends the same bytes for each."""

    def __init__(self, found: list[dict[str, Any]], content: str = "sys.stdout.write('sealed')") -> None:
        super().__init__("")
        self._found, self._content = found, content

    def ssh_argv(self, host: str | None, words: list[str]) -> list[str]:
        listed = f"print({json.dumps({'backups': self._found})!r})"
        self.program = f"import sys; {listed if words[0].endswith(' list') else self._content}"
        return super().ssh_argv(host, words)


def shelf(controller: ProgramController) -> ScheduledBackups:
    return ScheduledBackups(SPEC, controller)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["latest", NEW["name"]])
def test_a_backup_is_fetched_as_it_is(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    controller = Shelf([NEW, OLD])
    brought = shelf(controller).fetch(name)
    assert brought.to_dict() == {"file": NEW["name"], **NEW}
    file = tmp_path / str(NEW["name"])
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("sealed", 0o600)
    program = "sudo -n /usr/local/sbin/gpucluster-backup"
    assert controller.asked == [[f"{program} list"], [f"{program} fetch {NEW['name']}"]]
    with pytest.raises(InputError, match="exists already"):
        shelf(controller).fetch(name)
    assert os.listdir(tmp_path) == [NEW["name"]]


def test_those_on_the_controller_are_listed() -> None:
    assert [each.to_dict() for each in shelf(Shelf([NEW, OLD])).present()] == [NEW, OLD]
    assert shelf(Shelf([])).present() == ()


@pytest.mark.parametrize(
    ("found", "content", "kind", "message"),
    [
        ([], "", InputError, "has made no backup yet"),
        ([{**NEW, "name": "demo-1"}], "", InputError, "there is no backup other"),
        ([{**NEW, "name": "other"}], "sys.stdout.write('cut')", ToolError, "of 6 bytes, 3 have arrived"),
        ([{**NEW, "name": "other"}], says("it is gone", 2)[len("import sys; ") :], InputError, "it is gone"),
        ([{**NEW, "name": "x; reboot"}], "", ToolError, "names that are none"),
        ([{**NEW, "name": "../x"}], "", ToolError, "names that are none"),
        ([{"name": "other"}], "", ToolError, "can't be read"),
    ],
)
def test_of_what_can_not_be_fetched_no_file_is_left(
    found: list[dict[str, Any]], content: str, kind: type[GpuClusterError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=message):
        shelf(Shelf(found, content)).fetch("other", tmp_path / "x")
    assert os.listdir(tmp_path) == []


def test_a_cluster_without_a_schedule_is_named() -> None:
    with pytest.raises(InputError, match="makes no backups"):
        shelf(ProgramController(says("this cluster makes no backups on a schedule", 2))).present()


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=folder)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a backup, encrypted by both methods, its key, the same with a passphrase, and another key."""
    folder = tmp_path_factory.mktemp("sealed")
    for name in ("key", "other"):
        argv = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=backup")
        openssl(folder, *argv, "-keyout", f"{name}.pem", "-out", f"{name}.crt")
    openssl(folder, "rsa", "-aes256", "-passout", "pass:open sesame", "-in", "key.pem", "-out", "guarded.pem")
    (folder / "plain.tar.gz").write_bytes(packed())
    for cipher in ("aes-256-gcm", "aes256"):
        argv = ("cms", "-encrypt", "-binary", "-stream", f"-{cipher}", "-outform", "DER", "-recip", "key.crt")
        openssl(folder, *argv, "-in", "plain.tar.gz", "-out", f"{cipher}.cms")
    return folder


@pytest.mark.parametrize("cipher", ["aes-256-gcm", "aes256"])
def test_an_encrypted_backup_is_restored_with_its_key(
    cipher: str, sealed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    answer = json.dumps({**COUNTS, "kept_aside": "/x"})
    # What is decrypted has no name, also while the controller reads it.
    look = f"import os, sys; open({str(tmp_path / 'seen')!r}, 'w').write(str(os.listdir({str(tmp_path)!r})));"
    program = f"{look} open({str(tmp_path / 'read')!r}, 'wb').write(sys.stdin.buffer.read()); print({answer!r})"
    some, _ = backups(program)
    assert some.restore(sealed / f"{cipher}.cms", key=sealed / "key.pem").people == COUNTS["people"]
    assert (tmp_path / "read").read_bytes() == packed()
    assert (tmp_path / "seen").read_text() == "['seen']"
    assert sorted(os.listdir(tmp_path)) == ["read", "seen"]


@pytest.mark.parametrize("cipher", ["aes-256-gcm", "aes256"])
@pytest.mark.parametrize(
    ("key", "message"),
    [
        (None, "the backup is encrypted"),
        ("other.pem", "the key does not decrypt this backup"),
        ("key.crt", "openssl can't use the key"),
        ("nowhere.pem", "the key can't be read: No such file"),
    ],
)
def test_nothing_is_sent_without_the_right_key(
    cipher: str, key: str | None, message: str, sealed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    some, controller = backups("raise SystemExit(9)")
    with pytest.raises(InputError, match=message) as caught:
        some.restore(sealed / f"{cipher}.cms", key=sealed / key if key else None)
    assert caught.value.hint
    assert (controller.asked, os.listdir(tmp_path)) == ([], [])


def test_a_changed_or_cut_backup_is_not_sent(sealed: Path, tmp_path: Path) -> None:
    content = bytearray((sealed / "aes-256-gcm.cms").read_bytes())
    cut, changed = tmp_path / "cut", tmp_path / "changed"
    cut.write_bytes(content[:-40])
    content[-60] ^= 1
    changed.write_bytes(content)
    some, controller = backups(writes(b""))
    for file in (cut, changed):
        with pytest.raises(InputError, match="the key does not decrypt this backup"):
            some.restore(file, key=sealed / "key.pem")
    assert controller.asked == []


def test_a_key_changes_nothing_for_a_backup_that_is_not_encrypted(sealed: Path) -> None:
    with plain_backup(sealed / "plain.tar.gz", sealed / "key.pem") as stream:
        assert stream.read() == packed()


_ON_A_TERMINAL = """
import sys
from pathlib import Path
from gpucluster.errors import InputError
from gpucluster.operations.backup_decryption import plain_backup
try:
    with plain_backup(Path(sys.argv[1]), Path(sys.argv[2])) as stream:
        print("decrypted", len(stream.read()))
except InputError as error:
    print("refused:", error.what)
"""


@pytest.mark.parametrize(
    ("typed", "message"),
    [("open sesame", f"decrypted {len(packed())}"), ("wrong", "refused: openssl can't use the key")],
)
def test_the_passphrase_is_asked_for_on_the_terminal(typed: str, message: str, sealed: Path) -> None:
    argv = [sys.executable, "-c", _ON_A_TERMINAL, str(sealed / "aes-256-gcm.cms"), str(sealed / "guarded.pem")]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(argv[0], argv)
    shown = b""

    def ended() -> bool:
        """Read what is shown, and type once the terminal shows nothing of it."""
        nonlocal shown
        if select.select([terminal], [], [], 0)[0]:
            try:
                shown += os.read(terminal, 4096)
            except OSError:  # Linux's way to say that nobody has it open any more
                return True
        elif shown.endswith(b"guarded.pem:") and not termios.tcgetattr(terminal)[3] & termios.ECHO:
            shown += b"\n"
            os.write(terminal, f"{typed}\n".encode())
        return False

    wait_for("the program has ended", ended, state=shown.decode)
    os.close(terminal)
    os.waitpid(pid, 0)
    assert message in shown.decode()
    assert typed not in shown.decode()


def test_without_a_terminal_nobody_is_asked(sealed: Path) -> None:
    argv = [sys.executable, "-c", _ON_A_TERMINAL, str(sealed / "aes-256-gcm.cms"), str(sealed / "guarded.pem")]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, start_new_session=True
    )
    assert done.stdout == "refused: openssl can't use the key\n"
