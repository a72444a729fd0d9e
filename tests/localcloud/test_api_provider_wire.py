"""The bodies that the real oracle/oci provider sends, and what its Go code requires of the responses.

It plans a change if a response differs from what was sent, or has no map of tags. It fails if a number with a fraction
is read as int64. It takes a resource as deleted as soon as its state is a final one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.localcloud.provider.rest import ApiCredentials, RestClient
from tests.localcloud.api_harness import GPU_SHAPE, SHAPE, Api, running
from tests.waiting import wait_for

CORE, FILES, BASTION = "/20160918", "/20171215", "/20210331"
TAGS = {"freeformTags": {"gpucluster": "wire"}}
# The only members that the Go code reads as float32.
FRACTIONS = {"ocpus", "memoryInGBs", "networkingBandwidthInGbps", "localDisksTotalSizeInGBs"}
MAPS = {
    "vcns": ("securityAttributes",),
    "instances": ("securityAttributes", "extendedMetadata", "systemTags", "metadata"),
    "fileSystems": ("systemTags",),
    "mountTargets": ("systemTags", "securityAttributes"),
    "bastions": ("systemTags", "securityAttributes"),
}
ICMP = {"protocol": "1", "source": "0.0.0.0/0", "sourceType": "CIDR_BLOCK", "icmpOptions": {"code": 4, "type": 3}}
SSH = {"protocol": "6", "source": "192.0.2.0/24", "tcpOptions": {"destinationPortRange": {"max": 22, "min": 22}}}
OPTION = {"source": "10.77.0.0/16", "access": "READ_ONLY", "identitySquash": "ALL", "requirePrivilegedSourcePort": True}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("wire"))) as api:
        yield api


class Wire:
    """Creates, reads and deletes as the provider does, and checks every response."""

    def __init__(self, api: Api) -> None:
        config = api.config
        key = ApiCredentials(config["tenancy"], config["user"], config["fingerprint"], Path(config["key_file"]))
        self.client = RestClient(api.endpoint, key)
        self.compartment = api.tenancy
        self.made: list[tuple[str, str]] = []

    def create(self, collection: str, ready: str = "AVAILABLE", **sent: Any) -> dict[str, Any]:
        body = {"compartmentId": self.compartment, **TAGS, **sent}
        answer = self.client.call("POST", collection, body=body, retry_token=f"{collection}-{len(self.made)}").body
        self.made.append((collection, answer["id"]))
        return self.read(collection, answer["id"], ready, body)

    def read(self, collection: str, ocid: str, state: str, sent: dict[str, Any]) -> dict[str, Any]:
        found = self.once(collection, ocid, state)
        assert differences(sent, found) == []
        assert [*fractions(found)] == []
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found["timeCreated"])
        for name in ("freeformTags", "definedTags", *MAPS.get(collection.rpartition("/")[2], ())):
            assert isinstance(found[name], dict), name
        return found

    def once(self, collection: str, ocid: str, state: str) -> dict[str, Any]:
        seen: dict[str, Any] = {}

        def reached() -> bool:
            seen.clear()
            seen.update(self.client.call("GET", f"{collection}/{ocid}").body)
            return bool(seen.get("lifecycleState", "") == state)

        wait_for(f"{ocid} is {state}", reached, interval=0.02, state=lambda: seen)
        return seen

    def finished(self, work: str) -> dict[str, Any]:
        """A work request, once it has an end."""

        def ended() -> dict[str, Any]:
            found: dict[str, Any] = self.client.call("GET", work).body
            return found if "timeFinished" in found else {}

        return wait_for(f"{work} ends", ended, interval=0.02)


def differences(sent: Any, found: Any, path: str = "") -> list[str]:
    """Members of a response that differ from what was sent. It may have more members."""
    if isinstance(sent, dict) and isinstance(found, dict):
        return [line for key in sent for line in differences(sent[key], found.get(key), f"{path}.{key}")]
    if isinstance(sent, list) and isinstance(found, list) and len(sent) == len(found):
        pairs = enumerate(zip(sent, found, strict=True))
        return [line for number, (old, new) in pairs for line in differences(old, new, f"{path}.{number}")]
    return [] if sent == found else [f"{path}: {sent!r} became {found!r}"]


def fractions(value: Any, name: str = "") -> Iterator[str]:
    """Numbers with a fraction where Go expects an integer."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from fractions(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from fractions(item, name)
    elif isinstance(value, float) and name not in FRACTIONS:
        yield name


