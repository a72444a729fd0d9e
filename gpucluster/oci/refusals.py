"""What it means when OCI refuses a request: from status, code and message to a cause.

Provisioning turns a cause into advice (`terraform.diagnosis`), the autoscaler into what to do with a launch. The codes
are from Oracle's "API Errors" page; the messages are as OCI and the provider oracle/oci 8.28.0 write them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 400, 401, 403, 404
CONFLICT, PRECONDITION_FAILED, TOO_MANY_REQUESTS, SERVER_ERROR = 409, 412, 429, 500


class Cause(StrEnum):
    """Why something was refused. The second group is what Terraform itself reports; `cause_of` never returns those."""

    CAPACITY = "capacity"
    LIMIT = "limit"
    THROTTLED = "throttled"
    CLOCK = "clock"
    CREDENTIALS = "credentials"
    PERMISSION = "permission"
    GONE = "gone"
    IN_USE = "in use"
    BUSY = "busy"
    EXISTS = "exists"
    SERVICE = "service"
    INPUT = "input"
    UNKNOWN = "unknown"

    TIMEOUT = "timeout"
    WORK_REQUEST = "work request"
    STATE_LOCK = "state lock"
    STATE = "state"
    STATE_DAMAGED = "state damaged"
    PROVIDER = "provider"
    NETWORK = "network"


#: Causes that follow from the class of the status only: a caller may know a more exact one.
GENERAL = frozenset({Cause.SERVICE, Cause.INPUT, Cause.UNKNOWN})


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    code: str
    message: str
    operation: str


_Rule = Callable[[_Answer], bool]


def _says(pattern: str) -> _Rule:
    compiled = re.compile(pattern, re.IGNORECASE)
    return lambda answer: compiled.search(f"{answer.code} {answer.message}") is not None


def _status(*numbers: int) -> _Rule:
    return lambda answer: answer.status in numbers


def _missing(answer: _Answer) -> bool:
    """Whether a thing that the request names by its own path is gone; a create names none."""
    verbs = ("Get", "Update", "Delete", "Terminate", "Detach")
    return answer.status == NOT_FOUND and answer.operation.startswith(verbs)


# The first rule that fits. The text of a message comes before its status: OCI answers 500 where it has no free host.
_RULES: tuple[tuple[Cause, _Rule], ...] = (
    (Cause.CAPACITY, _says(r"out of (host )?capacity|hostcapacity")),
    (
        Cause.LIMIT,
        _says(
            r"LimitExceeded|QuotaExceeded|TenantCapacityExceeded|service limits? (were|was) exceeded|quota .*exceeded"
        ),
    ),
    (Cause.THROTTLED, _says(r"TooManyRequests")),
    (Cause.THROTTLED, _status(TOO_MANY_REQUESTS)),
    (Cause.CLOCK, _says(r"clock skew")),
    (Cause.CREDENTIALS, _status(UNAUTHORIZED)),
    (Cause.CREDENTIALS, _says(r"NotAuthenticated|token .*expired|expired .*token|did not find a proper configuration")),
    (Cause.CREDENTIALS, _says(r"can not create client|private key|the environment lacks|failed to sign")),
    (Cause.EXISTS, _says(r"already exists|ResourceAlreadyExists")),
    (Cause.GONE, _missing),
    (Cause.PERMISSION, _says(r"NotAuthorized")),
    (Cause.PERMISSION, _status(FORBIDDEN, NOT_FOUND)),
    (
        Cause.IN_USE,
        _says(r"references? the|is referenced by|is used by|in use by|is associated (with|to)|still has|being used"),
    ),
    (Cause.BUSY, _status(CONFLICT, PRECONDITION_FAILED)),
    (Cause.SERVICE, lambda answer: answer.status >= SERVER_ERROR),
    (Cause.INPUT, lambda answer: answer.status >= BAD_REQUEST),
)


def cause_of(status: int, code: str, message: str, operation: str = "") -> Cause:
    """Why a request was refused.

    Args:
        status: of HTTP; 0 where no service answered.
        code, message: of the answer's body, or of a work request's error.
        operation: OCI's name of it, such as GetVcn; empty if it is not known.
    """
    answer = _Answer(status, code, message, operation)
    return next((cause for cause, fits in _RULES if fits(answer)), Cause.UNKNOWN)


# A host name stays taken for a while after its instance has gone.
_NAME_TAKEN = re.compile(r"host\s?name.*(already|in use)", re.IGNORECASE)


def lasts(status: int, message: str) -> bool:
    """Whether the same request would be refused again, as far as the status shows: 4xx, but no conflict of states."""
    client_error = BAD_REQUEST <= status < SERVER_ERROR and status not in (CONFLICT, PRECONDITION_FAILED)
    return client_error and not _NAME_TAKEN.search(message)
