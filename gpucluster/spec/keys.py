"""Public ssh keys: whether a text or a file is one. Messages say what is wrong with a key, and never show its content.

The controller has the same rules (`ansible/roles/people/files/directory/keys.py`).
"""

from __future__ import annotations

import base64
import binascii
import stat
import unicodedata
from pathlib import Path

MAX_FILE_BYTES = 64 * 1024
MAX_CHARACTERS = 16 * 1024
MAX_KEYS = 100
MIN_RSA_BITS = 2048

_ED25519_BYTES = 32
# Type -> how many parts a key has behind it.
_TYPES = {
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
    "sk-ssh-ed25519@openssh.com": 2,
    "sk-ecdsa-sha2-nistp256@openssh.com": 3,
}
_HOW_TO_MAKE_ONE = "Make one: ssh-keygen -t ed25519"


class BadKey(Exception):
    """Not a usable public key."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def check(text: str) -> str:
    """The key without the blanks around it.

    Raises:
        BadKey: it is none.
    """
    line = text.strip()
    _refuse_other_things(line)
    if "\n" in line:
        raise BadKey("more than one line", "One key an entry")
    if len(line) > MAX_CHARACTERS or any(unicodedata.category(char) in ("Cc", "Cs") for char in line):
        raise BadKey("no line of text", "Copy the whole line of the .pub file")
    words = line.split()
    if not words:
        raise BadKey("empty", _HOW_TO_MAKE_ONE)
    kind = words[0]
    if kind not in _TYPES:
        raise _unknown_type(kind, words)
    if len(words) == 1:
        raise BadKey("cut off: the type is there, the key is not", "Copy the whole line of the .pub file")
    try:
        body = base64.b64decode(words[1].encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise BadKey("damaged: its second word is not base64", "Copy the whole line of the .pub file") from error
    _check_body(kind, _fields(body))
    return line


def read(path: Path) -> tuple[str, ...]:
    """Every key of a file; empty lines and comments are passed over.

    Raises:
        BadKey: the file can't be read, or a line of it is no key.
    """
    text = _text_of(path)
    try:
        _refuse_other_things(text.strip())
    except BadKey as bad:
        raise BadKey(f"{path} is {bad.message}", bad.hint) from bad
    found: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                found.append(check(line))
            except BadKey as bad:
                raise BadKey(f"the key in {path} line {number} is {bad.message}", bad.hint) from bad
    if not found:
        raise BadKey(f"{path} holds no key", _HOW_TO_MAKE_ONE)
    return tuple(found)


def _text_of(path: Path) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise BadKey(f"{path} is not a file", "Name the .pub file itself")
        if status.st_size > MAX_FILE_BYTES:
            raise BadKey(f"{path} is too large for a public key: {status.st_size} bytes")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BadKey(f"there is no file {path}", _HOW_TO_MAKE_ONE) from error
    except UnicodeDecodeError as error:
        raise BadKey(f"{path} is not a public key: it is not text") from error
    except OSError as error:
        raise BadKey(f"{path} can't be read: {error.strerror}") from error


def _refuse_other_things(text: str) -> None:
    if "PRIVATE KEY-----" in text or text.startswith("PuTTY-User-Key-File"):
        hint = "Never hand it on. Name the public key: the file that ends in .pub"
        raise BadKey("a PRIVATE key", hint)
    if text.startswith("---- BEGIN SSH2 PUBLIC KEY"):
        raise BadKey("a public key in another format", "Convert it: ssh-keygen -i -f FILE")
    if text.startswith("-----BEGIN"):
        raise BadKey("a certificate or a key in another format", "Name the file that ssh-keygen made, ending in .pub")


def _unknown_type(kind: str, words: list[str]) -> BadKey:
    if kind == "ssh-dss":
        return BadKey("a DSA key, which ssh servers refuse", _HOW_TO_MAKE_ONE)
    if "-cert-v01@" in kind:
        return BadKey("a certificate, not a key", "Name the .pub file without -cert")
    if any(word in _TYPES for word in words[1:]):
        return BadKey("preceded by options, which are not supported", "Begin with the type, such as ssh-ed25519")
    return BadKey("not a public key", f"It begins with one of: {', '.join(sorted(_TYPES))}")


def _fields(body: bytes) -> list[bytes]:
    """The length-prefixed parts of a key (RFC 4253, section 6.6)."""
    parts: list[bytes] = []
    while body:
        length = int.from_bytes(body[:4], "big")
        if len(body) < 4 + length:
            raise BadKey("damaged: its second word is cut off", "Copy the whole line of the .pub file")
        parts.append(body[4 : 4 + length])
        body = body[4 + length :]
    return parts


def _check_body(kind: str, parts: list[bytes]) -> None:
    if not parts or parts[0] != kind.encode():
        inside = parts[0].decode("ascii", errors="replace")[:40] if parts else ""
        said = f" but holds a key of type {inside}" if inside in _TYPES else " but holds something else"
        raise BadKey(f"damaged: it says {kind}{said}", "Copy the whole line of the .pub file")
    if len(parts) - 1 != _TYPES[kind] or not all(parts):
        raise BadKey("damaged: a part is missing", "Copy the whole line of the .pub file")
    if kind == "ssh-ed25519" and len(parts[1]) != _ED25519_BYTES:
        raise BadKey("damaged: its length is wrong", "Copy the whole line of the .pub file")
    bits = int.from_bytes(parts[-1], "big").bit_length()
    if kind == "ssh-rsa" and bits < MIN_RSA_BITS:
        raise BadKey(f"an RSA key of {bits} bits, which ssh servers refuse", _HOW_TO_MAKE_ONE)
