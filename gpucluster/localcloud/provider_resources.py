"""Terraform's resources as the API knows them: names and types translated, and create, read, update and delete.

What there is to know about a resource is data: provider_schema.json has the attributes (facts of oracle/oci), and
provider_resources.toml how the API is spoken to.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from gpucluster.localcloud.provider_rest import WORTH_RETRYING, Client, Reply, ServiceError

# A state, a body, a type: plain JSON, with `UNKNOWN` where a plan does not know yet.
Json = dict[str, Any]

GONE = frozenset({"TERMINATED", "DELETED"})
_DOOMED = GONE | {"TERMINATING", "DELETING", "FAILED"}
_TIMEOUT = 20 * 60.0  # seconds; the provider's default for all of these but instances, whose boot takes longer
_TIMEOUTS = {("oci_core_instance", "create"): 45 * 60.0, ("oci_core_instance", "delete"): 75 * 60.0}
_FIRST_LOOK, _SLOWER, _LONGEST = 0.1, 1.5, 1.0  # seconds between looks at a state, growing
_UNSEEN = 5.0  # seconds that a list or a get may not know yet what was just created
_IN_USE = 10.0  # seconds that a delete is repeated while something that is going away still uses it
_ALWAYS_UPDATABLE = ("defined_tags", "display_name", "freeform_tags", "timeouts")


class _Unknown:
    """A value that is only known after apply."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


def known(value: Any) -> Any:
    """A value with null where it is not known yet."""
    if value is UNKNOWN:
        return None
    if isinstance(value, list):
        return [known(item) for item in value]
    if isinstance(value, dict):
        return {name: known(item) for name, item in value.items()}
    return value


class Unfinished(Exception):
    """A create that left something behind: `state` is what stands, to be recorded as tainted."""

    def __init__(self, message: str, state: Json) -> None:
        super().__init__(message)
        self.state = state


# The schema


@dataclass(frozen=True)
class Attribute:
    """One attribute: its type as Terraform writes it in JSON, and who may set it."""

    type: Any
    required: bool
    optional: bool
    computed: bool


@dataclass(frozen=True)
class Block:
    """Attributes and nested blocks; for a nested one also how many and in which order."""

    attributes: Mapping[str, Attribute]
    blocks: Mapping[str, Block]
    nesting: str = "single"
    min_items: int = 0
    max_items: int = 0


@dataclass(frozen=True)
class Keyed:
    """A resource without an OCID of its own; provider_keyed.py does what there is to do.

    Attributes:
        key: template of Terraform's id, of attributes.
        make: the method of the create, on the kind's path.
        look: how it is read: "one" at its path, "list" among what the path lists, "" never: the state is all there is.
        query: name of a query parameter -> attribute; of the list and of the delete.
        match: what tells one of the listed from the others.
    """

    key: str
    make: str
    look: str
    query: Mapping[str, str]
    match: tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """A resource: its schema and how it is spoken to."""

    type_name: str
    schema: Block
    service: str
    noun: str
    path: str
    ready: tuple[str, ...]
    updatable: tuple[str, ...]
    replace: tuple[str, ...]
    operations: Mapping[str, str]
    update_waits: bool
    adopt: bool
    keyed: Keyed | None = None

    def forces_replacement(self, path: str) -> bool:
        """Whether a change of `block.attribute` makes a new resource."""
        if path in self.replace:
            return True
        return not any(path == known or path.startswith(f"{known}.") for known in self.updatable)


@dataclass(frozen=True)
class Lookup:
    """A data source: its schema and how it is spoken to.

    `path` may hold arguments, such as {vcn_id}. `items` is the attribute that holds what was listed; empty for a data
    source that shows one resource.
    """

    type_name: str
    schema: Block
    service: str
    noun: str
    path: str
    query: tuple[str, ...]
    items: str

    @property
    def operation(self) -> str:
        """The SDK's name of the call."""
        return f"{'List' if self.items else 'Get'}{self.noun}"


@dataclass(frozen=True)
class Wire:
    """How names and types differ between Terraform and JSON."""

    names: Mapping[str, str]
    integers: frozenset[str]
    booleans: frozenset[str]
    namespaced: frozenset[str]
    unsent: frozenset[str]