def test_an_applied_root_reads_back_as_it_was_sent_scales_and_goes(api: Api) -> None:
    wire = Wire(api)
    subnet = _network(wire)
    _storage(wire, api.domain, subnet)
    _entrance(wire, subnet)
    _rights(wire)
    launch = _launch_details(api)
    _instance(wire, launch, subnet)
    _cluster_network(wire, api.domain, launch, subnet)
    _destroy(wire)


def _network(wire: Wire) -> str:
    vcn = wire.create(f"{CORE}/vcns", cidrBlocks=["10.77.0.0/16"], displayName="wire", dnsLabel="wire")
    within = {"vcnId": vcn["id"], "displayName": "wire"}
    services = wire.client.call("GET", f"{CORE}/services").body
    (service,) = [one for one in services if one["cidrBlock"].startswith("all-")]
    nat = wire.create(f"{CORE}/natGateways", **within)
    wire.create(f"{CORE}/internetGateways", **within, isEnabled=True)
    gateway = wire.create(f"{CORE}/serviceGateways", **within, services=[{"serviceId": service["id"]}])
    assert gateway["services"] == [{"serviceId": service["id"], "serviceName": service["name"]}]
    out = {"destination": "0.0.0.0/0", "destinationType": "CIDR_BLOCK", "networkEntityId": nat["id"]}
    inner = {"destination": service["cidrBlock"], "destinationType": "SERVICE_CIDR_BLOCK"}
    rules = [{**out, "description": "Internet"}, {**inner, "networkEntityId": gateway["id"], "description": "Oracle"}]
    table = wire.create(f"{CORE}/routeTables", **within, routeRules=rules)
    # The provider identifies a rule by the hash of all its members: an additional member would be a change.
    assert table["routeRules"] == rules
    everything = {"destination": "0.0.0.0/0", "destinationType": "CIDR_BLOCK", "protocol": "all", "isStateless": False}
    ingress = [{**rule, "isStateless": False, "description": "in"} for rule in (SSH, ICMP)]
    firewall = wire.create(
        f"{CORE}/securityLists", **within, egressSecurityRules=[everything], ingressSecurityRules=ingress
    )
    assert firewall["ingressSecurityRules"] == [{**rule, "sourceType": "CIDR_BLOCK"} for rule in ingress]
    subnet = wire.create(
        f"{CORE}/subnets", **within, cidrBlock="10.77.1.0/24", dnsLabel="private", prohibitPublicIpOnVnic=True,
        routeTableId=table["id"], securityListIds=[firewall["id"]],
    )  # fmt: skip
    assert subnet["dhcpOptionsId"] == vcn["defaultDhcpOptionsId"]
    return str(subnet["id"])


def _storage(wire: Wire, domain: str, subnet: str) -> None:
    zoned = {"availabilityDomain": domain, "displayName": "wire-home"}
    files = wire.create(f"{FILES}/fileSystems", "ACTIVE", **zoned)
    target = wire.create(f"{FILES}/mountTargets", "ACTIVE", **zoned, subnetId=subnet)
    address = wire.client.call("GET", f"{CORE}/privateIps/{target['privateIpIds'][0]}").body["ipAddress"]
    assert address.startswith("10.77.1.")
    export = {"exportSetId": target["exportSetId"], "fileSystemId": files["id"], "path": "/mnt/home"}
    made = wire.create(f"{FILES}/exports", "ACTIVE", **export, exportOptions=[OPTION])
    defaults = {"allowedAuth": ["SYS"], "anonymousGid": 65534, "anonymousUid": 65534, "isAnonymousAccessAllowed": False}
    assert made["exportOptions"] == [{**OPTION, **defaults}]


