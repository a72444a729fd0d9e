"""Checks of images: is there one, does it fit the shape, is its system supported in that role, has it the drivers.

What an image contains is only known from its name. Oracle's names are systematic (`oci.image_names`); for another name
nothing is claimed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from gpucluster import shapes
from gpucluster.errors import PreflightFinding as Finding
from gpucluster.handover import kubernetes
from gpucluster.oci import image_names
from gpucluster.preflight import requirements
from gpucluster.preflight.facts import Facts, FoundImage, Unknown
from gpucluster.preflight.requirements import MachineGroup
from gpucluster.spec import ClusterSpec
from gpucluster.systems import matrix

Level = Literal["error", "warning", "note"]

_PAGE = "docs/reference/systems.md"
_LISTING = "Oracle Linux - GPU Cluster Networking Image"
# As in the files that `init` writes and in the inventories.
_PLACEHOLDER = "exampleuniqueid"
# What Oracle supports on self-managed nodes of Kubernetes Engine, by the names of its images, such as
# Oracle-Linux-8.10-2025.06.17-0-OKE-1.33.1-879; one build it names as an exception.
# https://docs.oracle.com/en-us/iaas/Content/ContEng/Tasks/contengprereqsforselfmanagednodes.htm
_OF_OKE, _REFUSED_BY_OKE = re.compile(r"^Oracle-Linux-[78]\.\S*-OKE-"), "-878"
_OKE_PAGE = "docs/how-to/kubernetes-engine.md#release-and-images"
_ROLES: dict[matrix.Role, str] = {"controller": "the controller", "login": "login nodes", "node": "nodes"}


def images(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """Each image exists, is compatible with its shape, and has what its machine needs: system, drivers, RDMA stack."""
    reported = set()
    instances = facts.instances if isinstance(facts.instances, tuple) else ()
    for machine in requirements.machines(spec, facts.domains if isinstance(facts.domains, tuple) else ()):
        running = requirements.still_missing(machine, instances) < machine.count
        for finding in _image(spec, machine, facts.images.get(machine.name), running=running):
            if finding not in reported:
                yield finding
            reported.add(finding)


def _image(
    spec: ClusterSpec, machine: MachineGroup, fact: FoundImage | Unknown | None, *, running: bool
) -> Iterator[Finding]:
    if fact is None:
        return
    if _PLACEHOLDER in (machine.image.ocid or ""):
        reason = f"{machine.place}: {machine.image.ocid} is a placeholder, and no image"
        action = f"Import one of Oracle's HPC images and write its OCID ({_PAGE}), or use the listing {_LISTING}"
        yield Finding("error", "image", reason, action)
    elif isinstance(fact, Unknown):
        if fact.refused:
            reason = f"{machine.place}: {fact.what} does not exist, or this user may not see it"
            yield Finding("error", "image", reason, f"Check `image` in cluster.yml. {fact.action}")
    elif not fact.id:
        yield _no_image(machine, fact)
    else:
        unusable = list(_usable(machine, fact))
        yield from unusable
        if not _errors(unusable):
            # A machine that an earlier release launched is not refused: the next one with this image would be.
            lacking = _lacking(spec, machine, fact)
            yield from (replace(one, level="warning") if running else one for one in lacking)
        yield from _notes(machine, fact)


def _errors(findings: list[Finding]) -> bool:
    return any(finding.level == "error" for finding in findings)


def _lacking(spec: ClusterSpec, machine: MachineGroup, fact: FoundImage) -> list[Finding]:
    """What is wrong with an image that can be launched: its system or else, one cause being enough, what is on it.

    Kubernetes Engine configures the nodes of a managed pool, and decides itself which systems it supports.
    """
    pool = spec.pools.get(machine.name)
    if pool is not None and pool.managed:
        return list(_contents(spec, machine, fact))
    unsupported = [*_system(machine, fact), *_self_managed(spec, machine, fact)]
    return unsupported if _errors(unsupported) else [*unsupported, *_contents(spec, machine, fact)]


def _name(fact: FoundImage) -> str:
    """The name that states what is on it: of the listing's version where it comes from a listing."""
    return fact.listing_version or fact.name


