"""Instance maintenance events: `<home>/maintenance.json` announces them as Oracle would; clients list and move them.

    [{"name": "m1", "display_name": "gpu-1", "in": 86400, "action": "REBOOT_MIGRATION"}]

OCI has no operation that makes one. The file is a list of objects, read at every request about events, so that a test
can announce, move and cancel:

    name                 of the event in this file. An event whose name is gone from the file becomes CANCELED.
    display_name         of the instance; `instance_id` where several have that name.
    in                   seconds from when it is read first to the beginning of the window; or `time_window_start`
                         (RFC 3339), which moves the window when it changes.
    action               REBOOT_MIGRATION (default), STOP, TERMINATE or NONE
    category, reason, start_window, estimated_duration (ISO 8601), hard_due (RFC 3339), can_reschedule,
    correlation_token    as OCI has them.

At the beginning of the window the event is STARTED: the instance is rebooted (REBOOT_MIGRATION), stopped until the end
(STOP), terminated (TERMINATE), or goes on (NONE). After the estimated duration it is SUCCEEDED. The clock of this is a
request about events: without a request, nothing happens.

Sources: the SDK's docstrings of InstanceMaintenanceEvent and UpdateInstanceMaintenanceEventDetails; Oracle's pages
"Managing Maintenance Events" and "Non-Terminating Repair". The statuses of the refusals are not documented: 409
IncorrectState for an event that has begun or can't be moved, 400 InvalidParameter for a time that has passed or is
after timeHardDueDate are those that OCI has elsewhere.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from gpucluster.localcloud.api.kinds import TAGS
from gpucluster.localcloud.compute import lifecycle
from gpucluster.localcloud.state.cloud import CloudState, log, timestamp
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import (
    CORE,
    ApiError,
    ApiRoute,
    Call,
    Reply,
    check_etag,
    filtered,
    incorrect_state,
    invalid,
    page,
    show,
)

KIND = "instancemaintenanceevent"
_FILE = "maintenance.json"
_SCHEDULED, _STARTED, _SUCCEEDED, _CANCELED = "SCHEDULED", "STARTED", "SUCCEEDED", "CANCELED"
_OPEN = (_SCHEDULED, _STARTED)
_FILTERS = ("compartmentId", "instanceId", "lifecycleState", "correlationToken", "instanceAction")
# The summary of a list lacks these.
_DETAILS_ONLY = ("additionalDetails", "lifecycleDetails", "canDeleteLocalStorage")
_ALTERNATIVES = ["REBOOT_MIGRATION", "TERMINATE"]
_ACTIONS = ("REBOOT_MIGRATION", "STOP", "TERMINATE", "NONE")
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
_MEMBERS = {
    "category": "maintenanceCategory", "reason": "maintenanceReason", "action": "instanceAction",
    "start_window": "startWindowDuration", "estimated_duration": "estimatedDuration", "hard_due": "timeHardDueDate",
    "can_reschedule": "canReschedule", "correlation_token": "correlationToken",
}  # fmt: skip
_DEFAULTS: Json = {
    "maintenanceCategory": "FLEXIBLE", "maintenanceReason": "HARDWARE_REPLACEMENT",
    "instanceAction": "REBOOT_MIGRATION", "startWindowDuration": "PT1H", "estimatedDuration": "PT4H",
    "timeHardDueDate": None, "canReschedule": True, "correlationToken": "",
}  # fmt: skip
_OWN = ("name", "display_name", "instance_id", "in", "time_window_start", *_MEMBERS)


def _announced(cloud: CloudState) -> dict[str, Json]:
    """The events of the file, by their names.

    Raises:
        ApiError: the file is not a list of events. Without this error a test could pass because of a typo.
    """
    file = cloud.home / _FILE
    try:
        raw = json.loads(file.read_text())
        for entry in raw:
            unknown = set(entry) - set(_OWN)
            if unknown or ("in" in entry) == ("time_window_start" in entry):
                raise ValueError(f"unknown: {', '.join(sorted(unknown)) or 'when it begins'}")
            if entry.get("action", "NONE") not in _ACTIONS:
                raise ValueError(f"action {entry['action']}")
            if "time_window_start" in entry:
                _moment(entry["time_window_start"])
        return {str(entry["name"]): entry for entry in raw}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ApiError(500, "InternalError", f"{file} is not a list of events: {error!r}") from error


def _follow(cloud: CloudState) -> None:
    """Do what the file announces, and what the time has brought."""
    with cloud.store.transaction():
        # Read here: with what it was before another request has read it again, a cancelled event would come back.
        announced = _announced(cloud)
        # A name that comes back after it was cancelled is another event.
        rows = [row for row in cloud.store.find(KIND) if row.state != _CANCELED]
        known = {str(row.hidden["name"]): row for row in rows}
        for name, entry in announced.items():
            row = known.get(name) or _announce(cloud, name, entry)
            if row is not None and row.state == _SCHEDULED:
                _move(cloud, row, entry)
        for name, row in known.items():
            if name not in announced and row.state in _OPEN:
                row.body |= {"lifecycleState": _CANCELED, "timeFinished": timestamp()}
                cloud.store.save(row)
    for row in cloud.store.find(KIND):
        if row.state in _OPEN:
            _advance(cloud, row.id)


def _announce(cloud: CloudState, name: str, entry: Json) -> Resource | None:
    instances = [
        row
        for row in cloud.store.find("instance")
        if entry.get("instance_id") in (None, row.id) and entry.get("display_name") in (None, row.body["displayName"])
    ]
    if not instances:
        log.warning("%s: there is no instance for the event %s", _FILE, name)
        return None
    instance = instances[0]
    start = _moment(entry["time_window_start"]) if "in" not in entry else time.time() + float(entry["in"])
    body = {
        **_DEFAULTS, **{member: entry[key] for key, member in _MEMBERS.items() if key in entry},
        "displayName": name, "instanceId": instance.id, "compartmentId": instance.body["compartmentId"],
        "alternativeResolutionActions": list(_ALTERNATIVES), "createdBy": "SYSTEM", "lifecycleState": _SCHEDULED,
        "lifecycleDetails": None, "timeWindowStart": timestamp(start), "timeStarted": None, "timeFinished": None,
        "description": "Oracle scheduled a required maintenance action for your instance.",
        "canDeleteLocalStorage": False, "additionalDetails": {},
    }  # fmt: skip
    return cloud.new(KIND, body, {"name": name, "announced": entry.get("time_window_start")})


def _move(cloud: CloudState, row: Resource, entry: Json) -> None:
    """The window of an announcement that has changed."""
    start = entry.get("time_window_start")
    if start is not None and start != row.hidden["announced"]:
        row.body["timeWindowStart"] = timestamp(_moment(start))
        row.hidden["announced"] = start
        cloud.store.save(row)


def _advance(cloud: CloudState, ocid: str) -> None:
    """What the time has brought of an event, once: several requests may look at it at the same time."""
    start: Callable[[], object] | None = None
    with cloud.store.transaction():
        row, now = cloud.get(KIND, ocid), time.time()
        action = row.body["instanceAction"]
        if row.state == _SCHEDULED and now >= _moment(row.body["timeWindowStart"]):
            row.body |= {"lifecycleState": _STARTED, "timeStarted": timestamp(now)}
            cloud.store.save(row)
            if action == "TERMINATE":
                start = _terminate(cloud, row)
            else:
                start = _act(cloud, row, {"REBOOT_MIGRATION": "SOFTRESET", "STOP": "SOFTSTOP"}.get(action, ""))
        elif row.state == _STARTED and now >= _moment(row.body["timeStarted"]) + seconds(row.body["estimatedDuration"]):
            row.body |= {"lifecycleState": _SUCCEEDED, "timeFinished": timestamp(now)}
            cloud.store.save(row)
            start = _act(cloud, row, "START") if action == "STOP" else None
    if start is not None:
        start()


def _act(cloud: CloudState, row: Resource, action: str) -> Callable[[], object] | None:
    """Note a power action in the caller's transaction. Returns what starts it afterwards."""
    instance = cloud.store.get("instance", str(row.body["instanceId"]))
    if not action or instance is None or instance.state != lifecycle.ACTIONS[action][0]:
        return None
    instance, work_request = lifecycle.begin_action(cloud, instance, action, "InstanceAction")
    return lambda: cloud.submit(
        f"{action} {instance.id}", lambda: lifecycle.run_action(cloud, instance.id, work_request)
    )


