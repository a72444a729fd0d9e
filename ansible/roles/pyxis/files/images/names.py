"""Names and addresses of images: what strangers write, and what is made of it. Nothing else is touched."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from images.errors import Refused

SUFFIX = ".sqsh"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
URI = re.compile(
    r"docker://"
    # `tool@sha256:...` is an image by its digest, and nobody called `tool`.
    r"(?:[A-Za-z0-9$][A-Za-z0-9$._-]{0,99}@(?!sha256:))?"
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?(?::[0-9]{1,5})?\#)?"
    r"(?P<image>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    r"(?:@sha256:(?P<digest>[0-9a-f]{64}))?"
)
#: Of a digest's digits, as many as its image is called by.
_SHORT_DIGEST = 12
_URI_HINT = (
    "Write docker://REGISTRY#NAME:TAG, such as docker://registry.example#org/image:1.0; "
    "@sha256: and 64 digits may stand behind it"
)


class Reference(NamedTuple):
    """Where an image comes from, and what it is called here."""

    uri: str
    name: str


def shown(value: Any) -> str:
    """Somebody's words, short and without what moves a cursor."""
    text = str(value)
    return "".join(char if char.isprintable() else "?" for char in text[:80]) + ("..." if len(text) > 80 else "")  # noqa: PLR2004


def checked_name(value: Any) -> str:
    """The name of an image, with or without its suffix."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise Refused(
            f"this can't be the name of an image: {shown(value)}",
            "At most 200 letters, digits, and . _ + - within; it begins with a letter or a digit",
        )
    return value[: -len(SUFFIX)] if value.endswith(SUFFIX) else value


def reference(uri: Any, name: Any = None) -> Reference:
    """What is meant by an address; the name is the one that Enroot itself would give: org+image+tag.

    Enroot goes by the digest where there is one. Its first digits are in the name: another digest is another image.
    """
    if not isinstance(uri, str):
        raise Refused("the address of the image is missing", _URI_HINT)
    full = uri if "://" in uri[:20] else f"docker://{uri}"
    found = URI.fullmatch(full)
    if not found:
        raise Refused(f"this is no address of an image: {shown(uri)}", _URI_HINT)
    marks = [mark for mark in (found["tag"], (found["digest"] or "")[:_SHORT_DIGEST]) if mark]
    parts = [*found["image"].split("/"), *marks]
    return Reference(full, checked_name("+".join(parts) if name is None else name))
