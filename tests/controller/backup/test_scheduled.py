"""Backups on a schedule, encrypted by the real openssl. The directory and the databases are doubles."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.backup import __main__ as program
from gpucluster.controller.backup import directory, schedule, scheduled
from gpucluster.controller.backup import site as sites
from gpucluster.node_agent import errors
from tests.controller.users.harness import SUFFIX
from tests.waiting import PATIENCE_S, wait_for

LDIF = f"dn: uid=alice,ou=people,{SUFFIX}\nuid: alice\n\n"
OLD = [f"demo-2020010{day}T023000Z.tar.gz.cms" for day in range(1, 5)]
#: Names that are not of this cluster's backups: they stay, whatever happens.
OTHERS = ["demo-2-20200101T023000Z.tar.gz.cms", "other-20200101T023000Z.tar.gz.cms", "demo.tar.gz", "notes.txt"]


class Entries(directory.Directory):
    """A directory with one user, or one that can't be read."""

    def dump(self, file: Path) -> None:
        file.write_text(LDIF)


class Broken(directory.Directory):
    def dump(self, file: Path) -> None:
        raise errors.Failed("slapcat: it broke")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`key.pem` and `certificate.pem` of RSA, and the same of an elliptic curve in `ec`."""
    folder = tmp_path_factory.mktemp("keys")
    for name, kind in (("", ["rsa:2048"]), ("ec", ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"])):
        (folder / name).mkdir(exist_ok=True)
        argv = ["openssl", "req", "-x509", "-newkey", *kind, "-nodes", "-days", "2", "-subj", "/CN=backups"]
        argv += ["-keyout", "key.pem", "-out", "certificate.pem"]
        subprocess.run(argv, check=True, capture_output=True, cwd=folder / name)
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of backups, with old ones in it, and the program's own folder beside it."""
    monkeypatch.setattr(sites, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(program, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(sites, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(program, "_PATIENCE_S", 0.0)
    # pytest runs in the same process after that.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(os, "umask", lambda _: 0)
    (tmp_path / "metrics").mkdir()
    (tmp_path / "kept").mkdir()
    made = tmp_path / "backups"
    made.mkdir(mode=0o700)
    for name in (*OLD, *OTHERS):
        (made / name).write_text("old")
    return made


def site(place: Path, keys: Path, kind: type[directory.Directory] = Entries, **more: Any) -> sites.Site:
    settings: dict[str, Any] = {"share": None, "keep": 3, "overdue": 172800, **more}
    plan = schedule.Schedule(
        certificate=keys / "certificate.pem", directory=place, metrics=place.parent / "metrics", **settings
    )
    return sites.Site("demo", kind(SUFFIX, place, place, "nobody"), None, None, plan)


def run(of: sites.Site, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sites.Site, "load", classmethod(lambda _cls, _file: of))
    return program.main(words or ("scheduled",))


def names(place: Path) -> list[str]:
    return sorted(file.name for file in place.iterdir())


def metrics(place: Path) -> dict[str, float]:
    text = (place.parent / "metrics" / "backup.prom").read_text()
    return {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if not line.startswith("#")}


@pytest.mark.parametrize("kind", ["", "ec"])
def test_only_the_operator_s_key_reads_a_backup(
    kind: str, place: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(site(place, keys / kind), monkeypatch) == 0
    made = json.loads(capsys.readouterr().out)
    file = place / made["name"]
    assert (made["bytes"], stat.S_IMODE(file.stat().st_mode)) == (file.stat().st_size, 0o600)
    assert b"alice" not in file.read_bytes()
    argv = ["openssl", "cms", "-decrypt", "-binary", "-inform", "DER", "-in", str(file), "-inkey"]
    plain = subprocess.run([*argv, str(keys / kind / "key.pem")], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        assert archive.getnames() == ["manifest.json", "directory.ldif"]
        content = archive.extractfile("directory.ldif")
        assert content
        assert content.read().decode() == LDIF
    # What is unencrypted is gone.
    assert names(place.parent / "kept") == ["schedule.json"]


def test_the_oldest_go_once_the_new_one_is_complete(
    place: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(site(place, keys), monkeypatch) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["removed"] == OLD[:2]
    assert names(place) == sorted([*OLD[2:], *OTHERS, made["name"]])
    found = metrics(place)
    assert set(found) == set(schedule.METRICS)
    assert (found["gpucluster_backup_last_exit_code"], found["gpucluster_backup_last_size_bytes"]) == (0, made["bytes"])
    # The exporter has another account.
    assert stat.S_IMODE((place.parent / "metrics" / "backup.prom").stat().st_mode) == 0o644


def test_a_new_backup_stays_where_the_clock_has_gone_back(
    place: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    later = "demo-29990101T000000Z.tar.gz.cms"
    (place / later).write_text("of another time")
    assert run(site(place, keys, keep=1), monkeypatch) == 0
    assert {json.loads(capsys.readouterr().out)["name"], later} <= set(names(place))


def failing(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An openssl that fails when it encrypts."""
    real = shutil.which("openssl")
    fake = tmp_path / "bin" / "openssl"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\n[ "$1" = cms ] || exec {real} "$@"\n{words}\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("head -c 9; echo 'No space left on device' >&2; exit 6", "No space left on device"),
        ("head -c 9", "has not written the whole backup"),
        ("kill -9 $$", "openssl: status -9"),
    ],
    ids=["full", "short", "killed"],
)
def test_a_run_that_fails_leaves_all_older_backups_and_no_part(
    words: str, message: str, place: Path, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    schedule.record(site(place, keys).schedule, sites.KEPT, 0, 77)  # type: ignore[arg-type]
    before = metrics(place)
    failing(words, tmp_path, monkeypatch)
    assert run(site(place, keys), monkeypatch) == 1
    assert message in capsys.readouterr().err
    assert names(place) == sorted([*OLD, *OTHERS])
    # When the last good one was made stays known.
    assert metrics(place) == {**before, "gpucluster_backup_last_exit_code": 1}


def test_what_a_killed_run_has_left_goes_with_the_next(
    place: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale, foreign = "demo-20200105T023000Z.tar.gz.cms.part", "other-20200105T023000Z.tar.gz.cms.part"
    for name in (stale, foreign):
        (place / name).write_text("a part")
    assert run(site(place, keys, Broken), monkeypatch) == 1
    assert (stale in names(place), foreign in names(place), set(OLD) <= set(names(place))) == (False, True, True)


def test_an_archive_that_could_not_be_decrypted_is_refused(
    place: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scheduled, "LARGEST", 10)
    assert run(site(place, keys), monkeypatch) == 1
    assert "openssl decrypts at most 10" in capsys.readouterr().err
    assert names(place) == sorted([*OLD, *OTHERS])


def test_two_never_run_at_once(
    place: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with sites.exclusive():
        assert run(site(place, keys), monkeypatch) == 1
    assert "another backup or restore runs" in capsys.readouterr().err
    assert metrics(place)["gpucluster_backup_last_exit_code"] == 1


def test_a_run_waits_for_a_backup_that_an_operator_makes(place: Path) -> None:
    asked, taken = threading.Event(), threading.Event()
    real = fcntl.flock

    def watched(descriptor: int, operation: int) -> None:
        try:
            real(descriptor, operation)
        finally:
            asked.set()

    def wait() -> None:
        with sites.exclusive(patience=PATIENCE_S):
            taken.set()

    other = threading.Thread(target=wait)
    with pytest.MonkeyPatch.context() as patch:
        with sites.exclusive():
            patch.setattr(fcntl, "flock", watched)
            other.start()
            assert asked.wait(PATIENCE_S)
            assert not taken.is_set()
        wait_for("the other one has the lock", taken.is_set)
        other.join()


def test_a_directory_that_is_not_there_is_not_made(
    place: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = place / "mount" / "demo"
    assert run(site(gone, keys), monkeypatch) == 1
    assert "is not there" in capsys.readouterr().err
    assert "mount" not in names(place)


@pytest.mark.parametrize("open_to", [0o770, 0o707])
def test_a_directory_of_others_is_refused(
    open_to: int, place: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place.chmod(open_to)
    assert run(site(place, keys), monkeypatch) == 1
    assert "others than root can write" in capsys.readouterr().err
    assert names(place) == sorted([*OLD, *OTHERS])


def test_a_link_in_the_path_leads_nowhere(
    place: Path, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link").symlink_to(place)
    assert run(site(tmp_path / "link", keys), monkeypatch) == 1
    assert "the directory of backups" in capsys.readouterr().err
    assert names(place) == sorted([*OLD, *OTHERS])


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home share, which is mounted."""
    found = tmp_path / "home"
    found.mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path == found)
    return found


def test_the_default_directory_is_made_for_root_alone(
    mounted: Path, place: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = mounted / ".gpucluster-backups" / "demo"
    of = site(target, keys, share=mounted)
    # Nothing is there before the first run.
    assert (run(of, monkeypatch, "list"), json.loads(capsys.readouterr().out)) == (0, {"backups": []})
    assert run(of, monkeypatch) == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o700
    assert len(names(target)) == 1
    # A share that is not mounted is not filled in its place.
    monkeypatch.setattr(Path, "is_mount", lambda _path: False)
    assert run(of, monkeypatch) == 1
    assert "is not mounted here" in capsys.readouterr().err
    assert len(names(target)) == 1


def test_backups_are_listed_and_sent_as_they_are(
    place: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (place / "demo-20200109T023000Z.tar.gz.cms").symlink_to("/etc/passwd")
    assert run(site(place, keys), monkeypatch, "list") == 0
    found = json.loads(capfdbinary.readouterr().out)["backups"]
    assert [each["name"] for each in found] == OLD[::-1]
    assert found[-1] == {"name": OLD[0], "time": "2020-01-01T02:30:00Z", "bytes": 3}
    out = io.BytesIO()
    scheduled.send(site(place, keys), OLD[0], out)
    assert out.getvalue() == b"old"
    for name in ("", "../kept/schedule.json", "notes.txt", "demo-20200108T023000Z.tar.gz.cms", OLD[0] + ".part"):
        with pytest.raises(errors.Refused, match="there is no backup"):
            scheduled.send(site(place, keys), name, out)
    with pytest.raises(OSError, match="symbolic links"):
        scheduled.send(site(place, keys), "demo-20200109T023000Z.tar.gz.cms", out)


def test_a_cluster_without_a_schedule_says_so(
    place: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    none = sites.Site("demo", site(place, keys).directory, None)
    for words in (["scheduled"], ["list"], ["fetch", OLD[0]]):
        assert run(none, monkeypatch, *words) == 2
        assert "makes no backups on a schedule" in capsys.readouterr().err


def test_an_interrupted_restore_of_the_control_plane_is_left_to_an_operator(
    place: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Half:
        def interrupted(self) -> bool:
            return True

    of = site(place, keys)
    assert run(sites.Site("demo", of.directory, None, Half(), of.schedule), monkeypatch) == 1  # type: ignore[arg-type]
    assert "a restore was interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "option"),
    [
        ("OpenSSL 1.1.1w  11 Sep 2023", "-aes256"),
        ("OpenSSL 1.1.1k  FIPS 25 Mar 2021", "-aes256"),
        ("OpenSSL 3.0.19 27 Jan 2026 (Library: OpenSSL 3.0.19 27 Jan 2026)", "-aes-256-gcm"),
        ("OpenSSL 10.0.0", "-aes-256-gcm"),
        ("LibreSSL 4.0", "-aes256"),
    ],
)
def test_authenticated_encryption_is_used_where_openssl_has_it(version: str, option: str) -> None:
    assert scheduled.cipher(version) == option


def test_the_role_s_settings_are_read(tmp_path: Path) -> None:
    told = {
        "certificate": "/etc/c.pem", "directory": "/mnt/home/.x/demo", "share": "/mnt/home", "keep": 14,
        "overdue_seconds": 172800, "metrics": "/var/lib/gpucluster/metrics",
    }  # fmt: skip
    config = {"cluster": "demo", "directory": {"suffix": SUFFIX, "config": "/a", "data": "/b", "user": "x"}}
    file = tmp_path / "backup.json"
    file.write_text(json.dumps({**config, "accounting": None, "schedule": told}))
    read = sites.Site.load(file).schedule
    assert read
    assert (read.share, read.keep, read.overdue) == (Path("/mnt/home"), 14, 172800)
    file.write_text(json.dumps({**config, "accounting": None, "schedule": None}))
    assert sites.Site.load(file).schedule is None
