"""Create, read, update and delete of resources that have an OCID, and data sources, by calls of the API."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from gpucluster.localcloud.provider.planning import differences, dotted
from gpucluster.localcloud.provider.rest import RETRYABLE, RestClient, RestReply, ServiceError
from gpucluster.localcloud.provider.schema import (
    DataSource,
    Json,
    ManagedResource,
    SchemaBlock,
    catalogue,
    filled,
    known,
)
from gpucluster.localcloud.provider.translation import from_wire, state_value, to_wire, wire_name
from gpucluster.oci.states import STARTING

GONE = frozenset({"TERMINATED", "DELETED", "DETACHED"})
_ENDED = GONE | {"TERMINATING", "DELETING", "DETACHING", "FAILED"}
_TIMEOUT = 20 * 60.0  # seconds; the real provider's default, except for instances, which boot longer
_TIMEOUTS = {("oci_core_instance", "create"): 45 * 60.0, ("oci_core_instance", "delete"): 75 * 60.0}
_TIMEOUTS |= {("oci_containerengine_cluster", verb): 60 * 60.0 for verb in ("create", "update", "delete")}
_TIMEOUTS |= {("oci_containerengine_node_pool", verb): 50 * 60.0 for verb in ("create", "update", "delete")}
_FIRST_POLL, _POLL_GROWTH, _LONGEST_POLL = 0.1, 1.5, 1.0  # seconds between two reads of a state; the pause grows
_EVENTUAL = 5.0  # seconds during which a get may not find what was just created
_IN_USE = 10.0  # seconds to repeat a delete while another resource that is being deleted still uses this one


_TAGS = ("defined_tags", "freeform_tags")
# What no service has answered to a request, by its code here: the first line of the real provider's error.
_LATE = {
    "Timeout": "Operation Timeout",
    "UnexpectedState": "Unexpected LifeCycle state",
    "WorkRequestFailed": "Work Request error",
}


class TaintedCreate(Exception):
    """A create that failed after the resource was created: Terraform records `state` as tainted."""

    def __init__(self, message: str, state: Json) -> None:
        super().__init__(message)
        self.state = state


@dataclass
class ResourceOperator:
    """Carries out Terraform's operations, and waits until they are complete."""

    client: RestClient

    def create(self, kind: ManagedResource, planned: Mapping[str, Any]) -> Json:
        """Create and wait until the resource is ready. Raises TaintedCreate if it exists but did not become ready."""
        body = to_wire(kind.schema, planned)
        # As the real provider: a call is repeated with its token, but another run has another one.
        try:
            at = filled(kind.collection, planned)
            reply = self.client.call("POST", at, body=body, retry_token=os.urandom(32).hex())
        except ServiceError as error:
            if error.status != HTTPStatus.CONFLICT or not _is_kept(kind, planned):
                raise
            return self._taken_up(kind, planned, error)
        if kind.id_template:
            made = {"id": filled(kind.id_template, planned)}
        else:
            made = reply.body or {"id": self._made_by(kind, reply)}
        ocid = made["id"]
        try:
            self._wait(kind, ocid, kind.ready, _limit(kind, planned, "create"), reply)
            fresh = self._get(kind, ocid)
        except ServiceError as error:
            raise TaintedCreate(
                describe(error, kind.service, kind.operations["create"]), from_wire(kind.schema, made, planned)
            ) from error
        return from_wire(kind.schema, fresh, planned)

    def _made_by(self, kind: ManagedResource, reply: RestReply) -> str:
        """The OCID that the work request of a create names, where the answer has no body (Kubernetes Engine)."""
        work_request = self.client.call("GET", _work_request(kind, reply)).body
        resources = (each for each in work_request["resources"] if each["entityType"].lower() == kind.noun.lower())
        return str(next(resources)["identifier"])

    def _taken_up(self, kind: ManagedResource, planned: Mapping[str, Any], conflict: ServiceError) -> Json:
        """The resource of the same name that exists already, with the values of the configuration."""
        query = {"compartmentId": planned["compartment_id"], "name": planned["name"]}
        existing = next((each for each in self.client.items(kind.path, query)), None)
        if existing is None:
            raise conflict
        values = {name: planned[name] for name in ("description", *_TAGS) if known(planned.get(name)) is not None}
        self.client.call("PUT", f"{kind.path}/{existing['id']}", body=to_wire(kind.schema, values, update=True))
        return from_wire(kind.schema, self._get(kind, existing["id"]), planned)

    def read(self, kind: ManagedResource, state: Mapping[str, Any], *, everything: bool = False) -> Json | None:
        """The current state; None if the resource is gone."""
        try:
            body = self._get(kind, state["id"])
        except ServiceError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        if body.get("lifecycleState") in GONE:
            return None
        return from_wire(kind.schema, body, state, everything=everything)

    def update(self, kind: ManagedResource, before: Mapping[str, Any], planned: Mapping[str, Any]) -> Json:
        """Send the differences. Like the real provider, does not wait until a cluster network has its new size."""
        _require_carried_out(kind, before, planned)
        changed = {
            name for name in (*kind.schema.attributes, *kind.schema.blocks) if before.get(name) != planned.get(name)
        }
        ocid = planned["id"]
        if "create_vnic_details" in changed:
            self._update_vnic(kind, ocid, before, planned)
        if "requested_throughput" in changed:
            self._change_throughput(kind, ocid, before, planned)
        elsewhere = {"timeouts", "create_vnic_details", "requested_throughput"}
        values = {name: planned[name] for name in changed - elsewhere if name in planned}
        if kind.update_whole and changed:
            values = {**planned}
        body = to_wire(kind.schema, values, update=True)
        if body or (kind.update_whole and changed):
            reply = self.client.call("PUT", f"{kind.path}/{ocid}", body=body)
            if kind.update_waits:
                self._wait(kind, ocid, kind.ready, _limit(kind, planned, "update"), reply)
        if "source_details" in changed and kind.type_name == "oci_core_instance":
            self._update_boot_volume(ocid, before, planned)
        return from_wire(kind.schema, self._get(kind, ocid), planned)

    def _change_throughput(
        self, kind: ManagedResource, ocid: str, before: Mapping[str, Any], planned: Mapping[str, Any]
    ) -> None:
        """By an operation of its own for each direction, as the real provider does."""
        old, new = before["requested_throughput"], planned["requested_throughput"]
        if known(new) is None:
            return
        action = "upgradeShape" if int(new) > int(old) else "scheduleShapeDowngrade"
        self.client.call("POST", f"{kind.path}/{ocid}/actions/{action}", body={"requestedThroughput": int(new)})

    def _update_boot_volume(self, ocid: str, before: Mapping[str, Any], planned: Mapping[str, Any]) -> None:
        """Give the boot volume of an instance its new size, by a call of its own, as the real provider does."""
        old, new = (part["source_details"][0].get("boot_volume_size_in_gbs") for part in (before, planned))
        if known(new) is None or old == new:
            return
        query = {name: planned[name] for name in ("compartment_id", "availability_domain")}
        place = {wire_name("", name): value for name, value in query.items()}
        for attachment in self.client.items("/20160918/bootVolumeAttachments", {**place, "instanceId": ocid}):
            if attachment.get("lifecycleState") == "ATTACHED":
                at = f"/20160918/bootVolumes/{attachment['bootVolumeId']}"
                self.client.call("PUT", at, body={"sizeInGBs": int(new)})

    def _update_vnic(
        self, kind: ManagedResource, ocid: str, before: Mapping[str, Any], planned: Mapping[str, Any]
    ) -> None:
        old, new = before["create_vnic_details"][0], planned["create_vnic_details"][0]
        changes = {name: value for name, value in new.items() if old.get(name) != value}
        instance = self.client.call("GET", f"{kind.path}/{ocid}").body
        if body := to_wire(kind.schema.blocks["create_vnic_details"], changes, inside="create_vnic_details"):
            self.client.call("PUT", f"/20160918/vnics/{self._primary_vnic(instance)['id']}", body=body)

    def delete(self, kind: ManagedResource, state: Mapping[str, Any]) -> None:
        """Delete and wait until the resource is gone."""
        if _is_kept(kind, state):
            return
        ocid = state["id"]
        values = {name: state.get(attribute) for name, attribute in kind.delete_query.items()}
        query = {name: str(value).lower() for name, value in values.items() if value is not None} or None
        deadline = time.monotonic() + _IN_USE
        while True:
            try:
                self.client.call("DELETE", f"{kind.path}/{ocid}", query=query)
                break
            except ServiceError as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    return
                if error.status != HTTPStatus.CONFLICT or time.monotonic() > deadline:
                    raise
            time.sleep(_LONGEST_POLL)
        self._wait(kind, ocid, tuple(GONE), _limit(kind, state, "delete"), None)

    def find(self, lookup: DataSource, config: Mapping[str, Any]) -> Json:
        """Read a data source: get one resource, or list them and then filter here, as the real provider does."""
        path = filled(lookup.path, config)
        if lookup.content:
            body = {wire_name("", name): config[name] for name in lookup.body if config.get(name) is not None}
            text = self.client.call("POST", path, body=body).text
            return {**config, lookup.content: text, "id": f"{lookup.noun}-{_digest(lookup.type_name, path, body)}"}
        if not lookup.items:
            return from_wire(lookup.schema, self.client.call("GET", path).body, config, everything=True)
        query = {wire_name("", name): str(config[name]) for name in lookup.query if config.get(name) is not None}
        resources = list(self.client.items(path, query))
        items = state_value("", lookup.schema.attributes[lookup.items].type, resources)
        for condition in config.get("filter") or []:
            items = [item for item in items if _matches(item, condition)]
        return {**config, lookup.items: items, "id": f"{lookup.noun}-{_digest(lookup.type_name, path, query)}"}

    # Attributes of an instance or a mount target that are members of other resources

    def _get(self, kind: ManagedResource, ocid: str) -> Json:
        body: Json = {"id": ocid, **self.client.call("GET", f"{kind.path}/{ocid}").body}
        if body.get("lifecycleState") in _ENDED:
            return body
        if kind.type_name == "oci_core_instance":
            self._add_vnic(body)
        elif kind.type_name == "oci_file_storage_mount_target":
            for address in body.get("privateIpIds", [])[:1]:
                body["ipAddress"] = self.client.call("GET", f"/20160918/privateIps/{address}").body["ipAddress"]
        return body

    def _add_vnic(self, body: Json) -> None:
        """Add what the primary VNIC has of an instance.

        Nothing before the instance runs, as oracle/oci 8.28.0 (seen in its requests): one that is imported then has no
        subnet, and a plan would replace it.
        """
        if body.get("lifecycleState") in STARTING:
            return
        vnic = self._primary_vnic(body)
        public_ip = vnic.get("publicIp")
        body |= {
            "privateIp": vnic.get("privateIp"),
            "publicIp": public_ip,
            "hostnameLabel": vnic.get("hostnameLabel"),
            "subnetId": vnic.get("subnetId"),
        }
        shown = ("displayName", "hostnameLabel", "nsgIds", "privateIp", "skipSourceDestCheck", "subnetId")
        tags = ("definedTags", "freeformTags")
        body["createVnicDetails"] = {
            **{name: vnic[name] for name in (*shown, *tags) if name in vnic},
            "assignPublicIp": public_ip is not None,
        }

    def _primary_vnic(self, instance: Mapping[str, Any]) -> Json:
        query = {"compartmentId": instance["compartmentId"], "instanceId": instance["id"]}
        for attachment in self.client.items("/20160918/vnicAttachments", query):
            if attachment.get("lifecycleState") == "ATTACHED":
                vnic: Json = self.client.call("GET", f"/20160918/vnics/{attachment['vnicId']}").body
                if vnic.get("isPrimary"):
                    return vnic
        return {}

    # Waiting

    def _wait(
        self, kind: ManagedResource, ocid: str, states: Iterable[str], limit: float, reply: RestReply | None
    ) -> None:
        """Wait until the state is a wanted one. `reply` is that of the create or update, for its work request."""
        targets = set(states)
        deleting = targets == GONE
        if not targets:
            return
        began = time.monotonic()
        if kind.work_requests and reply and "opc-work-request-id" in reply.headers:
            self._wait_for_work(kind, reply, targets, began + limit)
        pause = _FIRST_POLL
        while True:
            state = self._state(kind, ocid, unseen_ok=not deleting and time.monotonic() - began < _EVENTUAL)
            if state in targets or (deleting and state is None):
                return
            if not deleting and state in _ENDED:
                raise self._failure(kind, state, targets, reply)
            if time.monotonic() - began > limit:
                expected = " or ".join(sorted(targets))
                was = f"(last state: '{state}', timeout: {limit:.0f}s)"
                raise ServiceError(0, "Timeout", f"timeout while waiting for state to become '{expected}' {was}")
            time.sleep(pause)
            pause = min(pause * _POLL_GROWTH, _LONGEST_POLL)

    def _wait_for_work(self, kind: ManagedResource, reply: RestReply, targets: set[str], deadline: float) -> None:
        """Wait until the work request of a reply has ended well."""
        pause = _FIRST_POLL
        while (status := self.client.call("GET", _work_request(kind, reply)).body["status"]) != "SUCCEEDED":
            if status not in ("ACCEPTED", "IN_PROGRESS"):
                raise self._failure(kind, status, targets, reply)
            if time.monotonic() > deadline:
                raise ServiceError(
                    0, "Timeout", f"timeout while waiting for the work request (last status: '{status}')"
                )
            time.sleep(pause)
            pause = min(pause * _POLL_GROWTH, _LONGEST_POLL)

    def _state(self, kind: ManagedResource, ocid: str, *, unseen_ok: bool) -> str | None:
        try:
            body = self.client.call("GET", f"{kind.path}/{ocid}").body
        except ServiceError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return "UNSEEN" if unseen_ok else None
        # An instance configuration has no life cycle: as long as it exists, it is ready.
        return str(body.get("lifecycleState", "PRESENT"))

    def _failure(
        self, kind: ManagedResource, state: str | None, targets: set[str], reply: RestReply | None
    ) -> ServiceError:
        request = reply.headers.get("opc-work-request-id", "") if reply else ""
        if reply and request:
            messages = [error["message"] for error in self.client.items(f"{_work_request(kind, reply)}/errors", {})]
            if messages:
                return ServiceError(
                    0,
                    "WorkRequestFailed",
                    f"work request did not succeed, workId: {request}, entity: {kind.noun.lower()},"
                    " action: CREATED. Message: " + "\n".join(messages),
                    request_id=request,
                )
        return ServiceError(
            0,
            "UnexpectedState",
            "During creation, Terraform expected the resource to reach state(s):"
            f" {', '.join(sorted(targets))}, but the service reported unexpected state: {state}.",
        )


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _work_request(kind: ManagedResource, reply: RestReply) -> str:
    """The path of a reply's work request. Each service has its own, in its version."""
    return f"/{kind.path.split('/')[1]}/workRequests/{reply.headers['opc-work-request-id']}"


