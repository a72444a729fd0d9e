"""The permissions that a cluster needs: the least that is sufficient, depending on its spec."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpucluster.handover import iam
from gpucluster.handover.iam import Policies
from gpucluster.localcloud.auth.policies import matching_rule, statement, tables
from gpucluster.spec import ClusterSpec, loads

HERE = "ocid1.compartment.oc1..hpc"
NETWORK = "ocid1.compartment.oc1..network"
CONTROLLER = "ocid1.instance.oc1.iad.controller"
RESERVATION = "ocid1.capacityreservation.oc1.iad.one"

READS_MAINTENANCE = "{INSTANCE_MAINTENANCE_EVENT_INSPECT}"

BASE: dict[str, Any] = {
    "version": 1,
    "name": "demo",
    "cloud": {"provider": "local"},
    "network": {
        "vcn_cidr": "10.93.0.0/16",
        "public_subnet_cidr": "10.93.0.0/24",
        "private_subnet_cidr": "10.93.1.0/24",
        "ssh_allowed_cidrs": ["127.0.0.0/8"],
    },
    "pools": {"gpu": {"shape": "BM.GPU4.8", "max_count": 4}},
}


def _spec(**changes: Any) -> ClusterSpec:
    """BASE with sections changed key by key; None takes a key away."""
    import yaml

    spec = dict(BASE)
    for section, change in changes.items():
        known = spec.get(section) if section != "pools" else None
        merged = {**known, **change} if isinstance(known, dict) else change
        spec[section] = {key: value for key, value in merged.items() if value is not None}
    return loads(yaml.safe_dump(spec))


def _policies(spec: ClusterSpec, **more: Any) -> Policies:
    return iam.policies(spec, **{"compartment_id": HERE, "controller_id": CONTROLLER, **more})


def _rights(statements: tuple[iam.Statement, ...]) -> list[str]:
    return [one.text.partition(" to ")[2].partition(" in ")[0] for one in statements]


def test_the_rights_of_an_elastic_rdma_pool() -> None:
    wanted = _policies(_spec())
    assert _rights(wanted.controller) == [
        "manage instances", "read instance-configurations", "manage instance-configurations", "read instance-images",
        "use vnics", "inspect vnic-attachments", "use subnets", "use volumes", "manage volume-attachments",
        "inspect work-requests", "manage console-histories", "use compute-clusters", READS_MAINTENANCE,
    ]  # fmt: skip
    assert wanted.controller_tenancy == ()
    assert wanted.dynamic_group == "gpucluster-demo"
    assert wanted.matching_rule == f"instance.id = '{CONTROLLER}'"
    assert all(one.text.startswith("Allow dynamic-group gpucluster-demo to ") for one in wanted.controller)
    assert all(f" in compartment id {HERE}" in one.text for one in wanted.controller)


@pytest.mark.parametrize(
    ("changes", "right", "tenancy"),
    [
        ({"pools": {"gpu": {"shape": "BM.GPU4.8", "max_count": 4}}}, "use compute-clusters", False),
        (
            {"pools": {"gpu": {"shape": "BM.GPU4.8", "max_count": 4, "capacity_reservation_id": RESERVATION}}},
            "use compute-capacity-reservations",
            False,
        ),
        (
            {
                "pools": {
                    "gpu": {
                        "shape": "BM.GPU4.8",
                        "max_count": 4,
                        "image": {"listing": "Oracle Linux GPU", "login_user": "opc"},
                    }
                }
            },
            "read app-catalog-listing",
            True,
        ),
        ({"cloud": {"defined_tags": {"Finance.CostCenter": "gpu"}}}, "use tag-namespaces", True),
    ],
)
def test_a_feature_has_its_right_and_no_other_spec_has_it(changes: dict[str, Any], right: str, tenancy: bool) -> None:
    wanted = _policies(_spec(**changes))
    assert (right in _rights(wanted.controller)) is not tenancy
    assert (right in _rights(wanted.controller_tenancy)) is tenancy
    plain = _policies(
        _spec(pools={"cpu": {"shape": "VM.Standard.E5.Flex", "ocpus": 4, "memory_gb": 32, "max_count": 2}})
    )
    assert right not in _rights(plain.controller) + _rights(plain.controller_tenancy)


def test_who_makes_a_rack_uses_the_fabrics_of_the_tenancy() -> None:
    fabric = "ocid1.computegpumemoryfabric.oc1.iad.exampleuniqueid"
    rack = {"rack": {"shape": "BM.GPU.GB200.4", "count": 18, "memory_fabric_id": fabric}}
    wanted = _policies(_spec(pools=rack))
    own = _rights(wanted.operator)
    assert {"manage compute-gpu-memory-clusters", "manage compute-clusters", "manage instance-configurations"} <= set(
        own
    )
    assert "use compute-gpu-memory-fabrics" in _rights(wanted.operator_tenancy)
    assert wanted.controller == ()
    plain = _policies(_spec(pools={"gpu": {"shape": "BM.GPU4.8", "count": 2}}))
    assert not [right for right in _rights(plain.operator) + _rights(plain.operator_tenancy) if "memory" in right]


def test_a_cluster_without_elastic_pools_reads_maintenance_only_if_it_is_asked_to() -> None:
    still = {"gpu": {"shape": "BM.GPU4.8", "count": 2}}
    plain = _policies(_spec(pools=still))
    assert (plain.controller, plain.created) == ((), False)
    asked = _policies(_spec(pools=still, maintenance={"enabled": True}))
    assert _rights(asked.controller) == [READS_MAINTENANCE]
    assert asked.created
    assert iam.tfvars(asked) is not None
    # The operator makes the dynamic group and the policy.
    assert "manage dynamic-groups" in _rights(asked.operator_tenancy)
    assert "manage policies" in _rights(asked.operator)
    early = _policies(_spec(pools=still, maintenance={"enabled": True, "early": True}))
    assert "INSTANCE_MAINTENANCE_EVENT_UPDATE" in _rights(early.controller)[0]
    assert READS_MAINTENANCE not in _rights(_policies(_spec(maintenance={"enabled": False})).controller)


TAG = "target.resource.tag.Ops.Cluster = 'demo'"


def test_a_standby_that_goes_on_by_itself_may_stop_instances_and_move_what_belongs_to_the_service() -> None:
    still = {"gpu": {"shape": "BM.GPU4.8", "count": 2}}
    pair = {
        "shape": "VM.Standard.E5.Flex", "ocpus": 2, "memory_gb": 16, "state_volume_gb": 50, "standby": True,
    }  # fmt: skip
    plain = _policies(_spec(pools=still, controller=pair, maintenance={"enabled": False}), standby_id="ocid1.two")
    assert (plain.controller, plain.created) == ((), False)
    by_itself = {**pair, "automatic_failover": True}
    asked = _policies(_spec(pools=still, controller=by_itself, maintenance={"enabled": False}), standby_id="ocid1.two")
    assert _rights(asked.controller) == [
        "read instances", "use instances", "manage vcns", "use instances", "use volumes", "manage volume-attachments",
        "inspect vnic-attachments", "use vnics", "use private-ips", "use subnets",
    ]  # fmt: skip
    assert asked.created
    assert asked.matching_rule == f"any {{instance.id = '{CONTROLLER}', instance.id = 'ocid1.two'}}"
    assert sum("INSTANCE_POWER_ACTIONS" in one.text for one in asked.controller) == 1
    assert "INSTANCE_DELETE" not in "".join(one.text for one in asked.controller)
    assert any("may stop every instance" in note for note in asked.notes)
    assert "manage dynamic-groups" in _rights(asked.operator_tenancy)
    tagged = _policies(_spec(pools=still, controller=by_itself, iam={"tag": "Ops.Cluster"}), standby_id="ocid1.two")
    with_tag = [one.text for one in tagged.controller if TAG in one.text]
    assert [_rights((iam.Statement("", text),))[0] for text in with_tag] == ["use instances", "manage vcns"]
    assert not any("may stop every instance" in note for note in tagged.notes)


def test_with_a_tag_rights_end_at_what_carries_it() -> None:
    wanted = _policies(_spec(iam={"tag": "Ops.Cluster"}))
    texts = [one.text for one in wanted.controller]
    tagged = [text for text in texts if TAG in text]
    assert [next(word for word in ("INSTANCE_DELETE", "CONFIGURATION_LAUNCH", "use subnets") if word in one)
            for one in tagged] == ["INSTANCE_DELETE", "CONFIGURATION_LAUNCH", "use subnets"]  # fmt: skip
    [create] = [text for text in texts if "INSTANCE_CREATE" in text]
    assert TAG not in create, "what does not exist has no tag"
    assert "request.operation = 'LaunchInstanceConfiguration'" in create
    assert _rights(wanted.controller_tenancy) == ["use tag-namespaces"]
    assert any("'Ops'" in one.text for one in wanted.operator_tenancy if "tag-namespaces" in one.text)
    assert [one for one in texts if "INSTANCE_READ" in one and TAG in one] == [], "a list names no resource"

    virtual = {"shape": "VM.Standard.E5.Flex", "ocpus": 4, "memory_gb": 32, "max_count": 2, "preemptible": True}
    preemptible = _policies(_spec(iam={"tag": "Ops.Cluster"}, pools={"cpu": virtual}))
    [create] = [one.text for one in preemptible.controller if "INSTANCE_CREATE" in one.text]
    assert "request.operation = 'LaunchInstance'," in create
    assert any("user data of its choice" in note for note in preemptible.notes)
    assert not any("user data of its choice" in note for note in wanted.notes)

    any_launch = _policies(_spec(iam={"tag": "Ops.Cluster", "any_launch": True}))
    assert "request.operation" not in "".join(one.text for one in any_launch.controller)
    assert sum(TAG in one.text for one in any_launch.controller) == 3


def test_a_subnet_that_is_not_ours_needs_no_tag() -> None:
    existing = {"vcn_id": "ocid1.vcn.oc1.iad.v", "private_subnet_id": "ocid1.subnet.oc1.iad.s",
                "public_subnet_id": "ocid1.subnet.oc1.iad.p"}  # fmt: skip
    wanted = _policies(_spec(network=existing, iam={"tag": "Ops.Cluster"}), network_compartment_id=NETWORK)
    [subnets] = [one.text for one in wanted.controller_tenancy if "use subnets" in one.text]
    assert " where " not in subnets


def test_a_cluster_without_elastic_pools_has_no_dynamic_group() -> None:
    wanted = _policies(_spec(pools={"gpu": {"shape": "BM.GPU4.8", "count": 2}}))
    assert (wanted.controller, wanted.controller_tenancy, wanted.created) == ((), (), False)
    assert iam.tfvars(wanted) is None
    assert "manage dynamic-groups" not in _rights(wanted.operator_tenancy)
    assert "the controller needs no permissions" in iam.text(wanted)


def test_what_terraform_is_given() -> None:
    wanted = _policies(_spec(cloud={"defined_tags": {"Finance.CostCenter": "a", "Ops.Owner": "b"}}))
    made = iam.tfvars(wanted)
    assert made is not None
    assert set(made) == {"dynamic_group", "description", "compartment_statements", "tenancy_statements"}
    assert made["dynamic_group"] == "gpucluster-demo"
    assert made["tenancy_statements"] == [
        "Allow dynamic-group gpucluster-demo to use tag-namespaces in tenancy where any "
        "{target.tag-namespace.name = 'Finance', target.tag-namespace.name = 'Ops'}"
    ]
    by_hand = _policies(_spec(iam={"create": False}))
    assert by_hand.controller == _policies(_spec()).controller
    assert iam.tfvars(by_hand) is None
    assert "an administrator creates these by hand" in iam.text(by_hand)


def test_the_root_compartment_is_the_tenancy_and_needs_one_policy() -> None:
    wanted = _policies(
        _spec(cloud={"defined_tags": {"Finance.CostCenter": "a"}}), compartment_id="ocid1.tenancy.oc1..root"
    )
    assert all(" in tenancy" in one.text for one in wanted.controller)
    assert wanted.controller_tenancy == ()


def test_a_group_of_another_identity_domain_is_named_with_it_and_not_created() -> None:
    wanted = _policies(_spec(iam={"identity_domain": "Research"}))
    assert wanted.controller[0].text.startswith("Allow dynamic-group 'Research'/'gpucluster-demo' to ")
    assert not wanted.created
    assert "Research is not the default one" in iam.text(wanted)
    assert _policies(_spec(iam={"identity_domain": "Default"})).created


def test_a_network_in_another_compartment_has_its_rights_there() -> None:
    wanted = _policies(_spec(), network_compartment_id=NETWORK)
    there = f" in compartment id {NETWORK}"
    assert [one.text for one in wanted.controller_tenancy] == [
        f"Allow dynamic-group gpucluster-demo to use vnics{there}",
        f"Allow dynamic-group gpucluster-demo to use subnets{there}",
    ]
    assert "use subnets" not in _rights(wanted.controller)
    assert "use vnics" in _rights(wanted.controller)


ELASTIC = "ocid1.compartment.oc1..elastic"


def test_with_a_compartment_of_elastic_nodes_the_controller_launches_and_ends_only_there() -> None:
    """What is created has no OCID yet: the policy of its parent names it, and what holds there holds in it, too."""
    made = _policies(_spec(iam={"elastic_compartment": "create"}))
    own, there = f" in compartment id {HERE}", " in compartment gpucluster-demo"
    assert made.controller_tenancy == ()
    assert [one.partition(" where ")[0] for one in (each.text for each in made.controller) if own in one] == [
        f"Allow dynamic-group gpucluster-demo to {right}{own}"
        for right in ("read instance-images", "use vnics", "use subnets", READS_MAINTENANCE)
    ]
    others = [one.text for one in made.controller if own not in one.text]
    assert all(there in one for one in others)
    assert any("INSTANCE_DELETE" in one for one in others)
    assert "manage compartments" in _rights(made.operator)
    assert not [one for one in (*made.operator, *made.operator_tenancy) if there in one.text]

    given = _policies(_spec(iam={"elastic_compartment": ELASTIC}))
    ended = [one.text for one in given.controller_tenancy if "INSTANCE_DELETE" in one.text]
    assert ended
    assert all(f" in compartment id {ELASTIC}" in one for one in ended)
    assert "INSTANCE_DELETE" not in str(given.controller)
    assert "manage compartments" not in _rights(given.operator) + _rights(given.operator_tenancy)
    assert {"manage instances", "manage instance-configurations", "manage compute-clusters"} <= set(
        _rights(tuple(one for one in given.operator_tenancy if ELASTIC in one.text))
    )
    assert "manage policies" in _rights(given.operator_tenancy)


@pytest.mark.parametrize(
    ("changes", "there", "not_there"),
    [
        ({}, ["manage vcns", "manage file-systems", "manage instance-images"], ["manage cluster-networks"]),
        (
            {"pools": {"gpu": {"shape": "BM.GPU4.8", "count": 2}}},
            ["manage cluster-networks", "manage instance-pools", "read instance-images"],
            ["manage policies", "manage compute-clusters", "manage instance-images"],
        ),
        (
            {"network": {"access": "bastion", "public_subnet_cidr": None}},
            ["manage bastion", "manage bastion-session"],
            [],
        ),
        (
            {"storage": {"home": {"server": "10.93.1.20"}}},
            [],
            ["manage file-systems", "manage mount-targets", "manage bastion"],
        ),
        (
            {
                "storage": {
                    "home": {"server": "10.93.1.20"},
                    "shares": {"data": {"mount_path": "/mnt/data", "mount_target": "own"}},
                }
            },
            ["manage file-systems", "manage mount-targets", "manage export-sets"],
            [],
        ),
        ({"iam": {"create": False}}, [], ["manage policies", "manage dynamic-groups"]),
    ],
)
def test_what_an_operator_needs(changes: dict[str, Any], there: list[str], not_there: list[str]) -> None:
    wanted = _policies(_spec(**changes))
    found = _rights(wanted.operator) + _rights(wanted.operator_tenancy)
    assert not set(there) - set(found)
    assert not set(not_there) & set(found)
    assert {"inspect compartments", "inspect limits"} <= set(_rights(wanted.operator_tenancy))


def test_a_report_of_a_bad_host_needs_its_tag_namespace_alone() -> None:
    wanted = _policies(_spec())
    [text] = [one.text for one in wanted.operator_tenancy if "tag-namespaces" in one.text]
    assert text.endswith(" in tenancy where target.tag-namespace.name = 'ComputeInstanceHostActions'")
    assert not [one for one in (*wanted.controller, *wanted.controller_tenancy) if "tag-namespaces" in one.text]


def test_the_controller_may_change_tags_of_its_nodes_only_where_it_reports_hosts() -> None:
    def texts(**changes: Any) -> list[str]:
        wanted = _policies(_spec(**changes))
        return [one.text for one in (*wanted.controller, *wanted.controller_tenancy)]

    reports = {"checks": {"report_hosts": True}}
    update, namespace = [text for text in texts(**reports) if text not in texts()]
    assert update.endswith(f" to use instances in compartment id {HERE} where request.permission = 'INSTANCE_UPDATE'")
    assert namespace.endswith(" in tenancy where target.tag-namespace.name = 'ComputeInstanceHostActions'")
    tagged = texts(**reports, iam={"tag": "Finance.Cluster"})
    assert any("INSTANCE_UPDATE" in text and "target.resource.tag.Finance.Cluster = 'demo'" in text for text in tagged)


EVERYTHING = {
    "cloud": {"defined_tags": {"Finance.CostCenter": "gpu"}},
    "pools": {
        "gpu": {
            "shape": "BM.GPU4.8",
            "count": 1,
            "max_count": 4,
            "capacity_reservation_id": RESERVATION,
            "image": {"listing": "Oracle Linux GPU", "login_user": "opc"},
        },
        "fixed": {"shape": "BM.GPU4.8", "count": 2, "capacity_reservation_id": RESERVATION},
    },
}


@pytest.mark.parametrize("spec", [_spec(), _spec(**EVERYTHING)], ids=["plain", "everything"])
def test_all_statements_are_of_the_language_and_none_is_broad(spec: ClusterSpec) -> None:
    wanted = _policies(spec)
    every = (*wanted.controller, *wanted.controller_tenancy, *wanted.operator, *wanted.operator_tenancy)
    families = {name for name in tables().types if name.endswith("-family")} | {"all-resources"}
    for one in every:
        assert statement(one.text).place in (HERE, "tenancy")
        assert one.text.partition(" to ")[2].split()[1] not in families
        assert one.feature
    for one in (*wanted.controller, *wanted.controller_tenancy):
        # Who manages gets no more than what is named.
        assert " manage " not in one.text or "request.permission" in one.text
    assert len({one.text for one in every}) == len(every)
    assert len(wanted.controller) <= 50 >= len(wanted.operator), "OCI's limit of statements in a policy"
    assert matching_rule(wanted.matching_rule).holds({"instance.id": CONTROLLER})


def test_the_text_can_be_copied_and_states_where_to_find_the_controller() -> None:
    wanted = _policies(_spec(), controller_id=None)
    lines = iam.text(wanted).splitlines()
    assert f"instance.id = '{iam.CONTROLLER}'" in lines
    assert any("cluster.controller.id" in line for line in lines)
    copied = [line for line in lines if line and not line.startswith("#") and not line.startswith("instance.id")]
    assert copied == [one.text for one in (*wanted.controller, *wanted.operator, *wanted.operator_tenancy)]
    assert "cluster.controller.id" not in iam.text(_policies(_spec()))
    assert wanted.to_dict()["controller"]["compartment"][0] == {
        "feature": "elastic nodes: launch, list, terminate",
        "statement": wanted.controller[0].text,
    }


def test_the_text_as_a_whole() -> None:
    """What an administrator reads of the smallest elastic cluster."""
    text = iam.text(_policies(_spec(pools={"cpu": {
        "shape": "VM.Standard.E5.Flex", "ocpus": 4, "memory_gb": 32, "max_count": 2}})))  # fmt: skip
    head = re.sub(r" where .*", "", text.partition("# --- for the users")[0])
    assert (
        head
        == f"""\
