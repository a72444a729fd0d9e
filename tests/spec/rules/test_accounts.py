"""Rules for accounts and QOS: names, parents, and which QOS an account has."""
# A row of the table is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from gpucluster.spec import loads, warnings
from tests.spec.faults import findings, reported
from tests.spec.spec_texts import LOCAL, MINIMAL

OLD = "accounting: true"
# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "a name": (OLD, "accounts: {§Vision: {}}", "slurm.accounts.Vision", "at most 40 lower-case letters"),
    "a name of a QOS": (OLD, "qos: {§a b: {}}", "slurm.qos.a b", "at most 40 lower-case letters"),
    "root": (OLD, "accounts: {§root: {}}", "slurm.accounts.root", "Slurm's own"),
    "normal": (OLD, "qos: {§normal: {priority: 3}}", "slurm.qos.normal", "slurm.user_limits"),
    "a parent": (OLD, "accounts: {vision: {}, a: {parent: §visio}}", "slurm.accounts.a.parent", "Did you mean vision"),
    "its own parent": (OLD, "accounts: {a: {parent: §a}}", "slurm.accounts.a.parent", "above itself"),
    "a QOS of an account": (OLD, "accounts: {a: {qos: [normal, §urgen]}}\n  qos: {urgent: {}}", "slurm.accounts.a.qos[1]", "Did you mean urgent"),
    "a default QOS": (OLD, "accounts: {a: {default_qos: §normal}}", "slurm.accounts.a.default_qos", "normal is not in qos"),
    "a QOS to preempt": (OLD, "qos: {a: {preempts: [§b]}}", "slurm.qos.a.preempts[0]", 'there is no QOS "b"'),
    "itself": (OLD, "qos: {a: {preempts: [§a]}}", "slurm.qos.a.preempts[0]", "this QOS itself"),
    "a user twice": (OLD, "accounts: {a: {users: [alice, §alice]}}", "slurm.accounts.a.users[1]", "occurs twice"),
    "a description": (OLD, 'accounts: {a: {description: §"a|b"}}', "slurm.accounts.a.description", "must be one line"),
    "a share": (OLD, "accounts: {a: {fairshare: §0}}", "slurm.accounts.a.fairshare", "at least 1"),
    "an unknown limit": (OLD, "accounts: {a: {limits: {§gpu: 1}}}", "slurm.accounts.a.limits.gpu", "Did you mean gpus"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)


def test_accounts_need_the_accounting() -> None:
    static = LOCAL.replace("    max_count: 4\n", "    count: 1\n")
    text = static.replace(OLD, "accounting: false\n  accounts: {a: {}}\n  qos: {b: {}}", 1)
    assert [(path, "stores it in its accounting" in words) for _, _, path, words in findings(text)] == [
        ("slurm.accounts", True),
        ("slurm.qos", True),
    ]


def test_accounts_in_a_circle() -> None:
    text = "accounts: {a: {parent: b}, b: {parent: a}, c: {parent: a}}"
    with pytest.raises(Exception, match="above itself") as caught:
        loads(LOCAL.replace(OLD, text, 1))
    assert str(caught.value).count("above itself") == 2


def test_a_whole_file() -> None:
    text = "accounts: {vision: {parent: science, qos: [urgent], users: [alice]}, science: {fairshare: 3}}\n"
    spec = loads(LOCAL.replace(OLD, text + "  qos: {urgent: {preempts: [normal]}}", 1))
    assert spec.slurm.accounts["vision"].parent == "science"


def test_a_budget_that_can_hold_nothing_gets_a_warning() -> None:
    budget = "slurm: {accounts: {vision: {monthly_budget: 10}}}\n"
    (warning,) = warnings(loads(MINIMAL + budget))
    assert warning.startswith("slurm.accounts.vision.monthly_budget: a budget holds new elastic nodes, and no pool")
    assert not warnings(loads(MINIMAL.replace("count: 1", "count: 1, max_count: 2") + budget))
    assert not warnings(loads(MINIMAL + "slurm: {accounts: {vision: {fairshare: 2}}}\n"))
