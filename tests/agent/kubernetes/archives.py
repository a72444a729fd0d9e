"""Archives that tests write."""

from __future__ import annotations

import io
import tarfile


def add(tar: tarfile.TarFile, name: str, data: bytes = b"", link: str = "") -> None:
    """Add a file with this content, or a link."""
    member = tarfile.TarInfo(name)
    if link:
        member.type, member.linkname = tarfile.SYMTYPE, link
    member.size = 0 if link else len(data)
    tar.addfile(member, None if link else io.BytesIO(data))
