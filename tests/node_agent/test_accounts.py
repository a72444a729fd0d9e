"""Users of a host, and work in their name in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster.node_agent.accounts import Account, account, account_of, environment, work_as
from gpucluster.node_agent.errors import Failed, Refused
from tests.controller.jobs.share_harness import USER, home, share
from tests.waiting import PATIENCE_S, hang


@pytest.fixture
def owner() -> Iterator[Account]:
    with share("1m") as place:
        yield home(place)


def work(owner: Account, text: str) -> bytes:
    return work_as(owner, text.encode, seconds=PATIENCE_S, most=10)


def test_work_that_hangs_or_prints_without_end_is_given_up(owner: Account) -> None:
    with pytest.raises(Failed, match="no answer in time"):
        work_as(owner, lambda: bytes(hang() or b""), seconds=0.3, most=10)  # type: ignore[func-returns-value]
    with pytest.raises(Failed, match="more than 10 bytes"):
        work_as(owner, lambda: bytes(1 << 20), seconds=PATIENCE_S, most=10)


@pytest.mark.parametrize("name", ["", "no-such-user", "a\0b", None, 7, ["nobody"]])
def test_a_name_of_no_user_is_refused(name: object) -> None:
    with pytest.raises(Refused, match="there is no user"):
        account(name)


def test_root_is_not_a_user() -> None:
    with pytest.raises(Refused, match="root has no jobs"):
        account("root")
    with pytest.raises(Refused, match="root has no jobs"):
        account_of(0)


@pytest.mark.parametrize("uid", [2**31 - 7, 2**40, -(2**40)])
def test_a_number_of_no_user_is_refused(uid: int) -> None:
    with pytest.raises(Refused, match=f"no user with the uid {uid}"):
        account_of(uid)


def test_a_user_is_the_same_by_name_and_by_number() -> None:
    assert account(USER) == account_of(account(USER).uid)
    assert account(USER).gid in account(USER).groups


def test_a_program_of_a_user_gets_nothing_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("PATH", "/opt/slurm/bin:/bin")
    variables = environment(Account("ada", 1001, 1001, (1001,), "/mnt/home/ada"))
    assert variables == {
        "HOME": "/mnt/home/ada", "USER": "ada", "LOGNAME": "ada", "SHELL": "/bin/sh", "PATH": "/opt/slurm/bin:/bin",
        "LC_ALL": "C",
    }  # fmt: skip


def test_work_has_the_rights_of_the_user_alone(owner: Account, tmp_path: Path) -> None:
    def rights() -> bytes:
        mask = os.umask(0)
        return f"{os.getuid()} {os.getgid()} {sorted(os.getgroups())} {mask:o} {os.getcwd()}".encode()

    groups = sorted(owner.groups)
    result = work_as(owner, rights, seconds=PATIENCE_S, most=1000).decode()
    assert result == f"{owner.uid} {owner.gid} {groups} 77 /"
    (tmp_path / "secret").write_text("root's")
    (tmp_path / "secret").chmod(0o600)
    with pytest.raises(Failed, match="Permission denied"):
        work_as(owner, (tmp_path / "secret").read_bytes, seconds=PATIENCE_S, most=1000)


def test_the_result_may_have_the_size_that_is_allowed(owner: Account) -> None:
    assert work(owner, "x" * 10) == b"x" * 10
    assert work(owner, "") == b""


def test_errors_of_the_work_come_with_their_words(owner: Account) -> None:
    def refuse() -> bytes:
        raise Refused("not now", "Try tomorrow")

    with pytest.raises(Failed, match="not now") as raised:
        work_as(owner, refuse, seconds=PATIENCE_S, most=1000)
    assert raised.value.hint == "Try tomorrow"
    with pytest.raises(Failed, match="/none: No such file"):
        work_as(owner, Path("/none").read_bytes, seconds=PATIENCE_S, most=1000)


def test_work_that_ends_without_an_answer_has_no_result(owner: Account) -> None:
    def bug() -> bytes:
        raise KeyError("a bug")

    with pytest.raises(Failed, match="it has no result"):
        work_as(owner, bug, seconds=PATIENCE_S, most=1000)
