"""The rights that the product generates, compared with the requests that the autoscaler sends.

Real: the autoscaler's `OciCloud` with Oracle's SDK, signed requests, and the local cloud's API, which enforces the
statements for the controller's instance by the tables of Oracle's documentation (permissions.toml). What it can't show
is where OCI differs from its documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import oci
import pytest
from oci.core import models

from gpucluster.autoscaler.daemon import oci as daemon_oci
from gpucluster.autoscaler.daemon.oci import OciCloud, RequestFailed
from gpucluster.autoscaler.decide.types import Fault
from gpucluster.autoscaler.policy import Authentication
from gpucluster.handover import iam
from gpucluster.oci import permissions
from gpucluster.oci.tags import HOST_ACTIONS, HOST_STATUS, UNHEALTHY
from gpucluster.spec import ClusterSpec, loads
from tests.autoscaler.cloud_harness import CLUSTER, Site
from tests.localcloud.api_harness import GPU_SHAPE, Api, make_host_namespace, refused, running
from tests.localcloud.entitled import CLUSTER as TEXT
from tests.localcloud.entitled import Entitled, elastic_cluster
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

LISTING = "Oracle Linux GPU Cluster Networking"
# With all that needs a right of its own: RDMA, a Marketplace listing, a capacity reservation, tags of a namespace.
SPEC = loads(
    TEXT.format(name=CLUSTER, shape=GPU_SHAPE).replace(
        "{provider: local}", "{provider: local, defined_tags: {Finance.CostCenter: gpu}}"
    )
    + f"""\
    image: {{listing: {LISTING}, login_user: opc}}
    capacity_reservation_id: ocid1.capacityreservation.oc1.iad.one
