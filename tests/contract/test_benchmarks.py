"""The list of benchmarks that `make bench` and `--help` show has all of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

RUN = Path(__file__).parents[2] / "benchmarks" / "run.py"


def test_every_benchmark_is_described() -> None:
    tree = ast.parse(RUN.read_text())
    described = ast.get_docstring(tree) or ""
    table = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "_BENCHMARKS"
    )
    assert isinstance(table, ast.Dict)
    names = {key.value for key in table.keys if isinstance(key, ast.Constant)}
    assert len(names) > 5
    assert set(re.findall(r"\[([a-z-]+)\]", described)) == names, "the line of usage"
    paragraphs = set(re.findall(r"(?m)^([a-z-]+) +\S", described))
    assert names <= paragraphs, "what each of them measures"
