"""Passwords: hashed before they are stored, and never on a command line."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from directory import programs
from directory.errors import Failed

#: The stronger first. slapd knows ARGON2 where it has the module, and CRYPT everywhere.
SCHEMES = ("ARGON2", "CRYPT")
_BYTES = 32
#: Of this start of the host alone, and written by root alone.
_MEMORY = "/run"


@contextmanager
def in_a_file(password: str) -> Iterator[Path]:
    """A file that root alone can read, in memory, as long as it is needed. OpenLDAP's programs take no other way."""
    handle, name = tempfile.mkstemp(prefix="gpucluster-", dir=_MEMORY)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(password)
        yield Path(name)
    finally:
        Path(name).unlink()


def hashed(password: str, schemes: tuple[str, ...] = SCHEMES) -> str:
    """What the directory stores, in the first of these schemes that can be had here.

    Raises:
        Failed: in none.
    """
    for scheme in schemes:
        found = _argon2(password) if scheme == "ARGON2" else _crypt(password)
        if found.startswith("{" + scheme + "}"):
            return found
    raise Failed("no program here can hash a password", "Install openssl")


def _argon2(password: str) -> str:
    with in_a_file(password) as file:
        argv = ["slappasswd", "-n", "-o", "module-load=argon2", "-h", "{ARGON2}", "-T", str(file)]
        return programs.call(argv).stdout.strip()


def _crypt(password: str) -> str:
    done = programs.call(["openssl", "passwd", "-6", "-stdin"], password + "\n")
    return "{CRYPT}" + done.stdout.strip() if done.returncode == 0 and done.stdout.startswith("$6$") else ""


def keep_file(file: Path) -> bool:
    """A file with a random password, made if it is missing or empty; says whether it was made."""
    try:
        if file.read_text(encoding="utf-8").strip():
            return False
        new = file.with_name(f".{file.name}.new")
        new.unlink()
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"{file} can't be read: {error}", "Remove it: it is made anew") from error
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f".{file.name}.new")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
            # Without a line end: OpenLDAP's programs would take it for a part of the password.
            stream.write(secrets.token_urlsafe(_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
    except OSError as error:
        raise Failed(f"{file} can't be written: {error.strerror}") from error
    return True
