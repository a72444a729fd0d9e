"""The reference page of the HCL matches the HCL."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gpucluster.paths import terraform_dir
from tests.terraform.reference import folders, tables, with_tables

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "terraform.md"


def test_the_tables_are_those_of_the_hcl() -> None:
    page = PAGE.read_text()
    made = with_tables(page, terraform_dir())
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(made)
    assert made == PAGE.read_text(), "the HCL says something else: UPDATE_GOLDEN=1 writes the tables again"


def test_no_folder_is_left_out() -> None:
    assert re.findall(r"<!-- tables: (\w+) -->", PAGE.read_text()) == list(folders(terraform_dir()))


HCL = """
variable "machines" {
  description = "Those \\"of\\" a | kind."
  type = map(object({
    shape = string
    image = object({
      ocid  = optional(string)
      build = optional(bool, false)
    })
    names = list(string)
  }))
  default = {}
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "variables.tf").write_text(HCL)
    (tmp_path / "outputs.tf").write_text('output "id" {\n  description = "An OCID."\n  value = 1\n}\n')
    return tmp_path


def test_objects_are_taken_apart(folder: Path) -> None:
    assert tables(folder).splitlines() == [
        "| variable | type | default | description |",
        "| --- | --- | --- | --- |",
        '| `machines` | `map(object)` | `{}` | Those "of" a \\| kind. |',
        "",
        "Attributes of `machines`:",
        "",
        "| attribute | type | default |",
        "| --- | --- | --- |",
        "| `shape` | `string` | required |",
        "| `image` | `object` | required |",
        "| `image.ocid` | `string` | `null` |",
        "| `image.build` | `bool` | `false` |",
        "| `names` | `list(string)` | required |",
        "",
        "| output | description |",
        "| --- | --- |",
        "| `id` | An OCID. |",
    ]