def _terminate(cloud: CloudState, row: Resource) -> Callable[[], object] | None:
    """Note a termination in the caller's transaction. Returns what starts it afterwards."""
    instance = cloud.store.get("instance", str(row.body["instanceId"]))
    if instance is None or instance.gone_at is not None or instance.state == LifecycleState.TERMINATING:
        return None
    lifecycle.mark_terminating(cloud, instance)
    return lambda: lifecycle.start_termination(cloud, instance.id)


def _list(cloud: CloudState, call: Call) -> Reply:
    cloud.compartment(call.need("compartmentId"), in_body=False)
    _follow(cloud)
    rows = filtered(cloud.store.find(KIND, gone=None), call, _FILTERS)
    if earliest := call.query.get("timeWindowStartGreaterThanOrEqualTo"):
        rows = [row for row in rows if _moment(row.body["timeWindowStart"]) >= _moment(earliest)]
    if latest := call.query.get("timeWindowStartLessThanOrEqualTo"):
        rows = [row for row in rows if _moment(row.body["timeWindowStart"]) <= _moment(latest)]
    return page(rows, call, view=_summary)


def _summary(row: Resource) -> Json:
    return {name: value for name, value in row.body.items() if name not in _DETAILS_ONLY}


def _get(cloud: CloudState, call: Call) -> Reply:
    _follow(cloud)
    return show(cloud.get(KIND, call.path["instanceMaintenanceEventId"]))


