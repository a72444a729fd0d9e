"""Users in a CSV file."""

from __future__ import annotations

import pytest

from gpucluster.controller.users import csv_file
from gpucluster.node_agent import errors


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("alice,10500\n", "name the columns"),
        ("name,colour\nalice,red\n", "name the columns"),
        ("name,name\nalice,red\n", "name the columns"),
        ("name,password\nalice,geheim\n", "must not be in a file"),
        ("name\nalice,5\n", "line 2 has 2 cells"),
        ('name\n"alice\n', "not CSV"),
    ],
)
def test_what_is_not_csv_is_refused(text: str, word: str) -> None:
    with pytest.raises(errors.Refused, match=word) as refused:
        csv_file.users(text)
    assert refused.value.hint
