"""Rules of `scheduler` and `kubernetes`: keys of another scheduler, ranges of pods and services, what is not built."""

from __future__ import annotations

import re
from ipaddress import IPv4Network
from typing import Any

from gpucluster import shapes
from gpucluster.controller.kubernetes.person_objects import CLAIMS_SINCE
from gpucluster.kubernetes.manifests.networks import has_virtual_functions
from gpucluster.spec.defaults import is_elastic, systems_of
from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.containers import CONTAINER_NETWORKS
from gpucluster.spec.rules.context import RuleContext, usable
from gpucluster.spec.rules.network import check_usable, network_of
from gpucluster.spec.rules.nodes import has_rdma
from gpucluster.spec.sections.kubernetes import ADDON_PATTERN
from gpucluster.text import count, did_you_mean

#: Each node gets a part of `pod_cidr` of this size, the default of kube-controller-manager.
NODE_PREFIX = 24
#: The API server takes no larger range of services for IPv4; a smaller one has no room for a cluster.
LARGEST_SERVICES, SMALLEST_SERVICES = 12, 24

#: The oldest minor release that the Calico of the catalogue (3.31) works with: its kinds have rules in CEL, which is
#: stable from 1.29 on (projectcalico/calico pull request 11863).
OLDEST_WITH_CALICO = 29
#: The oldest minor release whose kubelet speaks version 1 of CRI, the only one of the containerd that hosts of Oracle
#: Linux get (2.x; containerd's RELEASES.md).
OLDEST_ON_ORACLE_LINUX = 23

#: An add-on of OKE with a device plugin in it.
_NVIDIA_OPERATOR = "NvidiaGpuOperator"
#: Keys of a pool that OKE's node pools have no setting for.
_NOT_OF_NODE_POOLS = ("boot_volume_vpus_per_gb", "platform", "rdma", "rdma_addressing", "removed_nodes")

_POD_CIDR: Path = ("kubernetes", "pod_cidr")
_SERVICE_CIDR: Path = ("kubernetes", "service_cidr")

RULES = (
    "`slurm.enabled` does not contradict `scheduler`; without `scheduler`, `slurm.enabled: false` means "
    "`scheduler: none`. With a `scheduler` other than `slurm` the section `slurm` has no other key, and only with "
    "`scheduler: kubernetes` there is a section `kubernetes`.",
    "With `kubernetes.control_plane: oke` no pool is elastic, and with `kubernetes.rdma: device` none that uses RDMA.",
    "`kubernetes.network: routes` is for provider local, and `kubernetes.oke` for `control_plane: oke`. A public "
    "endpoint needs `network.access: public`. A name in `kubernetes.oke.addons` is letters and digits, such as "
    f"`NvidiaGpuPlugin`; `{_NVIDIA_OPERATOR}` is there only with `kubernetes.gpus: operator`.",
    "`pools.NAME.managed: true` is for `kubernetes.control_plane: oke`. Such a pool has a shape without RDMA, no image "
    f"of a Marketplace listing, and none of {', '.join(f'`{key}`' for key in _NOT_OF_NODE_POOLS)}.",
    f"`kubernetes.release` is 1.{OLDEST_WITH_CALICO}.0 or newer with `network: calico`, unless `software.versions` "
    f"names the release of Calico, and 1.{OLDEST_ON_ORACLE_LINUX}.0 or newer with a host of Oracle Linux.",
    "`kubernetes.rdma: device` is for shapes of which the places of RDMA interfaces on the PCI bus are known, "
    "`sr-iov` for those whose interfaces are also NVIDIA's. Both give pods addresses of `network.rdma_cidr`, so no "
    "pool has `rdma_addressing: cloud-init`.",
    f"`kubernetes.gpus: dra-driver` needs `kubernetes.release` 1.{CLAIMS_SINCE}.0 or newer and a provider whose "
    "hosts have their hardware, and no pool with NVIDIA's GPUs that is elastic, is `managed`, or divides them "
    "(`gpus.mig`). With `kubernetes.rdma: device` no such pool uses RDMA.",
    "A profile in `kubernetes.user_quota.gpu_instances` is one into which a pool divides its GPUs (`gpus.mig`).",
    f"`kubernetes.pod_cidr` has a /{NODE_PREFIX} for each node and one for the controller. It, `service_cidr`, "
    "`network.vcn_cidr`, `network.rdma_cidr` and, with `docker` or `containerd`, "
    f"{CONTAINER_NETWORKS} do not overlap, and `storage.home.server` is in neither.",
)


