"""Errors of Terraform and of the cloud's API, explained: which resource, why, the request's id, and the next command.

Pure. Texts as oracle/oci 8.28.0 and Terraform 1.11 write them. What the cloud's codes and messages mean is in
`gpucluster.oci.refusals`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from gpucluster.oci import refusals
from gpucluster.oci.refusals import Cause as Cause
from gpucluster.pages.units import duration
from gpucluster.terraform.addresses import human_name

_TOO_LONG = 400  # characters that are shown of a message of unknown origin


@dataclass(frozen=True)
class CloudRefusal:
    """An error as a service reported it. `status` is 0 if it was not the answer to one request."""

    message: str
    status: int = 0
    code: str = ""
    service: str = ""
    operation: str = ""
    request_id: str = ""
    target: str = ""

    @property
    def answered(self) -> str:
        """Such as `LaunchInstance: 500 InternalError`; empty if no service answered."""
        numbers = f"{self.status} {self.code}".strip() if self.status else ""
        return ": ".join(part for part in (self.operation, numbers) if part)


@dataclass(frozen=True)
class Lock:
    """Who holds a state. `who` and `since` are empty if the backend does not report them."""

    id: str
    who: str = ""
    since: str = ""
    operation: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """One error, explained.

    Args:
        address: of the resource in Terraform, or a file and its line if there is no resource; may be empty.
        subject: the resource as messages call it, such as "the cluster network of the pool compute".
        explanation: the cause, in a short text of ours.
        advice: what to do next, with the command.
        detail: the full text of the error.
    """

    cause: Cause
    address: str
    subject: str
    explanation: str
    advice: str
    refusal: CloudRefusal
    detail: str = field(repr=False)

    @property
    def sentence(self) -> str:
        """Resource and cause."""
        answered = f" ({self.refusal.answered})" if self.refusal.answered else ""
        subject = f"{self.subject}: " if self.subject else ""
        message = self.refusal.message.strip().rstrip(".")
        text = ": ".join(part for part in (self.explanation, message) if part) or "no reason was given"
        return f"{subject}{text}{answered}"

    @property
    def where(self) -> str:
        """Address and the request's id."""
        request = f"opc-request-id {self.refusal.request_id}" if self.refusal.request_id else ""
        return ", ".join(part for part in (self.address, request) if part)


# --- reading -----


_FIRST_LINE = re.compile(r"^(?:Error: )?(\d{3})-([A-Za-z]\w*), (.*)$", re.DOTALL)
_FIELD = re.compile(
    r"^(Suggestion|Documentation|API Reference|Request Target|Provider version|Service|Operation Name|OPC request ID"
    r"|Error Message|Resource OCID|Further Information): ?",
    re.MULTILINE,
)
_WORK_REQUEST = re.compile(r"work request did not succeed.*?workId: *([^,\s]+)", re.DOTALL)


def refusal_of(text: str) -> CloudRefusal:
    """Read an error of the provider: a first line, then lines `Name: value`.

    The first line is the answer to a request. Of what failed later it is only the kind, such as "Work Request error",
    and the reason is the field Error Message.
    """
    begins = list(_FIELD.finditer(text))
    ends = (*(match.start() for match in begins[1:]), len(text))
    fields = {match[1]: text[match.end() : end].strip() for match, end in zip(begins, ends, strict=False)}
    head = text[: begins[0].start()].strip() if begins else text.strip()
    first = _FIRST_LINE.match(head)
    reason = first[3] if first else fields.get("Error Message") or head.removeprefix("Error: ")
    work = _WORK_REQUEST.search(reason)
    return CloudRefusal(
        message=" ".join(reason.split()),
        status=int(first[1]) if first else 0,
        code=first[2] if first else "",
        service=fields.get("Service", ""),
        operation=fields.get("Operation Name", ""),
        request_id=fields.get("OPC request ID") or (work[1] if work else ""),
        target=fields.get("Request Target", ""),
    )


def lock_of(text: str) -> Lock | None:
    """Who holds the state, from the text of "Error acquiring the state lock"; None if it does not name the holder.

    The http backend has the holder's ID in its message; its "Lock Info" is the lock that it tried to write itself.
    """
    info = {
        name: " ".join(value.split())
        for name, value in re.findall(r"^ *(ID|Who|Created|Operation): +(.*)$", text, re.MULTILINE)
    }
    holder = re.search(r"already locked:\s+ID=(\S*)", text)
    if holder and holder[1] != info.get("ID"):
        return Lock(holder[1])
    if not info.get("ID"):
        return None
    return Lock(info["ID"], info.get("Who", ""), info.get("Created", ""), info.get("Operation", ""))


