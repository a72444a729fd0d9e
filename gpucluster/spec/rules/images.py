"""Rules of an image: exactly one of four ways to name it, and its login user."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpucluster.spec.defaults import LOGIN_USERS
from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.context import RuleContext
from gpucluster.spec.sections import fields

_BY_SYSTEM = ("operating_system", "version")
_NAMES = (*_BY_SYSTEM, "name", "listing", "ocid")
_WAYS = (
    'Write {operating_system: Debian, version: "13"}, {name: ..., operating_system: Oracle Linux}, '
    "{listing: ..., login_user: opc} or {ocid: ocid1.image..., login_user: ubuntu}"
)


def check_image(context: RuleContext, path: Path, machine: Mapping[str, Any]) -> None:
    """Add every error of the image at `path`."""
    image, provider = machine.get("image", {}), context.provider
    if image is None and provider is not None and provider.default_image is None:
        hint = 'Add `image: {operating_system: Canonical Ubuntu, version: "24.04"}`'
        context.error(path, f"is missing: provider {context.provider_name} needs it", hint)
    if not isinstance(image, dict):
        return
    _check_dependent_keys(context, path, image)
    if not {*_NAMES, "login_user"} <= image.keys():
        return  # an invalid one is reported, and the valid ones are not enough to check
    if not _is_named_once(context, path, image):
        return
    # gpucluster does not log in to the nodes of a managed pool.
    if image["login_user"] == "" and machine.get("managed") is not True:
        hint = f"Add `login_user:`; it has a default if operating_system is {_or(LOGIN_USERS)}"
        context.error((*path, "login_user"), "is missing: the user of this image that ssh logs in as", hint)


def _is_named_once(context: RuleContext, path: Path, image: Mapping[str, Any]) -> bool:
    keys = [key for key in _NAMES if image[key] is not None]
    for alone in ("ocid", "listing"):
        others = [key for key in keys if key != alone]
        if alone in keys and others:
            context.error((*path, alone), f"conflicts with {others[0]}", "Keep one of the two", key=True)
            return False
        if alone in keys:
            return True
    missing = [key for key in _BY_SYSTEM if image[key] is None]
    if "name" in keys:
        # The name includes the version; the operating system is needed for the login user only.
        missing = ["operating_system"] if "version" in keys and "operating_system" in missing else []
    if missing:
        context.error(path, f"lacks {' and '.join(missing)}", _WAYS)
    return not missing


def _check_dependent_keys(context: RuleContext, path: Path, image: Mapping[str, Any]) -> None:
    """Keys that are allowed together with one other key only."""
    if image.get("listing_version") is not None and image.get("listing", "") is None:
        context.error((*path, "listing_version"), "has no meaning without listing", "Delete the line", key=True)
    if image.get("make_compatible") is True and image.get("ocid", "") is None:
        message = "has no meaning without ocid: only custom images can be made compatible with a shape"
        context.error((*path, "make_compatible"), message, "Delete the line", key=True)
    listing = image.get("listing")
    if isinstance(listing, str) and listing.startswith("ocid1.") and not re.fullmatch(fields.LISTING_PATTERN, listing):
        message = f"is an OCID, but not the OCID of a listing: {shown(listing)}"
        hint = "That of a listing begins with ocid1.appcataloglisting.; for the OCID of an image use `ocid`"
        context.error((*path, "listing"), message, hint)


def _or(words: Mapping[str, str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}"