def check(context: RuleContext) -> None:
    """Add every error of `scheduler` and `kubernetes`."""
    scheduler = context.data.get("scheduler")
    if scheduler is None:
        return  # it is invalid, and reported
    _check_one_scheduler(context, scheduler)
    _check_managed(context, scheduler)
    if scheduler != "kubernetes":
        return
    section = context.section("kubernetes")
    _check_pools(context, section)
    if section.get("network") == "routes" and context.provider is not None and context.provider_name != "local":
        message = "needs a network that carries any address, which a VCN does not"
        context.error(("kubernetes", "network"), message, "Write calico; routes is for provider local")
    if section.get("control_plane") == "self":
        if context.written(("kubernetes", "oke")):
            context.error(("kubernetes", "oke"), "has no effect with control_plane self", "Delete the key", key=True)
        _check_release(context, section)
    _check_rdma(context, section.get("rdma"))
    _check_quota(context)
    if section.get("gpus") == "dra-driver":
        _check_claims(context, section)
    _check_ranges(context, section)
    if section.get("control_plane") == "oke":
        _check_endpoint(context)
        _check_addons(context)


def _check_endpoint(context: RuleContext) -> None:
    if context.section("kubernetes", "oke").get("endpoint") != "public":
        return
    if context.section("network").get("access") == "bastion":
        message = "with network.access bastion there is no public subnet for it"
        context.error(("kubernetes", "oke", "endpoint"), message, "Write private, or `network: {access: public}`")


def _check_addons(context: RuleContext) -> None:
    for name in context.section("kubernetes", "oke", "addons"):
        if not re.fullmatch(ADDON_PATTERN, name):
            message = f"is not the name of an add-on: {shown(name)}"
            hint = "Letters and digits, such as NvidiaGpuPlugin. To list them: oci ce addon-option list"
            context.error(("kubernetes", "oke", "addons", name), message, hint, key=True)
        elif name == _NVIDIA_OPERATOR and context.section("kubernetes").get("gpus") != "operator":
            message = f"{name} brings a device plugin of its own, beside that of `kubernetes.gpus: device-plugin`"
            hint = "Write `kubernetes: {gpus: operator}`, or delete the add-on"
            context.error(("kubernetes", "oke", "addons", name), message, hint, key=True)


def _check_managed(context: RuleContext, scheduler: Any) -> None:
    control_plane = context.section("kubernetes").get("control_plane")
    for name, pool in context.section("pools").items():
        if not isinstance(pool, dict) or pool.get("managed") is not True:
            continue
        if scheduler != "kubernetes" or control_plane == "self":
            message = "only OKE has node pools that it manages"
            hint = "Delete the line, or write `scheduler: kubernetes` and `kubernetes: {control_plane: oke}`"
            context.error(("pools", name, "managed"), message, hint)
            continue
        shape = shapes.catalogue().get(str(pool.get("shape")))
        if shape is not None and shape.rdma:
            message = f"{shape.name} has RDMA, and a node pool of OKE puts no node into an RDMA network"
            context.error(("pools", name, "managed"), message, "Write false: its nodes join as instances of gpucluster")
        for key in _NOT_OF_NODE_POOLS:
            if context.written(("pools", name, key)):
                hint = "Delete the line, or write `managed: false`"
                context.error(("pools", name, key), "a node pool of OKE has no such setting", hint, key=True)
        if context.section("pools", name, "image").get("listing"):
            message = "a node pool of OKE takes no image of a Marketplace listing"
            hint = "Name an image of Oracle Linux, or give the OCID of an image of OKE"
            context.error(("pools", name, "image", "listing"), message, hint)


def _check_release(context: RuleContext, section: dict[str, Any]) -> None:
    release = section.get("release")
    if not isinstance(release, str):
        return  # it is invalid, and reported
    minor = int(release.split(".")[1])
    named = "calico" in context.section("software", "versions")
    if section.get("network") == "calico" and minor < OLDEST_WITH_CALICO and not named:
        message = f"{release} is older than 1.{OLDEST_WITH_CALICO}, with which this release's Calico begins"
        hint = "Name one that supports it (software: {versions: {calico: VERSION}}), or write a newer release"
        context.error(("kubernetes", "release"), message, hint)
    places = _on_oracle_linux(context)
    if places and minor < OLDEST_ON_ORACLE_LINUX:
        message = (
            f"{release} is older than 1.{OLDEST_ON_ORACLE_LINUX}, with which the containerd for Oracle Linux begins "
        )
        message += f"({', '.join(places)})"
        context.error(("kubernetes", "release"), message, "Write a newer release, or choose images of Ubuntu")