def _entrance(wire: Wire, subnet: str) -> None:
    """The provider reads a bastion's OCID from the finished work request."""
    sent = {
        "compartmentId": wire.compartment,
        "bastionType": "STANDARD",
        "clientCidrBlockAllowList": ["192.0.2.0/24"],
        "maxSessionTtlInSeconds": 10800,
        "name": "wire",
        "targetSubnetId": subnet,
        **TAGS,
    }
    answer = wire.client.call("POST", f"{BASTION}/bastions", body=sent, retry_token="a bastion")
    work = f"{BASTION}/workRequests/{answer.headers['opc-work-request-id']}"
    request = wire.finished(work)
    (entry,) = request["resources"]
    assert (entry["entityType"], entry["actionType"], request["status"]) == ("bastion", "CREATED", "SUCCEEDED")
    assert wire.client.call("GET", f"{work}/errors").body == []
    wire.made.append((f"{BASTION}/bastions", entry["identifier"]))
    found = wire.read(f"{BASTION}/bastions", entry["identifier"], "ACTIVE", sent)
    assert {"lifecycleDetails", "maxSessionsAllowed", "privateEndpointIpAddress", "targetVcnId"} <= set(found)


def _rights(wire: Wire) -> None:
    named = {"name": "wire", "description": "a test"}
    wire.create(
        f"{CORE}/dynamicGroups", "ACTIVE", **named, matchingRule="ANY {instance.id = 'ocid1.instance.local..x'}"
    )
    statements = ["Allow dynamic-group wire to read instances in tenancy"]
    wire.create(f"{CORE}/policies", "ACTIVE", **named, statements=statements)


def _launch_details(api: Api) -> dict[str, Any]:
    plugins = [{"desiredState": "ENABLED", "name": "Compute HPC RDMA Authentication"}]
    return {
        "availabilityDomain": api.domain,
        "compartmentId": api.tenancy,
        **TAGS,
        "metadata": {"ssh_authorized_keys": "ssh-ed25519 AAAA one\nssh-ed25519 AAAA two"},
        "instanceOptions": {"areLegacyImdsEndpointsDisabled": True},
        "sourceDetails": {"sourceType": "image", "imageId": api.image().id, "bootVolumeSizeInGBs": 120},
        "agentConfig": {"pluginsConfig": plugins},
    }


def _instance(wire: Wire, launch: dict[str, Any], subnet: str) -> None:
    vnic = {"assignPublicIp": False, "displayName": "wire-1", "hostnameLabel": "wire-1", "subnetId": subnet}
    shape = {"shape": SHAPE, "shapeConfig": {"ocpus": 2, "memoryInGBs": 16}}
    collection, body = f"{CORE}/instances", {**launch, **shape, "displayName": "wire-1", "createVnicDetails": vnic}
    answer = wire.client.call("POST", collection, body=body, retry_token="launch").body
    wire.made.append((collection, answer["id"]))
    sent = {name: value for name, value in body.items() if name != "createVnicDetails"}
    found = wire.read(collection, answer["id"], "RUNNING", sent)
    about = {"compartmentId": wire.compartment, "instanceId": found["id"]}
    (attached,) = wire.client.items(f"{CORE}/vnicAttachments", about)
    assert attached["lifecycleState"] == "ATTACHED"
    got = wire.client.call("GET", f"{CORE}/vnics/{attached['vnicId']}").body
    assert got["isPrimary"]
    assert got["skipSourceDestCheck"] is False
    assert differences({name: vnic[name] for name in vnic if name != "assignPublicIp"}, got) == []
    assert [got[name] for name in ("freeformTags", "definedTags", "securityAttributes")] == [{}, {}, {}]
    assert list(wire.client.items(f"{CORE}/ipv6", {"vnicId": got["id"]})) == []
    zoned = {**about, "availabilityDomain": found["availabilityDomain"]}
    (boot,) = wire.client.items(f"{CORE}/bootVolumeAttachments", zoned)
    volume = wire.client.call("GET", f"{CORE}/bootVolumes/{boot['bootVolumeId']}").body
    assert (volume["sizeInGBs"], [*fractions(volume)]) == (120, [])


