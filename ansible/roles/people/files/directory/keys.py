"""Public ssh keys: whether a text is one. What it holds is never repeated: it may be a private one.

The operator's machine has the same rules (`gpucluster/spec/keys.py`).
"""

from __future__ import annotations

import base64
import binascii
import unicodedata
from collections.abc import Sequence
from typing import Any

from directory.errors import Refused

LARGEST_CHARACTERS = 16384
MOST = 100
_MIN_RSA_BITS = 2048
_AGAIN = "Copy the whole line of the .pub file again"
_ED25519_BYTES = 32
#: Type -> how many parts a key has behind it.
_TYPES = {
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
    "sk-ssh-ed25519@openssh.com": 2,
    "sk-ecdsa-sha2-nistp256@openssh.com": 3,
}


def ssh_keys(value: Any) -> tuple[str, ...]:
    """Public keys, each once, in this order.

    Raises:
        Refused: one of them is none.
    """
    if not isinstance(value, list):
        raise Refused("ssh keys come as a list", "Give each as one text")
    if len(value) > MOST:
        raise Refused(f"{len(value)} ssh keys are too many", f"At most {MOST}")
    return tuple(dict.fromkeys(ssh_key(key) for key in value))


def ssh_key(value: Any) -> str:
    """One public key, without the blanks around it.

    Raises:
        Refused: it is none.
    """
    text = value.strip() if isinstance(value, str) else ""
    if "PRIVATE KEY-----" in text or text.startswith("PuTTY-User-Key-File"):
        raise Refused("the ssh key is a PRIVATE key", "Never hand it on. Give the file that ends in .pub")
    if len(text) > LARGEST_CHARACTERS or any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        raise Refused("the ssh key is not one line of text", "Give the whole line of the .pub file")
    kind, _, rest = text.partition(" ")
    if kind not in _TYPES:
        hint = f"It begins with one of: {', '.join(sorted(_TYPES))}; options before it are not supported"
        raise Refused("the ssh key is no public key", hint)
    try:
        parts = _parts(base64.b64decode((rest.split() or [""])[0].encode("ascii"), validate=True))
    except (binascii.Error, UnicodeEncodeError):
        parts = []
    _check(kind, parts)
    return text


def _parts(body: bytes) -> list[bytes]:
    """What a key is made of, each part with its length in front; nothing if one is cut off."""
    found: list[bytes] = []
    while body:
        end = 4 + int.from_bytes(body[:4], "big")
        if len(body) < end:
            return []
        found.append(body[4:end])
        body = body[end:]
    return found


def _check(kind: str, parts: Sequence[bytes]) -> None:
    if not parts or parts[0] != kind.encode():
        raise Refused(f"the ssh key is damaged: it says {kind} and holds something else", _AGAIN)
    if len(parts) - 1 != _TYPES[kind] or not all(parts):
        raise Refused("the ssh key is damaged: a part is missing", _AGAIN)
    if kind == "ssh-ed25519" and len(parts[1]) != _ED25519_BYTES:
        raise Refused("the ssh key is damaged: its length is wrong", _AGAIN)
    if kind == "ssh-rsa" and int.from_bytes(parts[-1], "big").bit_length() < _MIN_RSA_BITS:
        hint = f"At least {_MIN_RSA_BITS}, or make another: ssh-keygen -t ed25519"
        raise Refused("the ssh key is an RSA key of so few bits that ssh servers refuse it", hint)