def _on_oracle_linux(context: RuleContext) -> list[str]:
    """The places of hosts that are known to have Oracle Linux; every listing of the marketplace that we support has."""
    if context.provider is None:
        return []
    places = {place for place, system in systems_of(context.data, context.provider).items() if "OracleLinux" in system}
    if context.provider.default_image is None:
        pools = context.section("pools")
        places |= {f"pools.{name}" for name in pools if context.section("pools", name, "image").get("listing")}
    return sorted(places - {"login"})


def _check_rdma(context: RuleContext, access: Any) -> None:
    if access not in ("device", "sr-iov"):
        return
    for name, pool in context.section("pools").items():
        if not has_rdma(pool):
            continue
        shape = shapes.get(pool["shape"])
        if not (has_virtual_functions(shape) if access == "sr-iov" else shape.rdma_pci_addresses):
            message = f"{access} is not possible with {shape.name} (pool {name}): "
            known = shape.rdma_pci_addresses
            message += "its RDMA interfaces are not NVIDIA's" if known else "no source states where its interfaces are"
            context.error(("kubernetes", "rdma"), message, "Write host")
        if pool.get("rdma_addressing") == "cloud-init":
            message = f"with kubernetes.rdma {access} its addresses, those of network.rdma_cidr, are for pods"
            context.error(("pools", name, "rdma_addressing"), message, "Write plugin, or kubernetes.rdma: host")


def _check_quota(context: RuleContext) -> None:
    pools = context.section("pools")
    groups = [group for name in pools for _, group in usable(context.section("pools", name, "gpus").get("mig"))]
    made = sorted({profile for group in groups for profile in group.get("mig_devices") or ()})
    for profile in context.section("kubernetes", "user_quota", "gpu_instances"):
        if profile not in made:
            message = f"no pool divides its GPUs into {shown(profile)}"
            hint = did_you_mean(profile, made) or (f"Known: {', '.join(made)}" if made else "Delete it")
            path: Path = ("kubernetes", "user_quota", "gpu_instances", profile)
            context.error(path, message, hint, key=True)


def _check_claims(context: RuleContext, section: dict[str, Any]) -> None:
    """Whether pods can claim GPUs: of NVIDIA's DRA driver, which has all GPUs of a node or none."""
    key: Path = ("kubernetes", "gpus")
    release, otherwise = section.get("release"), "or write kubernetes.gpus: device-plugin"
    if isinstance(release, str) and int(release.split(".")[1]) < CLAIMS_SINCE:
        since = f"1.{CLAIMS_SINCE}"
        message = f"dra-driver needs the API resource.k8s.io/v1, which is there from {since} on; release is {release}"
        context.error(key, message, f"Write device-plugin, or kubernetes.release {since}.0 or newer")
    if context.provider is not None and context.provider.hardware_emulated:
        message = "dra-driver lists devices of the host, and emulated GPUs are only numbers in the status of a node"
        context.error(key, message, "Write device-plugin")
    for name, pool in context.section("pools").items():
        shape = shapes.catalogue().get(str(pool.get("shape"))) if isinstance(pool, dict) else None
        if shape is None or not shape.has_nvidia_gpus:
            continue
        if is_elastic(pool):
            message = "with dra-driver no pool is elastic: the autoscaler counts what pods ask for, and reads no claims"
            context.error(("pools", name, "max_count"), message, f"Set max_count to count, {otherwise}")
        if pool.get("managed") is True:
            message = (
                "with dra-driver no pool is managed: OKE runs a device plugin there, and both would give away the "
                "same GPUs"
            )
            context.error(("pools", name, "managed"), message, f"Write false, {otherwise}")
        if context.section("pools", name, "gpus").get("mig"):
            message = "with dra-driver no GPU is divided: which pods have instances is read from the record of plugins"
            context.error(("pools", name, "gpus", "mig"), message, f"Delete it, {otherwise}", key=True)
        if section.get("rdma") == "device" and has_rdma(pool):
            message = f"with dra-driver pods get no files of RDMA devices (pool {name}): NVIDIA's plugin brings them"
            context.error(("kubernetes", "rdma"), message, f"Write host or sr-iov, {otherwise}")


