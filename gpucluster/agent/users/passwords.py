"""Passwords: they are hashed before they are stored, and are never on a command line."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpucluster.agent import programs
from gpucluster.agent.errors import Failed

#: The stronger first. slapd knows ARGON2 where it has the module, and CRYPT everywhere.
SCHEMES = ("ARGON2", "CRYPT")
_BYTES = 32
#: In memory until the next boot, and writable by root only.
_MEMORY = "/run"


@contextmanager
def in_a_file(password: str) -> Iterator[Path]:
    """A file in memory that only root can read, to the end of the block. OpenLDAP's programs take no other input."""
    handle, name = tempfile.mkstemp(prefix="gpucluster-", dir=_MEMORY)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(password)
        yield Path(name)
    finally:
        Path(name).unlink()


def hashed(password: str, schemes: tuple[str, ...] = SCHEMES) -> str:
    """The hash that the directory stores, in the first of these schemes that this host supports.

    Raises:
        Failed: it supports none.
    """
    for scheme in schemes:
        found = _argon2(password) if scheme == "ARGON2" else _crypt(password)
        if found.startswith("{" + scheme + "}"):
            return found
    raise Failed("no installed program can hash a password", "Install openssl")


def _argon2(password: str) -> str:
    with in_a_file(password) as file:
        argv = ["slappasswd", "-n", "-o", "module-load=argon2", "-h", "{ARGON2}", "-T", str(file)]
        return programs.call(argv).stdout.strip()


def _crypt(password: str) -> str:
    done = programs.call(["openssl", "passwd", "-6", "-stdin"], password + "\n")
    return "{CRYPT}" + done.stdout.strip() if done.returncode == 0 and done.stdout.startswith("$6$") else ""


def keep_file(file: Path) -> bool:
    """Make a file with a random password if it is missing or empty; returns whether it was made."""
    try:
        if file.read_text(encoding="utf-8").strip():
            return False
        new = file.with_name(f".{file.name}.new")
        new.unlink()
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"{file} can't be read: {error}", "Remove it: it is created again") from error
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f".{file.name}.new")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
            # Without a line end: OpenLDAP's programs would take it as part of the password.
            stream.write(secrets.token_urlsafe(_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
    except OSError as error:
        raise Failed(f"{file} can't be written: {error.strerror}") from error
    return True
