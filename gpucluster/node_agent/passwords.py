"""Passwords: they are hashed before they are stored, and are never on a command line."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed

#: The stronger first. slapd knows ARGON2 where it has the module, and CRYPT everywhere.
SCHEMES = ("ARGON2", "CRYPT")
#: In memory until the next boot, and writable by root only.
_MEMORY = "/run"
_BYTES = 32


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
        digest = _argon2(password) if scheme == "ARGON2" else _crypt(password)
        if digest.startswith("{" + scheme + "}"):
            return digest
    raise Failed("no installed program can hash a password", "Install openssl")


def _argon2(password: str) -> str:
    with in_a_file(password) as file:
        argv = ["slappasswd", "-n", "-o", "module-load=argon2", "-h", "{ARGON2}", "-T", str(file)]
        return programs.call(argv).stdout.strip()


def _crypt(password: str) -> str:
    try:
        return crypted([password])[0]
    except Failed:
        return ""


def crypted(passwords: Sequence[str]) -> list[str]:
    """The hash of each, which every slapd knows: by one program for all of them.

    Raises:
        Failed: openssl is missing, or too old.
    """
    result = programs.call(["openssl", "passwd", "-6", "-stdin"], "".join(f"{password}\n" for password in passwords))
    hashes = result.stdout.split()
    if result.returncode != 0 or len(hashes) != len(passwords) or not all(text.startswith("$6$") for text in hashes):
        raise Failed("openssl can't hash a password", "Install openssl")
    return ["{CRYPT}" + text for text in hashes]


def made(number: int) -> list[tuple[str, str]]:
    """So many passwords of a program, of 256 random bits, with their hashes.

    Raises:
        Failed: openssl is missing, or too old.
    """
    passwords = [secrets.token_urlsafe(_BYTES) for _ in range(number)]
    return list(zip(passwords, crypted(passwords)))


def write_file(file: Path, text: str, like: os.stat_result | None = None) -> None:
    """Write a file that only root can read, all of it or nothing. Its folder is made if it is missing.

    Args:
        like: owner, group and mode are those of this file.

    Raises:
        Failed: it can't be written.
    """
    new = file.with_name(f".{file.name}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
            stream.write(text)
            if like is not None:
                os.fchown(stream.fileno(), like.st_uid, like.st_gid)
                os.fchmod(stream.fileno(), like.st_mode & 0o777)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
    except OSError as error:
        raise Failed(f"{file} can't be written: {error.strerror}") from error
