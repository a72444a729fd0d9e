"""The page of the table shows what is in it."""

from __future__ import annotations

import os
from pathlib import Path

from gpucluster.advisories import table

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "exposure.md"
_BEGIN, _END = "| product | advisories | the newest |\n|---|---|---|\n", "<!-- end of the table -->"


def test_the_page_has_each_product() -> None:
    rows = []
    for product in table.PRODUCTS:
        found = table.advisories(product)
        rows.append(f"| {product} | {len(found)} | {found[0].published if found else 'none was found'} |\n")
    before, begin, rest = PAGE.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    made = f"{before}{begin}{''.join(rows)}\n{end}{after}"
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(made)
    assert made == PAGE.read_text(), "the page is old; UPDATE_GOLDEN=1 writes its table again"