def _no_image(machine: MachineGroup, fact: FoundImage) -> Finding:
    image = machine.image
    if fact.listing:
        vendor = " for AMD GPUs" if shapes.get(machine.shape).has_amd_gpus else " for NVIDIA GPUs"
        version = image.listing_version or "at all"
        reason = f"{machine.place}: the listing {image.listing} has no version {version}{vendor}"
        return Finding("error", "image", reason, f"Versions: {', '.join(fact.listing_versions) or 'none'}")
    if image.listing:
        reason = f"{machine.place}: there is no marketplace listing {image.listing}"
        return Finding("error", "image", reason, "List the exact names: oci compute pic listing list --all")
    action = (
        "List the available images: oci compute image list --all --compartment-id <the tenancy> --shape "
        + machine.shape
    )
    if not image.name:
        named = f"{image.operating_system} {image.version}"
        return Finding("error", "image", f"{machine.place}: there is no image {named}", action)
    reason = f"{machine.place}: there is no image {image.name}"
    parts = image_names.parse(image.name)
    if not parts.operating_system or not parts.build or parts.rdma:
        return Finding("error", "image", reason, action)
    # A platform image: OCI replaces it every month or two.
    reason += f": OCI lists the newest three builds of a platform image, and that of {parts.build} is older"
    instead = f'{{operating_system: {parts.operating_system}, version: "{parts.version}"}}'
    return Finding("error", "image", reason, f"Write `image: {instead}` for the newest build, or the OCID of that one")


def _usable(machine: MachineGroup, fact: FoundImage) -> Iterator[Finding]:
    image, name = machine.image, f"{machine.place}: the image {fact.name or fact.id}"
    if fact.state != "AVAILABLE":
        yield Finding("error", "image", f"{name} is {fact.state}", "Wait until it is AVAILABLE, or use another")
    if fact.fits is False and not any((image.ocid, image.name, image.listing)):
        system = f"{image.operating_system} {image.version}"
        reason = f"{machine.place}: no platform image of {system} is offered for the shape {machine.shape}"
        yield Finding("error", "image", reason, _with_drivers(machine, rdma=False))
    elif fact.fits is False and not image.make_compatible:
        action = "Use an image for that shape"
        if image.ocid:
            action += ", or for a custom image write `make_compatible: true` next to ocid"
        yield Finding("error", "image", f"{name} is not compatible with the shape {machine.shape}", action)
    elif fact.fits is False:
        yield Finding("note", "image", f"apply adds the shape {machine.shape} to the compatible shapes of {fact.name}")


def _system(machine: MachineGroup, fact: FoundImage) -> Iterator[Finding]:
    """The operating system is in the support matrix for this role and this kind of image."""
    parts = image_names.parse(_name(fact))
    # The owner of a custom image enters its system, and may have entered anything; a name by Oracle's pattern is right.
    operating_system, version = fact.system, fact.version
    if parts.operating_system:
        operating_system, version = parts.operating_system, parts.version
    if not operating_system:
        return
    role = _role(machine)
    kind: matrix.ImageKind = "listing" if fact.listing else "custom" if fact.custom else "platform"
    entry = matrix.find(operating_system, version)
    if entry is not None and kind in entry.kinds(role):
        return
    nearest = matrix.nearest(operating_system, version, role)
    reason = f"{machine.place}: {operating_system} {version} is not supported on {_ROLES[role]}"
    action = f"The nearest that is: {nearest.title} ({_written(nearest)}); all: {_PAGE}"
    level: Level = "error"
    if entry is not None:
        reason += f": {entry.refused}" if not entry.kinds(role) else f" from a {matrix.KINDS[kind]}"
    elif kind == "custom":
        level = "error" if matrix.is_distribution(operating_system) else "warning"
        action += (
            f". If the image has another system than its entry: oci compute image update --image-id {fact.id} "
            f"--operating-system '{nearest.operating_system}' --operating-system-version {nearest.version}"
        )
    yield Finding(level, "image", f"{reason} (image {_name(fact)})", action)


def _self_managed(spec: ClusterSpec, machine: MachineGroup, fact: FoundImage) -> Iterator[Finding]:
    """Oracle supports few images on a node that joins Kubernetes Engine by itself, and does not check it there."""
    if (
        machine.name not in spec.pools
        or not kubernetes.has_kubernetes_engine(spec)
        or spec.cloud.traits.hardware_emulated
    ):
        return
    name = _name(fact) or fact.id
    if name.endswith(_REFUSED_BY_OKE):
        reason = f"{machine.place}: Oracle excludes the image {name} from self-managed nodes of Kubernetes Engine"
        yield Finding("error", "image", reason, f"Use another build ({_OKE_PAGE})")
    elif not _OF_OKE.match(name):
        reason = (
            f"{machine.place}: Oracle supports self-managed nodes of Kubernetes Engine with OKE's images of Oracle "
            f"Linux 7 and 8, and with Ubuntu that has OKE's packages; {name} does not show that it is one of them"
        )
        yield Finding("warning", "image", reason, f"What this means: {_OKE_PAGE}")