def _update(cloud: CloudState, call: Call) -> Reply:
    _follow(cloud)
    body = call.body()
    with cloud.store.transaction():
        row = cloud.live(KIND, call.path["instanceMaintenanceEventId"])
        check_etag(call, row)
        action = body.get("alternativeResolutionAction")
        if action is not None and action not in row.body["alternativeResolutionActions"]:
            raise invalid(f"alternativeResolutionAction {action} is not one of those of the event")
        if "timeWindowStart" in body or action is not None:
            _check_movable(row, body.get("timeWindowStart"))
        if "timeWindowStart" in body:
            row.body["timeWindowStart"] = timestamp(_moment(body["timeWindowStart"]))
        if action is not None:
            row.body["instanceAction"] = action
        row.body |= {name: body[name] for name in (*TAGS, "displayName") if name in body}
        cloud.store.save(row)
        work_request = cloud.begin_work("UpdateInstanceMaintenanceEvent", "instanceMaintenanceEvent", row)
    cloud.end_work(work_request)
    return Reply(None, 202, {"etag": row.etag, "opc-work-request-id": work_request})


def _check_movable(row: Resource, start: Any) -> None:
    if row.state != _SCHEDULED or not row.body["canReschedule"]:
        state = row.state if row.state != _SCHEDULED else "not one that can be rescheduled"
        raise incorrect_state(f"The maintenance event {row.id} is {state}")
    if start is None:
        return
    moment, due = _moment(start), row.body["timeHardDueDate"]
    if moment < time.time():
        raise invalid(f"timeWindowStart {start} has passed")
    if due is not None and moment > _moment(due):
        raise invalid(f"timeWindowStart {start} is after timeHardDueDate {due}")


def seconds(duration: str) -> float:
    """The seconds of an ISO 8601 duration of days, hours, minutes and seconds."""
    match = _DURATION.fullmatch(duration)
    if match is None or duration in ("P", "PT"):
        raise invalid(f"{duration} is not a duration such as PT4H or P1D")
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def _moment(text: Any) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError as error:
        raise invalid(f"{text} is not a time in the format of RFC 3339") from error


def routes(cloud: CloudState) -> list[ApiRoute]:
    """Instance maintenance events."""
    one = f"{CORE}/instanceMaintenanceEvents/{{instanceMaintenanceEventId}}"
    return [
        ApiRoute("GET", f"{CORE}/instanceMaintenanceEvents", "ListInstanceMaintenanceEvents", partial(_list, cloud)),
        ApiRoute("GET", one, "GetInstanceMaintenanceEvent", partial(_get, cloud)),
        ApiRoute("PUT", one, "UpdateInstanceMaintenanceEvent", partial(_update, cloud)),
    ]
