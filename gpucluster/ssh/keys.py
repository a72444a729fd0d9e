"""Key pairs with which this machine logs in."""

from __future__ import annotations

import fcntl
import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpucluster import process
from gpucluster.errors import EnvironmentFault, ToolError
from gpucluster.paths import make_private, read_saved


def ensure_key(file: Path, comment: str) -> Path:
    """Create an ed25519 key pair without passphrase if there is none yet. Returns the private key's path.

    Of several processes that do so at once, one makes the pair and all have it. The private key gets its name last: a
    pair that an interrupted process has begun is made again.
    """
    if not file.exists():
        make_private(file.parent)
        with _alone_in(file.parent), tempfile.TemporaryDirectory(dir=file.parent, prefix=".new-") as folder:
            if not file.exists():
                new = Path(folder) / "key"
                process.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(new)])
                _public_file(new).replace(_public_file(file))
                new.replace(file)
    return file


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process is here. The lock ends with the process that holds it."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _public_file(private_key: Path) -> Path:
    return private_key.with_name(f"{private_key.name}.pub")


def public_key(private_key: Path) -> str:
    """The public half of a key pair made by `ensure_key`, as one line.

    Raises:
        EnvironmentFault: it is missing or damaged.
    """
    file = _public_file(private_key)
    try:
        line = read_saved(file).strip()
        why = "" if line.startswith("ssh-") and line.isprintable() else "it holds no key"
    except OSError as error:
        line, why = "", error.strerror or "it can't be read"
    if why:
        again = f"ssh-keygen -y -f {shlex.quote(str(private_key))} > {shlex.quote(str(file))}"
        what = f"the public half of a key pair is missing: {why}"
        raise EnvironmentFault(what, where=str(file), hint=f"Write it again: {again}")
    return line


def own_key(public_keys: Sequence[str]) -> str:
    """The one of these public keys with which this machine can log in: the first that ssh's agent has, if there are
    several and it has one; else the first."""
    if len(public_keys) > 1:
        try:
            listed = process.run(["ssh-add", "-L"], check=False, timeout=10).stdout
        except ToolError:
            listed = ""
        held = {tuple(line.split()[:2]) for line in listed.splitlines()}
        return next((key for key in public_keys if tuple(key.split()[:2]) in held), public_keys[0])
    return public_keys[0]
