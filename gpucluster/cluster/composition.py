"""Puts the parts of the package together for one cluster: `compose`.

The parts are in four groups. A part gets what it needs from `compose` by name, and no group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpucluster import __version__, handover
from gpucluster.cloud.providers import CloudProvider, open_cloud
from gpucluster.cluster.clients import CloudClients, Programs
from gpucluster.events import Sink, one_at_a_time
from gpucluster.lifecycle import price_list
from gpucluster.lifecycle.adoption import Adoption
from gpucluster.lifecycle.automatic_failover import AutomaticFailover
from gpucluster.lifecycle.bake import Baking
from gpucluster.lifecycle.build import Building
from gpucluster.lifecycle.cluster_runs import ClusterRuns
from gpucluster.lifecycle.configure import Configuration
from gpucluster.lifecycle.data_guard import DataGuard, ShareLook
from gpucluster.lifecycle.downloads import Downloads
from gpucluster.lifecycle.drift import DriftDetection
from gpucluster.lifecycle.elastic_teardown import ElasticTeardown
from gpucluster.lifecycle.failover import Failover
from gpucluster.lifecycle.host_reports import HostReporting
from gpucluster.lifecycle.hosts import HostConnections, HostSources
from gpucluster.lifecycle.locate import HostLocator
from gpucluster.lifecycle.ownership import Ownership, origin
from gpucluster.lifecycle.plan import Planning
from gpucluster.lifecycle.provision import Provisioning
from gpucluster.lifecycle.repair import Repair
from gpucluster.lifecycle.replace import ElasticReplacement, OnKubernetes, OnSlurm
from gpucluster.lifecycle.resize import Resizing
from gpucluster.lifecycle.returned_hosts import ReturnedHosts
from gpucluster.lifecycle.rollout import Rollouts
from gpucluster.lifecycle.run_lock import RunLock
from gpucluster.lifecycle.teardown import Teardown
from gpucluster.lifecycle.verification import Verification
from gpucluster.operations.configuration_record import ConfigurationRecord
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.controller_state import ControllerState
from gpucluster.operations.drain import Draining
from gpucluster.operations.generated_keys import keys_in_directory
from gpucluster.operations.health import HealthService
from gpucluster.operations.host_facts import FactsCollector
from gpucluster.operations.kubernetes import ControlPlaneClient
from gpucluster.operations.measuring import Measuring
from gpucluster.operations.standby import StandbyMirror
from gpucluster.operations.unchanged_hosts import UnchangedHosts
from gpucluster.operations.users import DirectoryClient, Users
from gpucluster.paths import ClusterPaths
from gpucluster.spec import ClusterSpec
from gpucluster.terraform.lock import StateLock
from gpucluster.workspace.login_keys import LoginKeys
from gpucluster.workspace.run_history import past_runs
from gpucluster.workspace.saved_state import SavedState


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a `Cluster` was made with: see there.

    Args:
        on_event: is called by one thread at a time.
    """

    spec: ClusterSpec
    on_event: Sink
    provider: str
    cluster_id: str


@dataclass(frozen=True, kw_only=True)
class ClusterIdentity:
    """Which cluster it is, who holds it, and what this machine and Terraform's state know of it."""

    saved: SavedState
    ownership: Ownership
    run_lock: RunLock
    runs: ClusterRuns
    login_keys: LoginKeys


@dataclass(frozen=True, kw_only=True)
class ClusterConnections:
    """What reaches the hosts of a cluster, and the services that run there."""

    locator: HostLocator
    hosts: HostConnections
    controller: ControllerConnection
    control_plane: ControlPlaneClient
    record: ConfigurationRecord
    directory: DirectoryClient


