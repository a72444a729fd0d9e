"""Refusals of Terraform and of the cloud, explained: which resource, why, the request's id, and what to type next.

Pure. Texts as oracle/oci 8.28.0 and Terraform 1.11 write them. What the cloud's codes and messages mean is in
`gpucluster.oci.refusals`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucluster.oci import refusals
from gpucluster.oci.refusals import Cause as Cause

_SHOWN = 3  # resources that are named where many were refused for the same reason
_TOO_LONG = 400  # characters of a message that is nobody's we know


@dataclass(frozen=True)
class Refusal:
    """What a service said. `status` is 0 where it was not an answer to one request."""

    message: str
    status: int = 0
    code: str = ""
    service: str = ""
    operation: str = ""
    request_id: str = ""
    target: str = ""

    @property
    def answered(self) -> str:
        """Such as `LaunchInstance: 500 InternalError`; empty where no service answered."""
        numbers = f"{self.status} {self.code}".strip() if self.status else ""
        return ": ".join(part for part in (self.operation, numbers) if part)


@dataclass(frozen=True)
class Lock:
    """Who holds a state. `who` and `since` are empty where the backend does not tell."""

    id: str
    who: str = ""
    since: str = ""
    operation: str = ""


@dataclass(frozen=True)
class Trouble:
    """One refusal.

    Args:
        address: of the resource in Terraform; a file and its line where there is no resource; may be empty.
        subject: the resource as people call it, such as "the cluster network of the pool compute".
        words: the cause in a few words of ours.
        advice: what to type next.
        detail: everything that was said.
    """

    cause: Cause
    address: str
    subject: str
    words: str
    advice: str
    refusal: Refusal
    detail: str = field(repr=False)

    @property
    def sentence(self) -> str:
        """Resource and cause."""
        answered = f" ({self.refusal.answered})" if self.refusal.answered else ""
        subject = f"{self.subject}: " if self.subject else ""
        said = self.refusal.message.strip().rstrip(".")
        text = f"{self.words}: {said}" if self.words and said else self.words or said or "no reason was given"
        return f"{subject}{text}{answered}"

    @property
    def where(self) -> str:
        """Address and the request's id."""
        request = f"opc-request-id {self.refusal.request_id}" if self.refusal.request_id else ""
        return ", ".join(part for part in (self.address, request) if part)


# Reading


_FIRST_LINE = re.compile(r"^(?:Error: )?(\d{3})-([A-Za-z]\w*), (.*)$", re.DOTALL)
_FIELD = re.compile(
    r"^(Suggestion|Documentation|API Reference|Request Target|Provider version|Service|Operation Name|OPC request ID)"
    r": ?(.*)$",
    re.MULTILINE,
)
_WORK_REQUEST = re.compile(r"work request did not succeed.*?workId: *([^,\s]+)", re.DOTALL)


def refusal_of(text: str) -> Refusal:
    """Read an error of the provider: a first line, then lines `Name: value`."""
    fields = {match[1]: match[2].strip() for match in _FIELD.finditer(text)}
    begin = _FIELD.search(text)
    said = text[: begin.start()].strip() if begin else text.strip()
    first = _FIRST_LINE.match(said)
    work = _WORK_REQUEST.search(said)
    return Refusal(
        message=" ".join((first[3] if first else said.removeprefix("Error: ")).split()),
        status=int(first[1]) if first else 0,
        code=first[2] if first else "",
        service=fields.get("Service", ""),
        operation=fields.get("Operation Name", ""),
        request_id=fields.get("OPC request ID") or (work[1] if work else ""),
        target=fields.get("Request Target", ""),
    )


def lock_of(text: str) -> Lock | None:
    """Who holds the state, from the words of "Error acquiring the state lock"; None if they don't say.

    The http backend names the holder's ID in its message, and under "Lock Info" what it wanted to write itself.
    """
    told = {
        name: " ".join(value.split())
        for name, value in re.findall(r"^ *(ID|Who|Created|Operation): +(.*)$", text, re.MULTILINE)
    }
    holder = re.search(r"already locked: ID=(\S*)", text)
    if holder and holder[1] != told.get("ID"):
        return Lock(holder[1])
    if not told.get("ID"):
        return None
    return Lock(told["ID"], told.get("Who", ""), told.get("Created", ""), told.get("Operation", ""))


# Classifying


