"""Files that are made from the model of cluster.yml: its reference page, its JSON schema and the demo's cluster.yml.

UPDATE_GOLDEN=1 writes them again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucluster import environment, systems
from gpucluster.spec import template

REPOSITORY = Path(__file__).parents[2]
REFERENCE = REPOSITORY / "docs" / "reference"
DEMO = REPOSITORY / "inventories" / "local" / "cluster.yml"


def _compare(file: Path, made: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(made)
    assert made == file.read_text(), f"{file} is old; UPDATE_GOLDEN=1 writes it again"


@pytest.mark.parametrize(("what", "file"), [("schema", "cluster.schema.json"), ("reference", "cluster-yml.md")])
def test_the_generated_documents_are_up_to_date(what: str, file: str) -> None:
    made = subprocess.run([sys.executable, "-m", "gpucluster.spec", what], capture_output=True, text=True, check=True)
    _compare(REFERENCE / file, made.stdout)


def test_the_demo_is_the_template() -> None:
    _compare(DEMO, template("demo", "local", schema="../../docs/reference/cluster.schema.json"))


@pytest.mark.parametrize(
    ("page", "made", "begin", "end"),
    [
        ("environment.md", environment.table, "tests/golden -->\n", "<!-- end of rules -->"),
        ("systems.md", systems.table, "tests/golden -->\n", "<!-- end of the table -->"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.endswith(".md") else "",
)
def test_the_tables_of_the_code_are_in_their_pages(page: str, made: Callable[[], str], begin: str, end: str) -> None:
    before, mark, rest = (REFERENCE / page).read_text().partition(begin)
    _, stop, after = rest.partition(end)
    _compare(REFERENCE / page, f"{before}{mark}{made()}\n{stop}{after}")