@dataclass(frozen=True)
class Catalogue:
    """All that the stand-in knows."""

    version: str
    kinds: Mapping[str, Kind]
    lookups: Mapping[str, Lookup]
    wire: Wire


@functools.cache
def catalogue() -> Catalogue:
    """Read the two data files of this package."""
    folder = files("gpucluster.localcloud")
    schema = json.loads((folder / "provider_schema.json").read_text())
    spoken = tomllib.loads((folder / "provider_resources.toml").read_text())
    kinds = {
        name: Kind(
            type_name=name,
            schema=_block(schema["resources"][name]),
            service=entry["service"],
            noun=entry["noun"],
            path=entry["path"],
            ready=tuple(entry["ready"]),
            updatable=(*_ALWAYS_UPDATABLE, *entry["update"]),
            replace=tuple(entry.get("replace", ())),
            operations={verb: _operation(verb, entry) for verb in _VERBS},
            update_waits=entry.get("update_waits", True),
            adopt=entry.get("adopt", True),
            keyed=_keyed(entry),
        )
        for name, entry in spoken["resources"].items()
    }
    lookups = {
        name: Lookup(
            type_name=name,
            schema=_block(schema["data_sources"][name]),
            service=entry["service"],
            noun=entry["noun"],
            path=entry["path"],
            query=tuple(entry.get("query", ())),
            items=entry.get("items", ""),
        )
        for name, entry in spoken["data_sources"].items()
    }
    wire = spoken["wire"]
    return Catalogue(
        version=schema["version"],
        kinds=kinds,
        lookups=lookups,
        wire=Wire(
            names=wire["names"],
            integers=frozenset(wire["integers"]),
            booleans=frozenset(wire["booleans"]),
            namespaced=frozenset(wire["namespaced"]),
            unsent=frozenset(wire["unsent"]),
        ),
    )


_VERBS = ("create", "get", "update", "delete")


def _keyed(entry: Mapping[str, Any]) -> Keyed | None:
    if "key" not in entry:
        return None
    match = tuple(entry.get("match", ()))
    return Keyed(entry["key"], entry.get("make", "POST"), entry.get("look", "one"), entry.get("query", {}), match)


def filled(template: str, values: Mapping[str, Any]) -> str:
    """A path or an id with its {attributes} filled in, each as one step of a path."""
    return re.sub(r"\{(\w+)\}", lambda match: quote(str(values[match[1]]), safe=":@&=+$"), template)


def _operation(verb: str, entry: Mapping[str, Any]) -> str:
    """The SDK's name of a call; under "update" stands what may be changed."""
    named = entry.get(verb)
    return named if isinstance(named, str) else f"{verb.title()}{entry['noun']}"


def _block(raw: Mapping[str, Any]) -> Block:
    return Block(
        attributes={
            name: Attribute(kind, "r" in flags, "o" in flags, "c" in flags)
            for name, (kind, flags) in raw["attributes"].items()
        },
        blocks={name: _block(nested) for name, nested in raw.get("blocks", {}).items()},
        nesting=raw.get("nesting", "single"),
        min_items=raw.get("min", 0),
        max_items=raw.get("max", 0),
    )


# Terraform to JSON


def to_wire(schema: Block, state: Mapping[str, Any], *, inside: str = "", update: bool = False) -> Json:
    """A body for a create or an update: what is set and may be set.

    Args:
        inside: name of the block that `schema` describes.
        update: keep the ids of nested blocks, by which an update finds them, and blocks that were taken away.
    """
    wire = catalogue().wire
    body: Json = {}
    for name, attribute in schema.attributes.items():
        value = state.get(name)
        settable = attribute.required or attribute.optional or (update and inside and name == "id")
        if value is None or value is UNKNOWN or not settable or name in wire.unsent or (name == "id" and not inside):
            continue
        _put(body, _wire_name(inside, name), _wire_value(name, value))
    for name, nested in schema.blocks.items():
        if name == "timeouts" or not isinstance(items := state.get(name), list):
            continue
        bodies = [to_wire(nested, item, inside=name, update=update) for item in items]
        if nested.max_items != 1 and (bodies or update):
            body[_wire_name(inside, name)] = bodies
        elif bodies:
            body[_wire_name(inside, name)] = bodies[0]
    return body


def _wire_name(inside: str, name: str) -> str:
    names = catalogue().wire.names
    first, *rest = name.split("_")
    return names.get(f"{inside}.{name}") or names.get(name) or first + "".join(word.capitalize() for word in rest)


