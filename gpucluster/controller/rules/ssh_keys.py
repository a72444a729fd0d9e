"""Public ssh keys: whether a text is one. A wrong key is described by its kind; its content is never repeated."""

from __future__ import annotations

import base64
import binascii
import unicodedata

MAX_CHARACTERS = 16 * 1024
#: Keys that one user may have.
MAX_KEYS = 100
MIN_RSA_BITS = 2048
HOW_TO_MAKE_ONE = "Make one: ssh-keygen -t ed25519"

_COPY_AGAIN = "Copy the whole line of the .pub file"
_ED25519_BYTES = 32
#: Type -> how many parts a key has after it.
TYPES = {
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
    "sk-ssh-ed25519@openssh.com": 2,
    "sk-ecdsa-sha2-nistp256@openssh.com": 3,
}


class BadKey(Exception):
    """Not a usable public key. The message completes the sentence "the key is ..."."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def check(text: str) -> str:
    """The key without the blanks around it.

    Raises:
        BadKey: it is not a public key.
    """
    line = text.strip()
    refuse_other_formats(line)
    if "\n" in line:
        raise BadKey("more than one line", "Write one key in each entry")
    if len(line) > MAX_CHARACTERS or any(unicodedata.category(character) in ("Cc", "Cs") for character in line):
        raise BadKey("not a line of text", _COPY_AGAIN)
    # sshd splits at spaces only (and at tabs, which are refused above).
    words = [word for word in line.split(" ") if word]
    if not words:
        raise BadKey("empty", HOW_TO_MAKE_ONE)
    kind = words[0]
    if kind not in TYPES:
        raise _unknown_type(kind, words)
    if len(words) == 1:
        raise BadKey("cut off: the type is there, the key is not", _COPY_AGAIN)
    try:
        body = base64.b64decode(words[1].encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise BadKey("damaged: its second word is not base64", _COPY_AGAIN) from error
    _check_body(kind, _parts(body))
    return line


def same(one: str, other: str) -> bool:
    """Whether two texts are the same key, whatever their comments are."""
    return one.split()[:2] == other.split()[:2]


def label(text: str) -> str:
    """The first word of a key's comment; empty without one. Of a generated key it names the owner: USER@CLUSTER."""
    return next(iter(text.split()[2:]), "")


def refuse_other_formats(text: str) -> None:
    """Recognize what users mistake for a public key.

    Raises:
        BadKey: it is a private key, a certificate, or in another format.
    """
    if "PRIVATE KEY-----" in text or text.startswith("PuTTY-User-Key-File"):
        raise BadKey("a PRIVATE key", "Never give it to anyone. Name the public key: the file that ends in .pub")
    if text.startswith("---- BEGIN SSH2 PUBLIC KEY"):
        raise BadKey("a public key in another format", "Convert it: ssh-keygen -i -f FILE")
    if text.startswith("-----BEGIN"):
        raise BadKey("a certificate or a key in another format", "Name the file that ssh-keygen made, ending in .pub")


def _unknown_type(kind: str, words: list[str]) -> BadKey:
    if kind == "ssh-dss":
        return BadKey("a DSA key, which ssh servers refuse", HOW_TO_MAKE_ONE)
    if "-cert-v01@" in kind:
        return BadKey("a certificate, not a key", "Name the .pub file without -cert")
    if any(word in TYPES for word in words[1:]):
        return BadKey("preceded by options, which are not supported", "Begin with the type, such as ssh-ed25519")
    return BadKey("not a public key", f"It begins with one of: {', '.join(sorted(TYPES))}")


def _parts(body: bytes) -> list[bytes]:
    """The length-prefixed parts of a key (RFC 4253, section 6.6)."""
    parts: list[bytes] = []
    while body:
        length = int.from_bytes(body[:4], "big")
        if len(body) < 4 + length:
            raise BadKey("damaged: its second word is cut off", _COPY_AGAIN)
        parts.append(body[4 : 4 + length])
        body = body[4 + length :]
    return parts


def _check_body(kind: str, parts: list[bytes]) -> None:
    if not parts or parts[0] != kind.encode():
        inside = parts[0].decode("ascii", errors="replace")[:40] if parts else ""
        content = f" but holds a key of type {inside}" if inside in TYPES else " but holds something else"
        raise BadKey(f"damaged: it begins with {kind}{content}", _COPY_AGAIN)
    if len(parts) - 1 != TYPES[kind] or not all(parts):
        raise BadKey("damaged: a part is missing", _COPY_AGAIN)
    if kind == "ssh-ed25519" and len(parts[1]) != _ED25519_BYTES:
        raise BadKey("damaged: its length is wrong", _COPY_AGAIN)
    bits = int.from_bytes(parts[-1], "big").bit_length()
    if kind == "ssh-rsa" and bits < MIN_RSA_BITS:
        raise BadKey(f"an RSA key of {bits} bits, which ssh servers refuse", HOW_TO_MAKE_ONE)