def _check_one_scheduler(context: RuleContext, scheduler: str) -> None:
    enabled = context.section("slurm").get("enabled")
    if context.written(("slurm", "enabled")) and enabled is not None and enabled is not (scheduler == "slurm"):
        message = f"is {str(enabled).lower()}, but scheduler is {scheduler}"
        context.error(("slurm", "enabled"), message, "Delete this line: scheduler alone decides")
    if scheduler != "slurm" and context.written(("scheduler",)):
        for key in context.section("slurm"):
            if key != "enabled" and context.written(("slurm", key)):
                message = f"has no effect with scheduler {scheduler}"
                context.error(("slurm", key), message, "Delete the line, or write `scheduler: slurm`", key=True)
    if scheduler != "kubernetes" and context.written(("kubernetes",)):
        message = f"has no effect with scheduler {scheduler}"
        context.error(("kubernetes",), message, "Delete the section, or write `scheduler: kubernetes`", key=True)


def _check_pools(context: RuleContext, section: dict[str, Any]) -> None:
    for name, pool in context.section("pools").items():
        if not is_elastic(pool):
            continue
        if section.get("control_plane") == "oke":
            message, hint = "no pool of a cluster with control_plane oke is elastic", "Set max_count to count"
        elif section.get("rdma") == "device" and has_rdma(pool):
            message = "a node keeps its RDMA devices for pods only from its second boot on, and elastic nodes boot once"
            hint = "Set max_count to count, or write kubernetes.rdma: host"
        else:
            continue
        context.error(("pools", name, "max_count"), message, hint)


def _check_ranges(context: RuleContext, section: dict[str, Any]) -> None:
    pods, services = (network_of(context, path, section.get(str(path[-1]))) for path in (_POD_CIDR, _SERVICE_CIDR))
    if pods:
        check_usable(context, _POD_CIDR, pods, "Use a part of 10.0.0.0/8, such as 10.244.0.0/16")
        _check_size_of_pods(context, pods)
    if services:
        check_usable(context, _SERVICE_CIDR, services, "Use a part of 10.0.0.0/8, such as 10.96.0.0/16")
        if not LARGEST_SERVICES <= services.prefixlen <= SMALLEST_SERVICES:
            message = f"must be between /{LARGEST_SERVICES} and /{SMALLEST_SERVICES}; got /{services.prefixlen}"
            context.error(_SERVICE_CIDR, message)
    if pods and services and pods.overlaps(services):
        context.error(_SERVICE_CIDR, f"overlaps pod_cidr {pods}", "Use another range, such as 10.96.0.0/16")
    others = _other_networks(context)
    for path, network in ((_POD_CIDR, pods), (_SERVICE_CIDR, services)):
        what = next((name for name, other in others.items() if network and network.overlaps(other)), None)
        if what:
            context.error(
                path, f"{network} overlaps {what} {others[what]}", "Use another private range for one of the two"
            )


def _check_size_of_pods(context: RuleContext, pods: IPv4Network) -> None:
    counts = [pool.get("max_count") for pool in context.section("pools").values() if isinstance(pool, dict)]
    hosts = 1 + sum(most for most in counts if isinstance(most, int))
    room = 2 ** (NODE_PREFIX - pods.prefixlen) if pods.prefixlen <= NODE_PREFIX else 0
    if hosts > room:
        message = f"{pods} is a /{NODE_PREFIX} for {count(room, 'host')}; the cluster has {hosts}"
        prefix = NODE_PREFIX - (hosts - 1).bit_length()
        context.error(_POD_CIDR, message, f"Use a /{prefix} or larger")


def _other_networks(context: RuleContext) -> dict[str, IPv4Network]:
    """The networks that hosts reach by other ways, by the key that sets each; those that are invalid are left out."""
    network = context.section("network")
    texts: dict[str, Any] = {"network.vcn_cidr": network.get("vcn_cidr")}
    if context.written(("network", "rdma_cidr")) or any(map(has_rdma, context.section("pools").values())):
        texts["network.rdma_cidr"] = network.get("rdma_cidr")
    if {"docker", "containerd"} & set(context.section("containers").get("runtimes") or ()):
        texts["the range of the container networks"] = str(CONTAINER_NETWORKS)
    server = context.section("storage", "home").get("server")
    networks = {}
    for name, text in {**texts, "storage.home.server": server}.items():
        try:
            networks[name] = IPv4Network(text) if isinstance(text, str) else None
        except ValueError:
            continue  # the rules of that key report it
    return {name: network for name, network in networks.items() if network is not None}