def _is_kept(kind: ManagedResource, state: Mapping[str, Any]) -> bool:
    return kind.kept and not state.get("enable_delete")


def _require_carried_out(kind: ManagedResource, before: Mapping[str, Any], planned: Mapping[str, Any]) -> None:
    """Refuse a change in place that OCI makes with an operation of its own, which the local cloud does not have."""
    for name in map(dotted, differences(kind.schema, before, planned)):
        changed = kind.schema.at(name)
        settable = isinstance(changed, SchemaBlock) or (changed is not None and (changed.required or changed.optional))
        if settable and not kind.carries_out(name):
            text = f"OCI changes {name} of {kind.noun} in place, and the local cloud does not"
            raise ServiceError(HTTPStatus.NOT_IMPLEMENTED, "NotImplemented", text)


def describe(error: ServiceError, service: str, operation: str) -> str:
    """An error in the format of the real provider: the lines after the first are `Name: value`."""
    if error.code in _LATE:
        # In this layout no line has the operation, and the suggestion is last.
        lines = [
            f"{_LATE[error.code]} ",
            f"Provider version: {catalogue().version}, stand-in for the local cloud ",
            f"Service: {service} ",
            f"Error Message: {error.message} ",
            f"Suggestion: Please retry or contact support for help with service: {service}",
        ]
        return "\n".join(lines)
    first = f"{error.status}-{error.code}, {error.message}" if error.status else error.message
    if error.status == HTTPStatus.NOT_FOUND:
        advice = f"Either the resource has been deleted or service {service} need policy to access this resource."
    elif error.status == HTTPStatus.UNAUTHORIZED:
        advice = "The key in OCI_PRIVATE_KEY_PATH is not the local cloud's. Its home has a file credentials/config."
    elif error.code == "Unreachable":
        advice = "Start the local cloud; its log has the reason for its end."
    elif error.status in RETRYABLE:
        advice = f"The service for this resource encountered an error. Try again later: {service}."
    else:
        advice = f"Please update the parameter(s) in the Terraform config as per error message {error.message}"
    lines = [
        first,
        f"Suggestion: {advice}",
        f"Request Target: {error.target}" if error.target else "",
        f"Provider version: {catalogue().version}, stand-in for the local cloud",
        f"Service: {service}",
        f"Operation Name: {operation}",
        f"OPC request ID: {error.request_id}" if error.request_id else "",
    ]
    return "\n".join(line for line in lines if line)


def _limit(kind: ManagedResource, state: Mapping[str, Any], verb: str) -> float:
    """The timeout of an operation in seconds: from the `timeouts` block, else the provider's default."""
    text = (state.get("timeouts") or {}).get(verb)
    if not isinstance(text, str):
        return _TIMEOUTS.get((kind.type_name, verb), _TIMEOUT)
    seconds = {"h": 3600.0, "m": 60.0, "s": 1.0}
    return sum(float(number) * seconds[unit] for number, unit in re.findall(r"([0-9.]+)([hms])", text))


def _matches(item: Mapping[str, Any], condition: Mapping[str, Any]) -> bool:
    value: Any = item
    for step in condition["name"].split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    texts = [str(element) for element in (value if isinstance(value, list) else [value])]
    if condition.get("regex"):
        return any(re.search(pattern, text) for pattern in condition["values"] for text in texts)
    return any(text in condition["values"] for text in texts)
