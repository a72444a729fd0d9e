"""Permanent nodes are added and removed by cluster.yml: the real Terraform, root and SDK, the stand-in provider.

No host is there: that jobs are waited for is proved in tests/autoscaler/test_draining.py and in tests/e2e.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from gpucluster import handover
from gpucluster.cloud.client import CloudAccess
from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.cloud.members import PoolMembers
from gpucluster.cloud.providers import CloudProvider
from gpucluster.errors import CloudError, InputError, ReplacementError, TerraformError, ToolError
from gpucluster.events import Event, ignore
from gpucluster.lifecycle.distribution import Distributions
from gpucluster.lifecycle.hosts import HostConnections
from gpucluster.lifecycle.resize import PoolScaling, Resizing, recreated_addresses
from gpucluster.localcloud.state.region import AVAILABILITY_DOMAINS
from gpucluster.operations.configuration_record import ConfigurationRecord
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.drain import Draining
from gpucluster.paths import ClusterPaths
from gpucluster.spec import loads
from gpucluster.terraform.plan import ResourceChange, TerraformPlan
from gpucluster.terraform.runner import Terraform
from tests.spec.spec_texts import public_key
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.terraform.conftest import LocalCloud

pytestmark = pytest.mark.slow

CLUSTER_YML = """\
version: 1
name: resize
cloud: {{provider: local}}
network:
  vcn_cidr: 10.97.0.0/16
  public_subnet_cidr: 10.97.0.0/24
  private_subnet_cidr: 10.97.1.0/24
  ssh_allowed_cidrs: [127.0.0.0/8]
pools:
  {pools}
