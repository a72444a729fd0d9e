"""The update policies of the keys that reach Terraform are what Terraform plans: the real Terraform, root and SDK.

The provider is the stand-in, whose schema has the ForceNew attributes and the rules of oracle/oci 8.28.0. It does not
show what OCI itself refuses, and no host is there: that jobs are waited for is proved in
tests/operations/test_drain.py and in tests/e2e.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gpucluster import handover
from gpucluster.errors import InputError, ReplacementError
from gpucluster.handover import user_data
from gpucluster.lifecycle.disk_sizes import refuse_smaller
from gpucluster.lifecycle.distribution import Distributions
from gpucluster.lifecycle.field_effects import effects
from gpucluster.lifecycle.provision import lost_homes, lost_state
from gpucluster.localcloud.state.region import AVAILABILITY_DOMAINS
from gpucluster.spec import ControllerSpec, LoginSpec, PoolSpec, loads, updates
from gpucluster.spec.model import sections as sections_of_the_model
from gpucluster.spec.sections.fields import SpecPart
from gpucluster.spec.updates import UpdatePolicy
from gpucluster.terraform.plan import TerraformPlan
from tests.spec.spec_texts import public_key
from tests.terraform.test_scaling_root import Cluster, poll_quickly

if TYPE_CHECKING:
    from tests.terraform.conftest import LocalCloud

pytestmark = pytest.mark.slow

LIVE, DRAINS, REPLACES, DESTROYS = list(UpdatePolicy)[:4]
FLEX = {"shape": "VM.Standard.E5.Flex", "ocpus": 2, "memory_gb": 16}
BASE: dict[str, Any] = {
    "version": 1,
    "name": "policy",
    "cloud": {"provider": "local"},
    "network": {
        "vcn_cidr": "10.98.0.0/16",
        "public_subnet_cidr": "10.98.0.0/24",
        "private_subnet_cidr": "10.98.1.0/24",
        "ssh_allowed_cidrs": ["127.0.0.0/8"],
    },
    "controller": {**FLEX, "state_volume_gb": 60},
    "login": {**FLEX, "count": 1},
    "storage": {
        "shares": {
            "data": {"mount_path": "/mnt/data"},
            "own": {"mount_path": "/mnt/own", "mount_target": "own"},
            "models": {"mount_path": "/mnt/models", "server": "10.98.1.99"},
        }
    },
    "pools": {
        "rdma": {"shape": "BM.GPU4.8", "count": 2},
        "gpu": {"shape": "BM.GPU4.8", "count": 2, "rdma": False},
        "cpu": {**FLEX, "count": 2},
        "burst": {**FLEX, "max_count": 2},
    },
}
OTHER_DOMAIN, OTHER_SHAPE = AVAILABILITY_DOMAINS[1], "VM.Standard.E4.Flex"
UBUNTU = {"name": "Canonical-Ubuntu-24.04-2026.06.29-0", "login_user": "ubuntu"}
# A volume or an image of its own in the cloud is not needed to plan.
OCID = "ocid1.{}.oc1.iad.exampleuniqueid"


@dataclass(frozen=True)
class Row:
    """A change of one key, and the effect that Terraform's plan has.

    Args:
        path: of the key that is changed.
        value: the new one; None takes the key out.
        also: what else has to change with it, by path.
    """

    path: str
    value: Any
    effect: UpdatePolicy
    also: Mapping[str, Any] = field(default_factory=dict)

    @property
    def section(self) -> str:
        """The section whose hosts alone it concerns; empty for all of them."""
        first, *rest = self.path.split(".")
        if first == "pools":
            return f"pools.{rest[0]}"
        return first if first == "login" or (first == "controller" and rest[0] != "state_volume_gb") else ""


ROWS = (
    Row("cloud.availability_domain", OTHER_DOMAIN, DESTROYS),
    Row("cloud.freeform_tags", {"team": "vision"}, LIVE),
    Row("cloud.defined_tags", {"Operations.CostCenter": "42"}, LIVE),
    Row("network.access", "bastion", REPLACES, {"network.public_subnet_cidr": None}),
    Row("network.vcn_cidr", "10.98.0.0/17", LIVE),
    Row("network.public_subnet_cidr", "10.98.0.0/25", LIVE),
    Row("network.private_subnet_cidr", "10.98.2.0/24", LIVE),
    Row("network.ssh_allowed_cidrs", ["10.0.0.0/8"], LIVE),
    Row("network.rdma_cidr", "192.168.128.0/17", LIVE),
    Row("ssh.public_keys", [public_key(comment="other")], LIVE),
    Row("storage.home.export_path", "/other", LIVE),
    Row("storage.home.mount_path", "/srv/home", LIVE),
    Row("storage.home.file_system_id", OCID.format("filesystem"), DESTROYS),
    Row("storage.home.server", "10.98.1.77", DESTROYS, {"storage.shares.data.mount_target": "own"}),
    Row("storage.home.throughput_gbps", 20, LIVE),
    Row("storage.shares.own.throughput_gbps", 40, LIVE),
    Row("storage.shares.data", None, DESTROYS),
    Row("storage.shares.more", {"mount_path": "/mnt/more"}, LIVE),
    Row("storage.shares.data.mount_path", "/srv/data", LIVE),
    Row("storage.shares.data.export_path", "/elsewhere", LIVE),
    Row("storage.shares.data.file_system_id", OCID.format("filesystem"), DESTROYS),
    Row("storage.shares.data.server", "10.98.1.77", DESTROYS),
    Row("storage.shares.data.mount_target", "own", LIVE),
    Row("storage.shares.models.read_only", True, LIVE),
    Row("storage.shares.data.hosts", ["cpu"], LIVE),
    Row("storage.local_disk.enabled", False, LIVE),
    Row("storage.local_disk.mount_path", "/scratch", LIVE),
    Row("controller.state_volume_gb", 80, LIVE),
    Row("controller.state_volume_gb", None, DESTROYS),
    Row("controller.standby", True, LIVE),
    Row("controller.automatic_failover", True, LIVE, {"controller.standby": True}),
    Row("login.count", 2, LIVE),
    Row("login.count", 0, DRAINS),
    *(
        row
        for machine in ("controller", "login", "pools.cpu")
        for row in (
            Row(f"{machine}.shape", OTHER_SHAPE, DRAINS),
            Row(f"{machine}.ocpus", 4, DRAINS),
            Row(f"{machine}.memory_gb", 32, DRAINS),
            Row(f"{machine}.boot_volume_gb", 300, LIVE),
            Row(f"{machine}.boot_volume_vpus_per_gb", 20, REPLACES),
            Row(f"{machine}.image", UBUNTU, REPLACES),
        )
    ),
    *(
        row
        for pool in ("rdma", "gpu", "cpu")
        for row in (
            Row(f"pools.{pool}.count", 3, LIVE),
            Row(f"pools.{pool}.count", 1, DRAINS),
            Row(f"pools.{pool}.removed_nodes", [f"{pool}-1"], DRAINS),
            Row(f"pools.{pool}.availability_domain", OTHER_DOMAIN, REPLACES),
            Row(f"pools.{pool}.capacity_reservation_id", OCID.format("capacityreservation"), LIVE),
            Row(f"pools.{pool}.partition", "other", LIVE),
            Row(f"pools.{pool}.idle_timeout", 60, LIVE),
        )
    ),
    Row("pools.rdma.max_count", 3, REPLACES),
    Row("pools.gpu.max_count", 5, LIVE),
    Row("pools.burst.max_count", 4, LIVE),
    Row("pools.rdma.rdma", False, REPLACES),
    Row("pools.gpu.rdma", None, REPLACES),
    Row("pools.rdma.rdma_addressing", "cloud-init", LIVE),
    # Members keep what they were launched with: there is no change of an instance in the plan.
    Row("pools.rdma.boot_volume_vpus_per_gb", 20, LIVE),
    Row("pools.rdma.platform.smt", False, LIVE),
    Row("pools.rdma.image", UBUNTU, LIVE),
    Row("pools.gpu.platform.smt", False, REPLACES),
    Row("pools.gpu.platform.numa_nodes_per_socket", "NPS2", REPLACES),
    Row("pools.cpu", None, DRAINS),
    Row("iam.create", False, LIVE),
    Row("iam.identity_domain", "Other", LIVE),
    Row("iam.elastic_compartment", "create", LIVE),
    Row("iam.tag", "Operations.Cluster", LIVE),
)
# Keys that reach Terraform, and whose policy is proved elsewhere, or by more than a plan.
ELSEWHERE = {
    "pools.<name>.memory_fabric_id": "tests/terraform/test_tf_gpu_memory_clusters.py: planned for another rack",
    "name": "tests/handover/test_ownership.py: refused",
    "cloud.provider": "tests/lifecycle/test_locate.py: refused, as another compartment",
    "cloud.region": "tests/lifecycle/test_locate.py: refused",
    "storage.home.enabled": "tests/lifecycle/test_provision.py: lost homes; only `scheduler: none` may be without them",
    "network.vcn_id": "tests/terraform/test_tf_network.py: an existing network is another one",
    "network.public_subnet_id": "tests/terraform/test_tf_network.py",
    "network.private_subnet_id": "tests/terraform/test_tf_network.py",
    "pools.<name>.managed": "tests/lifecycle/test_resize.py: a pool that becomes managed gives its instances up",
    "iam.any_launch": "tests/terraform/test_tf_iam.py: only the policies change",
    "scheduler": "tests/lifecycle/test_plan.py: refused",
    "kubernetes.release": "tests/lifecycle/test_plan.py: refused",
    "kubernetes.control_plane": "tests/lifecycle/test_plan.py: refused",
    "kubernetes.network": "tests/lifecycle/test_plan.py: refused",
    "kubernetes.pod_cidr": "tests/lifecycle/test_plan.py: refused",
    "kubernetes.service_cidr": "tests/lifecycle/test_plan.py: refused",
    "kubernetes.oke.endpoint": "tests/terraform/test_tf_oke.py: made public",
    "kubernetes.oke.addons": "tests/terraform/test_tf_oke.py",
}


class Site(Cluster):
    """One cluster, planned with one changed file after the other."""

    def plan_of(self, data: Mapping[str, Any]) -> TerraformPlan:
        self.spec = loads(yaml.safe_dump(dict(data)), str(self.paths.root.parent / "cluster.yml"))
        spec, tenancy = self.spec, self.access.compartment_id
        machines: dict[str, ControllerSpec | LoginSpec | PoolSpec] = {
            "controller": spec.controller,
            "login": spec.login,
            **spec.host_pools,
        }
        self.terraform.set_variables(
            handover.tfvars(
                spec,
                tenancy_id=tenancy,
                compartment_id=tenancy,
                ssh_authorized_keys=[public_key(), *spec.ssh.public_keys],
                baked_images={},
                user_data={
                    name: user_data.user_data(user_data.boot_settings(spec, machine))
                    for name, machine in machines.items()
                },
            )
        )
        return Distributions(spec, self.cloud).plan(self.terraform)


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory,
    cloud: LocalCloud,
    terraform: str,
    terraform_environment: Mapping[str, str],
) -> Iterator[Site]:
    """A cluster that stands; no test changes it."""
    with pytest.MonkeyPatch.context() as patch:
        poll_quickly(patch)
        folder: Path = tmp_path_factory.mktemp("policy")
        made = Site(folder, cloud, terraform, terraform_environment)
        try:
            made.apply(made.plan_of(BASE), replace_nodes=True)
            yield made
        finally:
            made.destroy()


def _changed(rows: Sequence[Row]) -> dict[str, Any]:
    data = copy.deepcopy(BASE)
    for path, value in {key: value for row in rows for key, value in {row.path: row.value, **row.also}.items()}.items():
        at = data
        *sections, key = path.split(".")
        for section in sections:
            at = at.setdefault(section, {})
        if value is None:
            del at[key]
        else:
            at[key] = value
    return data


def _batches() -> list[list[Row]]:
    """Rows that one plan can prove: all live ones; of the others one for each section with hosts, or one alone."""
    batches: list[list[Row]] = []
    for row in ROWS:
        fitting = [
            batch for batch in batches if row.section and all(each.section not in ("", row.section) for each in batch)
        ]
        if row.effect is LIVE:
            continue
        if fitting:
            fitting[0].append(row)
        else:
            batches.append([row])
    return [[row for row in ROWS if row.effect is LIVE], *batches]


@pytest.mark.parametrize("rows", _batches(), ids=lambda rows: ",".join(f"{row.path}={row.value}" for row in rows)[:60])
def test_the_effect_of_a_change_is_what_terraform_plans(site: Site, rows: Sequence[Row]) -> None:
    plan = site.plan_of(_changed(rows))
    hosts = site.resizing().scaling(site.terraform, plan)
    loses_data = bool(lost_homes(plan) or lost_state(plan))
    found = effects(updates.changes(recorded(BASE), updates.recorded(site.spec)), hosts, loses_data=loses_data)
    for row in rows:
        mine = [each for each in found if each.path.startswith(row.path)]
        assert mine, row
        strongest = max(mine, key=lambda each: each.effect.strength)
        assert (row.path, strongest.effect) == (row.path, row.effect), (found, plan.changes, hosts)
    # Nothing happens that no row announces: the live ones have no effect on any host.
    assert _planned(hosts, loses_data) is max((row.effect for row in rows), key=lambda each: each.strength)
    if hosts.replacements:
        with pytest.raises(ReplacementError):
            site.resizing().drain_and_detach(site.terraform, plan)


@pytest.mark.parametrize("key", ["controller.boot_volume_gb", "pools.cpu.boot_volume_gb", "controller.state_volume_gb"])
def test_a_smaller_disk_is_refused_before_anything_changes(site: Site, key: str) -> None:
    size = BASE["controller"]["state_volume_gb"] if key.endswith("state_volume_gb") else 256  # the default
    for asked in (size - 10, size + 10):
        plan = site.plan_of(_changed([Row(key, asked, LIVE)]))
        said = f"({size} GB, and {asked} GB in cluster.yml)"
        with pytest.raises(InputError, match=re.escape(said)) if asked < size else nullcontext():
            refuse_smaller(plan)


def _planned(hosts: Any, loses_data: bool) -> UpdatePolicy:
    """The strongest thing in the plan, whatever the keys say."""
    if loses_data:
        return DESTROYS
    if hosts.replacements:
        return REPLACES
    leaving = hosts.names("removed", "rebooted") or hosts.controller or hosts.login.removed or hosts.login.rebooted
    return DRAINS if leaving else LIVE


def test_each_policy_is_the_strongest_effect_of_its_key() -> None:
    strongest: dict[str, UpdatePolicy] = {}
    for row in ROWS:
        for change in updates.changes(recorded(BASE), recorded(_changed([row]))):
            # The image is what is changed: its user follows it.
            if change.path.startswith(row.path) and not change.path.endswith(".login_user"):
                known = strongest.get(change.key, LIVE)
                strongest[change.key] = max(known, row.effect, key=lambda each: each.strength)
    stated = {key: updates.policies()[key].policy for key in strongest}
    # Permanent nodes of an elastic RDMA pool are in its compartment: no pool here is one.
    del stated["iam.elastic_compartment"], strongest["iam.elastic_compartment"]
    assert {key: str(policy) for key, policy in strongest.items()} == {key: str(each) for key, each in stated.items()}


def test_the_other_proofs_exist() -> None:
    root = Path(__file__).parents[2]
    assert [proof for proof in ELSEWHERE.values() if not (root / proof.partition(":")[0]).is_file()] == []


def test_no_key_reaches_terraform_without_a_plan_that_proves_its_policy() -> None:
    read = _keys_read_for_terraform()
    proved = {change.key for row in ROWS for change in updates.changes(recorded(BASE), recorded(_changed([row])))}
    assert "pools.<name>.capacity_reservation_id" in read
    assert "verify.mpi" not in read
    images = {key for key in read if ".image." in key}
    assert sorted(read - proved - ELSEWHERE.keys() - images) == []


def recorded(data: Mapping[str, Any]) -> dict[str, Any]:
    """What the record of a cluster has of a file."""
    return updates.recorded(loads(yaml.safe_dump(dict(data)), "cluster.yml"))


def _keys_read_for_terraform() -> set[str]:
    """The keys whose values are read while the variables of Terraform are made."""
    spec = loads(yaml.safe_dump(BASE), "cluster.yml")
    sections = {kind.__name__: paths for kind, paths in sections_of_the_model().items()}
    read: set[str] = set()
    plain = SpecPart.__getattribute__

    def noted(part: SpecPart, name: str) -> Any:
        kind = type(part)
        if not name.startswith("_") and name in kind.model_fields:
            read.update(f"{path}.{name}" if path else name for path in sections.get(kind.__name__, ()))
        return plain(part, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpecPart, "__getattribute__", noted)
        handover.tfvars(spec, tenancy_id="t", compartment_id="c", ssh_authorized_keys=[], baked_images={})
    return read & set(updates.keys())
