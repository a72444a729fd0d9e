"""The reader of terraform.tfvars: what it reads is what python-hcl2 reads, or what Terraform states."""

from __future__ import annotations

import io
from typing import Any

import hcl2
import pytest

from gpucluster.resource_manager import tfvars
from tests.resource_manager.stacks import FORK, PIPELINE

VALUES = {
    "a = 1": {"a": 1},
    "a = -2.5": {"a": -2.5},
    "a=true": {"a": True},
    "a = null": {"a": None},
    'a = "x # no comment"  # a comment': {"a": "x # no comment"},
    'a = "with \\"quotes\\" and \\n"': {"a": 'with "quotes" and \n'},
    "// one\n/* two\nlines */ a = 1\n\n": {"a": 1},
    "a = [1, \"b\",\n  true,\n]": {"a": [1, "b", True]},
    'a = {\n  b = "c"\n  "d" : 2, e = [3]\n}\nf = 1': {"a": {"b": "c", "d": 2, "e": [3]}, "f": 1},
    "a = <<EOF\none\ntwo\nEOF\nb = 1": {"a": "one\ntwo\n", "b": 1},
    "a = <<-EOF\n  one\n  EOF\n": {"a": "one\n"},
    "a = []\nb = {}": {"a": [], "b": {}},
    "": {},
    "# nothing\n": {},
}  # fmt: skip


@pytest.mark.parametrize("text", VALUES)
def test_literals_are_read(text: str) -> None:
    assert tfvars.read(text) == VALUES[text]


@pytest.mark.parametrize("text", [PIPELINE, FORK], ids=["pipeline", "fork"])
def test_files_of_others_are_read_as_an_hcl_parser_reads_them(text: str) -> None:
    read: dict[str, Any] = hcl2.load(io.StringIO(text))
    expected = {name: value.strip('"') if isinstance(value, str) else value for name, value in read.items()}
    expected.pop("__comments__", None)
    expected.pop("__inline_comments__", None)
    assert tfvars.read(text) == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nb = file(\"x\")", 2),
        ('a = "${var.x}"', 1),
        ("a = var.x", 1),
        ("a = 1 b = 2", 1),
        ("a", 1),
        ("a =", 1),
        ("a = [1", 1),
        ('\n\na = "open', 3),
        ('variable "a" {\n}', 1),
        ("a = <<EOF\nnever closed", 1),
        ("= 1", 1),
        ("a = 1x", 1),
        ("\x00", 1),
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(tfvars.NotTfvars) as caught:
        tfvars.read(text)
    assert caught.value.line == line
