"""Which names and which full names are accepted."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.controller.users import values
from gpucluster.node_agent import errors
from tests.controller.users.directory_model import LOCAL


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            "Dora",
            "-rf",
            "..",
            ".",
            "a.b",
            "a b",
            "a;b",
            "$(id)",
            "`id`",
            "a|b",
            "a&b",
            "a'b",
            'a"b',
            "a\\b",
            "a/b",
        ),
        *("*", "a)(uid=*", "a,ou=groups", "a+uid=b", "a=b", "a\n", "a\nb", "a\0", "0day", "a" * 33, "a" * 10000),
        *("\u0430lice", "al\u0456ce", "alice\u200b", "\uff41lice", "é", None, 5, ["a"], {"a": 1}),
    ],
)
def test_names_that_are_none(name: Any) -> None:
    for kind in (values.user_name, values.group_name):
        with pytest.raises(errors.Refused) as refused:
            kind(name, LOCAL)
        assert len(refused.value.message) < 200
        assert refused.value.message.isprintable()


@given(st.text())
def test_a_full_name_is_kept_or_refused(text: str) -> None:
    try:
        kept = values.full_name(text)
    except errors.Refused:
        return
    assert kept == text.strip()
    assert not any(unicodedata.category(character) in ("Cc", "Cs") or character in ":," for character in kept)
