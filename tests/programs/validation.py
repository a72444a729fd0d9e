"""The suites of NVIDIA ai-cloud-validation: a clone that the environment names, and what a report has of each check.

Nothing of it is in this repository, and no package index has it.
"""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

CLONE = "GPUCLUSTER_TEST_ACV"


def clone() -> Path:
    """The clone; the test is skipped where the environment names none."""
    if not (named := os.environ.get(CLONE)):
        pytest.skip(f"{CLONE} names no clone of github.com/NVIDIA/ai-cloud-validation")
    folder = Path(named).resolve()
    assert (folder / "isvctl" / "configs" / "suites").is_dir(), f"{CLONE}={named}: no clone of the suites"
    return folder


def outcomes(report: str) -> dict[str, str]:
    """By check, "passed", "skipped: WHY" or "failed: WHY", from a report in JUnit's format."""
    found: dict[str, str] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        why = {part.tag: part.attrib.get("message", "") for part in case}
        failed = why.get("failure", why.get("error"))
        if failed is not None:
            found[case.attrib["name"]] = f"failed: {failed}"
        else:
            found[case.attrib["name"]] = f"skipped: {why['skipped']}" if "skipped" in why else "passed"
    return found
