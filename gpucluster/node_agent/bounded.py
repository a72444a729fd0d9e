"""Reading what others have written: a bound of the size and of the depth, whatever the text is.

Python's parser of JSON raises RecursionError for what is nested too deeply, which is not a ValueError, and code that
walks through a deep value fails in the same way. And a file can be larger than the memory, or not a regular file.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import IO, Any

#: Bytes of a text. The largest that is read is Terraform's state, a few megabytes for thousands of nodes.
LARGEST = 1 << 26
#: Levels of lists and objects. What we read has about ten.
DEEPEST = 100


class TooMuch(ValueError):
    """A text is larger, or nested more deeply, than anything that we read."""


def loads(text: str | bytes, largest: int = LARGEST) -> Any:
    """The value of a text of JSON.

    Raises:
        ValueError: it is not JSON, or exceeds a bound (`TooMuch`).
    """
    if len(text) > largest:
        raise TooMuch(f"it is larger than {largest} bytes")
    try:
        content = json.loads(text)
    except RecursionError:
        raise TooMuch("it is nested too deeply") from None
    level = [content]
    for _ in range(DEEPEST):
        level = [each for value in level for each in _inner(value)]
        if not level:
            return content
    raise TooMuch("it is nested too deeply")


def _inner(value: Any) -> list[Any]:
    """The lists and objects in a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [each for each in inner if isinstance(each, (dict, list))]


def load(file: Path, largest: int = LARGEST) -> Any:
    """The value of a file of JSON.

    Raises:
        OSError: it can't be read.
        ValueError: it is not a regular file, not text, not JSON, or exceeds a bound.
    """
    return loads(read(file, largest).decode("utf-8"), largest)


def read(file: Path, largest: int = LARGEST) -> bytes:
    """The content of a plain file.

    Raises:
        OSError: it can't be read.
        ValueError: it is not a regular file, or too large.
    """
    # A pipe without a writer does not block.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a regular file")
        data = stream.read(largest + 1)
    if len(data) > largest:
        raise TooMuch(f"it is larger than {largest} bytes")
    return data


class Unpacked:
    """A stream that is unpacked from another one, and ends with an error when it becomes too large for that.

    What users and programs write is packed to a tenth or a twentieth. A thousandth was made to fill a disk.

    Args:
        packed: counts what was read of the packed stream.
        most: bytes that it may have in any case.
        ratio: bytes that it may have for each packed one.
    """

    def __init__(self, stream: IO[bytes], packed: Counted, most: int = 1 << 26, ratio: int = 100) -> None:
        self._stream, self._packed, self._most, self._ratio = stream, packed, most, ratio
        self._read = 0

    def read(self, size: int = -1) -> bytes:
        """The next bytes.

        Raises:
            TooMuch: there are too many.
        """
        # All at once would be in the memory before it is counted.
        data = self._stream.read(min(size, 1 << 20) if size >= 0 else 1 << 20)
        self._read += len(data)
        if self._read > max(self._most, self._ratio * self._packed.read_bytes):
            raise TooMuch(f"it is packed {self._read // max(self._packed.read_bytes, 1)} to 1: no data of a cluster is")
        return data


class Counted:
    """A stream of which it is known how much was read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.read_bytes = 0

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        data = self._stream.read(size)
        self.read_bytes += len(data)
        return data
