"""The reader of maintenance events: what Oracle announces for the cluster's hosts, as a file for the health service.

A service of its own (`gpucluster-autoscaler maintenance`), because a cluster without elastic pools has no autoscaler.
It may ask the cloud and has no rights in Slurm; the health service is the opposite. They share a folder: the reader
writes the events into it, and the health service the requests to begin earlier, which are sent once each.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from gpucluster.autoscaler.policy import Authentication, Policy, PolicyLimits
from gpucluster.controller.maintenance.events import (
    CONTROLLER,
    DURATION_S,
    EVENTS,
    LOGIN,
    NODE,
    REQUESTS,
    EventList,
    MaintenanceEvent,
    read_requests,
)
from gpucluster.errors import EXIT_SUCCESS, CloudError, InputError
from gpucluster.node_agent.durable_file import replace
from gpucluster.node_agent.notify import notify

CONFIG_FILE = Path("/etc/gpucluster/maintenance.json")
VERSION = 1
# Seconds between two lists, and after one that failed. A window is announced days before.
_PAUSE, _PAUSE_AFTER_A_FAILURE = 60.0, 30.0
_ROLES = (NODE, LOGIN, CONTROLLER)
_DURATION = re.compile(r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
_SECONDS = (7 * 86400, 86400, 3600, 60, 1)
_HINT = "Run gpucluster apply: it writes this file"
log = logging.getLogger("gpucluster.maintenance")


class EventCloud(Protocol):
    """What is needed of the cloud (`OciCloud`)."""

    def maintenance_events(self, compartment_id: str) -> list[dict[str, Any]]:
        """The events of a compartment."""

    def move_maintenance(self, event_id: str, start: float) -> None:
        """Ask for another beginning."""


@dataclass(frozen=True)
class ReaderSettings:
    """The file of the role `autoscaler`.

    Args:
        hosts: permanent hosts by the OCID of their instance: name and role.
        elastic: whether there are elastic nodes, which are found by their tags.
        compartments: where events are listed.
    """

    policy: Policy
    compartments: tuple[str, ...]
    hosts: Mapping[str, tuple[str, str]]
    elastic: bool

    @classmethod
    def load(cls, file: Path = CONFIG_FILE) -> ReaderSettings:
        """Read the file.

        Raises:
            InputError: it can't be read, or its content is wrong.
        """
        try:
            raw = json.loads(file.read_text())
            if raw["version"] != VERSION:
                raise ValueError(f"version {raw['version']}")
            hosts = {str(id_): (str(each["name"]), str(each["role"])) for id_, each in raw["hosts"].items()}
            if any(role not in _ROLES for _, role in hosts.values()):
                raise ValueError("the role of a host")
            policy = Policy(
                cluster=raw["cluster"], compartment_id=raw["elastic_compartment_id"], region=raw["region"],
                authentication=Authentication(**raw["authentication"]), pools={}, limits=PolicyLimits(),
                identity=str(raw["identity"]),
            )  # fmt: skip
            own, elastic = str(raw["compartment_id"]), raw["elastic"] is True
            places = (own, *([policy.compartment_id] if elastic and policy.compartment_id != own else []))
            return cls(policy, places, hosts, elastic)
        except OSError as error:
            raise InputError(f"can't read the settings: {error.strerror}", where=str(file), hint=_HINT) from error
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(f"the settings lack or misspell {error}", where=str(file), hint=_HINT) from error


@dataclass
class EventReader:
    """Lists the events again and again.

    Args:
        folder: shared with the health service.
        elastic_nodes: the names of elastic nodes by the OCID of their instance.
        clock: seconds of the epoch.
    """

    settings: ReaderSettings
    cloud: EventCloud
    folder: Path
    elastic_nodes: Callable[[], Mapping[str, str]]
    clock: Callable[[], float] = time.time
    _answered: dict[str, float] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)

    def run_once(self) -> bool:
        """Send the requests, list the events and write them. False if the cloud does not answer as it should."""
        before = EventList.load(self.folder / EVENTS) or EventList(0.0)
        try:
            self._send_requests(before)
            hosts = dict(self.settings.hosts)
            if self.settings.elastic:
                hosts |= {id_: (name, NODE) for id_, name in self.elastic_nodes().items()}
            raw = [each for place in self.settings.compartments for each in self.cloud.maintenance_events(place)]
            listing = EventList(self.clock(), tuple(events(raw, hosts)), dict(self._refused))
        except CloudError as error:
            listing = EventList(before.at, before.events, dict(self._refused), str(error))
        if listing.problem and listing.problem != before.problem:
            log.warning("the events of maintenance can't be listed: %s", listing.problem)
        replace(self.folder / EVENTS, listing.to_json(), mode=0o644, durable=False)
        return not listing.problem

    def _send_requests(self, known: EventList) -> None:
        """Each once, only for an event of the cluster that has not begun, and not for a time that has passed."""
        movable = {event.id for event in known.events if event.is_open and event.reschedulable}
        for event_id, start in read_requests(self.folder / REQUESTS).items():
            if event_id not in movable or self._answered.get(event_id) == start or start <= self.clock():
                continue
            self._answered[event_id] = start
            self._refused.pop(event_id, None)
            try:
                self.cloud.move_maintenance(event_id, start)
                log.info("asked that the maintenance %s begins at %.0f", event_id, start)
            except CloudError as error:
                self._refused[event_id] = str(error)
                log.warning("the maintenance %s is not moved: %s", event_id, error)


def events(raw: Iterable[Mapping[str, Any]], hosts: Mapping[str, tuple[str, str]]) -> Iterable[MaintenanceEvent]:
    """The events of the cluster's hosts, from the API's JSON. Pure.

    Args:
        hosts: by the OCID of the instance: name and role.
    """
    for each in raw:
        name, role = hosts.get(str(each.get("instanceId")), ("", ""))
        if not name:
            continue
        yield MaintenanceEvent(
            id=str(each["id"]),
            host=name,
            role=role,
            state=str(each["lifecycleState"]),
            action=str(each["instanceAction"]),
            category=str(each["maintenanceCategory"]),
            start=_moment(each["timeWindowStart"]) or 0.0,
            reason=str(each.get("maintenanceReason") or ""),
            window_s=_duration(each.get("startWindowDuration"), 0.0),
            duration_s=_duration(each.get("estimatedDuration"), DURATION_S),
            started=_moment(each.get("timeStarted")),
            due=_moment(each.get("timeHardDueDate")),
            reschedulable=each.get("canReschedule") is True,
            token=str(each.get("correlationToken") or ""),
            description=str(each.get("description") or "")[:500],
        )


def _moment(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None


def _duration(text: str | None, otherwise: float) -> float:
    """Seconds of an ISO 8601 duration of weeks, days, hours, minutes and seconds, such as P1D or PT4H."""
    match = _DURATION.fullmatch(text or "")
    if match is None or not any(match.groups()):
        return otherwise
    return sum(float(part or 0) * unit for part, unit in zip(match.groups(), _SECONDS, strict=True))


def serve(arguments: argparse.Namespace) -> int:
    """List the events until stopped."""
    from gpucluster.autoscaler.daemon import logs
    from gpucluster.autoscaler.daemon.oci import OciCloud

    logs.to_stream()
    settings = ReaderSettings.load(arguments.settings)
    cloud = OciCloud(settings.policy)
    reader = EventReader(
        settings, cloud, arguments.exchange, lambda: {each.id: each.node for each in cloud.instances()}
    )
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    notify("READY=1")
    while not stopped.is_set():
        listed = reader.run_once()
        stopped.wait(_PAUSE if listed else _PAUSE_AFTER_A_FAILURE)
    return EXIT_SUCCESS
