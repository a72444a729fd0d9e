"""The counts of what a verb costs, and the comparison with what it may cost."""

from __future__ import annotations

import tomllib

import pytest

from benchmarks import budget

RECAP = """\
PLAY RECAP *********************************************************************
\x1b[0;32mbench-controller\x1b[0m           : \x1b[0;32mok=32  \x1b[0m changed=0    unreachable=0    failed=0    \x1b[0;36mskipped=14  \x1b[0m rescued=1    ignored=0
\x1b[0;32mcompute-1\x1b[0m                  : \x1b[0;32mok=8   \x1b[0m changed=0    unreachable=0    failed=0    \x1b[0;36mskipped=7   \x1b[0m rescued=0    ignored=0
\x1b[0;32mcompute-2\x1b[0m                  : \x1b[0;32mok=9   \x1b[0m changed=0    unreachable=0    failed=0    \x1b[0;36mskipped=7   \x1b[0m rescued=0    ignored=0
"""  # fmt: skip  # noqa: E501


def test_tasks_of_several_playbooks_are_counted_together() -> None:
    once = budget.tasks(RECAP)
    assert once == {"bench-controller": 47, "compute-1": 15, "compute-2": 16}
    assert budget.tasks(RECAP + RECAP) == {host: 2 * number for host, number in once.items()}
    assert budget.most(once, "tasks") == {"tasks_controller": 47, "tasks_node": 16}
    assert budget.tasks("fatal: no hosts matched") == {}


@pytest.mark.parametrize(
    ("name", "limit", "cost", "wrong"),
    [
        ("tasks_node", 16, 16, False),
        ("tasks_node", 16, 17, True),
        ("processes_controller", 100, 115, False),
        ("processes_controller", 100, 116, True),
        ("seconds_hosts", 5.0, 6.5, False),
        ("seconds_hosts", 5.0, 6.6, True),
    ],
)
def test_what_is_over_its_budget_is_named(name: str, limit: float, cost: float, wrong: bool) -> None:
    found = budget.over({"plan": {name: cost}}, {"plan": {name: limit}})
    assert found == ([f"plan: {name} is {cost:g}, and its budget is {limit:g}"] if wrong else [])


def test_what_has_no_budget_is_named() -> None:
    assert budget.over({"plan": {"tasks_node": 0}}, {}) == ["plan: tasks_node has no budget"]


def test_each_verb_has_a_budget_in_the_form_that_is_written() -> None:
    kept = tomllib.loads(budget.FILE.read_text())
    assert list(kept) == list(budget.VERBS)
    assert tomllib.loads(budget.as_toml(kept)) == kept
    assert all(name.partition("_")[0] in budget.ROOM for costs in kept.values() for name in costs)