def _cluster_network(wire: Wire, domain: str, launch: dict[str, Any], subnet: str) -> None:
    details = {**launch, "shape": GPU_SHAPE, "createVnicDetails": {"assignPublicIp": False, "subnetId": subnet}}
    collection = f"{CORE}/instanceConfigurations"
    answer = wire.client.call(
        "POST",
        collection,
        body={
            "compartmentId": wire.compartment,
            **TAGS,
            "source": "NONE",
            "displayName": "wire-compute",
            "instanceDetails": {"instanceType": "compute", "launchDetails": details},
        },
        retry_token="configuration",
    ).body
    wire.made.append((collection, answer["id"]))
    made = wire.read(collection, answer["id"], "", {})
    # Every change of a configuration forces a new one, so the response may not have additional members.
    assert made["instanceDetails"] == {"instanceType": "compute", "launchDetails": details}

    pool = {"displayName": "compute", **TAGS, "instanceConfigurationId": made["id"], "size": 2}
    place = {"availabilityDomain": domain, "primarySubnetId": subnet}
    sent = {"displayName": "wire-rdma", "instancePools": [pool], "placementConfiguration": place}
    network = wire.create(f"{CORE}/clusterNetworks", "RUNNING", **sent)
    assert network["placementConfiguration"] == place
    pool["id"] = network["instancePools"][0]["id"]
    for size in (3, 2):
        pool["size"] = size
        change = {"displayName": "wire-rdma", **TAGS, "instancePools": [pool]}
        path = f"{CORE}/clusterNetworks/{network['id']}"
        # The provider does not wait here: it stores the values of this response.
        assert differences(change, wire.client.call("PUT", path, body=change).body) == []
        wire.read(f"{CORE}/clusterNetworks", network["id"], "RUNNING", change)


def _destroy(wire: Wire) -> None:
    ends = dict.fromkeys(("fileSystems", "mountTargets", "exports", "bastions", "dynamicGroups", "policies"), "DELETED")
    # A subnet is deleted before the resources it refers to, and a route table before its gateways.
    order: list[Callable[[str], bool]] = [
        lambda name: name in ("clusterNetworks", "instances", "exports", "bastions", "policies", "dynamicGroups"),
        lambda name: name in ("instanceConfigurations", "mountTargets", "fileSystems"),
        lambda name: name == "subnets",
        lambda name: name in ("routeTables", "securityLists"),
        lambda name: name.endswith("Gateways"),
        lambda name: name == "vcns",
    ]
    for belongs in order:
        for collection, ocid in wire.made:
            name = collection.rpartition("/")[2]
            if not belongs(name):
                continue
            assert wire.client.call("DELETE", f"{collection}/{ocid}").body is None
            if name != "instanceConfigurations":
                wire.once(collection, ocid, ends.get(name, "TERMINATED"))


@pytest.fixture(scope="module")
def instance(api: Api) -> Any:
    return api.launch(api.subnet(api.vcn("10.78.0.0/16"), "10.78.0.0/24"), "updated")


@pytest.mark.parametrize(
    "update",
    [
        {"freeformTags": {"a": "b"}},
        {"faultDomain": "FAULT-DOMAIN-2"},
        {"launchOptions": {"networkType": "PARAVIRTUALIZED"}},
        {"platformConfig": {"type": "AMD_VM", "isSymmetricMultiThreadingEnabled": False}},
        {"shapeConfig": {"ocpus": 2, "memoryInGBs": 8}},
        {"sourceDetails": {"sourceType": "image", "imageId": "another"}},
    ],
    ids=lambda update: next(iter(update)),
)
def test_every_update_of_an_instance_has_a_work_request_that_finishes(
    api: Api, instance: Any, update: dict[str, Any]
) -> None:
    """The provider waits for it, and then looks for the instance among its resources, with the action UPDATED."""
    wire = Wire(api)
    if "sourceDetails" in update:
        debian = api.compute.list_images(api.tenancy, operating_system="Debian", operating_system_version="12").data
        update["sourceDetails"]["imageId"] = debian[0].id
    reply = wire.client.call("PUT", f"{CORE}/instances/{instance.id}", body=update)
    work = f"{CORE}/workRequests/{reply.headers['opc-work-request-id']}"
    found = wire.finished(work)
    assert found["status"] == "SUCCEEDED"
    assert [(each["identifier"], each["actionType"]) for each in found["resources"]] == [(instance.id, "UPDATED")]
    assert differences(update, wire.client.call("GET", f"{CORE}/instances/{instance.id}").body) == []
