"""What the last words of kubectl mean: pure, from its standard error to a message and the next command."""

from __future__ import annotations

import re
from typing import NamedTuple

#: Kinds of faults that callers tell apart.
DEAD, EXPIRED, SPACE, NOT_FOUND, BUDGET, CONFLICT, FORBIDDEN, OTHER = (
    "dead", "expired", "space", "not found", "budget", "conflict", "forbidden", "other",
)  # fmt: skip
#: The faults after which no other request is answered either.
OF_THE_SERVER = frozenset({DEAD, EXPIRED, SPACE})

_LOOK = "Look why: gpucluster kubernetes status"


class KubectlFault(NamedTuple):
    """Why kubectl failed.

    Attributes:
        kind: one of the constants of this module.
        message: what is wrong, in one line.
        hint: what to do; "" where only the caller knows.
    """

    kind: str
    message: str
    hint: str


# Wordings of kubectl 1.20 to 1.37, of client-go and of etcd; the first that is found decides.
_WORDINGS = (
    (
        r"database space exceeded|NOSPACE",
        SPACE,
        "etcd is full: it refuses every change until it has space again",
        "Run: gpucluster kubernetes compact",
    ),
    (
        r"certificate has expired|certificate is not yet valid|not yet valid",
        EXPIRED,
        "a certificate of the control plane is not valid now: {line}",
        "See which: gpucluster kubernetes certificates; renew them: gpucluster kubernetes certificates --renew",
    ),
    (
        r"Unauthorized|must be logged in to the server",
        EXPIRED,
        "the API server does not accept the certificate or token in {file}",
        "Run: gpucluster apply",
    ),
    (
        r"connection refused|was refused|connection reset|no route to host|i/o timeout|TLS handshake timeout"
        r"|Client\.Timeout|context deadline exceeded|unexpected EOF|: EOF$|ServiceUnavailable|apiserver not ready",
        DEAD,
        "the API server of Kubernetes on the controller gives no answer: {line}",
        _LOOK,
    ),
    (
        r"etcdserver: (request timed out|leader changed|no leader)|etcdserver: too many",
        DEAD,
        "etcd on the controller gives no answer in time: {line}",
        _LOOK,
    ),
    (r"\(NotFound\)|NotFound|not found", NOT_FOUND, "{line}", ""),
    (r"disruption budget|TooManyRequests", BUDGET, "{line}", ""),
    (r"\(Conflict\)|AlreadyExists|object has been modified", CONFLICT, "{line}", "Try again"),
    (r"\(Forbidden\)|forbidden:", FORBIDDEN, "{line}", ""),
)
_NO_FILE = re.compile(r"stat (\S+\.conf): no such file|no configuration has been provided|(\S+\.conf): no such file")
#: Warnings, and what kubectl logs: a letter, then month and day.
_LOGGED = re.compile(r"W|[IE]\d{4} ")
_PREFIX = re.compile(r"^(error: |Error from server( \([A-Za-z]+\))?: |Unable to connect to the server: )+")
_LONGEST = 400


def explained(error_output: str, status: int, file: str) -> KubectlFault:
    """What kubectl's standard error means.

    Args:
        error_output: all that it printed there.
        status: its exit status.
        file: the kubeconfig that it used.
    """
    lines = [line.strip() for line in error_output.splitlines() if line.strip() and not _LOGGED.match(line)]
    whole = " ".join(lines) or error_output.strip()
    line = _PREFIX.sub("", lines[-1] if lines else error_output.strip() or f"kubectl ended with status {status}")[
        :_LONGEST
    ]
    if _NO_FILE.search(whole):
        return KubectlFault(DEAD, "this host has no control plane of Kubernetes yet", "Run: gpucluster apply")
    for pattern, kind, message, hint in _WORDINGS:
        if re.search(pattern, error_output):
            return KubectlFault(kind, message.format(line=line, file=file), hint)
    return KubectlFault(OTHER, line, "")