def since_when(created: str, now: datetime) -> str:
    """Since when a lock is held, and how long that is: " since ... (12 min 3 s ago)"; empty if it is not known.

    Args:
        created: as Go prints a time, "2026-01-02 03:04:05.6 +0000 UTC", or as servers of the http backend do.
    """
    if not created:
        return ""
    read = re.match(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.\d+)? ?(Z|[+-]\d\d:?\d\d)", created)
    if read is None:
        return f" since {created}"
    then = datetime.fromisoformat(f"{read[1]}T{read[2]}{'+00:00' if read[3] == 'Z' else read[3]}")
    age = (now - then).total_seconds()
    # A clock of another machine may be ahead of ours.
    return f" since {created} ({duration(age)} ago)" if age >= 0 else f" since {created}"


# --- classifying -----


def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


# What Terraform itself reports, and the provider if no service answered. The first pattern that matches counts.
_LOCKED = _pattern(r"error acquiring the state lock|error locking (source|destination) state")
_TERRAFORM: tuple[tuple[Cause, re.Pattern[str]], ...] = (
    (Cause.TIMEOUT, _pattern(r"timeout while waiting|timed out waiting")),
    (Cause.WORK_REQUEST, _pattern(r"work request did not succeed|reported unexpected state")),
    (Cause.NETWORK, _pattern(r"no such host|connection (refused|reset)|i/o timeout|TLS handshake|does not answer at")),
    (Cause.NETWORK, _pattern(r"network is unreachable|no route to host|x509:|: EOF$|context deadline exceeded")),
    (Cause.STATE_DAMAGED, _pattern(r"unsupported state file format|state file could not be parsed")),
    (Cause.STATE, _pattern(r"failed to (load|save|read|persist|get|write) (the )?state|state data|error saving state")),
    (Cause.STATE, _pattern(r"error (refreshing|loading|reading) (the )?state|remote state endpoint")),
    (Cause.PROVIDER, _pattern(r"load plugin schemas|instantiate provider|plugin did not respond|plugin crashed")),
    (Cause.PROVIDER, _pattern(r"required plugins are not installed|query available provider|provider registry")),
    (Cause.PROVIDER, _pattern(r"inconsistent dependency lock file|failed to install provider|remote plugin message")),
    (Cause.PROVIDER, _pattern(r"stand-in provider failed|could not load the schema for provider")),
)


def cause_of(refusal: CloudRefusal) -> Cause:
    """Why it was refused: by the service's code and message, else by Terraform's text, else by the status alone."""
    text = f"{refusal.code} {refusal.message}"
    if _LOCKED.search(text):
        return Cause.STATE_LOCK
    cause = refusals.cause_of(refusal.status, refusal.code, refusal.message, refusal.operation)
    if cause not in refusals.GENERAL:
        return cause
    return next((of_terraform for of_terraform, pattern in _TERRAFORM if pattern.search(text)), cause)


# --- explaining -----


# Explanation and advice. {again} is the command to run next, {ids} are the OCIDs that the message names.
_TEXTS: Mapping[Cause, tuple[str, str]] = {
    Cause.CAPACITY: (
        "the cloud has no free host of this shape now",
        "Try again later: {again}. Or first name another `availability_domain` or a `capacity_reservation_id` in "
        "cluster.yml",
    ),
    Cause.LIMIT: (
        "a service limit or quota is reached",
        "To see which, run: gpucluster preflight. Request an increase in the console under Limits, Quotas and Usage, "
        "or lower the count in cluster.yml; then: {again}",
    ),
    Cause.THROTTLED: (
        "the cloud gets too many requests and refused this one each time that it was repeated",
        "Wait some minutes, then: {again}",
    ),
    Cause.CLOCK: (
        "the clock of this machine differs too much from the cloud's",
        "Set it: timedatectl set-ntp true. Then: {again}",
    ),
    Cause.CREDENTIALS: (
        "the cloud does not accept the credentials",
        "The token of a session expires; renew it with: oci session refresh. A key must match the fingerprint in the "
        "profile. To check the credentials, run: gpucluster preflight. Then: {again}",
    ),
    Cause.PERMISSION: (
        "the operator may not do this, or the resource does not exist",
        "Ask an administrator for the policies that this prints: gpucluster policies. Then: {again}",
    ),
    Cause.GONE: (
        "it was deleted outside of Terraform, or the operator may not read it",
        "To create what is missing again, run: {again}",
    ),
    Cause.IN_USE: ("another resource still uses it", "Remove what uses it ({ids}), then: {again}"),
    Cause.BUSY: ("its state does not allow this now", "Wait until its last change has finished, then: {again}"),
    Cause.EXISTS: (
        "it exists already and is not in this cluster's state",
        "Rename or remove the other one, then: {again}",
    ),
    Cause.TIMEOUT: ("it took too long", "Check it in the console: it may still finish. Then: {again}"),
    Cause.WORK_REQUEST: (
        "the cloud accepted the request and could not finish it",
        "Read its work request in the console, then: {again}",
    ),
    Cause.STATE: (
        "the state can't be read or written",
        "Check that the backend can be reached with these credentials (docs/how-to/state.md), then: {again}",
    ),
    Cause.STATE_DAMAGED: (
        "the state is damaged",
        "Put a copy in its place and run: {again}. Without one, run: gpucluster state recover",
    ),
    Cause.PROVIDER: (
        "Terraform could not start the provider oracle/oci",
        "Let Terraform download it again: rm -r .gpucluster/terraform/cluster/.terraform. Then: {again}",
    ),
    Cause.NETWORK: (
        "the service can't be reached from this machine",
        "Check the network, its proxy (HTTPS_PROXY) and name resolution with: gpucluster preflight. Then: {again}",
    ),
    Cause.SERVICE: (
        "the service failed",
        "Try again: {again}. If it fails again, give the opc-request-id to Oracle's support",
    ),
    Cause.INPUT: ("the cloud refuses a setting", "Fix it in cluster.yml, then: {again}"),
    Cause.STATE_LOCK: ("another run holds the state", "Wait until it ends, then: {again}"),
    Cause.UNKNOWN: ("", "Fix the cause, then: {again}"),
}
_SUBNET = re.compile(r"ocid1\.subnet\.[\w.-]+")
_OCID = re.compile(r"ocid1\.[a-z]\w*\.[\w.-]*\w")


