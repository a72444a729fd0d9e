"""One query to the cloud: an answer, or the reason why there is none. It never raises, and never takes long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gpucluster import cancellation
from gpucluster.cloud.client import CloudAccess, SharedClients, refusals
from gpucluster.errors import CloudError
from gpucluster.preflight.facts import NOT_FOUND, Unknown

T = TypeVar("T")

# Timeouts of one request in seconds. An endpoint of our own is on this machine: a late answer means that it is busy.
_TIMEOUT, _TIMEOUT_ON_THIS_MACHINE = 6.0, 60.0
# The pauses before a request is repeated when the cloud was busy.
_PAUSES = (0.4, 1.2)
_LATER = "Try again later"


def timeout(access: CloudAccess) -> float:
    """Seconds that one request may take."""
    return _TIMEOUT_ON_THIS_MACHINE if access.endpoint else _TIMEOUT


class QueryClient:
    """Sends queries with the operator's key. Safe to use from several threads."""

    def __init__(self, access: CloudAccess) -> None:
        self.access = access
        self._clients = SharedClients(access, timeout=timeout(access))

    def client(self, service: str, name: str) -> Any:
        """An SDK client with a short timeout and without the SDK's own retries, made once."""
        return self._clients.get(service, name)

    def query(self, check: str, what: str, allow: str, call: Callable[[], T]) -> T | Unknown:
        """The result of `call`, or the reason why there is none.

        Args:
            check: the check that needs it.
            what: the object of "could not read ...".
            allow: the permission that it takes, as in a policy: `read vcns in compartment id ocid1...`.
        """
        for pause in (*_PAUSES, None):
            result = self._once(check, what, allow, call)
            if pause is None or not isinstance(result, Unknown) or not result.busy:
                return result
            cancellation.sleep(pause)
        raise AssertionError("the last round has no pause")

    def _once(self, check: str, what: str, allow: str, call: Callable[[], T]) -> T | Unknown:
        try:
            with refusals("query"):
                return call()
        except CloudError as error:
            return Unknown(check, what, _reason(error), error.status, _action(error.status, allow))
        except Exception as error:
            # A proxy may answer something that the SDK can't parse. Then this one fact is unknown; the others must
            # still be read.
            return Unknown(check, what, f"the answer could not be parsed: {error!r}"[:300], action=_LATER)


def _reason(error: CloudError) -> str:
    what = error.what.removeprefix("query: ")
    return f"{what} ({error.where})" if error.where else what


def _action(status: int, allow: str) -> str:
    if status == NOT_FOUND:
        statement = f"Allow group <yours> to {allow}"
        return f"If it exists, an administrator can permit it: {statement} (all permissions: gpucluster policies)"
    return _LATER
