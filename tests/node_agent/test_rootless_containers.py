"""Rootless containers: ranges of subordinate ids for all users, and what is refused."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.node_agent import errors, programs
from gpucluster.node_agent import rootless_containers as rootless
from tests.waiting import PATIENCE_S

LINE = st.tuples(st.text("abz019_-", min_size=1, max_size=9), st.integers(0, 2**32 - 1), st.integers(0, 200_000))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    made = (tmp_path / "subuid", tmp_path / "subgid")
    monkeypatch.setattr(rootless, "FILES", made)
    monkeypatch.setattr(rootless, "LOCK", tmp_path / "lock")
    return made


def ranges(file: Path) -> list[tuple[int, int]]:
    return sorted((first, first + count) for _owner, first, count in rootless.parse(file.read_text()))


def test_users_get_neighbouring_ranges_by_their_number() -> None:
    assert rootless.free_start(10002, []) - rootless.free_start(10001, []) == rootless.SIZE
    # Beyond what useradd gives to local accounts, below what systemd keeps for itself.
    assert rootless.free_start(0, []) > 600_100_000
    assert rootless.free_start(rootless.RANGES - 1, []) + rootless.SIZE <= 1_879_048_192


@given(uids=st.lists(st.integers(1000, 2**31 - 1), unique=True, max_size=30), lines=st.lists(LINE, max_size=10))
def test_whatever_is_in_the_files_no_two_ranges_overlap(uids: list[int], lines: list[tuple[str, int, int]]) -> None:
    text = "".join(f"{owner}:{first}:{count}\n" for owner, first, count in lines)
    given_out: list[tuple[int, int]] = []
    for uid in uids:
        start = rootless.free_start(uid, [text])
        given_out.append((start, start + rootless.SIZE))
        text += f"{uid}:{start}:{rootless.SIZE}\n"
    others = [(first, first + count) for _owner, first, count in lines if count]
    for one in given_out:
        assert all(end <= one[0] or first >= one[1] for first, end in (*given_out, *others) if (first, end) != one)


def test_who_comes_second_to_a_slot_gets_the_next_one() -> None:
    first = rootless.free_start(10001, [])
    taken = f"10001:{first}:{rootless.SIZE}\n"
    assert rootless.free_start(10001 + rootless.RANGES, [taken]) == first + rootless.SIZE


def test_a_range_that_is_in_use_is_given_to_no_user() -> None:
    first = rootless.free_start(10001, [])
    for account in (first, first + rootless.SIZE - 1):
        assert rootless.free_start(10001, [], [0, account, 2**32 - 2]) == first + rootless.SIZE
    assert rootless.free_start(10001, [], [first - 1, first + rootless.SIZE]) == first
    with pytest.raises(errors.Refused):
        rootless.free_start(10001, [f"everything:0:{2**32}\n"], rootless.NUMBERS[:5])


def test_a_user_with_the_uid_of_another_container_gets_no_range(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = rootless.NUMBERS[-1]
    account = pwd.struct_passwd(("late", "x", uid, 9999, "", "/home/late", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", {uid: account}.__getitem__)
    with pytest.raises(errors.Refused, match="give this user another uid"):
        rootless.prepare(uid, tmp_path)
    assert not files[0].exists()


def test_a_full_host_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.Refused, match="remove the lines of removed users"):
        rootless.free_start(10001, [f"everything:0:{2**32}\n"])


def test_what_is_there_stays_and_both_files_agree(files: tuple[Path, Path]) -> None:
    files[0].write_text("opc:100000:65536")  # without an end of line, as some editors leave it
    files[1].write_text("opc:100000:65536\n# a remark\nbroken line\n")
    for _again in range(2):
        rootless.give_ranges(10001, "alice")
    assert files[0].read_text().splitlines()[0] == "opc:100000:65536"
    assert "broken line" in files[1].read_text()
    assert [len(ranges(file)) for file in files] == [2, 2]
    assert ranges(files[0]) == ranges(files[1])
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o644


def test_a_range_by_name_counts_as_well(files: tuple[Path, Path]) -> None:
    for file in files:
        file.write_text("alice:300000:65536\n")
    rootless.give_ranges(10001, "alice")
    assert ranges(files[0]) == [(300000, 365536)]


def test_many_who_log_in_at_once_do_not_collide(files: tuple[Path, Path]) -> None:
    # Processes, as on a host: a file lock belongs to a process.
    script = (
        "import sys; sys.dont_write_bytecode = True\n"
        "from pathlib import Path\n"
        "from gpucluster.node_agent import rootless_containers as rootless\n"
        f"rootless.FILES = (Path({str(files[0])!r}), Path({str(files[1])!r}))\n"
        f"rootless.LOCK = Path({str(files[0].with_name('lock'))!r})\n"
        "for uid in range(int(sys.argv[1]), int(sys.argv[1]) + 5): rootless.give_ranges(uid, 'u')\n"
    )
    # All of them start in the same slot, so that each must see the ranges of the others.
    argv = ["python3", "-c", script]
    runs = [
        subprocess.Popen([*argv, str(10000 + n * rootless.RANGES)], cwd=Path(__file__).parents[2]) for n in range(4)
    ]
    assert [run.wait(timeout=PATIENCE_S) for run in runs] == [0, 0, 0, 0]
    found = ranges(files[0])
    assert len(found) == 20
    assert all(end <= first for (_start, end), (first, _end) in zip(found, found[1:]))
    assert found == ranges(files[1])


@pytest.mark.parametrize("uid", [0, 999, 65534, 2**31, 2**32 - 1])
def test_the_system_s_own_accounts_get_nothing(files: tuple[Path, Path], tmp_path: Path, uid: int) -> None:
    rootless.prepare(uid, tmp_path / "storage")
    assert not files[0].exists()


def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "user-10001").mkdir()
    with pytest.raises(errors.Refused, match="not a directory of user 10001"):
        rootless.give_directory(tmp_path, 10001, 9999)
    (tmp_path / "user-10002").symlink_to("/etc")
    with pytest.raises(errors.Refused):
        rootless.give_directory(tmp_path, 10002, 9999)
    own = os.getuid()
    rootless.give_directory(tmp_path, own, os.getgid())
    (tmp_path / f"user-{own}").chmod(0o755)
    rootless.give_directory(tmp_path, own, os.getgid())
    assert stat.S_IMODE((tmp_path / f"user-{own}").stat().st_mode) == 0o700


def test_only_a_file_of_one_s_own_counts_as_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(programs, "run", lambda *argv: asked.append(list(argv)))
    monkeypatch.setattr(rootless, "USERS", range(2**31))
    (tmp_path / "10001").write_text("")
    (tmp_path / "0").symlink_to("/etc/passwd")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    rootless.linger(tmp_path)
    assert asked == []
    assert list(tmp_path.iterdir()) == []
    (tmp_path / str(os.getuid())).write_text("")
    rootless.linger(tmp_path)
    assert asked == [["loginctl", "enable-linger", str(os.getuid())]]


def test_one_request_that_fails_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def logind(*argv: str) -> None:
        asked.append(argv[-1])
        if argv[-1] == "10001":
            raise errors.Failed("loginctl: no such user")

    monkeypatch.setattr(programs, "run", logind)
    monkeypatch.setattr(rootless, "USERS", range(2**31))
    for uid in (10001, 10002):
        request = tmp_path / str(uid)
        request.write_text("")
        os.chown(request, uid, uid)
    assert rootless.main(["linger", str(tmp_path)]) == 0
    assert asked == ["10001", "10002"]
    assert "gpucluster-agent rootless: 10001: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_it_fails_with_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rootless.main(["prepare", "1234567890", str(tmp_path)]) == 1
    assert "there is no user 1234567890" in capsys.readouterr().err
