"""Texts that others have written: a bound of their size and of their depth."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.node_agent import bounded

DEEP = "[" * 200_000
#: What Python's parser takes, and what walks through values would not.
DEEPER = '{"a":' * (bounded.DEEPEST + 1) + "1" + "}" * (bounded.DEEPEST + 1)
NESTED = (DEEP, DEEP + "]" * 200_000, '{"a":' * 200_000, DEEPER)


@pytest.mark.parametrize("text", NESTED, ids=range(len(NESTED)))
def test_a_deep_text_is_not_a_value(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|Expecting|delimiter"):
        bounded.loads(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
@pytest.mark.slow
def test_a_value_of_ours_is_read_as_it_is(value: Any) -> None:
    assert bounded.loads(json.dumps(value)) == value


def test_a_large_text_and_a_large_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with file.open("wb") as stream:
        stream.truncate(bounded.LARGEST + 1)  # it takes no space
    for read in (bounded.read, bounded.load):
        with pytest.raises(bounded.TooMuch, match="larger than"):
            read(file)
    with pytest.raises(bounded.TooMuch, match="larger than 3"):
        bounded.loads('"abc"', 3)


def test_what_is_not_a_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ValueError, match="not a regular file"):
            bounded.load(place)
