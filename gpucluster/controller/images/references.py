"""Names and addresses of images, as users write them, checked and completed. Pure."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from gpucluster.node_agent.errors import Refused

SUFFIX = ".sqsh"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?"
# As Enroot 4.1 reads it: a first part with a dot or a port is a registry, and without one a namespace of Docker Hub.
URI = re.compile(
    r"docker://"
    # `tool@sha256:...` is an image by its digest, and `tool` no user name.
    r"(?:[A-Za-z0-9$][A-Za-z0-9$._-]{0,99}@(?!sha256:))?"
    rf"(?:{_HOST}(?::[0-9]{{1,5}})?\#|(?=[^/]*[.:]){_HOST}(?::[0-9]{{1,5}})?/)?"
    r"(?P<image>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    r"(?:@sha256:(?P<digest>[0-9a-f]{64}))?"
)
#: How many digits of a digest are part of the image's name.
_SHORT_DIGEST = 12
_URI_HINT = (
    "Write REGISTRY/NAME:TAG or docker://REGISTRY#NAME:TAG, such as registry.example:5000/org/image:1.0; "
    "@sha256: and 64 digits may follow"
)


class Reference(NamedTuple):
    """The address of an image, and its name on this cluster."""

    uri: str
    name: str


def shown(value: Any) -> str:
    """A value from outside for a message: short, and without control characters."""
    text = str(value)
    return "".join(char if char.isprintable() else "?" for char in text[:80]) + ("..." if len(text) > 80 else "")  # noqa: PLR2004


def checked_name(value: Any) -> str:
    """The name of an image without its suffix.

    Raises:
        Refused: it is not well formed.
    """
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise Refused(
            f"this can't be the name of an image: {shown(value)}",
            "At most 200 letters, digits, and . _ + - within; it begins with a letter or a digit",
        )
    return value[: -len(SUFFIX)] if value.endswith(SUFFIX) else value


def reference(uri: Any, name: Any = None) -> Reference:
    """The full address and the name of an image. The default name is that of Enroot: org+image+tag.

    If there is a digest, Enroot uses it. Its first digits are part of the name: another digest is another image.

    Raises:
        Refused: the address or the name is not well formed.
    """
    if not isinstance(uri, str):
        raise Refused("the address of the image is missing", _URI_HINT)
    full = uri if "://" in uri[:20] else f"docker://{uri}"
    match = URI.fullmatch(full)
    if not match:
        raise Refused(f"this is not the address of an image: {shown(uri)}", _URI_HINT)
    marks = [mark for mark in (match["tag"], (match["digest"] or "")[:_SHORT_DIGEST]) if mark]
    parts = [*match["image"].split("/"), *marks]
    return Reference(full, checked_name("+".join(parts) if name is None else name))
