"""Domains, shapes, limits, capacity and names of machines: each fault is reported with what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpucluster.cloud.providers.interface import MachineGpus
from gpucluster.preflight.evaluate import evaluate
from gpucluster.preflight.facts import (
    Capacity,
    Created,
    Limit,
    Reservation,
)
from tests.preflight.cases import (
    CONTROLLER,
    GPU,
    Case,
    Changes,
    limits_fact,
    reported,
    subnet_fact,
)
from tests.preflight.preflight_facts import (
    AD1,
    AD2,
    CONTROLLER_SHAPE,
    EXISTING,
    GPU_SHAPE,
    PERMANENT,
    RESERVED,
    desired,
    good,
    refused,
)

# What is changed, what is so, and what must be reported of it: level, check, a passage.
CASES: dict[str, Case] = {
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
    "no GPUs": (
        (),
        limits_fact(gpus=Limit(8, 0)),
        "error",
        "limits",
        "leaves 8, and 16 more are needed for pools.h100",
    ),
    "GPUs for some": ((), limits_fact(gpus=Limit(63, 0)), "warning", "limits", "leaves 63, and 64 more"),
    "no cores": ((), limits_fact(cores=Limit(3, 0)), "error", "limits", "standard-e5-core-count"),
    "no memory": ((), limits_fact(memory=Limit(31, 0)), "error", "limits", "standard-e5-memory-count"),
    "quota": ((), limits_fact(gpus=Limit(64, 8, 16.0)), "error", "limits", "leaves 8"),
    "quota without a count": ((), limits_fact(gpus=Limit(None, 0, 8.0)), "error", "limits", "leaves 8"),
    "limit unknown": (
        (),
        limits_fact(gpus=refused("limits", "the limit gpu-h100-count")),
        "warning",
        "limits",
        "gpu-h100",
    ),
    "instances unknown": (
        (),
        {**limits_fact(gpus=Limit(0, 0)), "instances": refused("limits", "which instances stand")},
        "warning",
        "limits",
        "which instances stand",
    ),
    "no VCN left": ((), {"limits": {("vcn", "vcn-count", ""): Limit(0, 5)}}, "error", "limits", "one VCN is needed"),
    "no mount target left": (
        (("ssh:\n", "storage: {shares: {data: {mount_path: /mnt/data, mount_target: own}}}\nssh:\n"),),
        {"limits": {("filesystem", "mount-target-count", AD1): Limit(1, 1)}},
        "error",
        "limits",
        "leaves 1, and 2 mount targets are needed",
    ),
    "no file system left": (
        (("ssh:\n", "storage: {shares: {data: {mount_path: /mnt/data}}}\nssh:\n"),),
        {"created": Created(1, 1), "limits": {("filesystem", "file-system-count", AD1): Limit(0, 100)}},
        "error",
        "limits",
        "leaves none, and one file system is needed",
    ),
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
    "names taken": (EXISTING, subnet_fact("private", host_names=("H100-2", "else")), "error", "names", "h100-2"),
    # GPUs of this machine
    "a shape with too many GPUs": (
        (),
        {"machine_gpus": MachineGpus(2, 1)},
        "error",
        "gpus",
        "this machine has 2 GPUs, free 1; each machine of pools.h100 (BM.GPU.H100.8) needs 8",
    ),
    "too few GPUs are free": (
        (),
        {"machine_gpus": MachineGpus(64, 15)},
        "error",
        "gpus",
        "this machine has 64 GPUs, free 15; the machines of pools.h100 that are yet to be launched need 16",
    ),
    "too few GPUs for elastic nodes": (
        (),
        {"machine_gpus": MachineGpus(64, 63)},
        "warning",
        "gpus",
        "free 63; pools.h100 need 64 more at max_count",
    ),
    "GPUs of this machine": ((), {"machine_gpus": MachineGpus(64, 64)}, "note", "gpus", "may be other cards than"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_told_with_level_reason_and_action(case: str, tmp_path: Path) -> None:
    reported(CASES[case], tmp_path)


def test_what_stands_already_needs_no_room(tmp_path: Path) -> None:
    """A second apply of a cluster that fills its limits and its subnet is not refused."""
    spec = desired(tmp_path, *EXISTING, *PERMANENT)
    standing = (CONTROLLER, GPU, replace(GPU, name="h100-2"))
    ours = tuple(f"10.0.1.{n}" for n in range(2, 6))
    others = tuple(f"10.0.1.{n}" for n in range(6, 255))
    facts = good(
        *EXISTING, instances=standing, mount_targets=("10.0.1.4",), **limits_fact(gpus=Limit(0, 16)),
        **subnet_fact("private", in_use=(*ours, *others), host_names=("h100-1", "h100-2")),
    )  # fmt: skip
    assert evaluate(spec, facts) == ()
    bare = evaluate(spec, replace(facts, instances=(), mount_targets=()))
    assert {one.check for one in bare if one.level == "error"} == {"limits", "addresses", "names"}


@pytest.mark.parametrize("changes", [PERMANENT, (("pools:\n", "iam: {tag: Ops.Cluster}\npools:\n"),)])
def test_instances_of_others_are_out_of_reach_without_rights_or_by_their_tag(changes: Changes, tmp_path: Path) -> None:
    assert evaluate(desired(tmp_path, *changes), good(*changes, strangers=3)) == ()


def test_elastic_nodes_that_stand_do_not_make_room_for_permanent_ones(tmp_path: Path) -> None:
    elastic = replace(GPU, name="h100-e1", elastic=True)
    facts = good(instances=(GPU, elastic), **limits_fact(gpus=Limit(0, 16)))
    (found,) = evaluate(desired(tmp_path, *PERMANENT), facts)
    assert "leaves 0, and 8 more" in found.reason


def test_reserved_hosts_are_not_counted_against_the_limit(tmp_path: Path) -> None:
    assert evaluate(desired(tmp_path, *RESERVED), good(*RESERVED, **limits_fact(gpus=Limit(0, 64)))) == ()
