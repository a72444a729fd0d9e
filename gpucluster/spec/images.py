"""Rules of images: one of four ways to name one, and who may log in to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpucluster.spec import derive, fields
from gpucluster.spec.document import Path
from gpucluster.spec.draft import Draft
from gpucluster.spec.wording import shown

_BY_SYSTEM = ("operating_system", "version")
_NAMES = (*_BY_SYSTEM, "name", "listing", "ocid")
_WAYS = (
    'Write {operating_system: Debian, version: "13"}, {name: ..., operating_system: Oracle Linux}, '
    "{listing: ..., login_user: opc} or {ocid: ocid1.image..., login_user: ubuntu}"
)


def check_image(draft: Draft, path: Path, machine: Mapping[str, Any]) -> None:
    """Note every fault of the image at `path`."""
    image = machine.get("image", {})
    if image is None and draft.section("cloud").get("provider") == "oci":
        hint = 'Add `image: {operating_system: Canonical Ubuntu, version: "24.04"}`'
        draft.fault(path, "is missing: provider oci needs it", hint)
    if not isinstance(image, dict):
        return
    _belonging(draft, path, image)
    if not {*_NAMES, "login_user"} <= image.keys():
        return  # what is unfit among them is told, and what is left says too little
    if not _named_once(draft, path, image):
        return
    if image["login_user"] == "":
        hint = f"Add `login_user:`; known by itself where operating_system is {_or(derive.LOGIN_USERS)}"
        draft.fault((*path, "login_user"), "is missing: which user does this image let in?", hint)


def _named_once(draft: Draft, path: Path, image: Mapping[str, Any]) -> bool:
    said = [key for key in _NAMES if image[key] is not None]
    for alone in ("ocid", "listing"):
        others = [key for key in said if key != alone]
        if alone in said and others:
            draft.fault((*path, alone), f"stands beside {others[0]}", "Keep one of the two", key=True)
            return False
        if alone in said:
            return True
    missing = [key for key in _BY_SYSTEM if image[key] is None]
    if "name" in said:
        # The name says which version it is; an operating system says who may log in.
        missing = ["operating_system"] if "version" in said and "operating_system" in missing else []
    if missing:
        draft.fault(path, f"does not say its {' and '.join(missing)}", _WAYS)
    return not missing


def _belonging(draft: Draft, path: Path, image: Mapping[str, Any]) -> None:
    """Keys that mean something beside one other only."""
    if image.get("listing_version") is not None and image.get("listing", "") is None:
        draft.fault((*path, "listing_version"), "has no meaning without listing", "Delete the line", key=True)
    if image.get("make_compatible") is True and image.get("ocid", "") is None:
        message = "has no meaning without ocid: only images of your own can be made to fit a shape"
        draft.fault((*path, "make_compatible"), message, "Delete the line", key=True)
    listing = image.get("listing")
    if isinstance(listing, str) and listing.startswith("ocid1.") and not re.fullmatch(fields.LISTING_PATTERN, listing):
        message = f"is an OCID, but not that of a listing: {shown(listing)}"
        hint = "It begins with ocid1.appcataloglisting.; an image has its place in `ocid`"
        draft.fault((*path, "listing"), message, hint)


def _or(words: Mapping[str, str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}"
