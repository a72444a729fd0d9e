"""What a plan shows of a value that changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.cli.plan_report import plan_text
from gpucluster.cli.value_diff import changed_lines, differences
from gpucluster.lifecycle.plan import ClusterPlan
from gpucluster.lifecycle.resize import Scaling
from gpucluster.terraform.plan import UNKNOWN, ResourceChange
from tests.examples import examples

RULE = {
    "description": "Inside the VCN", "icmp_options": [], "protocol": "all", "source": "10.0.0.0/16",
    "source_type": "CIDR_BLOCK", "stateless": False, "tcp_options": [], "udp_options": [],
}  # fmt: skip
OPEN = {
    **RULE, "description": None, "protocol": "6", "source": "0.0.0.0/0",
    "tcp_options": [{"min": 23, "max": 23, "source_port_range": []}],
}  # fmt: skip

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS | st.text().map(lambda text: f"{'long ' * 60}{text}{'long ' * 60}"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def test_a_port_that_was_opened_is_seen_at_once() -> None:
    rules = [RULE, {**RULE, "description": "Users", "source": "10.1.0.0/16"}]
    lines = changed_lines("ingress_security_rules", rules, [*rules, OPEN])
    assert lines == ("ingress_security_rules:", "  + ingress tcp 23 from 0.0.0.0/0")
    (line,) = changed_lines("ingress_security_rules", rules, rules[::-1])
    assert "(the order)" in line


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("stateless", True), ("source", "10.0.0.0/8"), ("protocol", "17"), ("description", "Inside the VCN "),
        ("source_type", "SERVICE_CIDR_BLOCK"), ("udp_options", [{"min": 1, "max": 2, "source_port_range": [{}]}]),
        ("anything_new", "x"),
    ],
)  # fmt: skip
def test_each_attribute_of_a_rule_counts(key: str, value: Any) -> None:
    lines = changed_lines("ingress_security_rules", [RULE, OPEN], [{**RULE, key: value}, OPEN])
    assert len({line.strip(" +-") for line in lines}) == 3, lines


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a", "a "), ("1", 1), ("null", None), (1, True), ("", None), ("a\tb", "a b"), ("ﬁ", "fi"), ("a\u200bb", "ab"),
        ("x" * 500 + "a" + "y" * 500, "x" * 500 + "b" + "y" * 500), ("x" * 500, "x" * 501),
        ({"a": 1}, {"a": True}), ({"a": None}, {}), ([1, 2], [2, 1]), ([1, 1], [1]), ([], {}),
    ],
)  # fmt: skip
def test_values_that_look_alike(before: Any, after: Any) -> None:
    _check(before, after)


@examples(50)
@given(VALUES, VALUES)
def test_two_different_values_never_look_the_same(before: Any, after: Any) -> None:
    _check(before, after)


@examples(50)
@given(st.dictionaries(st.sampled_from(sorted(RULE)), VALUES), st.dictionaries(st.sampled_from(sorted(RULE)), VALUES))
def test_two_different_rules_never_look_the_same(before: Any, after: Any) -> None:
    _check([{**RULE, **before}], [{**RULE, **after}, RULE], "ingress_security_rules")


def _check(before: Any, after: Any, name: str = "name") -> None:
    found = list(differences(name, before, after))
    assert bool(found) == (json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True))
    assert all(each.before != each.after for each in found)
    removed, added = ({getattr(each, side) for each in found if each.element} - {None} for side in ("before", "after"))
    assert not removed & added
    text = "".join(changed_lines(name, before, after))
    assert text.isprintable(), text


def test_what_the_cloud_fills_in_is_counted() -> None:
    values: dict[str, tuple[Any, Any]] = dict.fromkeys(("time_created", "id", "image_id"), (None, UNKNOWN))
    change = ResourceChange("m.r.x", "replace", forced_by=("image_id",), values={**values, "shape": ("a", UNKNOWN)})
    text = plan_text(ClusterPlan((change,), False, Scaling({}), ()))
    assert "image_id: null -> (known after apply)  # forces the replacement\n" in text
    assert "shape: a -> (known after apply)\n" in text
    assert "2 attributes without a value until now: (known after apply)" in text
    assert "time_created" not in text


def test_a_long_element_is_cut_and_what_is_empty_in_it_is_left_out() -> None:
    (head, line) = changed_lines("volumes", [], [{"name": "a", "note": "", "text": "x" * 500}])
    assert head == "volumes:"
    assert line.startswith('  + {"name": "a", "text": "xxx')
    assert "(525 characters, SHA-256 " in line
