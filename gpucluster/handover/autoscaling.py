"""The autoscaler's policy: the file that configures the autoscaler on the controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucluster import prices
from gpucluster.cloud.providers import ControllerAccess
from gpucluster.handover.billing import billed_machine
from gpucluster.handover.kubernetes import node_labels, offered
from gpucluster.handover.names import elastic_names, elastic_prefix
from gpucluster.handover.outputs import Outputs, PoolOutput
from gpucluster.kubernetes import labels
from gpucluster.prices import Machine, PriceList
from gpucluster.spec import ClusterSpec, PoolSpec

POLICY_VERSION, READER_VERSION = 1, 1
#: Where the role kubernetes writes the autoscaler's own kubeconfig, and where it installs kubectl.
KUBECONFIG, KUBECTL = "/etc/gpucluster/autoscaler.kubeconfig", "/usr/local/bin/kubectl"

# kubelet's name of each architecture.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# Cores that the DaemonSets of each node ask for: Calico 0.25, Multus 0.1, and a reserve for DaemonSets of the site.
_CORES_OF_DAEMONS = 0.5
# kubelet takes 110 pods, its default. Those of the cluster itself are fewer than ten.
_PODS = 100
# The part of the boot volume for pods: the system has some, and kubelet evicts pods at 10 %, or 15 % of it for images.
_DISK_FOR_PODS = 0.7


@dataclass(frozen=True)
class Autoscaling:
    """What the autoscaler needs from the operator's machine.

    Args:
        baked: the pools whose instance configuration uses a baked image.
        wheels: the directory with Python packages for the controller.
        prices: the price list, where accounts have budgets.
    """

    access: ControllerAccess
    baked: frozenset[str] = field(default_factory=frozenset)
    wheels: Path | None = None
    prices: PriceList | None = None


def autoscaler_policy(
    spec: ClusterSpec,
    outputs: Outputs,
    autoscaling: Autoscaling,
    *,
    hardware_emulated: bool = False,
    hosts: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The autoscaler's policy, in the form that the autoscaler parses.

    Args:
        hardware_emulated: hosts have less hardware than their shape has (the local cloud).
        hosts: the permanent hosts, as `billing.billed_hosts` has them.
    """
    limits = spec.autoscaler
    on_kubernetes = spec.scheduler == "kubernetes"
    return {
        "version": POLICY_VERSION,
        "cluster": spec.name,
        "identity": outputs.identity,
        "compartment_id": outputs.elastic_compartment_id,
        "region": outputs.region,
        "authentication": dict(autoscaling.access.authentication),
        "scheduler": spec.scheduler,
        "hardware_checks": _hardware_checks() if spec.reports_hosts else [],
        "reboots": spec.checks.enabled and spec.scheduler == "slurm" and spec.checks.repair == "reboot",
        **({"kubernetes": {"kubectl": KUBECTL, "kubeconfig": KUBECONFIG}} if on_kubernetes else {}),
        "pools": {
            name: {
                **_pool_policy(name, pool, outputs.pools[name], name in autoscaling.baked),
                **(_on_kubernetes(spec, name, pool, outputs, hardware_emulated) if on_kubernetes else {}),
            }
            for name, pool in spec.elastic_pools.items()
        },
        "limits": {
            "max_nodes": limits.max_nodes,
            "max_launches_per_hour": limits.max_launches_per_hour,
            "max_cost_per_hour": limits.max_cost_per_hour,
        },
        "prices": dict(limits.prices),
        "times": dict(limits.times),
        **_budgets(spec, autoscaling.prices, hosts),
    }


def _budgets(spec: ClusterSpec, listed: PriceList | None, hosts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Budgets of accounts, with what their jobs are counted by: the prices of now. Empty where none has one."""
    accounts = spec.slurm.accounts
    amounts = {name: each.monthly_budget for name, each in accounts.items() if each.monthly_budget is not None}
    if not amounts or not spec.slurm.enabled:
        return {}
    listed = listed or PriceList.parse(prices.shipped())

    def price(pool: PoolSpec) -> float | None:
        machine = Machine.of(billed_machine(pool))
        return prices.hourly(machine, listed, spec.autoscaler.prices, spec.cloud.price_factor)

    return {
        "budgets": {
            "amounts": amounts,
            "parents": {name: each.parent for name, each in accounts.items()},
            "prices": {name: price(pool) for name, pool in spec.pools.items()},
            "currency": prices.CURRENCY,
            "timezone": spec.software.timezone,
            "hosts": [host for host in hosts if host["pool"] in spec.pools],
        }
    }


def _hardware_checks() -> list[str]:
    # It imports the collectors and judges of all checks, which few files need.
    from gpucluster.node_agent.checks.registry import of_hardware

    return sorted(of_hardware())


def maintenance_reader(spec: ClusterSpec, outputs: Outputs, autoscaling: Autoscaling) -> dict[str, Any]:
    """The settings of the reader of maintenance, without the permanent hosts, which the inventory has."""
    return {
        "version": READER_VERSION,
        "cluster": spec.name,
        "identity": outputs.identity,
        "compartment_id": outputs.compartment_id,
        "elastic_compartment_id": outputs.elastic_compartment_id,
        "elastic": bool(spec.elastic_pools),
        "region": outputs.region,
        "authentication": dict(autoscaling.access.authentication),
    }


def _pool_policy(name: str, pool: PoolSpec, output: PoolOutput, baked: bool) -> dict[str, Any]:
    return {
        "partition": pool.partition,
        "prefix": elastic_prefix(name),
        "names": elastic_names(pool),
        "max_nodes": pool.elastic_count,
        "shape": pool.shape,
        "availability_domain": output.availability_domain,
        "instance_configuration_id": output.instance_configuration_id,
        "compute_cluster_id": output.compute_cluster_id,
        "baked": baked,
        "preemptible": pool.preemptible,
        "price_factor": prices.PREEMPTIBLE_FACTOR if pool.preemptible else 1,
        "machine": billed_machine(pool),
    }


def _on_kubernetes(
    spec: ClusterSpec, name: str, pool: PoolSpec, outputs: Outputs, hardware_emulated: bool
) -> dict[str, Any]:
    """What differs with Kubernetes: no partitions, no baked images, and what a new node will be."""
    whole = offered(spec, pool)
    capacity = {
        **whole,
        "cpu": whole["cpu"] - _CORES_OF_DAEMONS,
        "ephemeral-storage": int(pool.boot_volume_gb * 10**9 * _DISK_FOR_PODS),
        "pods": _PODS,
    }
    return {
        "partition": name,
        "baked": False,
        "node": {
            "capacity": capacity,
            "labels": node_labels(name, pool, outputs, elastic=True, hardware_emulated=hardware_emulated),
            "taints": labels.node_taints(pool.hardware),
            "architecture": _ARCHITECTURES[pool.hardware.architecture],
            "idle_seconds": pool.idle_timeout,
        },
    }