def _says(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


# What Terraform itself reports, and the provider where no service answered. The first that fits.
_LOCKED = _says(r"error acquiring the state lock|error locking (source|destination) state")
_TERRAFORM: tuple[tuple[Cause, re.Pattern[str]], ...] = (
    (Cause.TIMEOUT, _says(r"timeout while waiting|timed out waiting| is \S+ after \d+ s; expected")),
    (Cause.WORK_REQUEST, _says(r"work request did not succeed|reported unexpected state")),
    (Cause.NETWORK, _says(r"no such host|connection (refused|reset)|i/o timeout|TLS handshake|does not answer at")),
    (Cause.NETWORK, _says(r"network is unreachable|no route to host|x509:|: EOF$|context deadline exceeded")),
    (Cause.STATE, _says(r"failed to (load|save|read|persist|get|write) (the )?state|state data|error saving state")),
    (Cause.STATE, _says(r"error (refreshing|loading|reading) (the )?state|remote state endpoint")),
    (Cause.PROVIDER, _says(r"load plugin schemas|instantiate provider|plugin did not respond|plugin crashed")),
    (Cause.PROVIDER, _says(r"required plugins are not installed|query available provider|provider registry")),
    (Cause.PROVIDER, _says(r"inconsistent dependency lock file|failed to install provider|remote plugin message")),
    (Cause.PROVIDER, _says(r"stand-in provider failed|could not load the schema for provider")),
)


def cause_of(refusal: Refusal) -> Cause:
    """Why it was refused: by the service's code and message, else by Terraform's words, else by the status alone."""
    said = f"{refusal.code} {refusal.message}"
    if _LOCKED.search(said):
        return Cause.STATE_LOCK
    cause = refusals.cause_of(refusal.status, refusal.code, refusal.message, refusal.operation)
    if cause not in refusals.GENERAL:
        return cause
    return next((of_terraform for of_terraform, pattern in _TERRAFORM if pattern.search(said)), cause)


# In words. {again} is the command that goes on from here; {ids} the OCIDs that the message names.
_WORDS: Mapping[Cause, tuple[str, str]] = {
    Cause.CAPACITY: (
        "the cloud has no free host of this shape now",
        "Try again later: {again}. Or name another `availability_domain`, or a `capacity_reservation_id`, in "
        "cluster.yml first",
    ),
    Cause.LIMIT: (
        "a service limit or quota is reached",
        "See which: gpucluster preflight. Ask for more in the console under Limits, Quotas and Usage, or lower the "
        "count in cluster.yml; then: {again}",
    ),
    Cause.THROTTLED: (
        "the cloud gets too many requests, and did not take this one however often it was repeated",
        "Wait some minutes, then: {again}",
    ),
    Cause.CLOCK: (
        "the clock of this machine differs too much from the cloud's",
        "Set it: timedatectl set-ntp true. Then: {again}",
    ),
    Cause.CREDENTIALS: (
        "the cloud does not accept the credentials",
        "A session's token expires: renew it with: oci session refresh. A key must be the one whose fingerprint stands "
        "in the profile. See whether they are good: gpucluster preflight. Then: {again}",
    ),
    Cause.PERMISSION: (
        "the operator may not do this, or what it names does not exist",
        "Show the policies that are needed to an administrator: gpucluster policies. Then: {again}",
    ),
    Cause.GONE: (
        "it was deleted behind Terraform's back, or the operator may not see it",
        "Look again, and make anew what is missing: {again}",
    ),
    Cause.IN_USE: ("something else still uses it", "Remove what uses it ({ids}), then: {again}"),
    Cause.BUSY: ("its state does not allow this now", "Wait until its last change is done, then: {again}"),
    Cause.EXISTS: (
        "there is one already that is not in this cluster's state",
        "Rename or remove the other one, then: {again}",
    ),
    Cause.TIMEOUT: ("it took longer than it may", "Look at it in the console; it may still come. Then: {again}"),
    Cause.WORK_REQUEST: (
        "the cloud began it and gave up",
        "See what its work request says in the console, then: {again}",
    ),
    Cause.STATE: (
        "the state can't be read or written",
        "See whether its place can be reached, and with these credentials; then: {again}. docs/how-to/state.md",
    ),
    Cause.PROVIDER: (
        "Terraform could not start the provider oracle/oci",
        "Let Terraform fetch it anew: rm -r .gpucluster/terraform/cluster/.terraform. Then: {again}",
    ),
    Cause.NETWORK: (
        "the service can't be reached from this machine",
        "See whether the network, its proxy (HTTPS_PROXY) and name resolution work: gpucluster preflight. "
        "Then: {again}",
    ),
    Cause.SERVICE: ("the service failed", "Try again: {again}. If it stays, give Oracle's support the opc-request-id"),
    Cause.INPUT: ("the cloud refuses a setting", "Mend it in cluster.yml, then: {again}"),
    Cause.STATE_LOCK: ("another run holds the state", "Wait for it to end, then: {again}"),
    Cause.UNKNOWN: ("", "Mend the cause, then: {again}"),
}
_SUBNET = re.compile(r"ocid1\.subnet\.[\w.-]+")
_OCID = re.compile(r"ocid1\.[a-z]\w*\.[\w.-]*\w")


def _advice(cause: Cause, refusal: Refusal, again: str) -> str:
    subnet = _SUBNET.search(refusal.message)
    if cause is Cause.IN_USE and subnet and "vnic" in refusal.message.lower():
        return (
            "A mount target, an instance or a load balancer has its VNIC in the subnet. See which: oci network "
            f"private-ip list --subnet-id {subnet[0]}. Remove it, then: {again}"
        )
    others = (one for one in dict.fromkeys(_OCID.findall(refusal.message)) if one not in refusal.target)
    ids = ", ".join(others) or "its message says what"
    return _WORDS[cause][1].format(again=again, ids=ids)


def diagnose(diagnostic: Mapping[str, Any], again: str) -> Trouble:
    """One diagnostic of Terraform's -json output.

    Args:
        again: the command that goes on from here, such as "gpucluster apply".
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
        refusal = Refusal(_shortened(summary, detail), request_id=refusal.request_id)
    full = f"{text}\n  in {place}" if place else text
    return Trouble(cause, place, human_name(address), _WORDS[cause][0], _advice(cause, refusal, again), refusal, full)


def located(diagnostics: Iterable[Mapping[str, Any]], failed: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """Diagnostics with the resource in each, as far as it can be known: of what is not in the configuration any more,
    Terraform does not say it.

    Args:
        failed: the OCID of each resource whose change failed, by address; empty where it has none yet.
    """
    known = list(diagnostics)
    missing = {
        address: ocid for address, ocid in failed.items() if address not in {one.get("address") for one in known}
    }
    found = []
    for one in known:
        address = one.get("address") or _whose(f"{one.get('summary')} {one.get('detail')}", missing)
        found.append({**one, "address": address} if address and not one.get("range") else one)
    return found


def _whose(text: str, missing: Mapping[str, str]) -> str:
    named = [address for address, ocid in missing.items() if ocid and ocid in text]
    return named[0] if named else next(iter(missing)) if len(missing) == 1 else ""


def of_service(refusal: Refusal, *, doing: str, again: str) -> Trouble:
    """A refusal that the Python SDK met; `doing` says what we were about."""
    cause = cause_of(refusal)
    return Trouble(cause, "", doing, _WORDS[cause][0], _advice(cause, refusal, again), refusal, refusal.message)


def _place(diagnostic: Mapping[str, Any]) -> str:
    found = diagnostic.get("range") or {}
    line = (found.get("start") or {}).get("line")
    return f"{found.get('filename', '')}:{line}" if line else ""


def _shortened(summary: str, detail: str) -> str:
    text = " ".join(": ".join(part.strip().rstrip(":") for part in (summary, detail) if part.strip()).split())
    return text if len(text) <= _TOO_LONG else f"{text[:_TOO_LONG].rstrip()} ..."


_ADDRESS = re.compile(r"(?:^|\.)(?:oci|null|terraform|random)_([a-z0-9_]+)\.([\w-]+)(?:\[\"?([^\]\"]*)\"?\])?$")
_POOL = re.compile(r'module\.pool\["([^"]+)"\]')
_MODULE = re.compile(r'module\.(?!pool\b)\w+\["([^"]+)"\]')
_SERVICES = ("core_", "file_storage_", "identity_", "bastion_")
_NO_NAMES = frozenset({"this", "main", "nodes", "pool"})
_ABBREVIATIONS = {"vcn": "VCN", "nat": "NAT"}


def human_name(address: str) -> str:
    """A resource as people call it: `module.network.oci_core_subnet.private` is "the subnet private"."""
    found = _ADDRESS.search(address)
    if not found:
        return address
    kind, name, key = found[1], found[2], found[3]
    for service in _SERVICES:
        kind = kind.removeprefix(service)
    words = [_ABBREVIATIONS.get(word, word) for word in kind.split("_")]
    named = name if name not in _NO_NAMES and name not in kind else ""
    module, pool = _MODULE.search(address), _POOL.search(address)
    numbered = key if key and not key.isdigit() else module[1] if module else ""
    owner = f"of the pool {pool[1]}" if pool else "of the controller" if "module.controller." in address else ""
    parts = ["the", *words, named, numbered, owner]
    return " ".join(part for part in parts if part)


# Several at once


def summary(troubles: Sequence[Trouble], doing: str) -> tuple[str, str, str]:
    """(what, where, what to do next) for all of them: a sentence for each cause, none lost.

    Args:
        doing: what failed, such as "terraform apply".
    """
    groups = _groups(troubles)
    hint = ". ".join(dict.fromkeys(group[0].advice for group in groups))
    if len(groups) == 1 and len(groups[0]) == 1:
        only = groups[0][0]
        return f"{doing} failed: {only.sentence}", only.where, hint
    lines = [f"{doing} failed in {len(troubles)} places:"]
    for group in groups:
        first, *others = group
        where = f" ({first.where})" if first.where else ""
        lines.append(f"  - {first.sentence}{where}")
        lines += [f"    so also {one.subject or one.address} ({one.where})" for one in others[: _SHOWN - 1]]
        if len(group) > _SHOWN:
            lines.append(f"    and {len(group) - _SHOWN} more")
    return "\n".join(lines), "", hint


def _groups(troubles: Iterable[Trouble]) -> list[list[Trouble]]:
    groups: dict[tuple[Any, ...], list[Trouble]] = {}
    for one in troubles:
        groups.setdefault((one.cause, one.refusal.status, one.refusal.code, one.refusal.message), []).append(one)
    return list(groups.values())
