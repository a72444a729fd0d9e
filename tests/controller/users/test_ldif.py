"""LDIF: any value comes back as it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpucluster.controller.users import ldif


@given(st.text())
def test_ldif_carries_any_value(value: str) -> None:
    value = value.encode(errors="replace").decode()
    assert ldif.parse(ldif.add("cn=x", [("description", value)])) == [
        {"dn": ["cn=x"], "changetype": ["add"], "description": [value]}
    ]