def _wire_value(name: str, value: Any) -> Any:
    wire = catalogue().wire
    if name in wire.integers:
        return int(value)
    if name in wire.booleans:
        return str(value).lower() == "true"
    if name in wire.namespaced:
        spaces: Json = {}
        for key, item in value.items():
            space, _, short = key.partition(".")
            spaces.setdefault(space, {})[short] = item
        return spaces
    return value


def _put(body: Json, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        body = body.setdefault(parent, {})
    body[last] = value


# JSON to Terraform


def from_wire(
    schema: Block, body: Mapping[str, Any], before: Mapping[str, Any], *, inside: str = "", everything: bool = False
) -> Json:
    """The state after a read.

    What the API does not show keeps its value of before. A block that was never configured stays out, though the API
    may fill it with its own defaults: the real provider marks such blocks as computed. Sets are the API's in any case.

    Args:
        before: the planned or earlier state.
        everything: take all blocks, as an import must.
    """
    spelled = {name.lower(): name for name in body}
    state: Json = {}
    for name, attribute in schema.attributes.items():
        found, value = _find(body, spelled, _wire_name(inside, name))
        state[name] = _state_value(name, attribute.type, value) if found else known(before.get(name))
    for name, nested in schema.blocks.items():
        old = known(before.get(name))
        found, value = _find(body, spelled, _wire_name(inside, name))
        if nested.nesting == "single" or not found:
            state[name] = old if old is not None or nested.nesting == "single" else []
            continue
        olds = old if isinstance(old, list) else []
        items = value if isinstance(value, list) else [value] if value else []
        is_set = nested.nesting == "set"
        if not (is_set or olds or everything):
            items = []
        state[name] = [
            from_wire(
                nested,
                item,
                {} if is_set or position >= len(olds) else olds[position],
                inside=name,
                everything=everything or is_set,
            )
            for position, item in enumerate(items)
        ]
    return state


def _find(body: Mapping[str, Any], spelled: Mapping[str, str], path: str) -> tuple[bool, Any]:
    """Look a member up, whatever its capitals (`isIpv6Enabled`, `memoryInGBs`)."""
    first, _, rest = path.partition(".")
    name = spelled.get(first.lower())
    if name is None:
        return False, None
    if not rest:
        return True, body[name]
    inner = body[name]
    if not isinstance(inner, Mapping):
        return False, None
    return _find(inner, {member.lower(): member for member in inner}, rest)


def _state_value(name: str, kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if kind == "string":
        return ("true" if value else "false") if isinstance(value, bool) else str(value)
    if isinstance(kind, str):
        return value
    container, inner = kind
    if container in ("list", "set"):
        return [_state_value("", inner, item) for item in (value if isinstance(value, list) else [value])]
    if container == "map":
        if name in catalogue().wire.namespaced:
            value = {f"{space}.{key}": item for space, keys in value.items() for key, item in keys.items()}
        return {key: item if isinstance(item, str) else json.dumps(item) for key, item in value.items()}
    spelled = {member.lower(): member for member in value}
    return {
        member: _state_value(member, member_type, _find(value, spelled, _wire_name("", member))[1])
        for member, member_type in inner.items()
    }


# Create, read, update, delete


@dataclass
class Operator:
    """Does to the cloud what Terraform asks for, and waits until it is done."""

    client: Client
    _used_tokens: Counter[str] = field(default_factory=Counter)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def create(self, kind: Kind, planned: Mapping[str, Any]) -> Json:
        """Create and wait until it can be used. Raises Unfinished if something was made that can't."""
        body = to_wire(kind.schema, planned)
        reply = self._create_once(kind, body)
        ocid = reply.body["id"]
        try:
            self._wait(kind, ocid, kind.ready, _limit(kind, planned, "create"), reply)
            fresh = self._get(kind, ocid)
        except ServiceError as error:
            raise Unfinished(
                describe(error, kind.service, kind.operations["create"]), from_wire(kind.schema, reply.body, planned)
            ) from error
        return from_wire(kind.schema, fresh, planned)

    def _create_once(self, kind: Kind, body: Json) -> Reply:
        """A create that was interrupted after the call is found again by its token, which is that of the same wish."""
        token = self._token(kind, body) if kind.adopt else os.urandom(32).hex()
        try:
            reply = self.client.call("POST", kind.path, body=body, retry_token=token)
        except ServiceError as error:
            if error.code != "InvalidatedRetryToken":
                raise
        else:
            if reply.body.get("lifecycleState") not in _DOOMED:
                return reply
        # What the token once made has been deleted since.
        return self.client.call("POST", kind.path, body=body, retry_token=os.urandom(32).hex())

    def _token(self, kind: Kind, body: Json) -> str:
        wish = json.dumps([os.getcwd(), kind.type_name, body], sort_keys=True)
        with self._guard:
            self._used_tokens[wish] += 1
            turn = self._used_tokens[wish]
        return hashlib.sha256(f"{turn}{wish}".encode()).hexdigest()

    def read(self, kind: Kind, state: Mapping[str, Any], *, everything: bool = False) -> Json | None:
        """The state of now; None if it is gone."""
        try:
            body = self._get(kind, state["id"])
        except ServiceError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        if body.get("lifecycleState") in GONE:
            return None
        return from_wire(kind.schema, body, state, everything=everything)

    def update(self, kind: Kind, before: Mapping[str, Any], planned: Mapping[str, Any]) -> Json:
        """Send what differs. Like the real provider, does not wait for a cluster network to have its new size."""
        changed = {
            name for name in (*kind.schema.attributes, *kind.schema.blocks) if before.get(name) != planned.get(name)
        }
        ocid = planned["id"]
        if "create_vnic_details" in changed:
            self._update_vnic(kind, ocid, before, planned)
        wanted = {name: planned[name] for name in changed - {"timeouts", "create_vnic_details"} if name in planned}
        if body := to_wire(kind.schema, wanted, update=True):
            reply = self.client.call("PUT", f"{kind.path}/{ocid}", body=body)
            if kind.update_waits:
                self._wait(kind, ocid, kind.ready, _limit(kind, planned, "update"), reply)
        return from_wire(kind.schema, self._get(kind, ocid), planned)

    def _update_vnic(self, kind: Kind, ocid: str, before: Mapping[str, Any], planned: Mapping[str, Any]) -> None:
        old, new = before["create_vnic_details"][0], planned["create_vnic_details"][0]
        changes = {name: value for name, value in new.items() if old.get(name) != value}
        instance = self.client.call("GET", f"{kind.path}/{ocid}").body
        if body := to_wire(kind.schema.blocks["create_vnic_details"], changes, inside="create_vnic_details"):
            self.client.call("PUT", f"/20160918/vnics/{self._primary_vnic(instance)['id']}", body=body)

    def delete(self, kind: Kind, state: Mapping[str, Any]) -> None:
        """Delete and wait until it is gone."""
        ocid = state["id"]
        keep = state.get("preserve_boot_volume")
        query = None if keep is None else {"preserveBootVolume": str(keep).lower()}
        patience = time.monotonic() + _IN_USE
        while True:
            try:
                self.client.call("DELETE", f"{kind.path}/{ocid}", query=query)
                break
            except ServiceError as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    return
                if error.status != HTTPStatus.CONFLICT or time.monotonic() > patience:
                    raise
            time.sleep(_LONGEST)
        self._wait(kind, ocid, tuple(GONE), _limit(kind, state, "delete"), None)

    def find(self, lookup: Lookup, config: Mapping[str, Any]) -> Json:
        """Read a data source: get it, or list and then filter here as the real provider does."""
        path = filled(lookup.path, config)
        if not lookup.items:
            return from_wire(lookup.schema, self.client.call("GET", path).body, config, everything=True)
        query = {_wire_name("", name): str(config[name]) for name in lookup.query if config.get(name) is not None}
        found = list(self.client.items(path, query))
        items = _state_value("", lookup.schema.attributes[lookup.items].type, found)
        for condition in config.get("filter") or []:
            items = [item for item in items if _matches(item, condition)]
        digest = hashlib.sha256(json.dumps([lookup.type_name, path, query], sort_keys=True).encode()).hexdigest()
        return {**config, lookup.items: items, "id": f"{lookup.noun}-{digest[:16]}"}

    # What an instance or a mount target shows only by way of others

    def _get(self, kind: Kind, ocid: str) -> Json:
        body: Json = dict(self.client.call("GET", f"{kind.path}/{ocid}").body)
        if body.get("lifecycleState") in _DOOMED:
            return body
        if kind.type_name == "oci_core_instance":
            self._add_vnic(body)
        elif kind.type_name == "oci_file_storage_mount_target":
            for address in body.get("privateIpIds", [])[:1]:
                body["ipAddress"] = self.client.call("GET", f"/20160918/privateIps/{address}").body["ipAddress"]
        return body

    def _add_vnic(self, body: Json) -> None:
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

    def _wait(self, kind: Kind, ocid: str, wanted: Iterable[str], limit: float, reply: Reply | None) -> None:
        """Look until the state is a wanted one; growing pauses. `reply` is the create's or update's."""
        targets = set(wanted)
        deleting = targets == GONE
        if not targets:
            return
        begun = time.monotonic()
        pause = _FIRST_LOOK
        while True:
            state = self._state(kind, ocid, unseen_ok=not deleting and time.monotonic() - begun < _UNSEEN)
            if state in targets or (deleting and state is None):
                return
            if not deleting and state in _DOOMED:
                raise self._failure(kind, state, targets, reply)
            if time.monotonic() - begun > limit:
                expected = " or ".join(sorted(targets))
                raise ServiceError(
                    0, "Timeout", f"{kind.noun} {ocid} is {state} after {limit:.0f} s; expected {expected}"
                )
            time.sleep(pause)
            pause = min(pause * _SLOWER, _LONGEST)

    def _state(self, kind: Kind, ocid: str, *, unseen_ok: bool) -> str | None:
        try:
            body = self.client.call("GET", f"{kind.path}/{ocid}").body
        except ServiceError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return "UNSEEN" if unseen_ok else None
        # An instance configuration has no life cycle: while it is there, it is ready.
        return str(body.get("lifecycleState", "PRESENT"))

    def _failure(self, kind: Kind, state: str | None, targets: set[str], reply: Reply | None) -> ServiceError:
        request = reply.headers.get("opc-work-request-id", "") if reply else ""
        if request:
            path = f"/{kind.path.split('/')[1]}/workRequests/{request}"  # each service has its own, in its version
            messages = [error["message"] for error in self.client.items(f"{path}/errors", {})]
            if messages:
                return ServiceError(
                    0,
                    "WorkRequestFailed",
                    f"work request did not succeed, workId: {request}, entity: {kind.noun.lower()}."
                    f" Message: {' '.join(messages)}",
                    request_id=request,
                )
        return ServiceError(
            0,
            "UnexpectedState",
            "During creation, Terraform expected the resource to reach state(s):"
            f" {', '.join(sorted(targets))}, but the service reported unexpected state: {state}.",
        )


def describe(error: ServiceError, service: str, operation: str) -> str:
    """An error in the real provider's words: the lines that follow the first are `Name: value`."""
    first = f"{error.status}-{error.code}, {error.message}" if error.status else error.message
    if error.status == HTTPStatus.NOT_FOUND:
        advice = f"Either the resource has been deleted or service {service} need policy to access this resource."
    elif error.status == HTTPStatus.UNAUTHORIZED:
        advice = "The key in OCI_PRIVATE_KEY_PATH is not the local cloud's. Its home has a file credentials/config."
    elif error.code == "Unreachable":
        advice = "Start the local cloud; its log says why it ended."
    elif error.status in WORTH_RETRYING:
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


def _limit(kind: Kind, state: Mapping[str, Any], verb: str) -> float:
    """Seconds that an operation may take: the `timeouts` block, else the provider's default."""
    text = (state.get("timeouts") or {}).get(verb)
    if not isinstance(text, str):
        return _TIMEOUTS.get((kind.type_name, verb), _TIMEOUT)
    seconds = {"h": 3600.0, "m": 60.0, "s": 1.0}
    return sum(float(number) * seconds[unit] for number, unit in re.findall(r"([0-9.]+)([hms])", text))


def _matches(item: Mapping[str, Any], condition: Mapping[str, Any]) -> bool:
    value: Any = item
    for step in condition["name"].split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    texts = [str(one) for one in (value if isinstance(value, list) else [value])]
    if condition.get("regex"):
        return any(re.search(pattern, text) for pattern in condition["values"] for text in texts)
    return any(text in condition["values"] for text in texts)
