"""Every rule of preflight with good and bad facts, and that no facts at all can make it raise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster import handover
from gpucluster.cli.output import JsonLines, findings
from gpucluster.cloud.providers.interface import MachineGpus
from gpucluster.errors import PreflightError, PreflightFinding
from gpucluster.preflight import PreflightReport, requirements
from gpucluster.preflight.evaluate import CHECKS, evaluate
from gpucluster.preflight.facts import (
    Capacity,
    Compartment,
    Created,
    ExistingFileSystem,
    ExistingInstance,
    Facts,
    FirstCall,
    FoundImage,
    IngressRule,
    InstalledProgram,
    KeyFile,
    Limit,
    Reservation,
    SshPair,
    Unknown,
    Vcn,
)
from gpucluster.spec import ClusterSpec
from tests.examples import examples
from tests.preflight.preflight_facts import (
    AD1,
    AD2,
    CONTROLLER_SHAPE,
    CORES,
    EXISTING,
    FILES,
    GPU_SHAPE,
    GPUS,
    LISTED,
    MEMORY,
    PERMANENT,
    PRIVATE,
    RESERVED,
    SHARED,
    VCN,
    desired,
    good,
    refused,
)

Changes = tuple[tuple[str, str], ...]
KEY = Path("/home/me/.oci/key.pem")
SSH = Path("/home/me/.ssh/id")
GPU = ExistingInstance("h100-1", GPU_SHAPE, AD1, pool="h100")
CONTROLLER = ExistingInstance("controller", CONTROLLER_SHAPE, AD1, 4, 32)
SUBNETS: Mapping[str, Any] = good(*EXISTING).subnets
UBUNTU: Any = good().images["h100"]
LISTED_VERSION = "Oracle-Linux-8.10-2025.06.17-0-RHCK-OFED-24.10-1.1.4.0-GPU-570-OPEN-CUDA-12.8-2025.07.18-0"


def _subnet(name: str, **changes: Any) -> dict[str, Any]:
    return {"subnets": {**SUBNETS, name: replace(SUBNETS[name], **changes)}}


def _image(**changes: Any) -> dict[str, Any]:
    return {"images": {"controller": UBUNTU, "h100": replace(UBUNTU, **changes)}}


def _limits(**left: Limit | Unknown) -> dict[str, Any]:
    keys = {"gpus": GPUS, "cores": CORES, "memory": MEMORY}
    return {"limits": {**good().limits, **{keys[name]: one for name, one in left.items()}}}


# What is changed, what is so, and what must be reported of it: level, check, a passage.
CASES: dict[str, tuple[Changes, dict[str, Any], str, str, str]] = {
    # credentials
    "no key": (
        (),
        {"key_file": KeyFile(KEY, "aa:bb", "it can't be read: No such file or directory"), "first_call": None},
        "error",
        "credentials",
        "No such file",
    ),
    "locked key": (
        (),
        {"key_file": KeyFile(KEY, "aa:bb", "it has a passphrase"), "first_call": None},
        "error",
        "credentials",
        "passphrase",
    ),
    "open key": (
        (),
        {"key_file": KeyFile(KEY, "aa:bb", mode=0o644, fingerprint="aa:bb")},
        "warning",
        "credentials",
        "mode 0644",
    ),
    "other fingerprint": (
        (),
        {"key_file": KeyFile(KEY, "aa:bb", fingerprint="cc:dd"), "first_call": FirstCall("region us-ashburn-1", 401)},
        "error",
        "credentials",
        "has cc:dd",
    ),
    "unknown key": (
        (),
        {"first_call": FirstCall("region us-ashburn-1", 401, "401 NotAuthenticated", 0.1)},
        "error",
        "credentials",
        "does not accept the signature",
    ),
    "no network": (
        (),
        {"first_call": FirstCall("region us-ashburn-1", 0, "[Errno 101] Network is unreachable")},
        "error",
        "credentials",
        "Network is unreachable",
    ),
    # clock
    "clock a little off": ((), {"first_call": FirstCall("x", 200, skew=-61)}, "warning", "clock", "61 s behind"),
    "clock far off": ((), {"first_call": FirstCall("x", 401, skew=3600)}, "error", "clock", "3600 s ahead"),
    # region, compartment
    "region": ((), {"regions": ("uk-london-1",)}, "error", "region", "not subscribed"),
    "region of the profile says why": (
        (),
        {"regions": ("uk-london-1",), "first_call": FirstCall("region us-ashburn-1", 401)},
        "error",
        "region",
        "us-ashburn-1",
    ),
    "regions unknown": (
        (),
        {"regions": refused("region", "the regions of the tenancy")},
        "warning",
        "region",
        "could not read the regions",
    ),
    "no compartment": (
        (),
        {"compartment": refused("compartment"), "vcns": refused("overlap")},
        "error",
        "compartment",
        "there is no compartment",
    ),
    "compartment not to be seen": (
        (),
        {"compartment": refused("compartment", "the compartment c")},
        "warning",
        "compartment",
        "could not read the compartment",
    ),
    "instances of others": (
        (),
        {"strangers": 3},
        "warning",
        "compartment",
        "3 instances of others, which the controller",
    ),
    "compartment deleted": ((), {"compartment": Compartment("hpc", "DELETED")}, "error", "compartment", "is DELETED"),
    # ssh, terraform
    "ssh key elsewhere": ((), {"ssh": SshPair(SSH, "ssh-ed25519 A", exists=False)}, "warning", "ssh", "not a file"),
    "open ssh key": ((), {"ssh": SshPair(SSH, "ssh-ed25519 A", mode=0o640)}, "error", "ssh", "mode 0640"),
    "locked ssh key": ((), {"ssh": SshPair(SSH, "ssh-ed25519 A", locked=True)}, "note", "ssh", "passphrase"),
    "spoilt ssh key": ((), {"ssh": SshPair(SSH, "ssh-ed25519 A")}, "error", "ssh", "can't be read"),
    "two ssh pairs": (
        (),
        {"ssh": SshPair(SSH, "ssh-ed25519 A", derived="ssh-ed25519 B")},
        "error",
        "ssh",
        "does not belong",
    ),
    "no ssh-keygen": (
        (),
        {"ssh": Unknown("ssh", "the private key", "no ssh-keygen", action="Install it")},
        "warning",
        "ssh",
        "no ssh-keygen",
    ),
    "old terraform": (
        (),
        {"terraform": InstalledProgram("terraform 1.5 has no backend oci", "Take 1.12")},
        "error",
        "terraform",
        "no backend oci",
    ),
    # domains, shapes
    "no such domain": (
        (("compartment_id", "availability_domain: AD-9\n  compartment_id"),),
        {},
        "error",
        "domains",
        "no availability domain AD-9",
    ),
    "pool in no domain": (
        (("count: 2\n", "count: 2\n    availability_domain: AD-9\n"),),
        {},
        "error",
        "domains",
        "pools.h100",
    ),
    "domains unknown": (
        (),
        {"domains": refused("domains", "the availability domains"), "shapes": {}},
        "warning",
        "domains",
        "could not read",
    ),
    "shape elsewhere": (
        (),
        {"shapes": {AD1: frozenset({CONTROLLER_SHAPE}), AD2: frozenset({GPU_SHAPE})}},
        "error",
        "shapes",
        f"not offered in {AD1}",
    ),
    "shape nowhere": ((), {"shapes": {AD1: frozenset({CONTROLLER_SHAPE})}}, "error", "shapes", "not offered"),
    "shapes unknown": (
        (),
        {"shapes": {AD1: refused("shapes", "the shapes of AD-1")}},
        "warning",
        "shapes",
        "shapes of AD",
    ),
    # limits
    "no GPUs": ((), _limits(gpus=Limit(8, 0)), "error", "limits", "leaves 8, and 16 more are needed for pools.h100"),
    "GPUs for some": ((), _limits(gpus=Limit(63, 0)), "warning", "limits", "leaves 63, and 64 more"),
    "no cores": ((), _limits(cores=Limit(3, 0)), "error", "limits", "standard-e5-core-count"),
    "no memory": ((), _limits(memory=Limit(31, 0)), "error", "limits", "standard-e5-memory-count"),
    "quota": ((), _limits(gpus=Limit(64, 8, 16.0)), "error", "limits", "leaves 8"),
    "quota without a count": ((), _limits(gpus=Limit(None, 0, 8.0)), "error", "limits", "leaves 8"),
    "limit unknown": ((), _limits(gpus=refused("limits", "the limit gpu-h100-count")), "warning", "limits", "gpu-h100"),
    "instances unknown": (
        (),
        {**_limits(gpus=Limit(0, 0)), "instances": refused("limits", "which instances stand")},
        "warning",
        "limits",
        "which instances stand",
    ),
    "no VCN left": ((), {"limits": {("vcn", "vcn-count", ""): Limit(0, 5)}}, "error", "limits", "one VCN is needed"),
    "no bastion": (
        (("  public_subnet_cidr: 10.0.0.0/24\n", "  access: bastion\n"),),
        {"limits": {("bastion", "bastion-count", ""): Limit(0, 5)}},
        "error",
        "limits",
        "one bastion",
    ),
    "no mount target": (
        (),
        {"limits": {("filesystem", "mount-target-count", AD1): Limit(0, 2)}},
        "error",
        "limits",
        "one mount target",
    ),
    # capacity, reservations
    "few hosts": (
        (),
        {"capacity": {(AD1, GPU_SHAPE): Capacity("OUT_OF_HOST_CAPACITY", 1)}},
        "warning",
        "capacity",
        "hosts for 1 are free",
    ),
    "no count of hosts": (
        (),
        {"capacity": {(AD1, GPU_SHAPE): Capacity("OUT_OF_HOST_CAPACITY")}},
        "warning",
        "capacity",
        "hosts for 0",
    ),
    "hosts unknown": (
        (),
        {"capacity": {(AD1, GPU_SHAPE): refused("capacity", "how many hosts are free")}},
        "warning",
        "capacity",
        "how many hosts",
    ),
    "no reservation": (
        RESERVED,
        {"reservations": {"h100": refused("reservation")}},
        "error",
        "reservation",
        "does not exist",
    ),
    "reservation elsewhere": (
        RESERVED,
        {"reservations": {"h100": Reservation("ACTIVE", AD2, {GPU_SHAPE: 8})}},
        "error",
        "reservation",
        f"is in {AD2}",
    ),
    "reservation ends": (
        RESERVED,
        {"reservations": {"h100": Reservation("DELETING", AD1)}},
        "error",
        "reservation",
        "DELETING",
    ),
    "reservation small": (
        RESERVED,
        {"reservations": {"h100": Reservation("ACTIVE", AD1, {GPU_SHAPE: 1})}},
        "warning",
        "reservation",
        "1 of BM.GPU.H100.8 left",
    ),
    # images
    "no image": ((), {"images": {"controller": FoundImage("")}}, "error", "image", "no image Canonical Ubuntu 24.04"),
    "image gone": ((), {"images": {"h100": refused("image", "the image x")}}, "error", "image", "does not exist"),
    "image unknown": (
        (),
        {"images": {"h100": refused("image", "the image x", 500)}},
        "warning",
        "image",
        "could not read",
    ),
    "image disabled": ((), _image(state="DISABLED"), "error", "image", "is DISABLED"),
    "image does not fit": ((), _image(fits=False), "error", "image", "is not compatible with the shape"),
    "image will fit": (
        (("login_user: ubuntu", "login_user: ubuntu, make_compatible: true"),),
        _image(fits=False),
        "note",
        "image",
        "apply adds the shape",
    ),
    "own image of another system": (
        (),
        _image(name="", system="Custom", version="Custom"),
        "warning",
        "image",
        "Custom",
    ),
    "platform image of another system": (
        (),
        {"images": {"controller": replace(UBUNTU, name="", version="26.04", custom=False)}},
        "error",
        "image",
        "26.04",
    ),
    "no listing": (LISTED, {"images": {"h100": FoundImage("")}}, "error", "image", "no marketplace listing GPU Image"),
    "no such version": (
        LISTED,
        {"images": {"h100": FoundImage("", listing="ocid1.l", listing_versions=("1", "2"))}},
        "error",
        "image",
        "no version",
    ),
    "terms": (
        LISTED,
        _image(listing="ocid1.l", listing_version=LISTED_VERSION, terms=("https://eula",)),
        "note",
        "image",
        "accepts the terms",
    ),
    "stand-in": ((), _image(stand_in="Debian 13"), "note", "image", "stand-in here"),
    # networks
    "no VCN": (EXISTING, {"vcn": refused("network")}, "error", "network", "does not exist"),
    "VCN unknown": (
        EXISTING,
        {"vcn": refused("network", "the VCN", 503)},
        "warning",
        "network",
        "could not read the VCN",
    ),
    "VCN ends": (
        EXISTING,
        {"vcn": Vcn(VCN, "net", ("10.0.0.0/16",), "net", "TERMINATING")},
        "error",
        "network",
        "TERMINATING",
    ),
    "VCN has other range": (
        EXISTING,
        {"vcn": Vcn(VCN, "net", ("10.1.0.0/16",), "net")},
        "error",
        "network",
        "10.1.0.0/16",
    ),
    "VCN without names": (EXISTING, {"vcn": Vcn(VCN, "net", ("10.0.0.0/16",))}, "error", "network", "no DNS label"),
    "no subnet": (EXISTING, {"subnets": {"private": refused("network")}}, "error", "network", "the private subnet"),
    "subnet of another VCN": (
        EXISTING,
        _subnet("private", vcn_id="ocid1.vcn.other"),
        "error",
        "network",
        "is in the VCN",
    ),
    "subnet has other range": (EXISTING, _subnet("private", cidr="10.0.2.0/23"), "error", "network", "10.0.2.0/23"),
    "subnet without names": (EXISTING, _subnet("private", dns_label=""), "error", "network", "no DNS label"),
    "subnet in another domain": (
        (*EXISTING, ("compartment_id", f"availability_domain: {AD1}\n  compartment_id")),
        _subnet("private", domain=AD2),
        "error",
        "network",
        "only",
    ),
    "public subnet is private": (EXISTING, _subnet("public", private=True), "error", "network", "prohibits public"),
    "public subnet without gateway": (EXISTING, _subnet("public", routes=()), "error", "network", "internet gateway"),
    "private subnet is public": (EXISTING, _subnet("private", private=False), "warning", "network", "allows public"),
    "no NAT gateway": (EXISTING, _subnet("private", routes=("servicegateway",)), "warning", "network", "NAT gateway"),
    "no service gateway": (
        EXISTING,
        _subnet("private", routes=("natgateway",)),
        "warning",
        "network",
        "service gateway",
    ),
    "routes unknown": (
        EXISTING,
        _subnet("private", routes=refused("network", "the route table")),
        "warning",
        "network",
        "route table",
    ),
    "VCN shut out": (
        EXISTING,
        _subnet("private", ingress=(IngressRule("6", "10.0.0.0/16"), IngressRule("all", "fd00::/8"))),
        "warning",
        "network",
        "do not allow all traffic",
    ),
    "ssh shut out": (
        EXISTING,
        _subnet("public", ingress=(IngressRule("all", "10.0.0.0/16"), IngressRule("6", "0.0.0.0/0", (80, 80)))),
        "warning",
        "network",
        "do not allow ssh",
    ),
    "names taken": (EXISTING, _subnet("private", host_names=("H100-2", "else")), "error", "names", "h100-2"),
    "subnet full": (
        EXISTING,
        _subnet("private", in_use=tuple(f"10.0.1.{n}" for n in range(2, 245))),
        "error",
        "addresses",
        "10 free addresses, 243 are in use, and 12 more",
    ),
    "RDMA in another range of the VCN": (
        EXISTING,
        {"vcn": Vcn(VCN, "net", ("10.0.0.0/16", "192.168.4.0/24"), "net")},
        "error",
        "overlap",
        "192.168.4.0/24",
    ),
    "rootless containers": ((("10.0.1.0/24", "10.0.2.0/24"),), {}, "warning", "overlap", "rootless"),
    "Docker": (
        (("10.0.0.0/16", "172.17.0.0/16"), ("10.0.0.0/24", "172.17.0.0/24"), ("10.0.1.0/24", "172.17.1.0/24")),
        {},
        "warning",
        "overlap",
        "Docker",
    ),
    "neighbour": ((), {"vcns": (Vcn("v", "other", ("10.0.0.0/8",)),)}, "note", "overlap", "other"),
    # file system
    "no file system": (SHARED, {"file_system": refused("storage")}, "error", "storage", FILES),
    "file system ends": (SHARED, {"file_system": ExistingFileSystem("DELETING", AD1)}, "error", "storage", "DELETING"),
    # GPUs of this machine
    "a shape with too many GPUs": (
        (), {"machine_gpus": MachineGpus(2, 1)}, "error", "gpus",
        "this machine has 2 GPUs, free 1; each machine of pools.h100 (BM.GPU.H100.8) needs 8",
    ),
    "too few GPUs are free": (
        (), {"machine_gpus": MachineGpus(64, 15)}, "error", "gpus",
        "this machine has 64 GPUs, free 15; the machines of pools.h100 that are yet to be launched need 16",
    ),
    "too few GPUs for elastic nodes": (
        (), {"machine_gpus": MachineGpus(64, 63)}, "warning", "gpus", "free 63; pools.h100 need 64 more at max_count",
    ),
    "GPUs of this machine": ((), {"machine_gpus": MachineGpus(64, 64)}, "note", "gpus", "may be other cards than"),
    "file system elsewhere": (
        SHARED, {"file_system": ExistingFileSystem("ACTIVE", AD2)}, "error", "storage", f"is in {AD2}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("changes", [(), EXISTING, SHARED, RESERVED, LISTED, PERMANENT])
def test_nothing_is_reported_of_a_spec_that_can_be_created(changes: Changes, tmp_path: Path) -> None:
    assert evaluate(desired(tmp_path, *changes), good(*changes)) == ()


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_told_with_level_reason_and_action(case: str, tmp_path: Path) -> None:
    changes, facts, level, check, passage = CASES[case]
    found = evaluate(desired(tmp_path, *changes), good(*changes, **facts))
    fitting = [one for one in found if one.level == level and one.check == check and passage in one.reason]
    assert len(fitting) == 1, "\n".join(map(str, found)) or "nothing was found"
    assert fitting[0].action or level == "note"
    # One cause, one finding: what follows from it is not told again.
    assert [one for one in found if one.level == "error" and one not in fitting] == []


@pytest.mark.parametrize(
    "facts",
    [
        {"first_call": FirstCall("x", 200, skew=59.0)},
        {"first_call": FirstCall("x", 404, skew=None)},
        {"limits": {GPUS: Limit(None)}},
        {"capacity": {(AD1, GPU_SHAPE): Capacity("AVAILABLE")}},
        {"instances": (CONTROLLER, GPU, replace(GPU, name="h100-2")), **_limits(gpus=Limit(48, 16), cores=Limit(0, 4))},
        {"vcns": (Vcn("v", "ours", ("10.0.0.0/16",), ours=True),), "limits": {("vcn", "vcn-count", ""): Limit(0, 1)}},
        {"created": Created(1, 1), "limits": {("filesystem", "mount-target-count", AD1): Limit(0, 1)}},
        {"instances": (GPU, replace(GPU, name="h100-2")), "capacity": {(AD1, GPU_SHAPE): Capacity("OUT", 0)}},
    ],
)
def test_what_causes_no_finding(facts: dict[str, Any], tmp_path: Path) -> None:
    assert evaluate(desired(tmp_path), good(**facts)) == ()


def test_what_stands_already_needs_no_room(tmp_path: Path) -> None:
    """A second apply of a cluster that fills its limits and its subnet is not refused."""
    spec = desired(tmp_path, *EXISTING, *PERMANENT)
    standing = (CONTROLLER, GPU, replace(GPU, name="h100-2"))
    ours = tuple(f"10.0.1.{n}" for n in range(2, 6))
    others = tuple(f"10.0.1.{n}" for n in range(6, 255))
    facts = good(
        *EXISTING, instances=standing, mount_target="10.0.1.4", **_limits(gpus=Limit(0, 16)),
        **_subnet("private", in_use=(*ours, *others), host_names=("h100-1", "h100-2")),
    )  # fmt: skip
    assert evaluate(spec, facts) == ()
    bare = evaluate(spec, replace(facts, instances=(), mount_target=""))
    assert {one.check for one in bare if one.level == "error"} == {"limits", "addresses", "names"}


@pytest.mark.parametrize("changes", [PERMANENT, (("pools:\n", "iam: {tag: Ops.Cluster}\npools:\n"),)])
def test_instances_of_others_are_out_of_reach_without_rights_or_by_their_tag(changes: Changes, tmp_path: Path) -> None:
    assert evaluate(desired(tmp_path, *changes), good(*changes, strangers=3)) == ()


def test_elastic_nodes_that_stand_do_not_make_room_for_permanent_ones(tmp_path: Path) -> None:
    elastic = replace(GPU, name="h100-e1", elastic=True)
    facts = good(instances=(GPU, elastic), **_limits(gpus=Limit(0, 16)))
    (found,) = evaluate(desired(tmp_path, *PERMANENT), facts)
    assert "leaves 0, and 8 more" in found.reason


def test_reserved_hosts_are_not_counted_against_the_limit(tmp_path: Path) -> None:
    assert evaluate(desired(tmp_path, *RESERVED), good(*RESERVED, **_limits(gpus=Limit(0, 64)))) == ()


def test_errors_come_first_and_nothing_is_reported_twice(tmp_path: Path) -> None:
    facts = good(
        first_call=FirstCall("x", 200, skew=70), compartment=Compartment("c", "DELETED"), **_image(terms=("t",))
    )
    found = evaluate(desired(tmp_path), facts)
    assert [one.level for one in found] == ["error", "warning", "note"]
    assert len(set(found)) == len(found)


def test_what_could_not_be_read_for_one_reason_is_one_warning(tmp_path: Path) -> None:
    some = {key: refused("limits", f"the limit {key[1]}") for key in good().limits}
    (found,) = evaluate(desired(tmp_path), good(limits=some))
    assert found.level == "warning"
    assert "and 2 more" in found.reason
    assert "Allow group" in found.action


def test_a_cloud_that_answers_nothing_is_one_error(tmp_path: Path) -> None:
    down = refused("x", "all", 503)
    facts = good(
        regions=down, compartment=down, domains=down, vcns=down, instances=down, shapes={}, images={"h100": down}
    )
    (found,) = evaluate(desired(tmp_path), facts)
    assert (found.level, found.check) == ("error", "credentials")


def test_a_far_off_clock_is_the_only_thing_told(tmp_path: Path) -> None:
    """It explains why the signature is not believed; nothing else could be asked."""
    facts = Facts(key_file=good().key_file, first_call=FirstCall("region us-ashburn-1", 401, "no", skew=-900.0))
    assert [one.check for one in evaluate(desired(tmp_path), facts)] == ["clock"]


def test_every_check_is_in_the_table_and_has_a_case() -> None:
    assert len(set(CHECKS)) == len(CHECKS)
    told = {case[3] for case in CASES.values()}
    assert told == {
        "credentials", "clock", "region", "compartment", "ssh", "terraform", "domains", "shapes", "limits", "capacity",
        "reservation", "image", "network", "names", "addresses", "overlap", "storage", "gpus",
    }  # fmt: skip


def test_demands_add_up_pools_of_one_limit(tmp_path: Path) -> None:
    second = ("pools:\n", "pools:\n  more:\n    shape: BM.GPU.H100.8\n    count: 1\n"
              "    image: {ocid: ocid1.image.oc1.iad.example, login_user: ubuntu}\n")  # fmt: skip
    wanted = requirements.machines(desired(tmp_path, second), (AD1,))
    demand = requirements.demands(wanted, ())[GPUS]
    assert (demand.permanent, demand.most, demand.users) == (24, 72, ("pools.more", "pools.h100"))


def test_the_names_of_hosts_are_those_of_the_handover(tmp_path: Path) -> None:
    spec = desired(tmp_path)
    assert requirements.host_names(spec, "private") == set(handover.permanent_names("h100", spec.pools["h100"]))
    assert requirements.host_names(spec, "public") == {"controller"}


# --- anything at all -----

WORDS = st.sampled_from(
    ["", AD1, AD2, "10.0.0.0/16", "10.0.1.0/24", "fd00::/8", "nonsense", VCN, PRIVATE, "ACTIVE", "AVAILABLE", GPU_SHAPE,
     CONTROLLER_SHAPE, "controller", "h100", "all", "6"]
)  # fmt: skip
# Keys that some rule looks for; any others would only be passed over.
KEYS: dict[str, st.SearchStrategy[Any]] = {
    "limits": st.sampled_from(sorted(good().limits)),
    "capacity": st.sampled_from(sorted(good().capacity)),
    "images": st.sampled_from(["controller", "h100", "gone"]),
    "reservations": st.sampled_from(["h100", "gone"]),
    "subnets": st.sampled_from(["public", "private"]),
}
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: WORDS, int: st.integers(-5, 500), float: st.floats(-1e4, 1e4), bool: st.booleans(), type(None): st.none(),
    Path: st.just(KEY),
}  # fmt: skip


def _any(hint: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Values of a type that the facts are made of."""
    if hint in PLAIN:
        return PLAIN[hint]
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        return st.builds(hint, **{one.name: _any(hints[one.name], one.name) for one in fields(hint)})
    words = get_args(hint)
    if get_origin(hint) is tuple:
        return st.lists(_any(words[0]), max_size=2).map(tuple) if ... in words else st.tuples(*map(_any, words))
    if get_origin(hint) is frozenset:
        return st.frozensets(_any(words[0]), max_size=3)
    if get_origin(hint) is Mapping:
        return st.dictionaries(KEYS.get(name, _any(words[0])), _any(words[1]), max_size=3)
    return st.one_of(*map(_any, words))


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> list[ClusterSpec]:
    folder = tmp_path_factory.mktemp("specs")
    return [desired(folder, *changes) for changes in ((), EXISTING, SHARED, RESERVED, LISTED)]