# Permissions for the cluster demo, compartment {HERE}

# --- for the controller: Terraform creates these ---
# Dynamic group gpucluster-demo, identity domain Default, matching rule:
instance.id = '{CONTROLLER}'

# Policy gpucluster-demo in the cluster's compartment
# elastic nodes: launch, list, terminate
Allow dynamic-group gpucluster-demo to manage instances in compartment id {HERE}
Allow dynamic-group gpucluster-demo to read instance-configurations in compartment id {HERE}
Allow dynamic-group gpucluster-demo to manage instance-configurations in compartment id {HERE}
Allow dynamic-group gpucluster-demo to read instance-images in compartment id {HERE}
# their network interfaces
Allow dynamic-group gpucluster-demo to use vnics in compartment id {HERE}
Allow dynamic-group gpucluster-demo to inspect vnic-attachments in compartment id {HERE}
Allow dynamic-group gpucluster-demo to use subnets in compartment id {HERE}
# terminating a node with volumes
Allow dynamic-group gpucluster-demo to use volumes in compartment id {HERE}
Allow dynamic-group gpucluster-demo to manage volume-attachments in compartment id {HERE}
# the reason of a failed launch
Allow dynamic-group gpucluster-demo to inspect work-requests in compartment id {HERE}
# the console of a node that does not join
Allow dynamic-group gpucluster-demo to manage console-histories in compartment id {HERE}
# maintenance that Oracle announces
Allow dynamic-group gpucluster-demo to {READS_MAINTENANCE} in compartment id {HERE}

