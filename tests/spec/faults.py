"""What load() reports of a wrong cluster.yml, and rows of faults: each is reported once, and at its place."""

from __future__ import annotations

import pytest

from gpucluster.errors import InputError
from gpucluster.spec import loads
from tests.spec.spec_texts import LOCAL, MARK, marked


def findings(text: str | bytes, filename: str = "cluster.yml") -> list[tuple[int, int, str, str]]:
    with pytest.raises(InputError) as caught:
        loads(text, filename)
    assert caught.value.exit_code == 2
    found = []
    for finding in caught.value.findings:
        words = f"{finding.message}. {finding.hint}" if finding.hint else finding.message
        found.append((finding.line, finding.column, finding.path, words))
    assert found == sorted(found, key=lambda one: one[:2])
    return found


def reported(row: tuple[str, str, str, str]) -> None:
    """Check a row: what stands in LOCAL, what stands there instead with § at the error, path, words."""
    old, new, path, words = row
    assert LOCAL.count(old) >= 1
    text = LOCAL.replace(old, new, 1)
    line = column = None
    if MARK in text:
        text, line, column = marked(text)
    (found,) = findings(text)
    assert found[2] == path
    assert words in found[3]
    if line is not None:
        assert found[:2] == (line, column)
    assert "hunter2" not in found[3], "a secret must not be shown"
