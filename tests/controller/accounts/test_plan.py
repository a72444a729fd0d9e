"""Accounts of cluster.yml and of Slurm: what is set, what is left alone, and what may be removed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpucluster.controller.accounts.plan import Account, Accounts, InUse, merged, plan

NOTHING = Accounts()
WHERE = "cluster=demo"


def commands(
    want: Accounts, before: Accounts = NOTHING, have: Accounts = NOTHING, used: InUse | None = None
) -> list[str]:
    return [" ".join(words) for words in plan(want, before, have, used or InUse(), cluster="demo").commands]


def account(parent: str = "root", **settings: str) -> Account:
    return Account(parent, settings)


def test_an_account_comes_after_the_one_above_it_and_after_its_qos() -> None:
    want = Accounts({"b": account("a"), "a": account(Fairshare="2")}, {"x": {"Preempt": "y"}, "y": {}})
    assert commands(want) == [
        "add qos x",
        "add qos y",
        "modify qos x set Preempt=y",
        "add account a cluster=demo parent=root description=a organization=gpucluster",
        "modify account where name=a cluster=demo set Fairshare=2",
        "add account b cluster=demo parent=a description=b organization=gpucluster",
    ]


def test_only_what_differs_is_set_and_what_the_file_never_had_stays() -> None:
    have = Accounts({"a": account(**{"GrpTRES.cpu": "4", "GrpTRES.gres/gpu": "2", "GrpJobs": "9", "QOS": "b,a"})})
    want = Accounts({"a": account(**{"GrpTRES.gres/gpu": "3", "QOS": "a,b"})})
    assert commands(want, have=have) == ["modify account where name=a cluster=demo set GrpTRES=gres/gpu=3"]
    assert commands(have, have=have) == []


@pytest.mark.parametrize(
    ("setting", "value", "word"),
    [
        ("Fairshare", "7", "Fairshare=1"),
        ("GrpJobs", "7", "GrpJobs=-1"),
        ("GrpTRES.cpu", "7", "GrpTRES=cpu=-1"),
        ("QOS", "a", "QOS="),
    ],
)
def test_a_setting_that_leaves_the_file_gets_slurms_default(setting: str, value: str, word: str) -> None:
    before = have = Accounts({"a": account(**{setting: value})})
    assert commands(Accounts({"a": account()}), before, have) == [
        f"modify account where name=a cluster=demo set {word}"
    ]
    # Not what an administrator has set, nor a second time.
    assert commands(Accounts({"a": account()}), NOTHING, have) == []
    assert commands(Accounts({"a": account()}), before, Accounts({"a": account()})) == []


def test_an_account_moves_below_another() -> None:
    have = Accounts({"a": account(), "b": account()})
    want = Accounts({"a": account(), "b": account("a")})
    assert commands(want, have=have) == ["modify account where name=b cluster=demo set parent=a"]


GONE = Accounts({"a": account(), "b": account("a")}, {"x": {}}, {"b": ["alice"]})


def test_what_leaves_the_file_and_is_not_used_is_removed_from_below() -> None:
    made = plan(NOTHING, GONE, GONE, InUse(qos={"x": ["b"]}), cluster="demo")
    assert [" ".join(words) for words in made.commands] == [
        "delete user where name=alice cluster=demo account=b",
        "delete account where name=b cluster=demo",
        "delete account where name=a cluster=demo",
        "delete qos x",
    ]
    assert (made.kept, made.after) == ((), NOTHING)


@pytest.mark.parametrize(
    ("used", "members", "kept"),
    [
        (InUse(jobs=[("b", "alice", "normal")]), ["alice"], ["user alice of account b", "account b", "account a"]),
        (InUse(jobs=[("b", "zoe", "normal")]), [], ["account b", "account a"]),
        (InUse(jobs=[("a", "zoe", "normal")]), [], ["account a"]),
        (InUse(jobs=[("c", "zoe", "x")]), [], ["QOS x"]),
        (InUse(jobs=None), [], ["account b", "account a", "QOS x"]),
        (InUse({"alice": "b"}), ["alice"], ["account b", "account a"]),
        (InUse(), ["zoe"], ["account b", "account a"]),
        (InUse(qos={"x": ["b", "user zoe"]}), [], ["QOS x"]),
    ],
)
def test_what_is_used_stays_is_said_and_is_tried_again(used: InUse, members: Sequence[str], kept: list[str]) -> None:
    have = Accounts(GONE.accounts, GONE.qos, {"b": members} if members else {})
    made = plan(NOTHING, GONE, have, used, cluster="demo")
    assert [line.partition(" has left")[0] for line in made.kept] == kept
    assert not any(
        words[0] == "delete" and words[-2].endswith(f"={one[8:]}") for words in made.commands for one in kept
    )
    for one in kept:
        kind, name = one.split(" ")[0], one.split(" ")[-1]
        assert name in {"account": made.after.accounts, "QOS": made.after.qos, "user": made.after.members}[kind]
    again = plan(NOTHING, made.after, have, used, cluster="demo")
    assert [line.partition(" has left")[0] for line in again.kept] == kept
    assert again.after == made.after


def test_the_default_account_and_what_an_administrator_made_are_never_removed() -> None:
    have = Accounts({"default": account(), "lab": account()}, {"night": {}})
    before = Accounts({"default": account()})
    assert plan(NOTHING, before, have, InUse(), cluster="demo", keep="default").commands == ()


def test_a_run_that_was_killed_leaves_nothing_that_is_not_known() -> None:
    before = Accounts({"a": account(GrpJobs="1")}, {"x": {"Priority": "1"}}, {"a": ["alice"]})
    after = Accounts({"a": account(Fairshare="2"), "b": account()}, {}, {"a": ["bob"]})
    known = merged(before, after)
    assert known.accounts["a"].settings == {"GrpJobs": "1", "Fairshare": "2"}
    assert (set(known.accounts), set(known.qos), list(known.members["a"])) == ({"a", "b"}, {"x"}, ["alice", "bob"])
    assert Accounts.parse(known.to_dict()) == known
