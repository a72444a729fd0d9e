"""Backups that the controller has encrypted (CMS): they are decrypted on the operator's machine, where the key is.

openssl reads the key, and asks for its passphrase on the terminal. What is decrypted is in a file without a name, which
ends with this process, however that ends.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from gpucluster import process
from gpucluster.errors import InputError

#: The identifiers of what CMS encrypts (RFC 5652, RFC 5083), in the first bytes of such a file.
_ENCRYPTED = (bytes.fromhex("06092a864886f70d010703"), bytes.fromhex("060b2a864886f70d0109100117"))
_BEGINNING = 32
_GZIP = b"\x1f\x8b"
# What openssl prints about a key that it can't read, or whose passphrase is wrong.
_KEY_FAULT = re.compile(r"key from|pass ?phrase|unable to load", re.IGNORECASE)


@contextlib.contextmanager
def plain_backup(file: Path, key: Path | None) -> Iterator[IO[bytes]]:
    """A backup as it was before it was encrypted; one that is not encrypted, as it is.

    Args:
        key: the private key; None where there is none.

    Raises:
        InputError: the file can't be read, or it is encrypted and there is no key for it.
    """
    with opened_backup(file) as stream:
        beginning = stream.read(_BEGINNING)
        stream.seek(0)
        if not any(mark in beginning for mark in _ENCRYPTED):
            yield stream
            return
    if key is None:
        hint = "Name the private key of backup.certificate: gpucluster restore FILE --key backup_key.pem"
        raise InputError("the backup is encrypted", where=str(file), hint=hint)
    with tempfile.TemporaryFile(prefix="gpucluster-backup-") as target:
        _decrypt(file, key, target)
        yield target


@contextlib.contextmanager
def opened_backup(file: Path) -> Iterator[IO[bytes]]:
    """A backup's file, for reading.

    Raises:
        InputError: it can't be read.
    """
    try:
        stream = file.open("rb")
    except OSError as error:
        what = f"the backup can't be read: {error.strerror}"
        raise InputError(what, where=str(file), hint="Name a file that you may read") from error
    with stream:
        yield stream


def _decrypt(file: Path, key: Path, target: IO[bytes]) -> None:
    try:
        key.open("rb").close()
    except OSError as error:
        hint = "Name the private key of backup.certificate, as PEM"
        raise InputError(f"the key can't be read: {error.strerror}", where=str(key), hint=hint) from error
    argv = ["openssl", "cms", "-decrypt", "-binary", "-inform", "DER", "-in", str(file), "-inkey", str(key)]
    done = process.transfer(argv, target=target)
    target.seek(0)
    # Without authenticated encryption, what another key decrypts is sometimes only nonsense.
    if done.returncode == 0 and target.read(len(_GZIP)) == _GZIP:
        target.seek(0)
        return
    if done.returncode != 0 and _KEY_FAULT.search(done.stderr):
        hint = "It must be a private key in PEM. On a terminal, openssl asks for its passphrase: was that right?"
        raise InputError("openssl can't use the key", where=str(key), hint=hint)
    hint = (
        "Name the key of the certificate that backup.certificate named when the backup was made. Is the file complete?"
    )
    raise InputError("the key does not decrypt this backup", where=str(file), hint=hint)
