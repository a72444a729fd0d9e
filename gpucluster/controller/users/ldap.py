"""The directory server, through its local socket: root is authenticated by the process, without a password."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from gpucluster.controller.users import ldif
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed

#: Exit statuses of ldapsearch and ldapwhoami: no such object, wrong password, still starting, not reachable.
_NO_SUCH_OBJECT, _INVALID_CREDENTIALS, _BUSY, _CANT_CONTACT = 32, 49, 51, 255
_HINT = "Run: journalctl -u slapd"


class Ldap:
    """The directory server.

    Args:
        uri: of its socket (ldapi).
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def wait(self, seconds: float) -> None:
        """Wait until the server answers.

        Raises:
            Failed: it does not.
        """
        until = time.monotonic() + seconds
        while True:
            result = programs.call(self._words("ldapsearch", "-LLL", "-s", "base", "-b", "", "1.1"))
            if result.returncode == 0:
                return
            if time.monotonic() > until or result.returncode not in (_BUSY, _CANT_CONTACT):
                raise Failed(f"the directory does not answer: {_first(result.stderr)}", _HINT)
            time.sleep(0.1)

    def search(self, base: str, scope: str, attributes: Sequence[str]) -> list[ldif.Entry]:
        """Entries below a base; none if the base itself is missing.

        Raises:
            Failed: the server did not answer.
        """
        words = ("-LLL", "-o", "ldif-wrap=no", "-s", scope, "-b", base, *attributes)
        result = programs.call(self._words("ldapsearch", *words))
        if result.returncode == _NO_SUCH_OBJECT:
            return []
        if result.returncode != 0:
            raise Failed(f"the directory can't be read: {_first(result.stderr)}", _HINT)
        return ldif.parse(result.stdout)

    def apply(self, changes: Sequence[str]) -> None:
        """Apply change records, in this order.

        Raises:
            Failed: one was refused; those before it are applied.
        """
        if changes:
            result = programs.call(self._words("ldapmodify"), "\n".join(changes), seconds=300)
            if result.returncode != 0:
                raise Failed(f"the directory refused a change: {_first(result.stderr)}", _HINT)

    def accepts(self, dn: str, password_file: Path) -> bool:
        """Whether this entry's password is the content of the file.

        Raises:
            Failed: the server did not answer.
        """
        result = programs.call(["ldapwhoami", "-x", "-H", self._uri, "-D", dn, "-y", str(password_file)])
        if result.returncode not in (0, _INVALID_CREDENTIALS):
            raise Failed(f"the directory does not check passwords: {_first(result.stderr)}", _HINT)
        return result.returncode == 0

    def _words(self, program: str, *words: str) -> list[str]:
        return [program, "-Q", "-Y", "EXTERNAL", "-H", self._uri, *words]


def _first(text: str) -> str:
    """The message of an OpenLDAP program on one line."""
    return "; ".join(part.strip() for part in text.splitlines() if part.strip()) or "it gave no reason"
