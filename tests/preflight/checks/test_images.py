"""Images that do not exist, do not fit, or lack what their machines need. Names of images: test_images_by_name.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpucluster.preflight.facts import (
    FoundImage,
)
from tests.preflight.cases import (
    LISTED_VERSION,
    UBUNTU,
    Case,
    image_fact,
    reported,
)
from tests.preflight.preflight_facts import (
    LISTED,
    refused,
)

# What is changed, what is so, and what must be reported of it: level, check, a passage.
CASES: dict[str, Case] = {
    # images
    "no image": ((), {"images": {"controller": FoundImage("")}}, "error", "image", "no image Canonical Ubuntu 24.04"),
    "image gone": ((), {"images": {"h100": refused("image", "the image x")}}, "error", "image", "does not exist"),
    "image unknown": (
        (),
        {"images": {"h100": refused("image", "the image x", 500)}},
        "warning",
        "image",
        "could not read",
    ),
    "image disabled": ((), image_fact(state="DISABLED"), "error", "image", "is DISABLED"),
    "image does not fit": ((), image_fact(fits=False), "error", "image", "is not compatible with the shape"),
    "image will fit": (
        (("login_user: ubuntu", "login_user: ubuntu, make_compatible: true"),),
        image_fact(fits=False),
        "note",
        "image",
        "apply adds the shape",
    ),
    "own image of another system": (
        (),
        image_fact(name="", system="Custom", version="Custom"),
        "warning",
        "image",
        "Custom",
    ),
    "platform image of another system": (
        (),
        {"images": {"controller": replace(UBUNTU, name="", version="26.04", custom=False)}},
        "error",
        "image",
        "26.04",
    ),
    "no listing": (LISTED, {"images": {"h100": FoundImage("")}}, "error", "image", "no marketplace listing GPU Image"),
    "no such version": (
        LISTED,
        {"images": {"h100": FoundImage("", listing="ocid1.l", listing_versions=("1", "2"))}},
        "error",
        "image",
        "no version",
    ),
    "terms": (
        LISTED,
        image_fact(listing="ocid1.l", listing_version=LISTED_VERSION, terms=("https://eula",)),
        "note",
        "image",
        "accepts the terms",
    ),
    "stand-in": ((), image_fact(stand_in="Debian 13"), "note", "image", "stand-in here"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_told_with_level_reason_and_action(case: str, tmp_path: Path) -> None:
    reported(CASES[case], tmp_path)