"""
    )


def test_who_creates_the_policies_by_hand_is_told_that_the_compartment_comes_first() -> None:
    by_hand = _policies(_spec(iam={"elastic_compartment": "create", "create": False}))
    assert any("first apply creates the compartment gpucluster-demo" in note for note in by_hand.notes)
    assert not any("first apply" in note for note in _policies(_spec(iam={"elastic_compartment": "create"})).notes)


def test_the_standby_has_the_permissions_of_the_controller_before_it_is_in_service() -> None:
    controller = _spec().controller.model_copy(update={"standby": True, "state_volume_gb": 50})
    spec = _spec().model_copy(update={"controller": controller})
    wanted = _policies(spec)
    assert wanted.matching_rule == f"any {{instance.id = '{CONTROLLER}', instance.id = '{iam.STANDBY}'}}"
    assert matching_rule(wanted.matching_rule).holds({"instance.id": iam.STANDBY})
    assert "cluster.standby.id" in iam.text(wanted)


def _run_by(method: str, **cloud: Any) -> Policies:
    own = {
        "provider": "oci", "region": "us-ashburn-1", "compartment_id": "ocid1.compartment.oc1..aaaa", "auth": method,
        **cloud,
    }  # fmt: skip
    image = {"operating_system": "Canonical Ubuntu", "version": "24.04"}
    pools = {"gpu": {"shape": "BM.GPU4.8", "max_count": 4, "image": image}}
    ssh = {"public_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ6ZV4eyU6tDMTYiNqE1gCSHEq7VZN8rGCJ0dvb4xGDV me"]}
    return _policies(_spec(cloud=own, pools=pools, ssh=ssh, controller={"image": image}))


def test_runners_get_the_statements_of_the_operator() -> None:
    users = _run_by("profile")
    assert users.runner_rule == ""
    assert "Replace OPERATORS" in iam.text(users)
    rules = {
        "instance_principal": "instance.id = 'OCID_OF_THE_RUNNER'",
        "resource_principal": f"all {{resource.type = 'devopsbuildpipeline', resource.compartment.id = '{HERE}'}}",
    }
    for method, rule in rules.items():
        runners = _run_by(method)
        assert runners.runner_rule == rule
        assert rule in iam.text(runners)
        assert [one.text.replace("dynamic-group RUNNERS", "group OPERATORS") for one in runners.operator] == [
            one.text for one in users.operator
        ]
        for one in (*runners.operator, *runners.operator_tenancy):
            statement(one.text)


def test_a_pod_gets_each_statement_for_itself_alone() -> None:
    pod = _run_by("workload_identity")
    assert "the runner's pod in OKE" in iam.text(pod)
    own = [one.text for one in (*pod.operator, *pod.operator_tenancy) if "service compute_management" not in one.text]
    for text in own:
        assert text.startswith("Allow any-user to ")
        condition = text.partition(" where ")[2]
        assert "request.principal.type = 'workload'" in condition
        assert "request.principal.service_account = 'SERVICE_ACCOUNT'" in condition
    assert len(own) == len(_run_by("profile").operator) + len(_run_by("profile").operator_tenancy)