def _role(machine: MachineGroup) -> matrix.Role:
    if machine.login:
        return "login"
    return "controller" if machine.name == requirements.CONTROLLER else "node"


def _written(system: matrix.System) -> str:
    return f'`image: {{operating_system: {system.operating_system}, version: "{system.version}"}}`'


def _contents(spec: ClusterSpec, machine: MachineGroup, fact: FoundImage) -> Iterator[Finding]:
    """The image has the drivers of the shape's GPUs, and the RDMA stack where the pool has an RDMA network."""
    pool, shape, parts = spec.pools.get(machine.name), shapes.get(machine.shape), image_names.parse(_name(fact))
    emulated = spec.cloud.traits.hardware_emulated
    if pool is None or (emulated and not fact.stand_in):
        return
    # Emulated hardware needs no driver. A file with OCI's images is tried there before it is used in OCI.
    level: Level = "warning" if emulated else "error"
    known = parts.says_contents or not (fact.custom or fact.listing)
    name = f"{machine.place}: the image {_name(fact) or fact.id}"
    lack = ""
    if parts.aarch64 is not (shape.architecture == "aarch64") and parts.says_contents:
        lack = f"is for {'Arm' if parts.aarch64 else 'x86'}, and {machine.shape} is not"
    elif pool.uses_rdma and not parts.rdma and not known:
        reason = f"{name} does not show whether it has the RDMA stack that the pool needs (OFED, wpa_supplicant)"
        yield Finding("warning", "image", reason, _with_drivers(machine, rdma=True))
    elif pool.uses_rdma and not parts.rdma:
        lack = "has no RDMA stack (OFED, wpa_supplicant), and the pool has an RDMA network"
        if spec.nvidia.driver == "install" and shape.has_nvidia_gpus:
            lack += "; `nvidia.driver: install` installs the driver of the GPUs only"
    elif parts.amd if shape.has_nvidia_gpus else parts.nvidia and shape.has_amd_gpus:
        lack = f"has the driver of {'AMD' if parts.amd else 'NVIDIA'} GPUs, and {machine.shape} has others"
    elif known and shape.has_amd_gpus and not parts.amd:
        lack = "has no driver of AMD GPUs"
    elif known and shape.has_nvidia_gpus and not parts.nvidia and spec.nvidia.driver == "keep":
        lack = "has no NVIDIA driver, and `nvidia.driver` is `keep`"
    if lack:
        action = _with_drivers(machine, rdma=pool.uses_rdma)
        yield Finding(level, "image", f"{name} {lack}" + (" (in OCI an error)" if emulated else ""), action)


def _with_drivers(machine: MachineGroup, *, rdma: bool) -> str:
    """Which images have what the shape needs."""
    shape = shapes.get(machine.shape)
    hpc = f"an HPC image that you imported, by `ocid` ({_PAGE})"
    if shape.architecture == "aarch64":
        ways = [hpc]
    elif rdma and not shape.gpus:
        ways = ["the listing Oracle Linux - HPC Cluster Networking Image", hpc]
    else:
        ways = [f"the listing {_LISTING}", hpc]
    if rdma:
        ways.append("write `rdma: false` for nodes without an RDMA network")
    elif shape.has_nvidia_gpus:
        ways += ['`{operating_system: Oracle Linux, version: "9"}`', "Ubuntu with `nvidia.driver: install`"]
    return f"Use {', or '.join(ways)}"


def _notes(machine: MachineGroup, fact: FoundImage) -> Iterator[Finding]:
    parts = image_names.parse(fact.name)
    if machine.image.name and parts.says_contents and not fact.custom:
        reason = (
            f"{machine.place}: {fact.name} is one build of a platform image; once three newer ones are published, this "
            "file builds no new cluster"
        )
        action = f'Write {{operating_system: {parts.operating_system}, version: "{parts.version}"}} without name'
        yield Finding("warning", "image", reason, action)
    if fact.terms:
        reason = f"apply accepts the terms of {fact.name}, version {fact.listing_version}"
        yield Finding("note", "image", reason, f"Read them first: {' '.join(fact.terms)}")
    if fact.stand_in:
        reason = f"{machine.place}: the image {fact.name or fact.id} is a stand-in here: it contains {fact.stand_in}"
        yield Finding("note", "image", reason)
