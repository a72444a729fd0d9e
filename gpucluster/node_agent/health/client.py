"""The side of the nodes: run the checks of a profile within a time limit, and send the report to the controller."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from gpucluster.node_agent import in_child
from gpucluster.node_agent.checks.collect.place import boot_of
from gpucluster.node_agent.checks.model import Finding, HostReport, Profile, Status
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.health import credentials

#: Where the health service listens, on the controller.
PORT = 6823
_SECONDS = 5.0
_LONGEST_ANSWER = 64 * 1024
#: Of a finding in a message: an error may have put a whole log into it.
_LONGEST_WORDS = 2000
_MOST_EVIDENCE = 8000


@dataclass(frozen=True)
class HealthAnswer:
    """What a node gets.

    Args:
        drained: the node takes no jobs, for its failed checks.
        reason: why; or why the failure has no consequence.
    """

    drained: bool
    reason: str


def measure(profile: Profile, seconds: float, checks: Callable[[Profile], HostReport]) -> HostReport:
    """The report of a profile. Where the checks do not end in time, or break: a report of only that.

    They run in a process of their own, which is killed. A program that it started may hang in the kernel: nothing waits
    for it.

    Args:
        seconds: how long this may take.
        checks: runs them.
    """
    began, started = time.monotonic(), time.time()

    def work() -> str:
        try:
            return json.dumps(checks(profile).to_dict(), default=str)
        except Exception as error:  # an error of a check is not known to be one of the node
            return json.dumps({"error": f"{type(error).__name__}: {error}"})

    try:
        raw = json.loads(in_child.text_of(work, seconds))
        if "error" in raw:
            raise ValueError(raw["error"])
        return HostReport.from_dict(raw)
    except (TimeoutError, ValueError) as error:
        reason = str(error) or "no report"
    name = socket.gethostname().partition(".")[0]
    finding = Finding("profile", name, Status.UNKNOWN, f"the checks gave no report: {reason}"[:_LONGEST_WORDS])
    return HostReport(name, profile, started, time.monotonic() - began, boot_of(Path("/")), (finding,))


def shortened(report: HostReport) -> dict[str, Any]:
    """A report as JSON, without what would make the message too long."""
    raw = report.to_dict()
    for finding in raw["findings"]:
        finding["message"] = finding["message"][:_LONGEST_WORDS]
        if len(json.dumps(finding["evidence"], default=str)) > _MOST_EVIDENCE:
            finding["evidence"] = {"left out": "too long"}
    return raw


def send(report: HostReport, address: str, port: int, seconds: float = _SECONDS) -> HealthAnswer:
    """Send a report.

    Raises:
        Failed: the service could not be reached, or refused it.
    """
    raw = exchange(json.dumps(shortened(report), default=str), address, port, seconds)
    if "drained" not in raw:
        raise Failed(f"the health service refused the report: {raw.get('error', raw)}")
    return HealthAnswer(raw["drained"] is True, str(raw.get("reason", "")))


def exchange(text: str, address: str, port: int, seconds: float = _SECONDS) -> Mapping[str, Any]:
    """What the service answers to a message of this host's root.

    Raises:
        Failed: it could not be reached, or its answer is not an object.
    """
    credential = credentials.seal(text)
    try:
        with socket.create_connection((address, port), timeout=seconds) as connection:
            connection.sendall(credential.encode())
            connection.shutdown(socket.SHUT_WR)
            raw = json.loads(_answer(connection, seconds))
        if not isinstance(raw, dict):
            raise ValueError("no object")
    except (OSError, ValueError) as error:
        raise Failed(f"the health service at {address}:{port} gave no answer: {error}") from error
    return raw


def _answer(connection: socket.socket, seconds: float) -> bytes:
    until, parts = time.monotonic() + seconds, b""
    while len(parts) < _LONGEST_ANSWER:
        left = until - time.monotonic()
        if left <= 0:
            raise OSError(f"no answer within {seconds:g} s")
        connection.settimeout(left)
        part = connection.recv(65536)
        if not part:
            break
        parts += part
    return parts