@dataclass(frozen=True, kw_only=True)
class Phases:
    """The phases of runs."""

    provisioning: Provisioning
    configuration: Configuration
    verification: Verification
    building: Building
    failover: Failover
    planning: Planning
    drift: DriftDetection
    baking: Baking
    repair: Repair
    elastic_replacement: ElasticReplacement
    rollouts: Rollouts
    teardown: Teardown


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that the operations of one cluster use."""

    options: Options
    paths: ClusterPaths
    cloud: CloudProvider
    programs: Programs
    clients: CloudClients
    identity: ClusterIdentity
    connections: ClusterConnections
    phases: Phases

    @property
    def spec(self) -> ClusterSpec:
        """The content of cluster.yml."""
        return self.options.spec

    @property
    def on_event(self) -> Sink:
        """Takes each event."""
        return self.options.on_event


def with_spec(parts: Parts, spec: ClusterSpec) -> Parts:
    """The same cluster with another spec, as for the release of an upgrade."""
    return compose(replace(parts.options, spec=spec))


def compose(options: Options) -> Parts:
    """The parts of a cluster. Starts no program, and sends no request."""
    options = replace(options, on_event=one_at_a_time(options.on_event))
    spec, on_event = options.spec, options.on_event
    paths = ClusterPaths.of(spec.file)
    cloud = open_cloud(spec, paths, on_event, options.provider)
    programs = Programs(spec=spec, paths=paths, cloud=cloud, on_event=on_event, state_lock=StateLock())
    remote = spec.state.backend != "local"
    saved = SavedState(paths)
    # A standby that goes on by itself sees no lock of a backend.
    only_respected = remote and not spec.controller.automatic_failover
    run_lock = RunLock(saved, cloud, on_event, origin=origin(paths), remote=only_respected, named=options.cluster_id)
    ownership = Ownership(
        spec=spec,
        paths=paths,
        saved=saved,
        cloud=cloud,
        terraform=programs.terraform,
        lock=run_lock,
        remote=remote,
        named=options.cluster_id,
        on_event=on_event,
    )
    clients = CloudClients(spec=spec, paths=paths, cloud=cloud, on_event=on_event, identity=lambda: ownership.id)
    connections = _connections(options, paths, cloud, programs, clients, saved, ownership)
    users = Users(connections.directory)
    identity = ClusterIdentity(
        saved=saved,
        ownership=ownership,
        run_lock=run_lock,
        runs=ClusterRuns(
            paths=paths, ownership=ownership, run_lock=run_lock, terraform=programs.terraform, on_event=on_event
        ),
        login_keys=LoginKeys(
            spec,
            paths,
            lambda: handover.Identity.parse(ownership.outputs()).login_keys,
            lambda: keys_in_directory(spec, connections.controller, users),
        ),
    )
    return Parts(
        options=options,
        paths=paths,
        cloud=cloud,
        programs=programs,
        clients=clients,
        identity=identity,
        connections=connections,
        phases=_phases(options, paths, cloud, programs, clients, identity, connections),
    )


def _connections(
    options: Options,
    paths: ClusterPaths,
    cloud: CloudProvider,
    programs: Programs,
    clients: CloudClients,
    saved: SavedState,
    ownership: Ownership,
) -> ClusterConnections:
    spec, on_event = options.spec, options.on_event
    sources = HostSources(
        spec=spec,
        paths=paths,
        cloud=cloud,
        saved=saved,
        outputs=ownership.outputs,
        pool_members=clients.pool_members,
        bastion=clients.bastion,
        ssh_client=programs.ssh,
        consoles=clients.consoles,
    )
    locator = HostLocator(sources)
    controller = ControllerConnection(
        spec=spec,
        paths=paths,
        locate=locator.locate,
        bastion=clients.bastion,
        on_event=on_event,
        require_own=lambda: ownership.require(state=False),
    )
    return ClusterConnections(
        locator=locator,
        hosts=HostConnections(sources, on_event),
        controller=controller,
        control_plane=ControlPlaneClient(controller, on_event),
        record=ConfigurationRecord(controller),
        directory=DirectoryClient(spec, controller, on_event),
    )


def _phases(
    options: Options,
    paths: ClusterPaths,
    cloud: CloudProvider,
    programs: Programs,
    clients: CloudClients,
    identity: ClusterIdentity,
    connections: ClusterConnections,
) -> Phases:
    spec, on_event, controller = options.spec, options.on_event, connections.controller
    ownership = identity.ownership
    downloads = Downloads(spec, cloud, __version__, on_event)
    configuration = Configuration(
        spec=spec,
        paths=paths,
        cloud=cloud,
        login_keys=identity.login_keys,
        downloads=downloads,
        version=__version__,
        record=connections.record,
        ansible=programs.ansible,
        facts=FactsCollector(programs.ssh, on_event),
        unchanged=UnchangedHosts(programs.ssh, on_event),
        bastion=clients.bastion,
        file_systems=clients.file_systems,
        elastic=clients.elastic,
        on_event=on_event,
    )
    verification = Verification(
        spec=spec,
        paths=paths,
        cloud=cloud,
        facts=configuration.facts,
        measurement=Measuring(spec, controller, on_event),
        on_event=on_event,
    )
    baking = Baking(
        spec=spec,
        paths=paths,
        images=clients.baked_images,
        elastic=clients.elastic,
        pool_members=clients.pool_members,
        ssh_client=programs.ssh,
        ansible=programs.ansible,
        inventory=configuration.inventory,
        on_event=on_event,
    )
    adoption = Adoption(
        spec.name, clients.tagged_resources, on_event, identity=lambda: ownership.id, named=options.cluster_id
    )
    draining = Draining(controller, on_event, required=spec.slurm.enabled)
    on_kubernetes = spec.scheduler == "kubernetes"
    emptying = OnKubernetes(connections.control_plane) if on_kubernetes else OnSlurm(draining, on_event)
    reporting = HostReporting(spec=spec, paths=paths, reports=clients.host_reports, on_event=on_event)
    elastic_replacement = ElasticReplacement(emptying, clients.elastic, reporting=reporting, on_event=on_event)
    elastic_teardown = ElasticTeardown(spec, clients.elastic, controller)
    resizing = Resizing(
        spec=spec,
        cloud=cloud,
        elastic=clients.elastic,
        controller=controller,
        nodes=connections.control_plane if on_kubernetes else draining,
        hosts=connections.hosts,
        record=connections.record,
        on_event=on_event,
    )
    provisioning = Provisioning(
        spec=spec,
        cloud=cloud,
        saved=identity.saved,
        terraform=programs.terraform,
        downloads=downloads,
        baking=baking,
        elastic_teardown=elastic_teardown,
        reporting=reporting,
        resizing=resizing,
        tagged=clients.tagged_resources,
        adoption=adoption,
        login_keys=identity.login_keys,
        ownership=ownership,
        on_event=on_event,
    )
    state = ControllerState(spec.name, programs.ssh, on_event)
    mirror = StandbyMirror(programs.ssh)
    failover = Failover(
        spec=spec,
        provisioning=provisioning,
        hosts=connections.hosts,
        state=state,
        mirror=mirror,
        automatic=AutomaticFailover(
            spec=spec,
            hosts=connections.hosts,
            mirror=mirror,
            authentication=lambda: cloud.controller_access().authentication,
            lock=ownership.lock_carrier,
            tags=clients.service_tags,
            on_event=on_event,
        ),
        service_move=clients.service_move,
        power=clients.power,
        ssh_client=programs.ssh,
        on_event=on_event,
    )
    building = Building(
        spec=spec,
        controller=controller,
        record=connections.record,
        hosts=connections.hosts,
        provisioning=provisioning,
        configuration=configuration,
        verification=verification,
        resizing=resizing,
        returned_hosts=ReturnedHosts(
            draining=draining if spec.slurm.enabled else None,
            provisioning=provisioning,
            verification=verification,
            on_event=on_event,
        ),
        login_keys=identity.login_keys,
        state=state,
        failover=failover,
        on_event=on_event,
    )
    planning = Planning(
        spec=spec,
        provisioning=provisioning,
        configuration=configuration,
        record=connections.record,
        directory=connections.directory,
        draining=draining,
        past_runs=lambda: past_runs(paths),
        prices=lambda: price_list.read(paths),
        version=__version__,
        outputs=ownership.outputs,
        on_event=on_event,
    )
    return Phases(
        provisioning=provisioning,
        configuration=configuration,
        verification=verification,
        building=building,
        failover=failover,
        planning=planning,
        drift=DriftDetection(
            spec=spec,
            provisioning=provisioning,
            planning=planning,
            hosts=connections.hosts,
            tagged=clients.tagged,
            ssh_client=programs.ssh,
            bastion=clients.bastion,
            on_event=on_event,
        ),
        baking=baking,
        repair=Repair(
            spec=spec,
            health=HealthService(controller),
            draining=draining,
            elastic=elastic_replacement,
            recreate=building.recreate,
            on_event=on_event,
        ),
        elastic_replacement=elastic_replacement,
        rollouts=Rollouts(
            spec=spec,
            provisioning=provisioning,
            building=building,
            verification=verification,
            draining=draining,
            hosts=connections.hosts,
            record=connections.record,
            boot_volumes=clients.boot_volumes,
            pool_members=clients.pool_members,
            on_event=on_event,
        ),
        teardown=Teardown(
            spec=spec,
            paths=paths,
            saved=identity.saved,
            cloud=cloud,
            guard=DataGuard(
                clients.file_systems,
                ShareLook(connections.locator.locate, connections.locator.nodes_alone, programs.ssh),
            ),
            elastic_teardown=elastic_teardown,
            baking=baking,
            terraform=programs.terraform,
            elastic=clients.elastic,
            adoption=adoption,
            tagged=clients.tagged_resources,
            ssh_client=programs.ssh,
            bastion=clients.bastion,
            on_event=on_event,
        ),
    )
