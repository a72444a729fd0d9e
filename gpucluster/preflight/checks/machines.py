"""Rules on machines: domains, shapes, service limits, free hosts, reservations, images, host names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gpucluster import handover
from gpucluster.errors import PreflightFinding as Finding
from gpucluster.preflight import requirements
from gpucluster.preflight.facts import Facts, Image, LimitKey, Made, Standing, Unknown
from gpucluster.preflight.requirements import Machine
from gpucluster.spec import ClusterSpec

_LABEL = 63
_VCN_LABEL = 15
# How the catalogue of images calls an operating system, and how the files of our roles do.
_SYSTEMS = {"Oracle Linux": "OracleLinux", "Canonical Ubuntu": "Ubuntu"}


def _machines(spec: ClusterSpec, facts: Facts) -> tuple[Machine, ...]:
    return requirements.machines(spec, facts.domains if isinstance(facts.domains, tuple) else ())


def _standing(facts: Facts) -> tuple[Standing, ...]:
    return facts.standing if isinstance(facts.standing, tuple) else ()


def domains(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The availability domains that are named exist."""
    if not isinstance(facts.domains, tuple):
        return
    by_domain: defaultdict[str, list[str]] = defaultdict(list)
    for machine in _machines(spec, facts):
        if machine.domain not in facts.domains:
            by_domain[machine.domain].append(machine.place)
    for domain, places in by_domain.items():
        reason = (
            f"there is no availability domain {domain or 'at all'} in {spec.cloud.region} (for {', '.join(places)})"
        )
        yield Finding("error", "domains", reason, f"Take one of {', '.join(facts.domains)}")


