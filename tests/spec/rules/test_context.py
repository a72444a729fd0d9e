"""What rules see of a file: defaults where it sets nothing, and neither a value nor a default where it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpucluster.spec import document
from gpucluster.spec.rules.context import RuleContext, usable
from tests.spec.spec_texts import LOCAL


def context(text: str = LOCAL, *invalid: tuple[str | int, ...]) -> RuleContext:
    return RuleContext(document.read(text, "cluster.yml"), set(invalid), Path("/site"))


def test_what_the_file_does_not_set_has_its_default() -> None:
    seen = context()
    assert seen.data["name"] == "demo"
    assert seen.section("slurm")["private"] is True
    assert seen.section("pools", "compute")["count"] == 2
    assert seen.section("monitoring")["retention_days"] == 30
    assert (seen.provider_name, seen.provider is not None) == ("local", True)


def test_a_wrong_value_is_left_out_and_gets_no_default() -> None:
    seen = context(LOCAL, ("slurm", "accounting"), ("pools", "compute", "count"))
    assert "accounting" not in seen.section("slurm")
    assert "count" not in seen.section("pools", "compute")
    assert seen.section("slurm")["private"] is True
    assert context(LOCAL, ("cloud", "provider")).provider is None


def test_a_section_that_is_wrong_or_missing_is_empty() -> None:
    seen = context(LOCAL, ("slurm",))
    assert seen.section("slurm") == {}
    assert seen.section("pools", "none", "image") == {}


def test_entries_of_a_list_keep_their_places() -> None:
    text = LOCAL.replace("[127.0.0.0/8]", "[127.0.0.0/8, nonsense, 10.0.0.0/8]")
    seen = context(text, ("network", "ssh_allowed_cidrs", 1))
    listed: Any = seen.section("network")["ssh_allowed_cidrs"]
    assert list(usable(listed)) == [(0, "127.0.0.0/8"), (2, "10.0.0.0/8")]
    assert list(usable(None)) == []


def test_an_error_has_the_place_of_its_value_or_of_its_key() -> None:
    seen = context()
    seen.error(("name",), "is taken", "Choose another one")
    seen.error(("name",), "is taken", key=True)
    value, key = seen.document.findings
    assert (value.path, value.message, value.hint) == ("name", "is taken", "Choose another one")
    assert value.line == key.line == seen.line(("name",))
    assert value.column > key.column
    assert seen.written(("name",))
    assert not seen.written(("monitoring",))
