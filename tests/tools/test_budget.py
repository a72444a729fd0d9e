"""The counts of what a verb costs, and the comparison with what it may cost."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from benchmarks import budget, budget_page
from tests.e2e import budget as of_suite
from tools import costs
from tools.costs import Host

RECAP = """\
PLAY RECAP *********************************************************************
\x1b[0;32mbench-controller\x1b[0m           : \x1b[0;32mok=32  \x1b[0m changed=0    unreachable=0    failed=0    \x1b[0;36mskipped=14  \x1b[0m rescued=1    ignored=0
\x1b[0;32mcompute-1\x1b[0m                  : \x1b[0;32mok=8   \x1b[0m changed=0    unreachable=0    failed=0    \x1b[0;36mskipped=7   \x1b[0m rescued=0    ignored=0
\x1b[0;32mcompute-2\x1b[0m                  : \x1b[0;32mok=9   \x1b[0m changed=0    unreachable=0    failed=0    \x1b[0;36mskipped=7   \x1b[0m rescued=0    ignored=0
"""  # fmt: skip  # noqa: E501


def test_tasks_of_several_playbooks_are_counted_together() -> None:
    once = costs.tasks(RECAP)
    assert once == {"bench-controller": 47, "compute-1": 15, "compute-2": 16}
    assert costs.tasks(RECAP + RECAP) == {host: 2 * number for host, number in once.items()}
    assert costs.tasks("fatal: no hosts matched") == {}


def test_a_host_counts_from_its_boot_or_from_the_command_on_and_the_node_that_has_most_is_taken(tmp_path: Path) -> None:
    printed = tmp_path / "stdout"
    printed.write_text(RECAP)
    before = {"bench-controller": Host(1000, 5_000_000, 9.0), "compute-1": Host(700, 2_000_000, 8.0)}
    after = {
        "bench-controller": Host(1100, 5_900_000, 9.5),
        "compute-1": Host(710, 2_000_400, 8.25),
        "compute-2": Host(650, 1_500_000, 7.0),
    }
    assert costs.between(before, after, [printed], "bench-controller") == {
        "tasks_controller": 47,
        "tasks_node": 16,
        "processes_controller": 100,
        "processes_node": 650,
        "kilobytes_controller": 900,
        "kilobytes_node": 1500,
        "seconds_hosts": 7.8,
    }
    assert costs.between(after, {}, [], "bench-controller") == {"seconds_hosts": 0}


@pytest.mark.parametrize(
    ("name", "limit", "cost", "wrong"),
    [
        ("tasks_node", 16, 16, False),
        ("tasks_node", 16, 17, True),
        ("processes_controller", 100, 125, False),
        ("processes_controller", 100, 126, True),
        ("processes_node", 0, 10, False),
        ("processes_node", 0, 11, True),
        ("seconds_hosts", 5.0, 6.5, False),
        ("seconds_hosts", 5.0, 6.6, True),
    ],
)
def test_what_is_over_its_budget_is_named(name: str, limit: float, cost: float, wrong: bool) -> None:
    found = costs.over({"plan": {name: cost}}, {"plan": {name: limit}}, budget.ROOM)
    assert found == ([f"plan: {name} is {cost:g}, and its budget is {limit:g}"] if wrong else [])


def test_what_has_no_budget_is_named() -> None:
    assert costs.over({"plan": {"tasks_node": 0}}, {}, budget.ROOM) == ["plan: tasks_node has no budget"]
    assert costs.over({"plan": {"seconds_hosts": 9}}, {}, {"tasks": costs.Room()}) == []


def test_each_verb_has_a_budget_in_the_form_that_is_written() -> None:
    kept = tomllib.loads(budget.FILE.read_text())
    assert list(kept) == list(budget.VERBS)
    assert tomllib.loads(of_suite.FILE.read_text())
    assert tomllib.loads(costs.as_toml(kept, "it")) == kept
    assert all(name.partition("_")[0] in budget.ROOM for costs in kept.values() for name in costs)


def test_a_page_shows_the_budgets_of_every_commit_that_changed_them(tmp_path: Path) -> None:
    def git(*words: str, when: int = 0) -> None:
        dates = {"GIT_AUTHOR_DATE": f"{when} +0000", "GIT_COMMITTER_DATE": f"{when} +0000"}
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(("git", "-C", tmp_path, *who, *words), check=True, env={**os.environ, **dates})

    file = tmp_path / "benchmarks/budget.toml"
    file.parent.mkdir()
    git("init", "--quiet")
    for when, tasks in ((1_700_000_000, 75), (1_700_100_000, 81)):
        file.write_text(costs.as_toml({"first apply": {"tasks_controller": tasks, "seconds_operator": 2.5}}, "a test"))
        git("add", ".")
        git("commit", "--quiet", "--message", "x", when=when)
    versions = budget_page.history(tmp_path, "benchmarks/budget.toml")
    assert [(version.time, version.budgets["first apply"]["tasks_controller"]) for version in versions] == [
        (1_700_000_000, 75),
        (1_700_100_000, 81),
    ]
    shown = budget_page.budget_page(tmp_path)
    assert "first apply" in shown
    assert all(value in shown for value in ("75", "81", "2.5"))


def test_every_kind_of_cost_that_has_a_budget_has_a_plot() -> None:
    files = [tomllib.loads((budget_page.ROOT / file).read_text()) for file in budget_page.FILES]
    kinds = {name.partition("_")[0] for file in files for verb in file.values() for name in verb}
    assert kinds <= set(budget_page._UNITS)
