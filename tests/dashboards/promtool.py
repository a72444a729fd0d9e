"""Prometheus' own tests of rules: `promtool test rules` with the real rule files."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[2]
RULES = REPOSITORY / "ansible" / "roles" / "monitoring" / "files" / "rules"
#: The shape of the scenarios' nodes.
SHAPE = "BM.GPU.H100.8"
FILES = sorted(RULES.glob("*.yml"))


@lru_cache
def groups() -> tuple[dict[str, Any], ...]:
    """Every group of every rule file."""
    return tuple(group for file in FILES for group in yaml.safe_load(file.read_text())["groups"])


def rules(kind: str) -> list[dict[str, Any]]:
    """Every rule of a kind: "alert" or "record"."""
    return [rule for group in groups() for rule in group["rules"] if kind in rule]


def scenario(name: str, series: Mapping[str, str], expectations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One test: series, one value each 30 seconds, and what expressions return.

    Args:
        expectations: each with `expr`, `eval_time` and `exp_samples`.
    """
    return {
        "name": name,
        "interval": "30s",
        "input_series": [{"series": metric, "values": values} for metric, values in series.items()],
        "promql_expr_test": list(expectations),
    }


def run(folder: Path, scenarios: Sequence[dict[str, Any]]) -> None:
    """Run the scenarios. An expression that returns something else, and a rule that can't be evaluated, fail."""
    # Each evaluation of all shapes costs more than that of all other rules.
    found = [
        {**group, "rules": [rule for rule in group["rules"] if rule.get("labels", {}).get("shape", SHAPE) == SHAPE]}
        for group in groups()
    ]
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": found}, sort_keys=False))
    content = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": list(scenarios)}
    file = folder / "scenarios.yml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