def shapes(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """Each shape is offered in the domain where it is wanted."""
    for machine in _machines(spec, facts):
        offered = facts.shapes.get(machine.domain)
        if offered is None or isinstance(offered, Unknown) or machine.shape in offered:
            continue
        elsewhere = [
            domain for domain, some in facts.shapes.items() if not isinstance(some, Unknown) and machine.shape in some
        ]
        action = "Take another shape or region, or ask Oracle for access to it: a limit of 0 hides a shape"
        if elsewhere:
            action = f"It is offered in {', '.join(elsewhere)}: name that in availability_domain"
        reason = f"{machine.place}: the shape {machine.shape} is not offered in {machine.domain}"
        yield Finding("error", "shapes", reason, action)


def limits(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """Service limits and quotas leave room for what is still to be launched."""
    if isinstance(facts.standing, Unknown):
        return  # whether what stands is ours is not known; that it could not be read is told
    for key, demand in requirements.demands(_machines(spec, facts), _standing(facts)).items():
        left = _left(facts, key)
        if left is None or demand.most <= left:
            continue
        who = ", ".join(demand.takers)
        if demand.permanent > left:
            reason = f"{_limit(key)} leaves {left}, and {demand.permanent:g} more are needed for {who}"
            yield Finding("error", "limits", reason, _raise(key, "lower count"))
        else:
            reason = f"{_limit(key)} leaves {left}, and {demand.most:g} more are needed for {who} at max_count"
            yield Finding("warning", "limits", reason, _raise(key, "lower max_count: elastic nodes will not all come"))


def things(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """Limits of what there is one of: the network, the bastion, the file system, the mount target."""
    if not isinstance(facts.vcns, tuple) or not isinstance(facts.made, Made):
        return
    stands = {
        "vcn-count": any(vcn.ours for vcn in facts.vcns),
        "bastion-count": facts.made.bastions,
        "file-system-count": facts.made.file_systems,
        "mount-target-count": facts.made.mount_targets,
    }
    domain = _machines(spec, facts)[0].domain
    for key, what in requirements.things(spec, domain).items():
        left = _left(facts, key)
        if left is None or left >= 1 or stands[key[1]]:
            continue
        reason = f"{_limit(key)} leaves none, and one {what} is needed"
        yield Finding("error", "limits", reason, _raise(key, f"use an existing {what}"))


def _left(facts: Facts, key: LimitKey) -> int | None:
    found = facts.limits.get(key)
    return None if found is None or isinstance(found, Unknown) else found.left


def _limit(key: LimitKey) -> str:
    return f"the limit or quota {key[1]}" + (f" in {key[2]}" if key[2] else "")


def _raise(key: LimitKey, instead: str) -> str:
    return (
        f"Ask for more in the console (Governance, Limits, Quotas and Usage: service {key[0]}), look at quotas "
        f"(oci limits quota list), remove what is not needed, or {instead}"
    )


def capacity(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """Hosts that are free just now. It promises nothing for the minute after, so it never stops a run."""
    if isinstance(facts.standing, Unknown):
        return
    missing: defaultdict[tuple[str, str], int] = defaultdict(int)
    for machine in _machines(spec, facts):
        if not machine.reservation:
            missing[machine.domain, machine.shape] += requirements.still_missing(machine, _standing(facts))
    for (domain, shape), count in missing.items():
        found = facts.capacity.get((domain, shape))
        if not count or found is None or isinstance(found, Unknown):
            continue
        free = found.count if found.count is not None else (count if found.status == "AVAILABLE" else 0)
        if free < count:
            reason = f"{count} of {shape} are to be launched in {domain}, and hosts for {free} are free now"
            action = "Apply again later if it runs out of capacity, try another domain, or reserve capacity"
            yield Finding("warning", "capacity", f"{reason} ({found.status})", action)


def reservations(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """A capacity reservation is active, in the right domain, and has room for the shape."""
    for machine in _machines(spec, facts):
        found = facts.reservations.get(machine.name)
        if found is None:
            continue
        name = f"{machine.place}: the capacity reservation {machine.reservation}"
        if isinstance(found, Unknown):
            if found.refused:
                yield Finding("error", "reservation", f"{name} is not there, or not to be seen", found.action)
        elif found.state != "ACTIVE":
            yield Finding("error", "reservation", f"{name} is {found.state}", "Take another, or none")
        elif found.domain != machine.domain:
            reason = f"{name} is in {found.domain}, and the nodes are in {machine.domain}"
            yield Finding("error", "reservation", reason, "Name its domain in availability_domain")
        elif found.left.get(machine.shape, 0) < (count := requirements.still_missing(machine, _standing(facts))):
            left = found.left.get(machine.shape, 0)
            reason = f"{name} has {left} of {machine.shape} left, and {count} are to be launched"
            yield Finding("warning", "reservation", reason, "Enlarge it, or lower count")


def images(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """Each image exists, fits its shape, and has an operating system that our roles know."""
    told = set()
    for machine in _machines(spec, facts):
        found = facts.images.get(machine.name)
        if found is None:
            continue
        findings = _absent(machine, found) if isinstance(found, Unknown) else _image(machine, found, facts)
        for finding in findings:
            if finding not in told:
                yield finding
            told.add(finding)


def _absent(machine: Machine, found: Unknown) -> Iterator[Finding]:
    if found.refused:
        reason = f"{machine.place}: {found.what} is not there, or not to be seen by this user"
        yield Finding("error", "image", reason, f"Check `image` in cluster.yml. {found.action}")


def _image(machine: Machine, found: Image, facts: Facts) -> Iterator[Finding]:
    wish, name = machine.image, f"{machine.place}: the image {found.name or found.id}"
    if not found.id:
        yield _no_image(machine, found)
        return
    if found.state != "AVAILABLE":
        yield Finding("error", "image", f"{name} is {found.state}", "Wait until it is AVAILABLE, or take another")
    if found.fits is False and not wish.make_compatible:
        action = "Take an image for that shape"
        if wish.ocid:
            action += ", or add the shape to those of your own image: `make_compatible: true` beside ocid"
        yield Finding("error", "image", f"{name} does not fit the shape {machine.shape}", action)
    elif found.fits is False:
        yield Finding("note", "image", f"apply adds the shape {machine.shape} to those that {found.name} fits")
    yield from _system(machine, found, facts)
    if found.terms:
        reason = f"apply accepts the terms of {found.name}, version {found.listing_version}"
        yield Finding("note", "image", reason, f"Read them first: {' '.join(found.terms)}")
    if found.stand_in:
        yield Finding("note", "image", f"{name} is a stand-in here: it is {found.stand_in}")


def _no_image(machine: Machine, found: Image) -> Finding:
    wish = machine.image
    if found.listing:
        reason = f"{machine.place}: the listing {wish.listing} has no version {wish.listing_version or 'at all'}"
        return Finding("error", "image", reason, f"Versions: {', '.join(found.listing_versions) or 'none'}")
    if wish.listing:
        reason = f"{machine.place}: there is no marketplace listing {wish.listing}"
        return Finding("error", "image", reason, "Its exact name: oci compute pic listing list --all")
    named = wish.name or f"{wish.operating_system} {wish.version}"
    action = "Look what there is: oci compute image list --all --compartment-id <the tenancy> --shape " + machine.shape
    return Finding("error", "image", f"{machine.place}: there is no image {named}", action)


def _system(machine: Machine, found: Image, facts: Facts) -> Iterator[Finding]:
    if not found.system or not facts.systems:
        return
    system = f"{_SYSTEMS.get(found.system, found.system)}-{found.version.split('.')[0].split(' ')[0]}"
    if system in facts.systems:
        return
    reason = f"{machine.place}: the roles do not know {found.system} {found.version} (image {found.name})"
    # What an imported image says of itself is what its owner typed.
    action = f"Take one with {', '.join(sorted(facts.systems))}"
    yield Finding("warning" if machine.image.ocid else "error", "image", reason, action)


def names(spec: ClusterSpec, _facts: Facts) -> Iterator[Finding]:
    """DNS labels: of the network, and of every host, once each."""
    label = spec.name.replace("-", "")
    if spec.network.vcn_id is None and not (label.isalnum() and label[0].isalpha() and len(label) <= _VCN_LABEL):
        reason = f"the VCN's DNS label would be {label!r}"
        yield Finding("error", "names", reason, f"Name the cluster with a letter first, {_VCN_LABEL} at most")
    seen: dict[str, str] = {requirements.CONTROLLER: "the controller"}
    for name, pool in spec.pools.items():
        hosts = [*handover.permanent_names(name, pool)]
        hosts += [f"{handover.elastic_prefix(name)}{n}" for n in range(1, handover.elastic_names(pool) + 1)]
        for host in hosts:
            if host in seen:
                reason = f"the host name {host} would be used twice: by {seen[host]} and by pool {name}"
                yield Finding("error", "names", reason, "Rename one of the pools")
            elif len(host) > _LABEL:
                reason = f"the host name {host} has more than {_LABEL} characters"
                yield Finding("error", "names", reason, "Give the pool a shorter name")
            seen.setdefault(host, f"pool {name}")
