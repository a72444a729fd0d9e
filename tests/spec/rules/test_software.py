"""Rules for software: time zones, mirrors and repositories."""
# A row of the table is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from tests.spec.faults import reported

# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "time zone": ("timezone: UTC", "timezone: §Europe/Berlim", "software.timezone", "unknown time zone \"Europe/Berlim\". Did you mean Europe/Berlin"),
    "no time zone": ("timezone: UTC", "timezone: §9th", "software.timezone", "must be the name of a time zone"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)