def _advice(cause: Cause, refusal: CloudRefusal, again: str) -> str:
    subnet = _SUBNET.search(refusal.message)
    if cause is Cause.IN_USE and subnet and "vnic" in refusal.message.lower():
        return (
            "A mount target, an instance or a load balancer has its VNIC in the subnet. To see which, run: oci network "
            f"private-ip list --subnet-id {subnet[0]}. Remove it, then: {again}"
        )
    others = (ocid for ocid in dict.fromkeys(_OCID.findall(refusal.message)) if ocid not in refusal.target)
    ids = ", ".join(others) or "the message names it"
    return _TEXTS[cause][1].format(again=again, ids=ids)


def diagnose(diagnostic: Mapping[str, Any], again: str) -> Diagnosis:
    """One diagnostic of Terraform's -json output.

    Args:
        again: the command to run next, such as "gpucluster apply".
    """
    summary, detail = str(diagnostic.get("summary") or ""), str(diagnostic.get("detail") or "")
    address = str(diagnostic.get("address") or "")
    text = "\n".join(part for part in (summary, detail) if part)
    place = address or _place(diagnostic)
    refusal = refusal_of(text)
    cause = cause_of(refusal)
    if cause is Cause.UNKNOWN and not address and place:
        cause = Cause.INPUT
    if not refusal.answered:
        # The provider's own layout has a service, and its reason stands in a line of its own.
        parts = (refusal.message, "") if refusal.service else (summary, detail)
        refusal = replace(refusal, message=_shortened(*parts))
    full = f"{text}\n  in {place}" if place else text
    return Diagnosis(cause, place, human_name(address), _TEXTS[cause][0], _advice(cause, refusal, again), refusal, full)


def located(diagnostics: Iterable[Mapping[str, Any]], failed: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """Diagnostics with the address of the resource in each, as far as it can be known. Terraform leaves it out for a
    resource that is not in the configuration any more.

    Args:
        failed: the OCID of each resource whose change failed, by address; empty if it has none yet.
    """
    all_diagnostics = list(diagnostics)
    named = {diagnostic.get("address") for diagnostic in all_diagnostics}
    missing = {address: ocid for address, ocid in failed.items() if address not in named}
    with_address = []
    for diagnostic in all_diagnostics:
        text = f"{diagnostic.get('summary')} {diagnostic.get('detail')}"
        address = diagnostic.get("address") or _address_of(text, missing)
        with_address.append(
            {**diagnostic, "address": address} if address and not diagnostic.get("range") else diagnostic
        )
    return with_address


def _address_of(text: str, missing: Mapping[str, str]) -> str:
    named = [address for address, ocid in missing.items() if ocid and ocid in text]
    return named[0] if named else next(iter(missing)) if len(missing) == 1 else ""


def of_service(refusal: CloudRefusal, *, doing: str, again: str) -> Diagnosis:
    """An error that the Python SDK reports.

    Args:
        doing: what was attempted.
        again: the command to run next.
    """
    cause = cause_of(refusal)
    return Diagnosis(cause, "", doing, _TEXTS[cause][0], _advice(cause, refusal, again), refusal, refusal.message)


def _place(diagnostic: Mapping[str, Any]) -> str:
    source = diagnostic.get("range") or {}
    line = (source.get("start") or {}).get("line")
    return f"{source.get('filename', '')}:{line}" if line else ""


def _shortened(summary: str, detail: str) -> str:
    text = " ".join(": ".join(part.strip().rstrip(":") for part in (summary, detail) if part.strip()).split())
    return text if len(text) <= _TOO_LONG else f"{text[:_TOO_LONG].rstrip()} ..."
