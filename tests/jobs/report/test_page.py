"""A report as one file: its size, and names that are only text."""

from __future__ import annotations

import re

import pytest

from gpucluster.jobs.report import facts
from gpucluster.jobs.report.build import request
from gpucluster.jobs.report.text import text
from tests.jobs.report.made_up import known, rails, report, row, run
from tests.jobs.report.test_build import page

HOSTILE = "<script>alert(1)</script>\"'|\n\x1b[31m{{7*7}}"


# --- sizes -----


@pytest.mark.slow
def test_a_thousand_nodes_and_thousands_of_steps_are_a_page_of_normal_size() -> None:
    names = [f"gpu-{at}" for at in range(1, 1001)]
    raw = known(
        components=[row(node_list=names, gpus=8000)],
        records=[run(name, rails(4)) for name in names],
        steps=[row(step=str(at)) for at in range(2000)],
        steps_left_out=3000,
    )
    asked = request(facts.read(raw))
    assert len(asked) < 60
    assert max(len(each["expr"]) for each in asked) < 20_000
    found = report(raw)
    assert all(len(plot.lines) == len(plot.panel.lines) for plot in found.plots)
    assert len(page(found)) < 1_000_000
    assert "3000 steps of 5000 are not listed." in found.missing
    assert len(text(found).splitlines()) < 200


# --- what must not be sent on -----


def test_hostile_names_are_text() -> None:
    raw = known(components=[row(name=HOSTILE)], steps=[row(step="0", name=HOSTILE)])
    content = page(report(raw))
    assert "<script" not in content
    assert "\x1b" not in content
    assert "default-src &#39;none&#39;" in content or "default-src 'none'" in content
    assert "\x1b" not in text(report(raw))
    assert not re.search(r"(src|href)=\"(?!#)", content)
