"""The part of the health service that listens, on the controller.

A message is one munge credential of root with a report as JSON; the sender then closes its side, and gets one JSON
object: `{"drained": bool, "reason": str}`, or `{"error": str, "refused": bool}`. The record of a job comes as
`{"job_record": {...}}`, what a node's watcher reports as `{"watched_jobs": {...}}`, and the answer to both is
`{"kept": bool}`. The host that a report, a record or a watcher's message names must be the one
that has the sender's address: of permanent hosts the inventory knows it, of elastic nodes in service Slurm does. Every
host has munge's key, so root of one could sign for any other; an address it can't take.

An elastic node that boots has no address in Slurm yet. Its report is kept by address, and counts for no node: the
autoscaler, which can ask the cloud, looks whether the address is the instance's.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Callable

from gpucluster.controller import job_records
from gpucluster.controller.health import metrics
from gpucluster.controller.health.control import Control
from gpucluster.controller.health.policy import Action, Moment
from gpucluster.controller.health.settings import HealthSettings
from gpucluster.controller.health.slurm import NodeScheduler
from gpucluster.controller.health.store import ReportStore
from gpucluster.controller.maintenance.control import Maintenance
from gpucluster.controller.maintenance.control import status as maintenance_status
from gpucluster.controller.reactions.control import Reactions
from gpucluster.node_agent import bounded
from gpucluster.node_agent.checks.model import HostReport, Profile, accusations
from gpucluster.node_agent.errors import AgentError, Failed, Refused
from gpucluster.node_agent.health import credentials
from gpucluster.node_agent.health.client import HealthAnswer
from gpucluster.node_agent.notify import notify
from gpucluster.node_agent.record.sending import KIND
from gpucluster.node_agent.rules import reasons
from gpucluster.node_agent.watch import message

#: Bytes of a message, and findings of a report.
LONGEST = 256 * 1024
MOST_FINDINGS = 500
#: Connections at a time, in all and of one address; seconds that one may take.
_CONNECTIONS, _CONNECTIONS_OF_ONE = 256, 8
_SECONDS = 10.0
#: Seconds between two passes that no report has asked for, and for which an answer of Slurm is believed.
_PASS, _BELIEVED = 15.0, 5.0


@dataclass(frozen=True)
class Receipt:
    """What a node gets for the record of a job, or for the report of its watcher.

    Args:
        kept: it is here; else the node tries later.
    """

    kept: bool


class HealthDaemon:
    """Receives reports, and makes a pass when one of them calls for it.

    Args:
        drains: the checks whose failure drains.
        records: where the records of jobs go; None where none are kept.
        reactions: what follows from the words of watchers; None where nothing does.
        maintenance: what follows from announced maintenance; None where nothing does.
        unseal: uid and text of a credential.
    """

    def __init__(
        self,
        settings: HealthSettings,
        store: ReportStore,
        slurm: NodeScheduler,
        control: Control,
        *,
        drains: Collection[str],
        moment: Callable[[], Moment],
        records: job_records.JobRecordFolder | None = None,
        reactions: Reactions | None = None,
        maintenance: Maintenance | None = None,
        unseal: Callable[[str], tuple[int, str]] = credentials.open_sealed,
    ) -> None:
        self._settings, self._store, self._slurm, self._control = settings, store, slurm, control
        self._drains, self._moment, self._unseal, self._records = drains, moment, unseal, records
        self._reactions, self._maintenance = reactions, maintenance
        self._lock = threading.Lock()
        self._addresses: tuple[float, Mapping[str, str]] = (-_BELIEVED, {})

    def receive(self, address: str, credential: str) -> HealthAnswer | Receipt:
        """Take a report, the record of a job, or what a watcher reports of jobs.

        Raises:
            Refused: it is none of the host with this address.
            Failed: munge or Slurm does not answer.
        """
        if not self._settings.allows(address):
            raise Refused(f"{address} is in no network of this cluster")
        uid, text = self._unseal(credential)
        if uid != 0:
            raise Refused(f"a report of {address} by uid {uid}: only root reports")
        raw = _object(text)
        if KIND in raw:
            return self._keep(address, raw[KIND], len(text))
        if message.KIND in raw:
            return self._hear(address, raw[message.KIND])
        report = _report(raw)
        with self._lock:
            return self._take(address, report)

    def _keep(self, address: str, record: Any, size: int) -> Receipt:
        """Keep a record. It waits for no decision about nodes."""
        if size > job_records.LONGEST:
            raise Refused(f"the record is longer than {job_records.LONGEST // 1024} KiB")
        owner = self._owner(address)
        if not isinstance(record, dict) or not owner or record.get("node") != owner:
            raise Refused(f"{address} is {owner or 'no node in service'}, and its record is of another one")
        try:
            return Receipt(self._records is not None and self._records.keep(record))
        except OSError as error:
            raise Failed(f"the record can't be kept: {error.strerror}") from None

    def _hear(self, address: str, raw: Any) -> Receipt:
        """Take the report of a watcher. The next pass decides what follows."""
        owner = self._owner(address)
        reports = message.read(raw, owner)
        if self._reactions is not None:
            self._reactions.hear(owner, reports)
        return Receipt(self._reactions is not None)

    def _take(self, address: str, report: HostReport) -> HealthAnswer:
        owner = self._owner(address)
        if owner == report.host:
            self._store.keep(owner, report, self._moment())
            self._store.booted(address)
            return self._judge(owner)
        if not owner and report.profile is Profile.BOOT and self._settings.elastic_pool_of(report.host):
            failed = [(each.check, each.message) for each in accusations(report, self._drains)]
            reason = reasons.of_checks(failed, again=False) if failed else ""
            held = bool(failed) and not self._settings.shadow
            self._store.keep_booting(address, report, self._moment(), reason if held else "")
            return HealthAnswer(held, reason)
        raise Refused(f"{address} is {owner or 'no node in service'}, and reports about {report.host[:80]}")

    def _owner(self, address: str) -> str:
        """The host with this address; empty if there is none."""
        if address in self._settings.hosts:
            return self._settings.hosts[address]
        query_time, known = self._addresses
        if address not in known or time.monotonic() - query_time > _BELIEVED:
            known = self._slurm.addresses()
            self._addresses = (time.monotonic(), known)
        return known.get(address, "")

    def _judge(self, node: str) -> HealthAnswer:
        if not self._settings.slurm or self._control.is_quiet(node):
            return HealthAnswer(drained=False, reason="")
        try:
            outlook = self._control.run()
        except AgentError as error:
            # The next pass decides.
            return HealthAnswer(drained=False, reason=f"not decided: {error.message}")
        for each in outlook.carried:
            if each.decision.node == node:
                drains = each.decision.action in (Action.DRAIN, Action.PERSON) and each.succeeded
                now = outlook.nodes.get(node)
                stays = each.decision.action in (Action.NONE, Action.REBOOT, Action.GIVE_UP)
                held = stays and now is not None and (now.ours or now.lost)
                return HealthAnswer(drains or held, each.decision.reason)
        now = outlook.nodes.get(node)
        return HealthAnswer(now is not None and now.ours, now.reason if now is not None and now.ours else "")

    def tick(self) -> None:
        """One pass without a report, and the metrics."""
        with self._lock:
            # A node that slurmd has drained is in no report.
            if self._settings.slurm and (self._settings.reboots or not self._control.is_quiet()):
                self._control.run()
            metrics.write(self._store, self._settings, self._drains, self._moment(), self._of_maintenance())
        if self._reactions is not None:
            # No report of a node waits for what is done to jobs.
            self._reactions.tick(self._owner)
        if self._maintenance is not None:
            self._maintenance.tick()

    def _of_maintenance(self) -> Iterator[metrics.Sample]:
        known = self._maintenance is not None
        return metrics.of_maintenance(maintenance_status(self._store.folder) if known else None)


def _object(text: str) -> dict[str, Any]:
    """A message as JSON.

    Raises:
        Refused: it is not an object.
    """
    try:
        raw = bounded.loads(text)
        if not isinstance(raw, dict):
            raise ValueError("not an object")
        return raw
    except (ValueError, RecursionError) as error:
        raise Refused(f"no report: {str(error)[:200]}") from None


def _report(raw: dict[str, Any]) -> HostReport:
    """A report from a message.

    Raises:
        Refused: it is something else, or it is too long.
    """
    try:
        if len(raw.get("findings", ())) > MOST_FINDINGS:
            raise ValueError("too many findings")
        return HostReport.from_dict(raw)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused(f"no report: {str(error)[:200]}") from None


class Listener:
    """The socket. Each connection has a thread, few bytes and little time."""

    def __init__(self, service: HealthDaemon, host: str, port: int) -> None:
        self._service = service
        self._socket = socket.create_server((host, port), backlog=1024)
        self.port: int = self._socket.getsockname()[1]
        self._lock = threading.Lock()
        self._of: dict[str, int] = {}
        self._closed = False

    def serve(self) -> None:
        """Take connections until closed."""
        while True:
            try:
                connection, (address, *_rest) = self._socket.accept()
            except OSError as error:
                if self._closed:
                    return
                _log(f"accept: {error}")
                time.sleep(0.1)
                continue
            if not self._admit(address):
                connection.close()
                continue
            threading.Thread(target=self._serve_one, args=(connection, address), daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _admit(self, address: str) -> bool:
        with self._lock:
            if sum(self._of.values()) >= _CONNECTIONS or self._of.get(address, 0) >= _CONNECTIONS_OF_ONE:
                return False
            self._of[address] = self._of.get(address, 0) + 1
            return True

    def _serve_one(self, connection: socket.socket, address: str) -> None:
        try:
            with connection, contextlib.suppress(OSError):
                answer: Mapping[str, Any]
                try:
                    answer = vars(self._service.receive(address, _received(connection)))
                except AgentError as error:
                    _log(f"{address}: {error.message}")
                    answer = {"error": error.message, "refused": isinstance(error, Refused)}
                connection.settimeout(_SECONDS)
                connection.sendall(json.dumps(answer).encode() + b"\n")
        finally:
            with self._lock:
                self._of[address] -= 1
                if not self._of[address]:
                    del self._of[address]


def _received(connection: socket.socket) -> str:
    """The message, as far as it comes in time.

    Raises:
        Refused: it is too long, or does not end.
    """
    until = time.monotonic() + _SECONDS
    parts: list[bytes] = []
    size = 0
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise Refused(f"the message did not end within {_SECONDS:.0f} s")
        connection.settimeout(left)
        try:
            part = connection.recv(65536)
        except socket.timeout:
            continue
        if not part:
            return b"".join(parts).decode(errors="replace")
        size += len(part)
        if size > LONGEST:
            raise Refused(f"the message is longer than {LONGEST // 1024} KiB")
        parts.append(part)


def serve(service: HealthDaemon, listener: Listener) -> None:
    """Serve until the process is ended."""
    threading.Thread(target=listener.serve, daemon=True).start()
    _log(f"listening on port {listener.port}")
    notify("READY=1")
    repeat(service.tick)


def repeat(tick: Callable[[], None]) -> None:
    """Make passes until the process is ended. The reason why there is none is logged once."""
    last_message = ""
    while True:
        try:
            tick()
            last_message = ""
        except (AgentError, OSError) as error:
            words = error.message if isinstance(error, AgentError) else str(error)
            if words != last_message:
                _log(f"no pass: {words}")
                last_message = words
        time.sleep(_PASS)


def _log(words: str) -> None:
    sys.stderr.write("".join(sign if sign.isprintable() else " " for sign in words)[:2000] + "\n")
    sys.stderr.flush()
