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
    """By check, "passed", "skipped: WHY" or "failed: WHY", from a report in JUnit's format; without those left out."""
    found: dict[str, str] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        parts = {part.tag: part.attrib for part in case}
        failed, skipped = parts.get("failure", parts.get("error")), parts.get("skipped", {})
        if failed is not None:
            found[case.attrib["name"]] = f"failed: {failed.get('message')}"
        elif skipped.get("type") != "test_excluded":
            found[case.attrib["name"]] = f"skipped: {skipped.get('message')}" if skipped else "passed"
    return found