"""
)


# The value of the second: the cluster's name.
TAGS = {"Finance": {"CostCenter": "gpu", "Cluster": CLUSTER}}
REPORTING = SPEC.model_copy(update={"checks": SPEC.checks.model_copy(update={"report_hosts": True})})
NARROW = SPEC.model_copy(update={"iam": SPEC.iam.model_copy(update={"tag": "Finance.Cluster"})})


class Play:
    """A cluster in a compartment of its own, in a network of another one, whose controller asks the API."""

    def __init__(self, api: Api, folder: Path) -> None:
        self.api = api
        self.compartment, self.network = (self._compartment(name) for name in ("hpc", "network"))
        source = models.InstanceConfigurationInstanceSourceViaImageDetails(image_id=self._subscribed_image())
        self.site = Site(
            api,
            compartment=self.compartment,
            network=self.network,
            defined_tags=TAGS,
            capacity_reservation_id=self._reservation(),
            source_details=source,
        )
        self._tag()
        self.controller_id = api.launch(self.site.subnet, "controller", compartment_id=self.compartment).id
        self.controller = Entitled(api, self.controller_id, folder / "config", name=CLUSTER).in_group()
        self.site.policy = replace(
            self.site.policy,
            authentication=Authentication("api_key", config_file=str(self.controller.config), endpoint=api.endpoint),
        )
        self.statements = self.statements_for(SPEC)
        self._number = 0
        # An instance that came to nothing after it had been accepted has a work request with an error.
        self.controller.allow(self.statements)
        self.site.faults({"operation": "BootInstance", "message": "Out of host capacity."})
        self.failed, _ = self.launch()
        api.wait(api.compute.get_instance, self.failed, "TERMINATED")
        self.site.faults()
        self.node, _ = self.launch()
        api.wait(api.compute.get_instance, self.node, "RUNNING")

    def _tag(self) -> None:
        """As Terraform does with `iam.tag`."""
        api, of_cluster = self.api, {"Finance": {"Cluster": CLUSTER}}
        api.network.update_subnet(self.site.subnet.id, models.UpdateSubnetDetails(defined_tags=of_cluster))
        api.management.update_instance_configuration(
            self.site.configuration.id, models.UpdateInstanceConfigurationDetails(defined_tags=of_cluster)
        )

    def statements_for(self, spec: ClusterSpec) -> tuple[str, ...]:
        """What gpucluster generates. Both policies in one, of the tenancy: the statements mean the same."""
        wanted = iam.policies(
            spec,
            compartment_id=self.compartment,
            controller_id=self.controller_id,
            network_compartment_id=self.network,
        )
        return tuple(one.text for one in (*wanted.controller, *wanted.controller_tenancy))

    def _compartment(self, name: str) -> str:
        details = oci.identity.models.CreateCompartmentDetails(
            compartment_id=self.api.tenancy, name=name, description="of a test"
        )
        return str(self.api.identity.create_compartment(details).data.id)

    def _subscribed_image(self) -> str:
        """An image of a listing for NVIDIA's shapes, which the compartment may use. The newest one is for AMD's."""
        compute = self.api.compute
        listing = compute.list_app_catalog_listings().data[0].listing_id
        versions = compute.list_app_catalog_listing_resource_versions(listing).data
        version = next(one for one in versions if "-AMD-" not in one.listing_resource_version)
        read = compute.get_app_catalog_listing_agreements(listing, version.listing_resource_version).data
        names = ("listing_id", "listing_resource_version", "eula_link", "oracle_terms_of_use_link", "signature",
                 "time_retrieved")  # fmt: skip
        agreed = {name: getattr(read, name) for name in names}
        compute.create_app_catalog_subscription(
            models.CreateAppCatalogSubscriptionDetails(compartment_id=self.compartment, **agreed)
        )
        return str(version.listing_resource_id)

    def _reservation(self) -> str:
        config = models.InstanceReservationConfigDetails(instance_shape=GPU_SHAPE, reserved_count=100)
        details = models.CreateComputeCapacityReservationDetails(
            compartment_id=self.compartment,
            availability_domain=self.api.domain,
            instance_reservation_configs=[config],
        )
        return str(self.api.compute.create_compute_capacity_reservation(details).data.id)

    def launch(self) -> tuple[str, str]:
        """Launch as the autoscaler does; a fresh `OciCloud` reads the configuration again."""
        self._number += 1
        node = f"compute-e{self._number}"
        return self.site.cloud().launch("compute", node, 1, f"token-{self._number}")

    def spare(self) -> str:
        """A node that the operator launched; it is to be ended."""
        self._number += 1
        tags = {"gpucluster": CLUSTER, "node": f"compute-e{self._number}"}
        details = self.api.launch_details(
            self.site.subnet, tags["node"], compartment_id=self.compartment, freeform_tags=tags, defined_tags=TAGS
        )
        return str(self.api.compute.launch_instance(details).data.id)

    def refusals(self) -> dict[str, RequestFailed]:
        """Everything that the autoscaler asks for; what was refused, by the operation."""
        cloud, found = self.site.cloud(), {}
        cloud._sleep = lambda _seconds: None
        calls: Mapping[str, Callable[[], Any]] = {
            "list": cloud.instances,
            "launch": self.launch,
            "address": lambda: cloud.address(self.node),
            "cause": lambda: cloud.cause(self.failed),
            "console": lambda: cloud.console(self.node),
            "maintenance": lambda: cloud.maintenance_events(self.compartment),
            "terminate": lambda: cloud.terminate(self.spare()),
        }
        for name, call in calls.items():
            try:
                answer = call()
            except RequestFailed as refusal:
                found[refusal.operation] = refusal
            else:
                # Without the right to read, an instance counts as gone; a caller that terminates has listed it before.
                assert answer or name in ("console", "maintenance") or "list_instances" in found, name
        return found


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    folder = tmp_path_factory.mktemp("enforced")
    with running(folder / "cloud") as api, pytest.MonkeyPatch.context() as patient:
        # The daemon repeats a request that had no answer in time; here each refusal is looked at.
        patient.setattr(daemon_oci, "TIMEOUT", (PATIENCE_S, PATIENCE_S))
        yield Play(api, folder)


@pytest.fixture(autouse=True)
def _all_rights(play: Play) -> None:
    play.controller.allow(play.statements)


def test_the_autoscaler_works_with_exactly_these_rights(play: Play) -> None:
    asked: list[tuple[str, str]] = []
    cloud = play.site.cloud(on_request=lambda *one: asked.append(one))
    assert play.refusals() == {}
    assert {one.id for one in cloud.instances([play.failed])} >= {play.node, play.failed}
    assert cloud.address(play.node).startswith("10.77.")
    assert cloud.cause(play.failed) == (Fault.CAPACITY, "InternalError: Out of host capacity.")
    cloud.console(play.node)
    made, _ = cloud.launch("compute", "compute-e900", 1, "token-900")
    tags = play.api.compute.get_instance(made).data.defined_tags
    assert tags == TAGS
    assert cloud.terminate(made)
    # Nothing is asked that the table does not have, and the table has nothing that is not asked. Reports of physical
    # hosts and preemptible pools have tests of their own.
    assert {operation for operation, _ in asked} == set(permissions.NEEDED) - {"update_instance", "launch_instance"}


def test_each_statement_is_needed_and_its_absence_is_told(play: Play) -> None:
    for statement in play.statements:
        play.controller.allow([one for one in play.statements if one != statement])
        refusals = play.refusals()
        right = statement.partition(" to ")[2].partition(" in ")[0]
        assert refusals, f"nothing needs: {statement}"
        for operation, refusal in refusals.items():
            assert (refusal.status, refusal.code) == (404, "NotAuthorizedOrNotFound"), refusal
            said = str(refusal)
            assert said.startswith(f"{operation}: ")
            assert f"`{right}`" in said, f"{operation} does not say that it needs {right}"
            assert "gpucluster policies" in said
            assert f"gpucluster-{CLUSTER}" in said


def test_a_permission_less_is_too_little_and_a_condition_lets_no_other_through(play: Play) -> None:
    """Narrowed rights name no permission too many."""
    narrowed = [one for one in play.statements if "request.permission" in one]
    assert narrowed
    for statement in narrowed:
        body, _, condition = statement.partition(" where ")
        parts = [part for part in condition.split("'") if part.isupper()]
        for dropped in parts if len(parts) > 1 else ():
            tests = ", ".join(f"request.permission = '{one}'" for one in parts if one != dropped)
            rest = [one for one in play.statements if one != statement]
            play.controller.allow([*rest, f"{body} where any {{{tests}}}"])
            assert play.refusals(), f"nothing needs {dropped}"


def test_a_report_of_a_host_needs_two_more_statements(play: Play) -> None:
    make_host_namespace(play.api)
    statements = play.statements_for(REPORTING)
    added = [statement for statement in statements if statement not in play.statements]
    assert len(added) == 2
    for missing in added:
        play.controller.allow([statement for statement in statements if statement != missing])
        node = play.spare()
        with pytest.raises(RequestFailed, match="update_instance") as refusal:
            play.site.cloud().report_host(node)
        assert missing.partition(" to ")[2].partition(" in ")[0] in str(refusal.value)
        assert "gpucluster policies" in str(refusal.value)
        assert play.api.compute.get_instance(node).data.defined_tags == TAGS
    play.controller.allow(statements)
    assert play.site.cloud().report_host(node)
    present = play.api.compute.get_instance(node).data.defined_tags
    assert present == {**TAGS, HOST_ACTIONS: {HOST_STATUS: UNHEALTHY}}


def test_nothing_else_is_permitted(play: Play) -> None:
    api, own = play.api, play.controller
    elsewhere = api.launch(play.site.subnet, "other-controller").id  # of another cluster, in the root compartment
    vcn = play.site.subnet.vcn_id
    change = models.UpdateInstanceDetails(display_name="mine")
    launch = api.launch_details(play.site.subnet, "foreign")
    calls: tuple[Callable[[], Any], ...] = (
        lambda: own.network.delete_vcn(vcn),
        lambda: own.network.delete_subnet(play.site.subnet.id),
        lambda: own.network.list_vcns(play.network),
        lambda: own.compute.terminate_instance(elsewhere),
        lambda: own.compute.get_instance(elsewhere),
        lambda: own.compute.list_instances(api.tenancy),
        lambda: own.compute.launch_instance(launch),
        lambda: own.compute.update_instance(play.node, change),
        lambda: own.compute.instance_action(play.node, "STOP"),
        lambda: own.compute.capture_console_history(models.CaptureConsoleHistoryDetails(instance_id=elsewhere)),
        lambda: own.compute.delete_compute_cluster(play.site.compute_cluster.id),
        lambda: own.management.delete_instance_configuration(play.site.configuration.id),
        lambda: own.management.list_instance_pools(play.compartment),
        lambda: own.identity.list_policies(api.tenancy),
        lambda: own.identity.list_dynamic_groups(api.tenancy),
        lambda: own.identity.delete_dynamic_group(own.group.id),
    )
    for forbidden in calls:
        with refused(404, "NotAuthorizedOrNotFound"):
            forbidden()
    assert api.compute.get_instance(elsewhere).data.lifecycle_state == "RUNNING"
    assert api.compute.get_instance(play.node).data.display_name.startswith("compute-e")


# --- with the tag of the cluster: what an attacker with the controller's identity may do in its compartment -----


class Attacks:
    """What belongs to others, in the same compartment, and requests with the controller's identity."""

    def __init__(self, play: Play) -> None:
        self._play, api = play, play.api
        vcn = api.network.get_vcn(play.site.subnet.vcn_id).data
        self._beside = api.subnet(vcn, "10.77.64.0/24", compartment_id=play.network, dns_label="beside")
        self._configuration = api.configuration(
            compartment_id=play.compartment, create_vnic_details=self._vnic(play.site.subnet.id)
        ).id

    def end_a_stranger(self) -> None:
        details = {"compartment_id": self._play.compartment}
        stranger = self._play.api.launch(self._play.site.subnet, f"stranger-{uuid4().hex[:8]}", **details).id
        self._play.controller.compute.terminate_instance(stranger)

    def launch_with_own_user_data(self) -> None:
        details = self._play.api.launch_details(
            self._play.site.subnet,
            "mine",
            compartment_id=self._play.compartment,
            metadata={"user_data": "IyEvYmluL3No"},
        )
        self._play.controller.compute.launch_instance(details)

    def launch_from_a_strangers_configuration(self) -> None:
        self._launch(self._configuration, self._play.site.subnet.id)

    def launch_into_a_strangers_subnet(self) -> None:
        self._launch(self._play.site.configuration.id, self._beside.id)

    def _launch(self, configuration: str, subnet: str) -> None:
        details = models.InstanceConfigurationLaunchInstanceDetails(create_vnic_details=self._vnic(subnet))
        self._play.controller.management.launch_instance_configuration(
            configuration, models.ComputeInstanceDetails(launch_details=details)
        )

    @staticmethod
    def _vnic(subnet: str) -> models.InstanceConfigurationCreateVnicDetails:
        return models.InstanceConfigurationCreateVnicDetails(assign_public_ip=False, subnet_id=subnet)

    def successful(self) -> set[str]:
        """The names of the attacks that are permitted."""
        attacks = (self.end_a_stranger, self.launch_with_own_user_data, self.launch_from_a_strangers_configuration,
                   self.launch_into_a_strangers_subnet)  # fmt: skip
        return {attack.__name__ for attack in attacks if self._is_permitted(attack)}

    @staticmethod
    def _is_permitted(attack: Callable[[], None]) -> bool:
        try:
            attack()
        except oci.exceptions.ServiceError as error:
            if error.code != "NotAuthorizedOrNotFound":
                raise
            return False
        return True


