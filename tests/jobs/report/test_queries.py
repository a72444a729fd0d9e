"""The questions of a report to Prometheus: which rules they ask, for how many points and names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpucluster.jobs.report import facts, queries
from gpucluster.jobs.report.build import request
from tests.jobs.report.made_up import known, row


def test_more_names_than_a_query_may_have_are_not_asked_for() -> None:
    names = [f"a-node-with-a-very-long-name-{at}" for at in range(1000)]
    asked = request(facts.read(known(components=[row(node_list=names)])))
    assert {each["name"] for each in asked} == {
        "job:power", "job:use", "watch:stuck", "watch:wasted", "watch:instances",
    }  # fmt: skip


def test_a_job_of_a_month_has_as_many_points_as_others() -> None:
    assert queries.step_of((0, 30 * 86400)) >= 30 * 86400 / 400
    assert queries.step_of((0, 10)) == queries.SHORTEST_STEP


def test_only_rules_that_exist_are_asked_for() -> None:
    rules = Path(__file__).parents[3] / "ansible/roles/monitoring/files/rules/recording.yml"
    known_rules = set(re.findall(r"- record: (\S+)", rules.read_text()))
    names = [f"gpu-{at}" for at in range(9)]
    for nodes in (["gpu-1"], names):
        for each in request(facts.read(known(components=[row(node_list=nodes)]))):
            asked = set(re.findall(r"gpucluster:\w+:\w+", each["expr"]))
            assert asked, each
            assert asked <= known_rules


def test_prometheus_understands_every_question(tmp_path: Path) -> None:
    asked = [
        each
        for count in (2, 9)
        for each in request(facts.read(known(components=[row(node_list=[f"gpu-{at}.x" for at in range(count)])])))
    ]
    rules = [{"record": f"a:{number}", "expr": each["expr"]} for number, each in enumerate(asked)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("this machine has no promtool")
    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(asked)} rules found" in done.stdout
