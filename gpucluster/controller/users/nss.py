"""This host's name service: its local accounts and shells, and SSSD's cache of the directory."""

from __future__ import annotations

import pwd
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from gpucluster.controller.users.config import Config
from gpucluster.controller.users.values import LocalAccounts
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed

_KNOWN_SECONDS = 10.0
_NUMBER_FIELD = 2
#: For accounts without login.
_NO_SHELLS = ("/usr/sbin/nologin", "/sbin/nologin", "/bin/false", "/usr/bin/false")


def local_accounts(config: Config, etc: Path = Path("/etc")) -> LocalAccounts:
    """The accounts and shells of this host itself."""
    shells = {config.shell, *(line.strip() for line in _lines(etc / "shells") if line.startswith("/"))}
    shells |= {shell for shell in _NO_SHELLS if Path(shell).exists()}
    logins = frozenset(config.hosts.login_user_by_host.values())
    return LocalAccounts(_numbers(etc / "passwd"), _numbers(etc / "group"), logins, shells)


def _lines(file: Path) -> Sequence[str]:
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    return ()


def _numbers(file: Path) -> dict[str, int]:
    """Name -> id of each line of a passwd or group file."""
    rows = (line.split(":") for line in _lines(file))
    return {
        row[0]: int(row[_NUMBER_FIELD]) for row in rows if len(row) > _NUMBER_FIELD and row[_NUMBER_FIELD].isdigit()
    }


def expire_cache() -> None:
    """Let SSSD ask the directory again; nothing happens where it is not installed."""
    with suppress(Failed):
        programs.call(["sss_cache", "--everything"], seconds=10)


def await_names(names: Iterable[str]) -> None:
    """Wait until this host can resolve these users: Slurm takes their uids from it.

    The wait is short; Slurm asks again later.
    """
    until = time.monotonic() + _KNOWN_SECONDS
    for name in names:
        while not _known(name) and time.monotonic() < until:
            time.sleep(0.2)


def _known(name: str) -> bool:
    try:
        return bool(pwd.getpwnam(name))
    except KeyError:
        return False
