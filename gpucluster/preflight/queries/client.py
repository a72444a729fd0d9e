"""Asking the cloud one thing: an answer, or why there is none. Never an exception, never for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from gpucluster.cloud.client import Access, refusals
from gpucluster.errors import CloudError
from gpucluster.preflight.facts import Unknown

T = TypeVar("T")

# Seconds that one request may take, and the pauses before it is sent again where the cloud was busy.
PATIENCE = 6.0
_PAUSES = (0.4, 1.2)
_LATER = "Try again later"


class Asker:
    """Asks with the operator's key. Safe to use from several threads."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def client(self, service: str, name: str) -> Any:
        """A client that waits for nobody, made once."""
        with self._lock:
            if (service, name) not in self._clients:
                signer = next((one.base_client.signer for one in self._clients.values()), None)
                self._clients[service, name] = self.access.client(service, name, patience=PATIENCE, signer=signer)
            return self._clients[service, name]

    def ask(self, check: str, what: str, allow: str, call: Callable[[], T]) -> T | Unknown:
        """The answer of `call`, or why there is none.

        Args:
            check: the check that needs it.
            what: as it stands in "could not read ...".
            allow: the right that it takes, as in a policy: `read vcns in compartment id ocid1...`.
        """
        for pause in (*_PAUSES, None):
            found = self._once(check, what, allow, call)
            if pause is None or not isinstance(found, Unknown) or not found.busy:
                return found
            time.sleep(pause)
        raise AssertionError("the last round has no pause")

    def _once(self, check: str, what: str, allow: str, call: Callable[[], T]) -> T | Unknown:
        try:
            with refusals("asking"):
                return call()
        except CloudError as error:
            return Unknown(check, what, _reason(error), error.status, _action(error.status, allow))
        except Exception as error:
            # Whatever stands between us and the cloud may answer what the SDK can't read: one fact is not known, and
            # that must not be the end of the others.
            return Unknown(check, what, f"the answer could not be understood: {error!r}"[:300], action=_LATER)


def _reason(error: CloudError) -> str:
    what = error.what.removeprefix("asking: ")
    return f"{what} ({error.where})" if error.where else what


def _action(status: int, allow: str) -> str:
    if status == 404:  # noqa: PLR2004
        right = f"Allow group <yours> to {allow}"
        return f"If it is there, an administrator can let you see it: {right} (all rights: gpucluster policies)"
    return _LATER
