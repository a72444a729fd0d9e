"""Default values of a cluster.yml that depend on other values in it. They are filled in before anything is checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from gpucluster.slurm import releases
from gpucluster.spec.sections.cloud import PROVIDERS, ProviderTraits
from gpucluster.spec.sections.fields import WORD_PATTERN
from gpucluster.spec.sections.machines import CONTROLLER_SHAPE, Image
from gpucluster.spec.sections.users import UsersSpec
from gpucluster.systems import matrix

CONTROLLER_OCPUS = 4
CONTROLLER_MEMORY_GB = 32

#: Login user of an image, by the name of its operating system in OCI's list of images.
LOGIN_USERS = {"Oracle Linux": "opc", "Canonical Ubuntu": "ubuntu", "Debian": "debian"}


def with_defaults(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` with the default values that depend on others. Values of a wrong type are left for the checks to find."""
    spec = dict(raw)
    cloud, pools, users = spec.get("cloud"), spec.get("pools"), spec.get("users")
    provider = traits_of(cloud)
    if isinstance(cloud, dict) and provider is not None and provider.only_region:
        spec["cloud"] = {"region": provider.only_region, **cloud}
    controller = spec.get("controller", {})
    if isinstance(controller, dict):
        spec["controller"] = controller = _with_image(_with_size(controller), provider)
    login = spec.get("login", {})
    if isinstance(login, dict):
        spec["login"] = _with_image(_like_controller(_with_size(login), controller), provider)
    slurm = spec.get("slurm", {})
    scheduler = _scheduler(spec, slurm)
    if "scheduler" not in spec:
        spec["scheduler"] = scheduler
    if isinstance(slurm, dict):
        spec["slurm"] = slurm = {"cluster_name": spec.get("name", ""), "enabled": scheduler == "slurm", **slurm}
    if isinstance(pools, dict):
        domain = cloud.get("availability_domain") if isinstance(cloud, dict) else None
        spec["pools"] = pools = {name: _pool(name, pool, domain, provider) for name, pool in pools.items()}
        if isinstance(slurm, dict):
            _fill_in_slurm(slurm, spec, pools, provider)
    spec["maintenance"] = _maintenance(spec, scheduler, pools)
    if scheduler == "none":
        spec["storage"] = _without_home(spec.get("storage", {}))
    if isinstance(users, dict) and isinstance(users.get("people"), tuple):
        group = users.get("group", UsersSpec.model_fields["group"].default)
        spec["users"] = {**users, "people": tuple(_person(person, group) for person in users["people"])}
    return spec


def _scheduler(spec: Mapping[str, Any], slurm: Any) -> Any:
    """The value of `scheduler`. `slurm: {enabled: false}` is another way to write `none`."""
    without = isinstance(slurm, dict) and slurm.get("enabled") is False
    return spec.get("scheduler", "none" if without else "slurm")


def _maintenance(spec: Mapping[str, Any], scheduler: Any, pools: Any) -> Any:
    """The section `maintenance`. It is read where the controller may ask the cloud anyway, unless the file tells."""
    maintenance, checks = spec.get("maintenance", {}), spec.get("checks", {})
    if not isinstance(maintenance, dict):
        return maintenance
    checked = not (isinstance(checks, dict) and checks.get("enabled") is False)
    listed = pools.values() if isinstance(pools, dict) else ()
    elastic = any(is_elastic({"count": 0, **pool}) for pool in listed if isinstance(pool, dict))
    return {"enabled": scheduler == "slurm" and checked and elastic, **maintenance}


def is_elastic(pool: Any) -> bool:
    """Whether a pool is elastic; False where its counts are invalid."""
    if not isinstance(pool, dict):
        return False
    count, most = pool.get("count"), pool.get("max_count")
    return isinstance(count, int) and isinstance(most, int) and most > count


def has_login_nodes(spec: Mapping[str, Any]) -> bool:
    """Whether a file asks for login nodes; False where their number is invalid."""
    login = spec.get("login")
    count = login.get("count") if isinstance(login, dict) else None
    return isinstance(count, int) and count > 0


def systems_of(spec: Mapping[str, Any], provider: ProviderTraits) -> dict[str, str]:
    """The system of each host by its place in the file, as the roles name it (`Ubuntu-24`); empty if not known."""
    pools = spec.get("pools")
    places = {"controller": spec.get("controller")}
    places |= {"login": spec.get("login")} if has_login_nodes(spec) else {}
    places |= {f"pools.{name}": pool for name, pool in pools.items()} if isinstance(pools, dict) else {}
    return {place: _system(machine, provider) for place, machine in places.items()}