_TAG = f"target.resource.tag.Finance.Cluster = '{CLUSTER}'"
# The part of a statement, and the attack that only this part prevents.
CONDITIONS = (
    (f", {_TAG}", "'INSTANCE_DELETE'", "end_a_stranger"),
    (
        ", any {request.operation = 'LaunchInstanceConfiguration', request.operation = 'ListWorkRequestErrors'}",
        "'INSTANCE_CREATE'",
        "launch_with_own_user_data",
    ),
    (f", {_TAG}", "'INSTANCE_CONFIGURATION_LAUNCH'", "launch_from_a_strangers_configuration"),
    (f" where {_TAG}", " use subnets ", "launch_into_a_strangers_subnet"),
)


def test_with_the_clusters_tag_the_controller_reaches_only_what_is_the_clusters(play: Play) -> None:
    attacks, narrow = Attacks(play), play.statements_for(NARROW)
    play.controller.allow(narrow)
    assert play.refusals() == {}, "what the autoscaler needs is permitted"
    assert attacks.successful() == set()
    for part, statement, attack in CONDITIONS:
        opened = [one.replace(part, "") if statement in one else one for one in narrow]
        assert len(set(opened) - set(narrow)) == 1
        play.controller.allow(opened)
        assert attacks.successful() == {attack}, f"without{part}"


