"""Which permanent nodes go and come, and what a plan must not do. Pure: nothing runs here."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster import handover
from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.cloud.members import PoolMember
from gpucluster.cloud.providers import CloudProvider
from gpucluster.errors import ToolError
from gpucluster.events import ignore
from gpucluster.lifecycle.hosts import HostConnections
from gpucluster.lifecycle.resize import (
    PoolScaling,
    Present,
    Resizing,
    Scaling,
    _refused,
    desired_names,
    nodes_to_add,
    nodes_to_remove,
    reboots,
    recreated_addresses,
    replacements,
    scaling,
)
from gpucluster.operations.configuration_record import ConfigurationRecord
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.drain import Draining
from gpucluster.spec import ClusterSpec, loads
from gpucluster.terraform.plan import ResourceChange, TerraformPlan
from gpucluster.terraform.runner import Terraform
from tests.spec.spec_texts import LOCAL, MINIMAL

NETWORK = 'module.pool["compute"].oci_core_cluster_network.this[0]'
CLUSTER = 'module.pool["compute"].oci_core_compute_cluster.this[0]'
CONTROLLER = "module.controller.oci_core_instance.this"
MEMBERS = {"ocid1.a": "compute-1", "ocid1.b": "compute-2"}


def instance(pool: str, number: int) -> str:
    return f'module.pool["{pool}"].module.instance["{pool}-{number}"].oci_core_instance.this'


def spec_of(compute: str) -> ClusterSpec:
    """The local cluster with other keys of the pool `compute`."""
    before, _, after = LOCAL.partition("  compute:\n    shape: BM.GPU4.8\n    count: 2\n")
    assert after
    return loads(f"{before}  compute: {{{compute}}}\n{after}", "cluster.yml")


def with_oke(compute: str) -> ClusterSpec:
    """A cluster of Kubernetes Engine with these keys of the pool `compute`."""
    text = MINIMAL.replace("shape: BM.GPU4.8, count: 1", compute)
    return loads(f"{text}scheduler: kubernetes\nkubernetes: {{control_plane: oke}}\n", "cluster.yml")


def raw_outputs(**compute: Any) -> dict[str, Any]:
    """The outputs of an apply of the local cluster, with other facts of the pool `compute`."""
    file = Path(__file__).parents[1] / "golden" / "local_demo" / "outputs.json"
    outputs: dict[str, Any] = json.loads(file.read_text())
    cluster = outputs["cluster"]
    (pool,) = [pool for pool in cluster["pools"].values() if pool["cluster_network_id"]][:1]
    cluster["pools"] = {"compute": {**pool, "shape": "BM.GPU4.8", **compute}}
    return outputs


def outputs_of(**compute: Any) -> handover.Outputs:
    """The same, parsed."""
    return handover.Outputs.parse(raw_outputs(**compute))


# --- who goes, who comes -----


def test_the_named_node_goes_and_not_the_last_one() -> None:
    desired = {"compute": ("compute-2", "compute-3")}
    present = {"compute": {"a": "compute-1", "b": "compute-2", "c": "compute-3"}}
    assert nodes_to_remove(desired, present) == {"compute": {"a": "compute-1"}}
    assert nodes_to_add(desired, present) == {}


def test_a_smaller_count_takes_the_last_ones() -> None:
    spec = spec_of("shape: BM.GPU4.8, count: 1")
    assert nodes_to_remove(desired_names(spec), {"compute": MEMBERS}) == {"compute": {"ocid1.b": "compute-2"}}


def test_a_removed_node_is_replaced_by_the_next_number_while_the_count_stays() -> None:
    spec = spec_of("shape: BM.GPU4.8, count: 2, removed_nodes: [compute-1]")
    desired = desired_names(spec)
    assert desired["compute"] == ("compute-2", "compute-3")
    assert nodes_to_remove(desired, {"compute": MEMBERS}) == {"compute": {"ocid1.a": "compute-1"}}
    assert nodes_to_add(desired, {"compute": MEMBERS}) == {"compute": ("compute-3",)}


def test_a_pool_that_is_gone_from_the_file_goes_whole_and_a_renamed_one_comes_new() -> None:
    desired = {"gpu": ("gpu-1", "gpu-2")}
    assert nodes_to_remove(desired, {"compute": MEMBERS}) == {"compute": MEMBERS}
    assert nodes_to_add(desired, {"compute": MEMBERS}) == {"gpu": ("gpu-1", "gpu-2")}


def test_the_last_permanent_node_of_a_pool_that_stays_elastic_goes() -> None:
    spec = spec_of("shape: BM.GPU4.8, count: 0, max_count: 4")
    assert nodes_to_remove(desired_names(spec), {"compute": {"a": "compute-1"}}) == {"compute": {"a": "compute-1"}}


def test_a_member_without_a_name_of_ours_counts_for_a_free_one_and_else_goes() -> None:
    present = {"compute": {"a": "compute-1", "b": "inst-x-compute", "c": "inst-y-compute"}}
    assert nodes_to_remove({"compute": ("compute-1", "compute-2")}, present) == {"compute": {"c": "inst-y-compute"}}
    assert nodes_to_add({"compute": ("compute-1", "compute-2")}, present) == {}


NAMES = [f"compute-{number}" for number in range(1, 8)]
OCIDS = st.text("abcdefgh", min_size=1, max_size=3)


@given(
    desired=st.lists(st.sampled_from(NAMES), unique=True),
    present=st.dictionaries(OCIDS, st.sampled_from([*NAMES, "inst-x-compute", "inst-y-compute"])),
    other=st.dictionaries(OCIDS, st.sampled_from(["cpu-1", "cpu-2"])),
)
def test_who_stays_and_who_comes_are_exactly_those_that_are_desired(
    desired: list[str], present: dict[str, str], other: dict[str, str]
) -> None:
    pools: Present = {"compute": present, "cpu": other}
    names: Mapping[str, list[str]] = {"compute": sorted(desired), "cpu": sorted(set(other.values()))}
    going, coming = nodes_to_remove(names, pools), nodes_to_add(names, pools)
    left = {one: name for one, name in present.items() if one not in going.get("compute", {})}
    # No other node is touched: one with a desired name stays, once for each name.
    assert {name for name in present.values() if name in desired} <= set(left.values())
    assert all(present[one] == name for one, name in going.get("compute", {}).items())
    # And with those that come there is one node for each name.
    assert len(left) + len(coming.get("compute", ())) == len(desired)
    assert set(coming.get("compute", ())) <= set(desired) - set(left.values())
    assert coming.get("cpu") is None


# --- what a plan must not do -----


def found(
    spec: ClusterSpec, *changes: ResourceChange, outputs: handover.Outputs | None = None, present: Present | None = None
) -> list[str]:
    made = outputs or outputs_of()
    return [str(one) for one in replacements(changes, spec, made, present or {"compute": MEMBERS})]


PLAIN = spec_of("shape: BM.GPU4.8, count: 2")


@pytest.mark.parametrize(
    "change",
    [
        ResourceChange(NETWORK, "update"),
        ResourceChange(NETWORK, "create"),
        ResourceChange(NETWORK, "replace", "tainted"),
        ResourceChange(instance("compute", 3), "delete", "delete_because_each_key"),
        ResourceChange(instance("compute", 1), "create"),
        ResourceChange(instance("cpu", 1), "delete", "delete_because_each_key"),
        ResourceChange(CONTROLLER, "update"),
        ResourceChange("module.home.oci_file_storage_file_system.this", "replace"),
        ResourceChange('module.pool["compute"].oci_core_instance_configuration.this[0]', "replace", "cannot_update"),
        ResourceChange('module.pool["gone"].oci_core_cluster_network.this[0]', "delete", "delete_because_no_module"),
    ],
)  # fmt: skip
def test_what_takes_no_desired_node_is_not_guarded(change: ResourceChange) -> None:
    assert found(PLAIN, change) == []


def test_a_cluster_network_with_desired_nodes_is_guarded() -> None:
    change = ResourceChange(NETWORK, "replace", "cannot_update", ("placement_configuration.primary_subnet_id",))
    assert found(PLAIN, change) == [
        "the cluster network of pool compute with compute-1, compute-2: "
        "placement_configuration.primary_subnet_id can't be changed in place"
    ]


def test_a_rack_with_desired_nodes_is_guarded_and_its_nodes_are_known_by_their_names() -> None:
    fabric = "ocid1.computegpumemoryfabric.oc1.iad.a"
    spec = spec_of(f"shape: BM.GPU.GB200.4, count: 2, memory_fabric_id: {fabric}")
    rack = outputs_of(
        kind="gpu_memory_cluster", shape="BM.GPU.GB200.4", cluster_network_id=None, gpu_memory_cluster_id="ocid1.rack"
    )
    assert rack.pools["compute"].launched_together_id == "ocid1.rack"
    address = 'module.pool["compute"].oci_core_compute_gpu_memory_cluster.this[0]'
    change = ResourceChange(address, "replace", "cannot_update", ("gpu_memory_fabric_id",))
    assert found(spec, change, outputs=rack) == [
        "the GPU memory cluster of pool compute with compute-1, compute-2: "
        "gpu_memory_fabric_id can't be changed in place"
    ]
    assert found(spec, ResourceChange(address, "update"), outputs=rack) == []
    assert not [each for each in recreated_addresses(spec, ["compute-1"]) if "compute" in each]


def test_an_empty_cluster_network_may_go() -> None:
    assert found(PLAIN, ResourceChange(NETWORK, "delete"), present={"compute": {}}) == []


def test_max_count_above_count_would_recreate_the_pool() -> None:
    elastic = spec_of("shape: BM.GPU4.8, count: 2, max_count: 4")
    (words,) = found(elastic, ResourceChange(NETWORK, "delete", "delete_because_count_index"))
    assert "made of a cluster network, and would be a compute cluster, because max_count is above count now" in words
    made = outputs_of(kind="compute_cluster")
    (words,) = found(PLAIN, ResourceChange(CLUSTER, "delete", "delete_because_count_index"), outputs=made)
    assert "the compute cluster of pool compute with compute-1, compute-2" in words
    assert "because max_count is count now" in words


def test_another_shape_is_told_by_its_name() -> None:
    other = spec_of("shape: BM.GPU.H100.8, count: 2")
    (words,) = found(other, ResourceChange(NETWORK, "replace", "cannot_update", ("instance_pools",)))
    assert words.endswith("shape BM.GPU4.8 would become BM.GPU.H100.8")


def test_a_desired_permanent_instance_is_guarded() -> None:
    change = ResourceChange(instance("compute", 2), "replace", "cannot_update", ("source_details.source_id",))
    assert found(PLAIN, change) == ["node compute-2: source_details.source_id can't be changed in place"]
    assert found(PLAIN, ResourceChange(instance("compute", 2), "replace", "tainted")) == []


def test_the_controller_is_guarded() -> None:
    (words,) = found(PLAIN, ResourceChange(CONTROLLER, "replace", "cannot_update", ("shape",)))
    assert (
        words
        == "the controller, with what the scheduler stores and the user directory: shape can't be changed in place"
    )


ENGINE = "module.oke[0].oci_containerengine_cluster.this"


def test_a_control_plane_of_oke_and_its_node_pools_are_guarded() -> None:
    spec = with_oke("shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32, count: 2, managed: true")
    moved = ResourceChange(ENGINE, "replace", "cannot_update", ("endpoint_config.subnet_id",))
    assert found(spec, moved, present={}) == [
        "the control plane of Kubernetes Engine, with everything that Kubernetes stores: endpoint_config.subnet_id "
        "can't be changed in place"
    ]
    pool = 'module.oke[0].oci_containerengine_node_pool.this["compute"]'
    (words,) = found(spec, ResourceChange(pool, "replace", "cannot_update", ("cluster_id",)), present={})
    assert words.startswith("the node pool compute, with all of its nodes: cluster_id")
    assert (
        found(
            spec, ResourceChange(pool, "update"), ResourceChange(pool.replace("compute", "gone"), "delete"), present={}
        )
        == []
    )
    assert found(PLAIN, ResourceChange(ENGINE, "delete"), present={}) == [], "nobody asks for it"


def test_a_pool_that_becomes_managed_gives_its_instances_up() -> None:
    spec = with_oke("shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32, count: 2, managed: true")
    assert nodes_to_remove(desired_names(spec), {"compute": MEMBERS}) == {"compute": MEMBERS}
    gone = ResourceChange(instance("compute", 1), "delete", "delete_because_no_module")
    assert found(spec, gone, outputs=outputs_of(kind="instances")) == []


def test_where_terraform_names_no_attribute_its_own_word_is_told() -> None:
    (words,) = found(PLAIN, ResourceChange(instance("compute", 1), "delete", "delete_because_each_key"))
    assert words == "node compute-1: delete because each key"


def test_before_the_first_apply_there_is_nothing_to_lose() -> None:
    assert replacements([ResourceChange(NETWORK, "replace")], PLAIN, None, {}) == ()


# --- an update in place that is none for the users -----

IMAGE = ("source_details.source_id",)


def test_another_image_takes_the_disk_of_a_node_and_of_the_controller() -> None:
    why = "another image would replace its boot volume, with everything on it"
    assert found(PLAIN, ResourceChange(instance("compute", 2), "update", changed=IMAGE)) == [f"node compute-2: {why}"]
    (words,) = found(PLAIN, ResourceChange(CONTROLLER, "update", changed=IMAGE))
    assert words == f"the controller, with what the scheduler stores and the user directory: {why}"


def test_who_is_refused_another_image_of_nodes_alone_learns_of_the_rollout() -> None:
    def hint(*changes: ResourceChange) -> str:
        return _refused(replacements(changes, PLAIN, outputs_of(), {"compute": MEMBERS})).hint

    node = ResourceChange(instance("compute", 2), "update", changed=IMAGE)
    assert "gpucluster rollout" in hint(node)
    assert "gpucluster rollout" not in hint(node, ResourceChange(CONTROLLER, "update", changed=IMAGE))


@pytest.mark.parametrize(
    "changed", [("shape_config.ocpus",), ("shape_config.memory_in_gbs",), ("shape",), ("platform_config",)]
)
def test_other_cores_or_memory_reboot_a_host_and_it_keeps_its_disk(changed: tuple[str, ...]) -> None:
    node, controller = (ResourceChange(one, "update", changed=changed) for one in (instance("compute", 1), CONTROLLER))
    assert found(PLAIN, node, controller) == []
    assert reboots([node, controller]) == {node.address: "compute-1", CONTROLLER: ""}
    seen = scaling([node, controller], PLAIN, outputs_of(), {"compute": MEMBERS})
    assert seen == Scaling({"compute": PoolScaling(rebooted=("compute-1",))}, "rebooted")


def test_what_changes_neither_disk_nor_machine_is_nothing_for_the_hosts() -> None:
    changed = ("freeform_tags.a", "display_name", "source_details.boot_volume_size_in_gbs", "shape_configuration")
    changes = [
        ResourceChange(instance("compute", 1), "update", changed=changed),
        ResourceChange(CONTROLLER, "update", changed=changed),
    ]
    assert not scaling(changes, PLAIN, outputs_of(), {"compute": MEMBERS})


def test_a_plan_tells_the_hosts_by_name_also_where_terraform_sees_no_difference() -> None:
    spec = spec_of("shape: BM.GPU4.8, count: 2, removed_nodes: [compute-1]")
    seen = scaling([], spec, outputs_of(), {"compute": MEMBERS})
    assert seen == Scaling({"compute": PoolScaling(added=("compute-3",), removed=("compute-1",))})
    assert str(seen.pools["compute"]) == "compute-3 to add and compute-1 to remove"
    assert seen.names("added", "removed") == ["compute-1", "compute-3"]


def test_before_the_first_apply_every_node_is_added() -> None:
    assert scaling([ResourceChange(CONTROLLER, "create")], PLAIN, None, {}) == Scaling(
        {"compute": PoolScaling(added=("compute-1", "compute-2"))}
    )


def test_nodes_that_the_operator_has_named_are_replaced_wherever_they_stand() -> None:
    change = ResourceChange(instance("compute", 1), "replace", reason="requested")
    found = scaling([change], spec_of("shape: BM.GPU4.8, count: 2"), outputs_of(), {"compute": MEMBERS}, ["compute-1"])
    assert found.pools == {"compute": PoolScaling(replaced=("compute-1",))}
    assert (found.replacements, "compute-1" in found.staying) == ((), False)
    # Nothing is drained for a node that an interrupted run has taken away already.
    left = {"compute": {"ocid1.b": "compute-2"}}
    found = scaling([], spec_of("shape: BM.GPU4.8, count: 2"), outputs_of(), left, ["compute-1"])
    assert found.pools == {"compute": PoolScaling(added=("compute-1",))}


def test_only_nodes_that_terraform_knows_by_name_have_an_address() -> None:
    assert recreated_addresses(spec_of("shape: BM.GPU4.8, count: 2"), ["compute-1"]) == ()
    elastic = spec_of("shape: BM.GPU4.8, count: 2, max_count: 4")
    assert recreated_addresses(elastic, ["compute-1", "compute-9"]) == (instance("compute", 1),)


def test_a_replaced_node_is_not_reported_as_rebooted_too() -> None:
    change = ResourceChange(instance("compute", 1), "update", changed=(*IMAGE, "shape_config.ocpus"))
    seen = scaling(
        [change, ResourceChange(CONTROLLER, "update", changed=IMAGE)], PLAIN, outputs_of(), {"compute": MEMBERS}
    )
    assert (dict(seen.pools), seen.controller) == ({"compute": PoolScaling(replaced=("compute-1",))}, "replaced")


# --- before a plan is applied -----


def asked_of_slurm(slurm: str) -> list[str]:
    """The commands for Slurm before compute-2 is removed. The controller, which gives no answer, Terraform and the
    cloud are doubles."""
    asked: list[str] = []
    before, _, _ = LOCAL.partition("  compute:\n")
    pool = "  compute: {shape: VM.GPU.A10.1, count: 1}\n"
    spec = loads(f"{before}{pool}slurm: {{enabled: {slurm}}}\n", "cluster.yml")
    members = [{"id": f"ocid1.{number}", "name": f"compute-{number}", "private_ip": "10.0.0.1"} for number in (1, 2)]
    raw = raw_outputs(kind="instances", cluster_network_id=None, instances=members)

    def silent(_host: str | None, command: Sequence[str]) -> list[str]:
        asked.append(command[0])
        return ["false"]

    controller = cast(ControllerConnection, SimpleNamespace(ssh_argv=silent, hosts=lambda: ("controller",)))
    resizing = Resizing(
        spec=spec,
        cloud=cast(CloudProvider, None),
        elastic=lambda: cast(ElasticInstances, SimpleNamespace(instances=lambda: ())),
        controller=controller,
        nodes=Draining(controller, ignore, required=spec.slurm.enabled),
        hosts=cast(HostConnections, None),
        record=cast(ConfigurationRecord, None),
        on_event=ignore,
    )
    plan = TerraformPlan((ResourceChange(instance("compute", 2), "delete"),), Path("plan.tfplan"))
    assert resizing.drain_and_detach(cast(Terraform, SimpleNamespace(outputs=lambda: raw)), plan) == plan
    return asked


def test_without_slurm_nodes_are_removed_without_asking_it() -> None:
    # A Slurm of an earlier cluster.yml that still answers would be drained; none answers here.
    assert all("scontrol" not in command for command in asked_of_slurm("false"))


def test_with_slurm_no_node_is_removed_without_its_answer() -> None:
    with pytest.raises(ToolError, match="Slurm on the controller gives no answer"):
        asked_of_slurm("true")


# --- login nodes -----

LOGIN = 'module.login["demo-login-{}"].oci_core_instance.this'


def login_spec(count: int) -> ClusterSpec:
    return loads(LOCAL.replace("storage:", f"login: {{count: {count}}}\nstorage:"), "cluster.yml")


def with_login(count: int) -> handover.Outputs:
    nodes = tuple(PoolMember(f"ocid1.login{n}", f"demo-login-{n}", f"10.77.0.{n}") for n in range(1, count + 1))
    return dataclasses.replace(outputs_of(), login=nodes)


def test_login_nodes_are_added_and_removed_by_their_number() -> None:
    more = scaling([], login_spec(2), with_login(1), {"compute": MEMBERS})
    assert more.login == PoolScaling(added=("demo-login-2",))
    fewer = scaling([], login_spec(0), with_login(1), {"compute": MEMBERS})
    assert fewer.login == PoolScaling(removed=("demo-login-1",))
    assert not fewer.names("removed")  # nothing of Slurm's is drained
    assert fewer
    assert "demo-login-1" in more.staying
    assert "demo-login-1" not in fewer.staying


@pytest.mark.parametrize(
    "change",
    [
        ResourceChange(LOGIN.format(1), "replace", forced_by=("subnet_id",)),
        ResourceChange(LOGIN.format(1), "update", changed=("source_details.source_id",)),
    ],
)
def test_a_login_node_is_replaced_with_consent_only(change: ResourceChange) -> None:
    found = scaling([change], login_spec(1), with_login(1), {"compute": MEMBERS})
    assert found.login == PoolScaling(replaced=("demo-login-1",))
    assert str(found.replacements[0]).startswith("login node demo-login-1: ")
    assert (found.controller, "demo-login-1" in found.staying) == ("", False)


def test_a_login_node_that_is_rebooted_is_not_the_controller() -> None:
    change = ResourceChange(LOGIN.format(1), "update", changed=("shape_config.ocpus",))
    found = scaling([change], login_spec(1), with_login(1), {"compute": MEMBERS})
    assert (found.login, found.controller) == (PoolScaling(rebooted=("demo-login-1",)), "")
    gone = ResourceChange(LOGIN.format(1), "delete", "delete_because_each_key")
    assert not scaling([gone], login_spec(0), with_login(1), {"compute": MEMBERS}).replacements