"""
RDMA, CPU = "shape: BM.GPU4.8", "shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16"
NETWORK = 'module.pool["compute"].oci_core_cluster_network.this[0]'


def node(pool: str, number: int) -> str:
    return f'module.pool["{pool}"].module.instance["{pool}-{number}"].oci_core_instance.this'


class Cluster:
    """One cluster.yml after the other, as apply goes about it, up to the hosts."""

    def __init__(self, folder: Path, cloud: LocalCloud, program: str, environment: Mapping[str, str]) -> None:
        credentials = cloud.credentials
        config = {
            "tenancy": credentials.tenancy,
            "user": credentials.user,
            "fingerprint": credentials.fingerprint,
            "key_file": str(credentials.key_file),
            "region": cloud.region,
        }
        self._cloud = cloud
        self.access = CloudAccess(config, cloud.endpoint, credentials.tenancy)
        self.paths = ClusterPaths.of(folder / "cluster.yml")
        self.paths.create()
        self.terraform = Terraform(self.paths, Path(program), {**environment, **cloud.environment}, ignore)
        self.terraform.prepare()
        self.terraform.init()
        self.events: list[Event] = []
        self.forgotten: list[tuple[list[str], list[str]]] = []

    @property
    def cloud(self) -> CloudProvider:
        """What gives access to the cloud."""
        return cast(CloudProvider, SimpleNamespace(access=lambda: self.access))

    def plan(self, **pools: str) -> TerraformPlan:
        """Write the file, and plan."""
        text = "\n  ".join(f"{name}: {{{keys}}}" for name, keys in pools.items())
        self.spec = loads(CLUSTER_YML.format(pools=text), str(self.paths.root.parent / "cluster.yml"))
        tenancy = self.access.compartment_id
        self.terraform.set_variables(
            handover.tfvars(
                self.spec,
                tenancy_id=tenancy,
                compartment_id=tenancy,
                ssh_authorized_keys=[public_key()],
                baked_images={},
            )
        )
        return Distributions(self.spec, self.cloud).plan(self.terraform)

    def resizing(self, *, silent_controller: bool = False) -> Resizing:
        """Resizing, before any host was reached, or with a controller that gives no answer."""
        hosts = ("resize-controller",) if silent_controller else ()
        silent = SimpleNamespace(ssh_argv=lambda *_: ["false"], hosts=lambda: hosts)
        elastic = ElasticInstances(self.access, self.spec.name, ignore)
        return Resizing(
            spec=self.spec,
            cloud=self.cloud,
            elastic=lambda: elastic,
            controller=cast(ControllerConnection, silent),
            nodes=Draining(cast(ControllerConnection, silent), self.events.append),
            hosts=cast(HostConnections, SimpleNamespace(forget=self._forget)),
            record=cast(ConfigurationRecord, SimpleNamespace(reopen=lambda: self.forgotten.append((["record"], [])))),
            on_event=self.events.append,
        )

    def _forget(self, *, rebooted: list[str], replaced: list[str]) -> None:
        self.forgotten.append((rebooted, replaced))

    def apply(self, plan: TerraformPlan, **options: Any) -> tuple[ResourceChange, ...]:
        """Drain and detach, apply the plan, wait for members. Returns what Terraform changed."""
        resizing = self.resizing()
        ready = resizing.drain_and_detach(self.terraform, plan, **options)
        if ready.changes or ready.changes_outputs:
            with resizing.restarts(self.terraform, ready):
                self.terraform.apply(ready)
        self.members()
        return ready.changes

    def begin(self, **pools: str) -> dict[str, str]:
        """Have exactly these pools, whatever stood there before. Returns their nodes: OCID by name."""
        self.apply(self.plan(**pools), replace_nodes=True)
        self.events.clear()
        return self.members()

    def members(self) -> dict[str, str]:
        """The permanent nodes: OCID by name."""
        outputs = handover.Outputs.parse(self.terraform.outputs())
        instances = PoolMembers(self.access, ignore)
        found: dict[str, str] = {}
        for pool, made in outputs.pools.items():
            nodes = made.instances
            if launched_together := made.launched_together_id:
                names = handover.permanent_names(pool, self.spec.pools[pool])
                nodes = instances.members(pool, launched_together, names, PATIENCE_S)
            found |= {one.name: one.id for one in nodes}
        return found

    def standing(self) -> dict[str, str]:
        """What the cloud has of this cluster, the controller left out: OCID by display name."""
        listed = self._cloud.standing("/20160918/instances", "resize")
        alive = [one for one in listed if one["lifecycleState"] != "TERMINATING"]
        return {one["displayName"]: one["id"] for one in alive if "controller" not in one["displayName"]}

    def destroy(self) -> None:
        self.terraform.apply(self.terraform.plan(destroy=True))


def poll_quickly(patch: pytest.MonkeyPatch) -> None:
    """Let members of cluster networks be looked for often: this cloud answers at once."""
    patch.setattr("gpucluster.cloud.members._POLL", 0.1)
    patch.setattr("gpucluster.cloud.members._SETTLED", 0.5)
    patch.setattr("gpucluster.cloud.cluster_network._POLL", 0.1)


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory,
    cloud: LocalCloud,
    terraform: str,
    terraform_environment: Mapping[str, str],
) -> Iterator[Cluster]:
    """One cluster for all tests; each begins with a file of its own."""
    with pytest.MonkeyPatch.context() as patch:
        poll_quickly(patch)
        made = Cluster(tmp_path_factory.mktemp("resize"), cloud, terraform, terraform_environment)
        try:
            yield made
        finally:
            cloud.faults()
            made.destroy()
        assert made.standing() == {}


def actions(changes: tuple[ResourceChange, ...]) -> list[tuple[str, str]]:
    """What is done in the cloud: what is in the state only is left out."""
    listed = [(change.address, change.action) for change in changes]
    return sorted(change for change in listed if "terraform_data" not in change[0])


def test_pools_of_each_kind_are_resized_by_name_and_nothing_is_recreated(cluster: Cluster, cloud: LocalCloud) -> None:
    sizes = {"compute": f"{RDMA}, count: 3", "cpu": f"{CPU}, count: 3", "burst": f"{RDMA}, count: 2, max_count: 5"}
    before = cluster.begin(**sizes)
    assert before == cluster.standing()
    assert len(before) == 8

    # One of each goes, and it is the first.
    plan = cluster.plan(
        compute=f"{RDMA}, count: 2, removed_nodes: [compute-1]",
        cpu=f"{CPU}, count: 2, removed_nodes: [cpu-2]",
        burst=f"{RDMA}, count: 1, max_count: 5, removed_nodes: [burst-1]",
    )
    assert (NETWORK, "update") in actions(plan.changes)  # Terraform would have OCI choose
    assert actions(cluster.apply(plan)) == [(node("burst", 1), "delete"), (node("cpu", 2), "delete")]
    gone = {"compute-1", "cpu-2", "burst-1"}
    assert cluster.standing() == {name: ocid for name, ocid in before.items() if name not in gone}
    assert {(event.name, event.message) for event in cluster.events if event.status == "scaling"} >= {
        ("pool compute", "compute-1 to remove"),
        ("pool cpu", "cpu-2 to remove"),
    }
    assert cluster.terraform.plan().changes == ()

    # Up again, beyond the gap; and what was removed comes back under its name where the file has it.
    plan = cluster.plan(
        compute=f"{RDMA}, count: 3, removed_nodes: [compute-1]",
        cpu=f"{CPU}, count: 3",
        burst=f"{RDMA}, count: 0, max_count: 5",
    )
    assert actions(cluster.apply(plan)) == [
        (node("burst", 2), "delete"),
        (NETWORK, "update"),
        (node("cpu", 2), "create"),
    ]
    after = cluster.standing()
    assert set(after) == {"compute-2", "compute-3", "compute-4", "cpu-1", "cpu-2", "cpu-3"}
    assert all(after[name] == before[name] for name in ("compute-2", "compute-3", "cpu-1", "cpu-3"))

    # One node for another while the count stays: Terraform has nothing to do.
    plan = cluster.plan(compute=f"{RDMA}, count: 3, removed_nodes: [compute-1, compute-3]", cpu=f"{CPU}, count: 3")
    preview = cluster.resizing().scaling(cluster.terraform, plan)
    assert preview.pools["compute"] == PoolScaling(added=("compute-5",), removed=("compute-3",))
    assert NETWORK not in [address for address, _ in actions(plan.changes)]
    changed = cluster.apply(plan)
    assert [change for change in changed if "burst" not in change.address] == []
    assert set(cluster.standing()) >= {"compute-2", "compute-4", "compute-5"}
    assert "compute-3" not in cluster.standing()


def test_what_would_recreate_nodes_is_refused_before_anything_is_touched(cluster: Cluster) -> None:
    before = cluster.begin(compute=f"{RDMA}, count: 2", cpu=f"{CPU}, count: 1")

    plan = cluster.plan(compute=f"{RDMA}, count: 2, max_count: 4", cpu=f"{CPU}, count: 1")
    with pytest.raises(ReplacementError) as caught:
        cluster.resizing().drain_and_detach(cluster.terraform, plan)
    words = str(caught.value)
    assert "the cluster network of pool compute with compute-1, compute-2" in words
    assert "would be a compute cluster, because max_count is above count now" in words
    assert "--replace-nodes" in words
    assert caught.value.exit_code == 7

    other = f"{CPU}, count: 1, availability_domain: {AVAILABILITY_DOMAINS[1]!r}"
    plan = cluster.plan(compute=f"{RDMA}, count: 1", cpu=other)
    found = cluster.resizing().scaling(cluster.terraform, plan).replacements
    assert [str(one) for one in found] == [
        f"node cpu-1: availability_domain {AVAILABILITY_DOMAINS[0]} would become {AVAILABILITY_DOMAINS[1]}"
    ]
    (exchanged,) = [change for change in plan.changes if change.address == node("cpu", 1)]
    assert exchanged.forced_by == ("availability_domain",)
    assert exchanged.values["availability_domain"] == AVAILABILITY_DOMAINS[:2]
    with pytest.raises(ReplacementError):
        cluster.resizing().drain_and_detach(cluster.terraform, plan)
    # Not even the node that may go has gone.
    assert cluster.standing() == before

    changes = cluster.apply(cluster.plan(compute=f"{RDMA}, count: 1", cpu=other), replace_nodes=True)
    assert (node("cpu", 1), "replace") in actions(changes)
    after = cluster.standing()
    assert set(after) == {"compute-1", "cpu-1"}
    assert after["compute-1"] == before["compute-1"]
    assert after["cpu-1"] != before["cpu-1"]


def test_another_image_is_a_replacement_and_other_memory_a_reboot(cluster: Cluster) -> None:
    before = cluster.begin(cpu=f"{CPU}, count: 2")
    # The same distribution: OCI replaces a boot volume with no other one.
    image = "image: {operating_system: Debian, version: '12'}"
    plan = cluster.plan(cpu=f"{CPU}, count: 2, {image}")
    # For Terraform it is an update, which nothing would have guarded.
    instances = [each for each in actions(plan.changes) if "oci_core_instance." in each[0]]
    assert instances == [(node("cpu", number), "update") for number in (1, 2)]
    with pytest.raises(ReplacementError, match="node cpu-1: another image would replace its boot volume"):
        cluster.resizing().drain_and_detach(cluster.terraform, plan)

    larger = CPU.replace("memory_gb: 16", "memory_gb: 32")
    plan = cluster.plan(cpu=f"{larger}, count: 2")
    preview = cluster.resizing().scaling(cluster.terraform, plan)
    assert preview.pools == {"cpu": PoolScaling(rebooted=("cpu-1", "cpu-2"))}
    # Jobs on them are asked for before.
    with pytest.raises(ToolError, match="Slurm on the controller gives no answer"):
        cluster.resizing(silent_controller=True).drain_and_detach(cluster.terraform, plan)
    cluster.apply(plan)
    ids = sorted(before.values())
    assert [(sorted(rebooted), sorted(replaced)) for rebooted, replaced in cluster.forgotten[-2:]] == [
        (ids, []),
        (ids, []),
    ]

    cluster.apply(cluster.plan(cpu=f"{larger}, count: 2, {image}"), replace_nodes=True)
    assert cluster.forgotten[-3] == (["record"], [])
    assert [(rebooted, sorted(replaced)) for rebooted, replaced in cluster.forgotten[-2:]] == [([], ids), ([], ids)]
    assert cluster.members() == before
    assert cluster.terraform.plan().changes == ()


def test_an_image_of_another_distribution_makes_other_instances_of_the_same_names(cluster: Cluster) -> None:
    """OCI refuses it in place, and so does the API of the local cloud. Terraform does not know that."""
    before = cluster.begin(cpu=f'{CPU}, count: 2, image: {{operating_system: Debian, version: "13"}}')
    other = f'{CPU}, count: 2, image: {{operating_system: Oracle Linux, version: "9"}}'
    cluster.plan(cpu=other).file.unlink()
    with pytest.raises(TerraformError, match="same distribution only"):
        cluster.apply(cluster.terraform.plan(), replace_nodes=True)
    plan = cluster.plan(cpu=other)
    nodes = [(node("cpu", 1), "replace"), (node("cpu", 2), "replace")]
    assert [each for each in actions(plan.changes) if each in nodes] == nodes
    with pytest.raises(ReplacementError, match="it has Debian, and its new image has Oracle Linux"):
        cluster.resizing().drain_and_detach(cluster.terraform, plan)
    cluster.apply(plan, replace_nodes=True)
    after = cluster.standing()
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values())
    assert cluster.terraform.plan().changes == ()


def test_a_pool_may_change_its_kind_when_all_its_nodes_go(cluster: Cluster) -> None:
    cluster.begin(gpu=f"{RDMA}, count: 1")
    changes = cluster.apply(cluster.plan(gpu=f"{RDMA}, count: 0, max_count: 2"))
    assert (NETWORK.replace("compute", "gpu"), "delete") in actions(changes)
    assert cluster.standing() == {}


def test_members_that_did_not_come_are_asked_for_again_by_the_next_apply(cluster: Cluster, cloud: LocalCloud) -> None:
    cluster.begin(compute=f"{RDMA}, count: 1")
    cloud.faults({"operation": "BootInstance", "message": "Out of host capacity.", "times": 1})
    plan = cluster.plan(compute=f"{RDMA}, count: 2")
    cluster.terraform.apply(cluster.resizing().drain_and_detach(cluster.terraform, plan))
    with pytest.raises(CloudError, match=r"only 1 of 2 members run, and OCI launches no more: .*Out of host capacity"):
        cluster.members()
    assert cluster.apply(cluster.plan(compute=f"{RDMA}, count: 2")) == ()
    assert set(cluster.standing()) == {"compute-1", "compute-2"}


def test_no_node_goes_unasked_and_a_run_that_was_killed_half_way_is_taken_up(cluster: Cluster) -> None:
    cluster.begin(compute=f"{RDMA}, count: 2")
    smaller = f"{RDMA}, count: 1, removed_nodes: [compute-1]"
    plan = cluster.plan(compute=smaller)
    # Who can't be asked about jobs loses no node.
    with pytest.raises(ToolError, match="Slurm on the controller gives no answer"):
        cluster.resizing(silent_controller=True).drain_and_detach(cluster.terraform, plan)
    assert set(cluster.standing()) == {"compute-1", "compute-2"}
    cluster.resizing(silent_controller=True).drain_and_detach(cluster.terraform, plan, drain_timeout=0)
    assert set(cluster.standing()) == {"compute-2"}  # here it was killed
    assert cluster.apply(cluster.plan(compute=smaller)) == ()
    assert set(cluster.standing()) == {"compute-2"}


def test_a_named_node_of_each_kind_is_recreated_under_its_name_and_nothing_else_changes(cluster: Cluster) -> None:
    pools = {"compute": f"{RDMA}, count: 2", "cpu": f"{CPU}, count: 2"}
    before = cluster.begin(**pools)
    named = ("compute-1", "cpu-2")

    # What cluster.yml asks for beside that is not done on the way: no question about it was asked.
    plan = cluster.plan(compute=f"{RDMA}, count: 2", cpu=f"{CPU}, count: 3")
    with pytest.raises(InputError, match=r"asks for other changes as well, .*cpu-3"):
        cluster.resizing().drain_and_detach(cluster.terraform, plan, recreate=named)
    plan = cluster.plan(compute=f"{RDMA}, count: 1", cpu=f"{CPU}, count: 2")
    with pytest.raises(InputError, match=r"asks for other changes as well"):
        cluster.resizing().drain_and_detach(cluster.terraform, plan, recreate=named)
    assert cluster.standing() == before

    cluster.plan(**pools)
    plan = cluster.terraform.plan(recreate=recreated_addresses(cluster.spec, named))
    assert actions(plan.changes) == [(node("cpu", 2), "replace")]
    with pytest.raises(ToolError, match="Slurm on the controller gives no answer"):
        cluster.resizing(silent_controller=True).drain_and_detach(cluster.terraform, plan, recreate=named)
    assert cluster.standing() == before
    assert actions(cluster.apply(plan, recreate=named)) == [(node("cpu", 2), "replace")]
    after = cluster.members()
    assert set(after) == set(before)
    assert {name for name in before if after[name] != before[name]} == set(named)
    assert cluster.terraform.plan().changes == ()
    assert ("pool compute", "compute-1 to replace") in {(each.name, each.message) for each in cluster.events}