def test_a_preemptible_pool_has_one_operation_more(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cloud then refuses the shape, which is bare metal here, and not the request."""
    pools = {name: pool.model_copy(update={"preemptible": True}) for name, pool in NARROW.pools.items()}
    policy = play.site.policy
    changed = {name: replace(pool, preemptible=True) for name, pool in policy.pools.items()}
    monkeypatch.setattr(play.site, "policy", replace(policy, pools=changed))
    play.controller.allow(play.statements_for(NARROW.model_copy(update={"pools": pools})))
    with pytest.raises(RequestFailed, match="Invalid Preemptible instance shape") as refusal:
        play.launch()
    assert refusal.value.kind is Fault.CONFIGURATION
    play.controller.allow(play.statements_for(NARROW))
    with pytest.raises(RequestFailed, match="NotAuthorizedOrNotFound"):
        play.launch()


def test_a_node_has_none_of_the_controllers_rights(play: Play, tmp_path: Path) -> None:
    node = Entitled(play.api, play.node, tmp_path / "config")
    with refused(404, "NotAuthorizedOrNotFound"):
        node.compute.list_instances(play.compartment)


def test_rights_that_come_late_are_waited_for(play: Play) -> None:
    play.controller.allow([])
    cloud = play.site.cloud()
    with pytest.raises(RequestFailed, match="gpucluster policies"):
        cloud.instances()
    # The listing is let through first: a launch that is not, just then, is not a reason to hold a job for ever.
    play.controller.allow([one for one in play.statements if " to use subnets " not in one])
    assert cloud.instances()
    with pytest.raises(RequestFailed) as caught:
        cloud.launch("compute", "compute-e901", 1, "token-901")
    assert caught.value.kind is Fault.TRANSIENT
    play.controller.allow(play.statements)
    made, _ = cloud.launch("compute", "compute-e901", 1, "token-901")
    assert cloud.terminate(made)
    # If listing was allowed from the start, the refusal is final.
    play.controller.allow([one for one in play.statements if " to use subnets " not in one])
    with pytest.raises(RequestFailed) as caught:
        play.launch()
    assert caught.value.kind is Fault.CONFIGURATION


def test_a_node_that_may_not_be_ended_is_not_taken_for_gone(play: Play) -> None:
    play.controller.allow([one for one in play.statements if " to use volumes " not in one])
    with pytest.raises(RequestFailed, match=r"terminate_instance: .*`use volumes`"):
        play.site.cloud().terminate(play.node)
    assert play.site.cloud().terminate("ocid1.instance.local..gone") is False


def test_a_key_that_is_not_believed_reports_what_to_do(play: Play, tmp_path: Path) -> None:
    text = play.controller.config.read_text().replace(f"user = {play.controller_id}", f"user = {play.node}")
    config = tmp_path / "config"
    config.write_text(text)
    authentication = replace(play.site.policy.authentication, config_file=str(config))
    with pytest.raises(RequestFailed, match="Run gpucluster apply"):
        OciCloud(replace(play.site.policy, authentication=authentication)).instances()


# --- with a compartment of elastic nodes alone -----


def _in_child(api: Api, name: str, parent: str) -> str:
    details = oci.identity.models.CreateCompartmentDetails(compartment_id=parent, name=name, description="of a test")
    return str(api.identity.create_compartment(details).data.id)


@pytest.mark.parametrize("created", [True, False], ids=["created", "given"])
def test_in_a_compartment_of_its_own_the_controller_ends_nothing_but_elastic_nodes(
    play: Play, tmp_path: Path, created: bool
) -> None:
    api, name = play.api, f"own-{'made' if created else 'given'}"
    parent = _in_child(api, f"cluster-{name}", api.tenancy)
    place = _in_child(api, f"gpucluster-{name}", parent if created else api.tenancy)
    site = Site(api, compartment=place, network=parent)
    stranger = api.launch(site.subnet, "stranger", compartment_id=parent).id
    controller_id = api.launch(site.subnet, "controller", compartment_id=parent).id
    controller = Entitled(api, controller_id, tmp_path / "config", name=name, compartment=parent if created else "")
    controller.in_group()

    def statements(elastic_compartment: str | None) -> tuple[str, ...]:
        plain = elastic_cluster(name)
        spec = plain.model_copy(
            update={"iam": plain.iam.model_copy(update={"elastic_compartment": elastic_compartment})}
        )
        wanted = iam.policies(spec, compartment_id=parent, controller_id=controller_id)
        assert not (created and wanted.controller_tenancy)
        return tuple(one.text for one in (*wanted.controller, *wanted.controller_tenancy))

    controller.allow(statements("create" if created else place))
    access = Authentication("api_key", config_file=str(controller.config), endpoint=api.endpoint)
    cloud = OciCloud(replace(site.policy, authentication=access))
    made, _ = cloud.launch("compute", "compute-e1", 1, f"token-{name}")
    assert api.compute.get_instance(made).data.compartment_id == place
    api.wait(api.compute.get_instance, made, "RUNNING")
    assert [one.node for one in cloud.instances()] == ["compute-e1"]
    assert cloud.address(made).startswith("10.77.")

    elsewhere = models.InstanceConfigurationLaunchInstanceDetails(compartment_id=parent, compute_cluster_id="")
    attacks: tuple[Callable[[], Any], ...] = (
        lambda: controller.compute.terminate_instance(stranger),
        lambda: controller.compute.terminate_instance(controller_id),
        lambda: controller.compute.list_instances(parent),
        lambda: controller.compute.launch_instance(api.launch_details(site.subnet, "mine", compartment_id=parent)),
        lambda: controller.management.launch_instance_configuration(
            site.configuration.id, models.ComputeInstanceDetails(launch_details=elsewhere)
        ),
    )
    for attack in attacks:
        with refused(404, "NotAuthorizedOrNotFound"):
            attack()
    assert cloud.terminate(made)

    # The same attack with the permissions of a cluster whose elastic nodes are in its own compartment.
    controller.allow(statements(None))
    attacks[0]()
    assert api.compute.get_instance(stranger).data.lifecycle_state in ("TERMINATING", "TERMINATED")
