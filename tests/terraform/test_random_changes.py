"""Random changes of three cluster files: what an apply does to hosts, data and the price was in the plan.

The real Terraform, root and SDK; the cloud and its provider are stand-ins, and no host is there: what Ansible does,
jobs and minutes are not shown. One in ten applies is cancelled while Terraform works, and the next one goes on.

`make test-changes` makes 300 changes, the suite a few of one file. The same seed makes the same changes.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gpucluster import handover, prices, shapes
from gpucluster.errors import GpuClusterError, InputError, Interrupted
from gpucluster.lifecycle.field_effects import effects
from gpucluster.lifecycle.hourly_price import hourly_price
from gpucluster.lifecycle.provision import lost_homes, lost_state
from gpucluster.lifecycle.resize import Scaling
from gpucluster.localcloud.state.region import AVAILABILITY_DOMAINS
from gpucluster.spec import loads, updates
from gpucluster.spec.updates import UpdatePolicy
from gpucluster.terraform.plan import TerraformPlan
from tests.cancelled_calls import calling
from tests.terraform.test_scaling_root import poll_quickly
from tests.terraform.test_update_policies import BASE, FLEX, UBUNTU, Site, recorded
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tests.terraform.conftest import LocalCloud

pytestmark = [pytest.mark.slow, pytest.mark.timeout(24 * 3600)]

#: Of all files together; 0: a few of one file.
CHANGES = int(os.environ.get("GPUCLUSTER_TEST_CHANGES") or 0)
FEW = 3
SEED = os.environ.get("GPUCLUSTER_TEST_CHANGES_SEED") or "1"
CANCELLED = 0.1
#: What the files have beside the network.
SMALL: dict[str, Any] = {"controller": dict(FLEX), "pools": {"cpu": {**FLEX, "count": 1}}}
PAIR: dict[str, Any] = {
    "controller": {**FLEX, "state_volume_gb": 60, "standby": True},
    "login": {**FLEX, "count": 2},
    "pools": {"gpu": {"shape": "BM.GPU4.8", "count": 1, "rdma": False}, "burst": {**FLEX, "max_count": 3, "count": 1}},
}
_COMMON = {name: BASE[name] for name in ("version", "cloud", "network")}
FILES = {
    "every-kind": {**BASE, "name": "every"},
    "small": {**_COMMON, **SMALL, "name": "small"},
    "pair": {**_COMMON, **PAIR, "name": "pair"},
}
_OTHER_SHAPE = {"VM.Standard.E5.Flex": "VM.Standard.E4.Flex", "VM.Standard.E4.Flex": "VM.Standard.E5.Flex"}


# --- what changes -----


def changed(data: Mapping[str, Any], numbers: random.Random) -> dict[str, Any]:
    """The file with one to three changes that the model takes, and OCI as far as it is known."""
    while True:
        after = copy.deepcopy(dict(data))
        for _ in range(numbers.randint(1, 3)):
            numbers.choice(_CHANGES if after["pools"] else (_pool,))(after, numbers)
        try:
            spec = loads(yaml.safe_dump(after), "cluster.yml")
        except InputError:
            continue
        changes = updates.changes(recorded(data), updates.recorded(spec))
        if changes and not any(map(_is_smaller_disk, changes)):
            return after


def _is_smaller_disk(change: updates.FieldChange) -> bool:
    """A pool that goes and comes again in one change may ask for a smaller disk, which OCI refuses."""
    sizes = [one for one in (change.before, change.after) if isinstance(one, int)]
    return change.path.endswith("_volume_gb") and len(sizes) == 2 and sizes[1] < sizes[0]


def _machine(data: dict[str, Any], numbers: random.Random) -> dict[str, Any]:
    machines = [data["controller"], *data["pools"].values(), *([data["login"]] if data.get("login") else [])]
    return numbers.choice(machines)


def _size(data: dict[str, Any], numbers: random.Random) -> None:
    if (machine := _machine(data, numbers)).get("ocpus"):
        machine.update(ocpus=numbers.choice((1, 2, 4)), memory_gb=numbers.choice((16, 32)))


def _shape(data: dict[str, Any], numbers: random.Random) -> None:
    machine = _machine(data, numbers)
    machine["shape"] = _OTHER_SHAPE.get(machine["shape"], machine["shape"])


def _disk(data: dict[str, Any], numbers: random.Random) -> None:
    # OCI makes none smaller.
    machine = _machine(data, numbers)
    machine["boot_volume_gb"] = machine.get("boot_volume_gb", 250) + numbers.choice((50, 100))


def _speed(data: dict[str, Any], numbers: random.Random) -> None:
    _machine(data, numbers)["boot_volume_vpus_per_gb"] = numbers.choice((10, 20, 30))


def _image(data: dict[str, Any], numbers: random.Random) -> None:
    machine = _machine(data, numbers)
    if machine.pop("image", None) is None:
        machine["image"] = dict(UBUNTU)


def _count(data: dict[str, Any], numbers: random.Random) -> None:
    numbers.choice(list(data["pools"].values()))["count"] = numbers.randint(0, 3)


def _leaving(data: dict[str, Any], numbers: random.Random) -> None:
    name, pool = numbers.choice(list(data["pools"].items()))
    if pool.get("count", 0) > 1:
        pool.update(count=pool["count"] - 1, removed_nodes=[*pool.get("removed_nodes", []), f"{name}-1"])


def _limit(data: dict[str, Any], numbers: random.Random) -> None:
    pool = numbers.choice(list(data["pools"].values()))
    if pool.get("max_count"):
        pool["max_count"] = numbers.randint(max(pool.get("count", 0), 1), 5)


def _pool(data: dict[str, Any], numbers: random.Random) -> None:
    name = numbers.choice(("extra", *data["pools"]))
    if data["pools"].pop(name, None) is None:
        data["pools"][name] = {**FLEX, "count": numbers.randint(0, 2)}


def _domain(data: dict[str, Any], numbers: random.Random) -> None:
    numbers.choice(list(data["pools"].values()))["availability_domain"] = numbers.choice(AVAILABILITY_DOMAINS)


def _login(data: dict[str, Any], numbers: random.Random) -> None:
    data["login"] = {**FLEX, **data.get("login", {}), "count": numbers.randint(0, 2)}


def _state_volume(data: dict[str, Any], numbers: random.Random) -> None:
    controller = data["controller"]
    size = numbers.choice((None, controller.get("state_volume_gb", 50) + 10))
    if size is None:
        for name in ("state_volume_gb", "standby"):
            controller.pop(name, None)
    else:
        controller["state_volume_gb"] = size


def _standby(data: dict[str, Any], numbers: random.Random) -> None:
    data["controller"]["standby"] = numbers.choice((True, False))


def _tags(data: dict[str, Any], numbers: random.Random) -> None:
    data["cloud"] = {**data["cloud"], "freeform_tags": {"team": numbers.choice(("vision", "speech", "robots"))}}


def _access(data: dict[str, Any], numbers: random.Random) -> None:
    ranges = numbers.choice((["127.0.0.0/8"], ["10.0.0.0/8"], ["10.0.0.0/8", "192.0.2.0/24"]))
    data["network"] = {**data["network"], "ssh_allowed_cidrs": ranges}


def _home(data: dict[str, Any], numbers: random.Random) -> None:
    data["storage"] = {"home": {"export_path": numbers.choice(("/home", "/other"))}}


def _threads(data: dict[str, Any], numbers: random.Random) -> None:
    numbers.choice(list(data["pools"].values()))["platform"] = {"smt": numbers.choice((True, False))}


_CHANGES: tuple[Callable[[dict[str, Any], random.Random], None], ...] = (
    _size, _shape, _disk, _speed, _image, _count, _count, _leaving, _limit, _pool, _domain, _login, _state_volume,
    _standby, _tags, _access, _home, _threads,
)  # fmt: skip


# --- what is there, and what was announced -----


@dataclass(frozen=True)
class Machine:
    """A host as the cloud has it."""

    ocid: str
    image: str
    shape: str
    size: tuple[float, float]


@dataclass(frozen=True)
class Seen:
    """What stands in the cloud: hosts by name, and the ids of file systems and volumes."""

    hosts: Mapping[str, Machine]
    data: frozenset[str]
    instances: tuple[Machine, ...]


@dataclass
class Effects:
    """What became of hosts and data, by name."""

    added: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    rebooted: set[str] = field(default_factory=set)
    loses_data: bool = False

    @property
    def strongest(self) -> UpdatePolicy:
        """The policy that announces all of it."""
        if self.loses_data:
            return UpdatePolicy.DESTROYS_DATA
        if self.replaced:
            return UpdatePolicy.REPLACES
        return UpdatePolicy.DRAINS if self.removed or self.rebooted else UpdatePolicy.LIVE


def _seen(site: Site, cloud: LocalCloud, name: str) -> Seen:
    """What stands of the cluster. Nothing of it is taken from a plan."""
    outputs = handover.Outputs.parse(site.terraform.outputs())
    names = {**site.members(), "controller": outputs.controller.id, **{one.name: one.id for one in outputs.login}}
    ours = {*names.values(), *([outputs.standby.id] if outputs.standby else [])}
    listed: dict[str, Machine] = {}

    def is_listed() -> bool:
        """A list of instances is some seconds behind."""
        listed.clear()
        for one in cloud.standing("/20160918/instances", name):
            if one["lifecycleState"] != "TERMINATING":
                size = (one["shapeConfig"]["ocpus"], one["shapeConfig"]["memoryInGBs"])
                listed[one["id"]] = Machine(one["id"], one["imageId"], one["shape"], size)
        return listed.keys() == ours

    wait_for("the cloud lists the hosts of the cluster, and no others", is_listed, state=lambda: f"{ours} {listed}")
    data = {one["id"] for kind in ("/20171215/fileSystems", "/20160918/volumes") for one in cloud.standing(kind, name)}
    return Seen({host: listed[ocid] for host, ocid in names.items()}, frozenset(data), tuple(listed.values()))


def _happened(before: Seen, after: Seen) -> Effects:
    stayed = {name: (before.hosts[name], after.hosts[name]) for name in before.hosts.keys() & after.hosts.keys()}
    replaced = {name for name, (old, new) in stayed.items() if (old.ocid, old.image) != (new.ocid, new.image)}
    return Effects(
        added=set(after.hosts) - set(before.hosts),
        removed=set(before.hosts) - set(after.hosts),
        replaced=replaced,
        rebooted={
            name
            for name, (old, new) in stayed.items()
            if name not in replaced and (old.shape, old.size) != (new.shape, new.size)
        },
        loses_data=bool(before.data - after.data),
    )


def _announced(hosts: Scaling, plan: TerraformPlan) -> Effects:
    def names(kind: str) -> set[str]:
        controller = ["controller"] if hosts.controller == kind else []
        return {*hosts.names(kind), *getattr(hosts.login, kind), *controller}

    return Effects(
        names("added"), names("removed"), names("replaced"), names("rebooted"),
        loses_data=bool(lost_homes(plan) or lost_state(plan)),
    )  # fmt: skip


def _cost(machines: tuple[Machine, ...]) -> float:
    """What the instances cost an hour that are there, by the list in the package."""
    listed = prices.PriceList.parse(prices.shipped())
    sold = [prices.Machine(one.shape, shapes.get(one.shape).gpus, *one.size) for one in machines]
    return sum(listed.of_machine(machine) or 0.0 for machine in sold)


# --- the changes -----


@pytest.fixture
def site(
    tmp_path_factory: pytest.TempPathFactory,
    cloud: LocalCloud,
    terraform: str,
    terraform_environment: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Site]:
    poll_quickly(monkeypatch)
    made = Site(tmp_path_factory.mktemp("changes"), cloud, terraform, terraform_environment)
    try:
        yield made
    finally:
        made.destroy()


def _cancelled(site: Site, plan: TerraformPlan, numbers: random.Random) -> None:
    """Begin to apply a plan, and cancel it when Terraform has written its state so many times."""

    def written() -> int:
        return site.paths.terraform_state.stat().st_mtime_ns

    def has_written(last: int) -> bool:
        return written() != last or not run.running

    with calling(lambda: site.apply(plan, replace_nodes=True)) as run:
        for _ in range(numbers.randint(1, 3)):
            wait_for("Terraform has written", partial(has_written, written()))
        run.cancellation.cancel("at random")
        run.ended()
        assert all(isinstance(error, Interrupted | GpuClusterError) for error in run.errors), run.errors


@pytest.mark.parametrize("kind", FILES if CHANGES else ["pair"])
def test_no_effect_that_was_not_in_the_plan(kind: str, site: Site, cloud: LocalCloud) -> None:
    numbers = random.Random(f"{SEED}/{kind}")
    data: Mapping[str, Any] = FILES[kind]
    site.apply(site.plan_of(data), replace_nodes=True)
    before = _seen(site, cloud, data["name"])
    changes, cancelled = -(-CHANGES // len(FILES)) or FEW, 0
    for number in range(changes):
        after = changed(data, numbers)
        both = (recorded(data), recorded(after))
        fields = updates.changes(*both)
        where = f"change {number}: {[(one.path, one.before, one.after) for one in fields]}"
        plan = site.plan_of(after)
        hosts = site.resizing().scaling(site.terraform, plan)
        announced = _announced(hosts, plan)
        found = effects(fields, hosts, loses_data=announced.loses_data)
        if numbers.random() < CANCELLED:
            _cancelled(site, plan, numbers)
            cancelled += 1
            plan = site.plan_of(after)
        site.apply(plan, replace_nodes=True)
        now = _seen(site, cloud, data["name"])
        happened = _happened(before, now)
        assert happened == announced, where
        stated = max((each.effect for each in found), key=lambda each: each.strength)
        assert stated.strength >= happened.strongest.strength, (where, happened, found)
        price = hourly_price(*both, prices.PriceList.parse(prices.shipped()), {})
        assert price.before == pytest.approx(_cost(before.instances), rel=0.01), where
        assert price.after == pytest.approx(_cost(now.instances), rel=0.01), where
        again = site.plan_of(after)
        assert not [change for change in again.changes if not change.internal], (where, again.changes)
        data, before = after, now
    print(f"{kind}: {changes} changes, {cancelled} applies cancelled")
