"""Checks of machines: domains, shapes, service limits, free capacity, reservations, host names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gpucluster import handover, text
from gpucluster.errors import PreflightFinding as Finding
from gpucluster.preflight import requirements
from gpucluster.preflight.facts import Created, ExistingInstance, Facts, LimitKey, Unknown
from gpucluster.preflight.requirements import MachineGroup
from gpucluster.shapes import catalogue
from gpucluster.spec import ClusterSpec

_LABEL = 63
_VCN_LABEL = 15


def _machines(spec: ClusterSpec, facts: Facts) -> tuple[MachineGroup, ...]:
    return requirements.machines(spec, facts.domains if isinstance(facts.domains, tuple) else ())


def _instances(facts: Facts) -> tuple[ExistingInstance, ...]:
    return facts.instances if isinstance(facts.instances, tuple) else ()


def domains(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The availability domains in the spec exist."""
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
        yield Finding("error", "domains", reason, f"Use one of {', '.join(facts.domains)}")


def shapes(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """Each shape is offered in its availability domain."""
    for machine in _machines(spec, facts):
        offered = facts.shapes.get(machine.domain)
        if offered is None or isinstance(offered, Unknown) or machine.shape in offered:
            continue
        elsewhere = [
            domain for domain, some in facts.shapes.items() if not isinstance(some, Unknown) and machine.shape in some
        ]
        action = "Use another shape or region, or ask Oracle for access to it: a limit of 0 hides a shape"
        if elsewhere:
            action = f"It is offered in {', '.join(elsewhere)}: set availability_domain to that"
        reason = f"{machine.place}: the shape {machine.shape} is not offered in {machine.domain}"
        yield Finding("error", "shapes", reason, action)


def limits(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """Service limits and quotas are high enough for the machines that are still to be launched."""
    if isinstance(facts.instances, Unknown):
        return  # without them the demand is unknown; the unknown fact is reported
    for key, demand in requirements.demands(_machines(spec, facts), _instances(facts)).items():
        left = _left(facts, key)
        if left is None or demand.most <= left:
            continue
        users = ", ".join(demand.users)
        if demand.permanent > left:
            reason = f"{_limit(key)} leaves {left}, and {demand.permanent:g} more are needed for {users}"
            yield Finding("error", "limits", reason, _raise(key, "lower count"))
        else:
            reason = f"{_limit(key)} leaves {left}, and {demand.most:g} more are needed for {users} at max_count"
            yield Finding(
                "warning", "limits", reason, _raise(key, "lower max_count: not all elastic nodes can be launched")
            )


def counted_resources(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """Limits of resources of which a cluster creates few: VCN, bastion, file systems, mount targets."""
    if not isinstance(facts.vcns, tuple) or not isinstance(facts.created, Created):
        return
    exists = {
        "vcn-count": sum(vcn.ours for vcn in facts.vcns),
        "bastion-count": facts.created.bastions,
        "file-system-count": facts.created.file_systems,
        "mount-target-count": facts.created.mount_targets,
    }
    domain = _machines(spec, facts)[0].domain
    for key, (what, wanted) in requirements.counted_resources(spec, domain).items():
        left, missing = _left(facts, key), wanted - exists[key[1]]
        if left is None or left >= missing or missing < 1:
            continue
        needed = f"one {what} is" if missing == 1 else f"{missing} {what}s are"
        reason = f"{_limit(key)} leaves {left or 'none'}, and {needed} needed"
        yield Finding("error", "limits", reason, _raise(key, f"use an existing {what}"))


def _left(facts: Facts, key: LimitKey) -> int | None:
    fact = facts.limits.get(key)
    return None if fact is None or isinstance(fact, Unknown) else fact.left


def _limit(key: LimitKey) -> str:
    return f"the limit or quota {key[1]}" + (f" in {key[2]}" if key[2] else "")


def _raise(key: LimitKey, instead: str) -> str:
    return (
        f"Request an increase in the console (Governance, Limits, Quotas and Usage: service {key[0]}), check quotas "
        f"(oci limits quota list), delete unused resources, or {instead}"
    )


def capacity(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """Enough hosts are free now. This may change within a minute, so it never stops a run."""
    if isinstance(facts.instances, Unknown):
        return
    missing: defaultdict[tuple[str, str], int] = defaultdict(int)
    for machine in _machines(spec, facts):
        if not (machine.reservation or machine.memory_fabric):
            missing[machine.domain, machine.shape] += requirements.still_missing(machine, _instances(facts))
    for (domain, shape), count in missing.items():
        fact = facts.capacity.get((domain, shape))
        if not count or fact is None or isinstance(fact, Unknown):
            continue
        free = fact.count if fact.count is not None else (count if fact.status == "AVAILABLE" else 0)
        if free < count:
            reason = f"{count} of {shape} are to be launched in {domain}, and hosts for {free} are free now"
            action = "If the launch fails, run apply again later, use another domain, or reserve capacity"
            yield Finding("warning", "capacity", f"{reason} ({fact.status})", action)


def gpus_of_this_machine(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The machine that runs the local cloud has GPUs enough for the instances that get them."""
    offer = facts.machine_gpus
    if offer is None or isinstance(offer, Unknown) or isinstance(facts.instances, Unknown):
        return
    has = f"this machine has {text.count(offer.total, 'GPU')}, free {offer.free}"
    needed = permanent = 0
    users = []
    for machine in _machines(spec, facts):
        shape = catalogue().get(machine.shape)
        of_shape = shape.gpus if shape else 0
        if of_shape > offer.total and machine.most:
            reason = f"{has}; each machine of {machine.place} ({machine.shape}) needs {of_shape}"
            yield Finding(
                "error", "gpus", reason, f"Choose a shape with at most {offer.total}, or `cloud.local.gpus: emulated`"
            )
            return
        missing = requirements.still_missing(machine, _instances(facts))
        permanent += missing * of_shape
        elastic = sum(each.elastic and each.pool == machine.name for each in _instances(facts))
        needed += (missing + max(machine.most - machine.count - elastic, 0)) * of_shape
        users += [machine.place] if of_shape else []
    if permanent > offer.free:
        reason = f"{has}; the machines of {', '.join(users)} that are yet to be launched need {permanent}"
        yield Finding("error", "gpus", reason, "Lower count, or choose a shape with fewer GPUs")
    elif needed > offer.free:
        reason = f"{has}; {', '.join(users)} need {needed} more at max_count"
        yield Finding("warning", "gpus", reason, "Lower max_count: not all elastic nodes can be launched")
    if users:
        reason = (
            f"{', '.join(users)}: the GPUs are those of this machine, and may be other cards than the shape's: what is "
            "known of the shape's card (model, NVLink, PCIe) is not checked, and nothing is measured against it"
        )
        yield Finding("note", "gpus", reason, "")


def reservations(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """A capacity reservation is active, in the right domain, and has enough instances of the shape left."""
    for machine in _machines(spec, facts):
        fact = facts.reservations.get(machine.name)
        if fact is None:
            continue
        name = f"{machine.place}: the capacity reservation {machine.reservation}"
        if isinstance(fact, Unknown):
            if fact.refused:
                yield Finding(
                    "error", "reservation", f"{name} does not exist, or this user may not see it", fact.action
                )
        elif fact.state != "ACTIVE":
            yield Finding("error", "reservation", f"{name} is {fact.state}", "Use another, or none")
        elif fact.domain != machine.domain:
            reason = f"{name} is in {fact.domain}, and the nodes are in {machine.domain}"
            yield Finding("error", "reservation", reason, "Set availability_domain to its domain")
        elif fact.left.get(machine.shape, 0) < (count := requirements.still_missing(machine, _instances(facts))):
            left = fact.left.get(machine.shape, 0)
            reason = f"{name} has {left} of {machine.shape} left, and {count} are to be launched"
            yield Finding("warning", "reservation", reason, "Enlarge it, or lower count")


#: States in which OCI allows no new GPU memory cluster, and changes none (docs: "GPU Memory Fabric States").
_UNUSABLE = ("PROVISIONING", "UNAVAILABLE", "DEGRADED")


def memory_fabrics(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """A rack works, and has hosts enough for the nodes that are still to be launched."""
    for machine in _machines(spec, facts):
        fact = facts.memory_fabrics.get(machine.name)
        if fact is None:
            continue
        name = f"{machine.place}: the GPU memory fabric {machine.memory_fabric}"
        if isinstance(fact, Unknown):
            if fact.refused:
                reason = f"{name} does not exist, or this user may not see it"
                yield Finding("error", "memory fabric", reason, fact.action)
            continue
        count = 0 if isinstance(facts.instances, Unknown) else requirements.still_missing(machine, _instances(facts))
        if count and fact.state in _UNUSABLE:
            action = "Wait until Oracle has repaired it, or name another one"
            yield Finding("error", "memory fabric", f"{name} is {fact.state}", action)
        elif fact.available < count:
            reason = f"{name} has {fact.available} of {fact.total} hosts available, and {count} are to be launched"
            yield Finding("error", "memory fabric", reason, "Lower count, or name another one")
        elif fact.health != "HEALTHY":
            yield Finding("warning", "memory fabric", f"{name} is {fact.health}", "Ask Oracle for its repair")


def names(spec: ClusterSpec, _facts: Facts) -> Iterator[Finding]:
    """The DNS labels of the network and of every host are valid and unique."""
    label = spec.name.replace("-", "")
    if spec.network.vcn_id is None and not (label.isalnum() and label[0].isalpha() and len(label) <= _VCN_LABEL):
        reason = f"the VCN's DNS label would be {label!r}"
        yield Finding(
            "error",
            "names",
            reason,
            f"Use a cluster name that begins with a letter and has at most {_VCN_LABEL} characters",
        )
    seen: dict[str, str] = {requirements.CONTROLLER: "the controller"}
    seen |= dict.fromkeys(requirements.login_labels(spec), "the login nodes")
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