@examples(60, derandomize=True)
@given(facts=_any(Facts))
def test_no_facts_make_it_raise(facts: Facts, specs: list[ClusterSpec]) -> None:
    for spec in specs:
        for finding in evaluate(spec, facts):
            assert finding.level in ("error", "warning", "note")
            assert finding.reason


# --- words -----


def test_the_error_lists_every_finding_and_is_bad_input() -> None:
    found = (
        PreflightFinding("error", "limits", "too small", "Ask for more"),
        PreflightFinding("warning", "clock", "off", "Set it"),
    )
    error = PreflightError("the cloud would not do this", findings=found)
    assert error.exit_code == 2
    assert str(error).splitlines()[1:] == ["  error: limits: too small. Ask for more", "  warning: clock: off. Set it"]


def test_the_report_as_text_and_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    report = PreflightReport((PreflightFinding("error", "limits", "too small", "Ask for more"),
                     PreflightFinding("note", "image", "a stand-in")))  # fmt: skip
    text = findings(report.findings).splitlines()
    assert text[1:] == ["error  limits  too small", "                 Ask for more", "note   image   a stand-in"]
    assert report.summary == "1 error, 1 note"
    JsonLines().result(report.to_dict(), "")
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["status"] == "failed"
    assert data["findings"][0] == {"level": "error", "check": "limits", "reason": "too small", "action": "Ask for more"}
    JsonLines().error(PreflightError("no", findings=report.findings))
    assert json.loads(capsys.readouterr().out)["data"]["findings"][1]["check"] == "image"


