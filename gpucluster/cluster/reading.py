"""What reads of a cluster without a run: preflight, status, exposure, overview, support bundle, policies.

Each function takes the parts of a cluster; `Cluster` has the method of its name, with what it raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpucluster import __version__, handover
from gpucluster import preflight as checks
from gpucluster.cloud import clusters as clouds
from gpucluster.cloud.clusters import CloudContents
from gpucluster.cluster.composition import Parts
from gpucluster.cost.report import By
from gpucluster.dashboards.overview import Overview
from gpucluster.drift.model import DriftReport
from gpucluster.errors import TerraformError, ToolError
from gpucluster.handover import iam
from gpucluster.lifecycle import price_list
from gpucluster.lifecycle.backup_certificate import require_valid_certificate
from gpucluster.lifecycle.cost import CostReport, Costs
from gpucluster.lifecycle.provision import network_compartment
from gpucluster.operations import overview as overviews
from gpucluster.operations import status as statuses
from gpucluster.operations.exposure import Exposure, Exposures, elastic_nodes_up
from gpucluster.operations.schedulers import kubernetes_nodes
from gpucluster.operations.status import ClusterStatus
from gpucluster.operations.support_bundle import BundleSources, SupportBundle, SupportBundles
from gpucluster.workspace import evidence
from gpucluster.workspace.run_history import past_runs
from gpucluster.workspace.run_log import read_runs


def preflight(parts: Parts) -> checks.PreflightReport:
    """See `Cluster.preflight`."""
    outputs: Mapping[str, Any] = {}
    # Before the first run there is no state to read, and a backend may not answer yet.
    with suppress(TerraformError):
        outputs = parts.identity.ownership.outputs()
    require_valid_certificate(parts.spec)
    parts.cloud.check()
    parts.cloud.check_gpus()
    parts.cloud.start(to_build=False)
    parts.cloud.check_network()
    return checks.examine(parts.spec, parts.cloud, outputs)


def status(parts: Parts, timeout: float) -> ClusterStatus:
    """See `Cluster.status`."""
    connections = parts.connections
    return statuses.status(
        parts.spec,
        statuses.StatusSources(
            resources=parts.clients.tagged,
            contents=lambda: parts.programs.terraform().contents(),
            hosts=connections.controller.hosts,
            hosts_saved_at=parts.identity.saved.hosts_saved_at,
            controller=connections.controller,
            kubernetes_nodes=lambda: kubernetes_nodes(connections.control_plane),
            certificates=connections.control_plane.certificates,
            record=connections.record,
            runs=read_runs(parts.paths),
        ),
        timeout,
    )


def exposure(parts: Parts) -> Exposure:
    """See `Cluster.exposure`."""
    connections = parts.connections
    asked = Exposures(parts.spec, connections.controller, lambda: kubernetes_nodes(connections.control_plane))
    return asked.ask(datetime.now(UTC).date())


def drift(parts: Parts) -> DriftReport:
    """See `Cluster.drift`."""
    if not parts.connections.controller.hosts():
        raise ToolError("there is no cluster yet", hint="Run: gpucluster apply")
    with parts.identity.runs.run("drift", prepares=True) as run:
        return parts.phases.drift.look(run)


def cost(parts: Parts, by: By, since: str | None, until: str | None) -> CostReport:
    """See `Cluster.cost`."""
    counted = Costs(parts.spec, parts.connections.controller, lambda: price_list.every(parts.paths))
    return counted.report(by, since, until, datetime.now(UTC).timestamp())


def support_bundle(parts: Parts, path: Path, since_h: int, hosts: Sequence[str], timeout: float) -> SupportBundle:
    """See `Cluster.support_bundle`."""
    controller, plane = parts.connections.controller, parts.connections.control_plane
    sources = BundleSources(
        status=lambda: status(parts, timeout / 3).to_dict(),
        exposure=lambda: exposure(parts).to_dict(),
        contents=lambda: parts.programs.terraform().contents(),
        hosts=controller.hosts,
        elastic=lambda: elastic_nodes_up(parts.spec, controller, lambda: kubernetes_nodes(plane)),
        ask=controller.ask,
    )
    bundles = SupportBundles(
        name=parts.spec.name, file=parts.spec.file, paths=parts.paths, sources=sources, on_event=parts.on_event
    )
    return bundles.create(path, since_h=since_h, hosts=hosts, timeout=timeout)


def overview(parts: Parts, timeout: float) -> Overview:
    """See `Cluster.overview`."""
    return overviews.overview(
        parts.spec,
        overviews.OverviewSources(
            status=lambda: status(parts, timeout * overviews.STATUS_PART).to_dict(),
            controller=parts.connections.controller,
            evidence=lambda: evidence.newest(parts.paths),
            runs=lambda: past_runs(parts.paths),
        ),
        version=__version__,
        timeout=timeout,
    )


def clusters(parts: Parts) -> tuple[CloudContents, ...]:
    """See `Cluster.clusters`."""
    if not parts.cloud.in_use():
        return ()
    parts.cloud.start_if_used()
    return clouds.in_compartment(parts.cloud.access())


def policies(parts: Parts) -> iam.Policies:
    """See `Cluster.policies`."""
    parts.cloud.start(to_build=False)
    outputs = parts.identity.ownership.outputs()
    access = parts.cloud.access()
    parsed = handover.Outputs.parse(outputs) if outputs else None
    return iam.policies(
        parts.spec,
        compartment_id=access.compartment_id,
        controller_id=parsed.controller.id if parsed else None,
        standby_id=parsed.standby.id if parsed and parsed.standby else None,
        network_compartment_id=network_compartment(parts.spec, access),
    )
