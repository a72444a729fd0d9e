"""The section `cloud`: wrong values, each at its place."""
# A row of the table is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from tests.spec.faults import reported

# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "gpus of nobody": ("  provider: local", "  provider: local\n  local: {gpus: §some}", "cloud.local.gpus", "emulated"),
    "region of the local cloud": ("provider: local", "provider: local\n  region: §us-ashburn-1", "cloud.region", "has one region"),
    "profile of the local cloud": ("provider: local", "provider: local\n  §profile: X", "cloud.profile", "no meaning"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)
