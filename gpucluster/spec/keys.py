"""Files with public ssh keys. The rules for keys are `gpucluster.controller.rules.ssh_keys`, as on the controller."""

from __future__ import annotations

import stat
from pathlib import Path

from gpucluster.controller.rules.ssh_keys import HOW_TO_MAKE_ONE, BadKey, check, refuse_other_formats

MAX_FILE_BYTES = 64 * 1024


def read(path: Path) -> tuple[str, ...]:
    """Every key of a file; empty lines and comments are skipped.

    Raises:
        BadKey: the file can't be read, or a line of it is not a key.
    """
    text = _text_of(path)
    try:
        refuse_other_formats(text.strip())
    except BadKey as bad:
        raise BadKey(f"{path} is {bad.message}", bad.hint) from bad
    keys: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                keys.append(check(line))
            except BadKey as bad:
                raise BadKey(f"the key in {path} line {number} is {bad.message}", bad.hint) from bad
    if not keys:
        raise BadKey(f"{path} holds no key", HOW_TO_MAKE_ONE)
    return tuple(keys)


def _text_of(path: Path) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise BadKey(f"{path} is not a file", "Name the .pub file itself")
        if status.st_size > MAX_FILE_BYTES:
            raise BadKey(f"{path} is too large for a public key: {status.st_size} bytes")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BadKey(f"there is no file {path}", HOW_TO_MAKE_ONE) from error
    except UnicodeDecodeError as error:
        raise BadKey(f"{path} is not a public key: it is not text") from error
    except OSError as error:
        raise BadKey(f"{path} can't be read: {error.strerror}") from error