def _system(machine: Any, provider: ProviderTraits) -> str:
    image = machine.get("image") if isinstance(machine, dict) else None
    if not isinstance(image, dict):
        return ""
    named = (str(image.get("operating_system")), str(image.get("version")))
    if provider.default_image is not None and not matrix.is_distribution(named[0]):
        # A listing, or an image by name or OCID. In the local cloud the listings contain what the default image does.
        named = (provider.default_image["operating_system"], provider.default_image["version"])
    system = matrix.find(*provider.stand_ins.get(named, named))
    return system.vars_file if system else ""


def traits_of(cloud: Any) -> ProviderTraits | None:
    """The traits of the provider in the section `cloud`; None if it names no known one."""
    name = cloud.get("provider") if isinstance(cloud, dict) else None
    return PROVIDERS.get(name) if isinstance(name, str) else None  # type: ignore[call-overload]


def _with_size(machine: dict[str, Any]) -> dict[str, Any]:
    """The controller or the login nodes: a small flexible machine, where the file names no shape."""
    if "shape" in machine:
        return machine
    return {"shape": CONTROLLER_SHAPE, "ocpus": CONTROLLER_OCPUS, "memory_gb": CONTROLLER_MEMORY_GB, **machine}


def _like_controller(login: dict[str, Any], controller: Any) -> dict[str, Any]:
    """The login nodes boot the image of the controller, where the file names no other. An error in that is reported
    there, and must not be reported again here."""
    image = controller.get("image") if isinstance(controller, dict) else None
    try:
        Image.model_validate(image)
    except ValidationError:
        return login
    return {"image": image, **login}


def _with_image(machine: dict[str, Any], provider: ProviderTraits | None) -> dict[str, Any]:
    if provider is not None and provider.default_image is not None and "image" not in machine:
        machine = {**machine, "image": dict(provider.default_image)}
    image = machine.get("image")
    if isinstance(image, dict) and "login_user" not in image:
        system = image.get("operating_system")
        login_user = LOGIN_USERS.get(system) if isinstance(system, str) else None
        if login_user:
            return {**machine, "image": {**image, "login_user": login_user}}
    return machine


def _pool(name: Any, pool: Any, domain: Any, provider: ProviderTraits | None) -> Any:
    if not isinstance(pool, dict):
        return pool
    # An error in another key is reported there, and must not be reported again here.
    filled = {"max_count": pool.get("count", 0), "partition": name}
    if isinstance(domain, str) and re.fullmatch(WORD_PATTERN, domain):
        filled["availability_domain"] = domain
    return _with_image({**filled, **pool}, provider)


def _without_home(storage: Any) -> Any:
    """A cluster without a scheduler has no home share, unless the file enables it."""
    if not isinstance(storage, dict) or not isinstance(storage.get("home", {}), dict):
        return storage
    return {**storage, "home": {"enabled": False, **storage.get("home", {})}}


def _fill_in_slurm(
    slurm: dict[str, Any], spec: Mapping[str, Any], pools: dict[str, Any], provider: ProviderTraits | None
) -> None:
    _agree_on_default(slurm, pools)
    if provider is not None and not slurm.get("release"):
        slurm["release"] = releases.default_release(
            [system for system in systems_of(spec, provider).values() if system],
            prefers_distribution=provider.hardware_emulated,
        )


def _person(person: Any, group: Any) -> Any:
    if not isinstance(person, dict) or "name" not in person:
        return person
    # An error in users.group is reported there.
    primary = {"group": group} if isinstance(group, str) else {}
    return {"full_name": person["name"], **primary, **person}


def _agree_on_default(slurm: dict[str, Any], pools: dict[str, Any]) -> None:
    """Make slurm.default_partition and the pools' `default` agree, whichever of the two the file sets."""
    valid = {name: pool for name, pool in pools.items() if isinstance(pool, dict)}
    chosen = [name for name, pool in valid.items() if pool.get("default") is True]
    if "default_partition" not in slurm:
        first = (chosen or list(pools) or [""])[0]
        slurm["default_partition"] = valid[first].get("partition", first) if first in valid else first
    partition = slurm["default_partition"]
    members = [name for name, pool in valid.items() if pool.get("partition") == partition]
    if not chosen and members:
        pools[members[0]] = {**pools[members[0]], "default": True}