WITH_LOGIN = ("pools:", "login: {count: 2, shape: VM.Standard.E5.Flex, ocpus: 10, memory_gb: 100}\npools:")


def test_login_nodes_take_their_part_of_limits_and_addresses(tmp_path: Path) -> None:
    spec = desired(tmp_path, WITH_LOGIN)
    (login,) = [machine for machine in requirements.machines(spec, (AD1,)) if machine.login]
    assert (login.place, login.count) == ("login", 2)
    first = ExistingInstance("prod-login-1", login.shape, AD1, 10, 100, login=True)
    assert requirements.still_missing(login, [CONTROLLER, first]) == 1
    (controller,) = [machine for machine in requirements.machines(spec, (AD1,)) if machine.name == "controller"]
    assert requirements.still_missing(controller, [first]) == 1
    needed = requirements.demands(requirements.machines(spec, (AD1,)), [first])[CORES]
    assert needed.permanent == (spec.controller.ocpus or 0) + 10
    assert requirements.addresses(spec, "public") == (3, 3)
    assert {"controller", "login-1", "login-2"} == requirements.host_names(spec, "public")


def test_a_login_node_may_boot_what_a_node_may(tmp_path: Path) -> None:
    jammy = 'image: {operating_system: Canonical Ubuntu, version: "22.04"}'
    spec = desired(tmp_path, ("pools:", f"login: {{count: 1, {jammy}}}\npools:"))
    found = replace(UBUNTU, name="Canonical-Ubuntu-22.04-2026.06.29-0", version="22.04", custom=False)
    images = {**good().images, "login": found}
    said = [each for each in evaluate(spec, replace(good(), images=images)) if each.check == "image"]
    assert not [each for each in said if each.level == "error"], said
    old = replace(found, name="Canonical-Ubuntu-20.04-2026.06.29-0", version="20.04")
    refused = evaluate(spec, replace(good(), images={**images, "login": old}))
    assert any("Canonical Ubuntu 20.04 is not supported on login nodes" in each.reason for each in refused)
