"""The Bastion service: bastions, sessions that forward a port, and the service's work requests.

A bastion is a row, an address in its subnet, and a part of one real ssh server on this machine (bastion/).
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import time
from functools import partial

from gpucluster.errors import GpuClusterError
from gpucluster.localcloud.bastion import sessions
from gpucluster.localcloud.bastion.sessions import BASTION as KIND
from gpucluster.localcloud.bastion.sessions import SESSION
from gpucluster.localcloud.compute import addresses, service_limits
from gpucluster.localcloud.state.cloud import CloudState, log, timestamp
from gpucluster.localcloud.state.lifecycle_states import LifecycleState, WorkAction
from gpucluster.localcloud.state.names import new_ocid
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import (
    BASTION,
    ApiError,
    ApiRoute,
    Call,
    Reply,
    check_etag,
    conflict,
    filtered,
    incorrect_state,
    invalid,
    not_found,
    page,
    required,
    show,
)

_WORK = "bastionworkrequest"
_SHORTEST, _LONGEST = 1800, 10800  # duration of a session in seconds (docs: maxSessionTtlInSeconds)
_MAX_SESSIONS = 20  # of a bastion of type STANDARD
_MAX_BLOCKS = 20
_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}")
_KEY = re.compile(r"(ssh-rsa|ssh-ed25519|ecdsa-sha2-nistp(?:256|384|521)) ([A-Za-z0-9+/]+=*)(?: .*)?")
_SSH, _LAST_PORT = 22, 65535
_UPDATABLE = (
    "clientCidrBlockAllowList", "maxSessionTtlInSeconds", "staticJumpHostIpAddresses", "securityAttributes",
    "freeformTags", "definedTags",
)  # fmt: skip


# bastions


def _check_bastion(body: Json) -> None:
    blocks = body.get("clientCidrBlockAllowList")
    if blocks is not None:
        try:
            parsed = {str(ipaddress.IPv4Network(block)) for block in blocks}
        except (ValueError, TypeError):
            parsed = set()
        if not 0 < len(parsed) <= _MAX_BLOCKS or len(parsed) != len(blocks):
            raise invalid(
                "You provided an invalid value for the CIDR block allowlist. You must provide unique IP addresses"
                " expressed in valid CIDR notation and you must present them as a string array. The maximum number of"
                f" CIDR blocks you can have is {_MAX_BLOCKS}."
            )
    _check_ttl("maxSessionTtlInSeconds", body.get("maxSessionTtlInSeconds", _LONGEST), _LONGEST)


def _check_ttl(name: str, value: object, longest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not _SHORTEST <= value <= longest:
        raise invalid(f"{name} {value} must be between {_SHORTEST} and {longest} seconds")
    return value


def _create(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    required(body, "bastionType", "compartmentId", "targetSubnetId")
    if str(body["bastionType"]).upper() != "STANDARD":
        raise invalid(f"bastionType {body['bastionType']} is not STANDARD")
    if "name" in body and not _NAME.fullmatch(str(body["name"])):
        raise invalid(f"The name {body['name']} must have letters, digits, - and _ only, 255 at most")
    _check_bastion(body)

    def make() -> tuple[Resource, str]:
        compartment = cloud.compartment(body["compartmentId"])
        name = body.get("name") or f"bastion{time.strftime('%Y%m%d%H%M', time.gmtime())}"
        if cloud.store.count(KIND, {"compartmentId": compartment, "name": name}):
            raise conflict(f"A bastion named {name} already exists in the compartment")
        service_limits.check_one_more(cloud, KIND, "")
        row = cloud.new(KIND, _bastion_body(cloud, body, name))
        row.hidden["work_request"] = cloud.begin_work("CREATE_BASTION", KIND, row, kind=_WORK)
        cloud.store.save(row)
        return row, row.hidden["work_request"]

    row, work_request, new = cloud.create_once(call, make)
    if new:
        cloud.submit(f"bastion {row.id}", partial(finish_change, cloud, row.id))
    return show(row, {"opc-work-request-id": work_request}, 201)


def _bastion_body(cloud: CloudState, body: Json, name: str) -> Json:
    subnet = cloud.related("subnet", body["targetSubnetId"])
    ocid = new_ocid(KIND)
    ip = addresses.take_private(cloud, subnet, ocid)
    cloud.new(
        "privateip",
        {
            "compartmentId": body["compartmentId"],
            "displayName": name,
            "ipAddress": ip,
            "isPrimary": True,
            "subnetId": subnet.id,
            "vnicId": new_ocid("vnic"),
        },
        {"owner": ocid},
    )
    now = timestamp()
    return {
        "clientCidrBlockAllowList": [],
        "maxSessionTtlInSeconds": _LONGEST,
        "staticJumpHostIpAddresses": [],
        "securityAttributes": {},
        "phoneBookEntry": None,
        "dnsProxyStatus": body.get("dnsProxyStatus") or "DISABLED",
        **{name: body[name] for name in _UPDATABLE if name in body},
        "id": ocid,
        "name": name,
        "displayName": name,
        "bastionType": "STANDARD",
        "compartmentId": body["compartmentId"],
        "targetSubnetId": subnet.id,
        "targetVcnId": subnet.body["vcnId"],
        "maxSessionsAllowed": _MAX_SESSIONS,
        "privateEndpointIpAddress": ip,
        "lifecycleState": LifecycleState.CREATING,
        "lifecycleDetails": "",
        "timeCreated": now,
        "timeUpdated": now,
    }


def finish_change(cloud: CloudState, ocid: str) -> None:
    """Finish a create or a delete. A restarted server calls this again."""
    row = cloud.get(KIND, ocid)
    with cloud.store.transaction():
        if row.state == LifecycleState.CREATING:
            cloud.set_state(KIND, ocid, LifecycleState.ACTIVE)
            cloud.end_work(row.hidden["work_request"], action=WorkAction.CREATED)
        elif row.state == LifecycleState.DELETING:
            addresses.release(cloud, ocid)
            cloud.set_state(KIND, ocid, LifecycleState.DELETED, gone=True)
            cloud.end_work(row.hidden["work_request"], action=WorkAction.DELETED)


def _get(cloud: CloudState, call: Call) -> Reply:
    return show(cloud.get(KIND, call.path["bastionId"]))


def _list(cloud: CloudState, call: Call) -> Reply:
    cloud.compartment(call.need("compartmentId"), in_body=False)
    rows = filtered(cloud.store.find(KIND), call, ("compartmentId", "name"))
    state = call.query.get("bastionLifecycleState")
    bastion_id = call.query.get("bastionId")
    return page([row for row in rows if state in (None, "", row.state) and bastion_id in (None, "", row.id)], call)


def _update(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    _check_bastion(body)
    with cloud.store.transaction():
        row = _active(cloud, call)
        row.body.update({name: body[name] for name in _UPDATABLE if name in body}, timeUpdated=timestamp())
        cloud.store.save(row)
        work_request = cloud.begin_work("UPDATE_BASTION", KIND, row, kind=_WORK)
        cloud.end_work(work_request, action=WorkAction.UPDATED)
    return Reply(status=202, headers={"opc-work-request-id": work_request})


def _active(cloud: CloudState, call: Call) -> Resource:
    row = cloud.live(KIND, call.path["bastionId"])
    check_etag(call, row)
    if row.state != LifecycleState.ACTIVE:
        raise incorrect_state(f"Bastion {row.id} is {row.state}")
    return row


def _delete(cloud: CloudState, call: Call) -> Reply:
    with cloud.store.transaction():
        row = _active(cloud, call)
        for session in cloud.store.find(SESSION, bastionId=row.id):
            sessions.end(cloud, session.id)
        row.hidden["work_request"] = cloud.begin_work("DELETE_BASTION", KIND, row, kind=_WORK)
        cloud.store.save(row)
        cloud.set_state(KIND, row.id, LifecycleState.DELETING)
    cloud.submit(f"bastion {row.id}", partial(finish_change, cloud, row.id))
    return Reply(status=202, headers={"opc-work-request-id": row.hidden["work_request"]})


# sessions


def _create_session(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    required(body, "bastionId", "targetResourceDetails", "keyDetails")

    def make() -> tuple[Resource, str]:
        bastion = cloud.related(KIND, body["bastionId"])
        if bastion.state != LifecycleState.ACTIVE:
            raise incorrect_state(f"Bastion {bastion.id} is {bastion.state}")
        if len(sessions.of_bastion(cloud, bastion.id)) >= _MAX_SESSIONS:
            raise ApiError(400, "LimitExceeded", f"Bastion {bastion.id} already has {_MAX_SESSIONS} sessions")
        longest = int(bastion.body["maxSessionTtlInSeconds"])
        ttl = _check_ttl("sessionTtlInSeconds", body.get("sessionTtlInSeconds", longest), longest)
        now = timestamp()
        row = cloud.new(
            SESSION,
            {
                "displayName": body.get("displayName") or f"Session-{time.strftime('%Y%m%d-%H%M', time.gmtime())}",
                "bastionId": bastion.id,
                "bastionName": bastion.body["name"],
                "bastionUserName": None,
                "bastionPublicHostKeyInfo": None,
                "targetResourceDetails": _target(cloud, bastion, body["targetResourceDetails"]),
                "keyType": "PUB",
                "keyDetails": {"publicKeyContent": _public_key(body["keyDetails"])},
                "sessionTtlInSeconds": ttl,
                "sshMetadata": {},
                "lifecycleState": LifecycleState.CREATING,
                "lifecycleDetails": "",
                "timeCreated": now,
                "timeUpdated": now,
                "compartmentId": bastion.body["compartmentId"],
            },
            {"expires_at": time.time() + ttl},
        )
        work_request = cloud.begin_work("CREATE_SESSION", "session", row, kind=_WORK)
        row.hidden["work_request"] = work_request
        cloud.store.save(row)
        return row, work_request

    row, work_request, new = cloud.create_once(call, make)
    if new:
        cloud.submit(f"session {row.id}", partial(activate, cloud, row.id))
    return show(row, {"opc-work-request-id": work_request}, 201)


def _public_key(details: Json) -> str:
    text = str(details.get("publicKeyContent") or "").strip()
    match = _KEY.fullmatch(text)
    try:
        whole = match is not None and len(base64.b64decode(match[2], validate=True)) > len(match[1])
    except binascii.Error:
        whole = False
    if not whole:
        raise invalid("keyDetails.publicKeyContent is not a public key in OpenSSH format (RSA, ECDSA or Ed25519)")
    return text


def _target(cloud: CloudState, bastion: Resource, details: Json) -> Json:
    kind = details.get("sessionType")
    if kind != "PORT_FORWARDING":
        raise invalid(
            f"targetResourceDetails.sessionType {kind}: the local cloud has sessions of type PORT_FORWARDING only,"
            " which need no agent on the instance"
        )
    port = details.get("targetResourcePort", _SSH)
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port <= _LAST_PORT:
        raise invalid(f"targetResourcePort {port} is not a port")
    address, instance, name = details.get("targetResourcePrivateIpAddress"), details.get("targetResourceId"), None
    if instance is not None:
        row = cloud.related("instance", instance)
        name, address = row.body["displayName"], address or row.hidden["ip"]
    return {
        "sessionType": kind,
        "targetResourceId": instance,
        "targetResourceDisplayName": name,
        "targetResourcePrivateIpAddress": _in_vcn(cloud, bastion, address),
        "targetResourceFqdn": None,
        "targetResourcePort": port,
    }


def _in_vcn(cloud: CloudState, bastion: Resource, address: object) -> str:
    blocks = cloud.get("vcn", bastion.body["targetVcnId"]).body["cidrBlocks"]
    try:
        if any(ipaddress.IPv4Address(str(address)) in ipaddress.IPv4Network(block) for block in blocks):
            return str(address)
    except ValueError:
        pass
    where = " or ".join(blocks)
    raise invalid(f"targetResourcePrivateIpAddress {address} is not an address in {where}, the bastion's VCN")


def activate(cloud: CloudState, ocid: str) -> None:
    """Start the ssh server if needed and activate the session. A restarted server calls this again."""
    row = cloud.get(SESSION, ocid)
    if row.state != LifecycleState.CREATING:
        return
    try:
        endpoint = cloud.open_ssh_endpoint()
    except GpuClusterError as error:
        log.error("session %s failed: %s", ocid, error)
        with cloud.store.transaction():
            cloud.update(SESSION, ocid, lifecycleDetails=str(error))
            cloud.set_state(SESSION, ocid, LifecycleState.FAILED, gone=True)
            cloud.end_work(row.hidden["work_request"], errors=(("InternalError", str(error)),))
        return
    target = row.body["targetResourceDetails"]
    address, port = target["targetResourcePrivateIpAddress"], target["targetResourcePort"]
    command = f"ssh -i <privateKey> -N -L <localPort>:{address}:{port} -p {endpoint.port} {ocid}@{endpoint.host}"
    with cloud.store.transaction():
        if cloud.get(SESSION, ocid).state != LifecycleState.CREATING:
            return
        cloud.update(
            SESSION, ocid, sshMetadata={"command": command}, bastionPublicHostKeyInfo=endpoint.fingerprint,
            bastionUserName=ocid,
        )  # fmt: skip
        cloud.set_state(SESSION, ocid, LifecycleState.ACTIVE)
        cloud.end_work(row.hidden["work_request"], action=WorkAction.CREATED)


def _live_session(cloud: CloudState, call: Call) -> Resource:
    row = cloud.live(SESSION, call.path["sessionId"])
    sessions.of_bastion(cloud, row.body["bastionId"])  # ends it if it has expired
    return cloud.live(SESSION, row.id)


def _get_session(cloud: CloudState, call: Call) -> Reply:
    row = cloud.get(SESSION, call.path["sessionId"])
    sessions.of_bastion(cloud, row.body["bastionId"])
    return show(cloud.get(SESSION, row.id))


def _list_sessions(cloud: CloudState, call: Call) -> Reply:
    bastion = cloud.live(KIND, call.need("bastionId"))
    sessions.of_bastion(cloud, bastion.id)
    rows = cloud.store.find(SESSION, gone=None, bastionId=bastion.id)
    state, session_id = call.query.get("sessionLifecycleState"), call.query.get("sessionId")
    fitting = [row for row in rows if state in (None, "", row.state) and session_id in (None, "", row.id)]
    return page(filtered(fitting, call, ("displayName",)), call)


def _update_session(cloud: CloudState, call: Call) -> Reply:
    with cloud.store.transaction():
        row = _live_session(cloud, call)
        check_etag(call, row)
        row.body.update(displayName=call.body().get("displayName", row.body["displayName"]), timeUpdated=timestamp())
        cloud.store.save(row)
    return show(row)


def _delete_session(cloud: CloudState, call: Call) -> Reply:
    with cloud.store.transaction():
        row = _live_session(cloud, call)
        check_etag(call, row)
        work_request = cloud.begin_work("DELETE_SESSION", "session", row, kind=_WORK)
        sessions.end(cloud, row.id)
        cloud.end_work(work_request, action=WorkAction.DELETED)
    return Reply(status=202, headers={"opc-work-request-id": work_request})


# work requests


def _work_request(cloud: CloudState, call: Call) -> Resource:
    row = cloud.store.get(_WORK, call.path["workRequestId"])
    if row is None:
        raise not_found("work request", call.path["workRequestId"])
    return row


def _work_requests(cloud: CloudState, call: Call) -> Reply:
    compartment = cloud.compartment(call.need("compartmentId"), in_body=False)
    return page(cloud.store.find(_WORK, gone=None, compartmentId=compartment), call)


def routes(cloud: CloudState) -> list[ApiRoute]:
    """Bastions, sessions, work requests."""
    bastions, session, work = f"{BASTION}/bastions", f"{BASTION}/sessions", f"{BASTION}/workRequests"
    one, one_session, one_work = f"{bastions}/{{bastionId}}", f"{session}/{{sessionId}}", f"{work}/{{workRequestId}}"
    return [
        ApiRoute("POST", bastions, "CreateBastion", partial(_create, cloud)),
        ApiRoute("GET", bastions, "ListBastions", partial(_list, cloud)),
        ApiRoute("GET", one, "GetBastion", partial(_get, cloud)),
        ApiRoute("PUT", one, "UpdateBastion", partial(_update, cloud)),
        ApiRoute("DELETE", one, "DeleteBastion", partial(_delete, cloud)),
        ApiRoute("POST", session, "CreateSession", partial(_create_session, cloud)),
        ApiRoute("GET", session, "ListSessions", partial(_list_sessions, cloud)),
        ApiRoute("GET", one_session, "GetSession", partial(_get_session, cloud)),
        ApiRoute("PUT", one_session, "UpdateSession", partial(_update_session, cloud)),
        ApiRoute("DELETE", one_session, "DeleteSession", partial(_delete_session, cloud)),
        ApiRoute("GET", work, "ListBastionWorkRequests", partial(_work_requests, cloud)),
        ApiRoute("GET", one_work, "GetBastionWorkRequest", lambda call: show(_work_request(cloud, call))),
        ApiRoute(
            "GET", f"{one_work}/errors", "ListBastionWorkRequestErrors",
            lambda call: Reply(_work_request(cloud, call).hidden["errors"]),
        ),
        ApiRoute("GET", f"{one_work}/logs", "ListBastionWorkRequestLogs", lambda call: Reply([])),
    ]  # fmt: skip
