"""Values of a cluster.yml that follow from others in it, filled in before anything is checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpucluster.spec import service
from gpucluster.spec.fields import WORD_PATTERN
from gpucluster.spec.machines import CONTROLLER_SHAPE

LOCAL_REGION = "local-1"
LOCAL_IMAGE = {"operating_system": "Debian", "version": "13"}
CONTROLLER_OCPUS = 4
CONTROLLER_MEMORY_GB = 32

#: The user that an image lets in, by the operating system's name in OCI's catalogue of images.
LOGIN_USERS = {"Oracle Linux": "opc", "Canonical Ubuntu": "ubuntu", "Debian": "debian"}


def derived(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` and the values that follow from others in it. What has the wrong type is left for the checks to find."""
    spec = dict(raw)
    cloud, pools, users = spec.get("cloud"), spec.get("pools"), spec.get("users")
    local = isinstance(cloud, dict) and cloud.get("provider") == "local"
    if isinstance(cloud, dict) and local:
        spec["cloud"] = {"region": LOCAL_REGION, **cloud}
    controller = spec.get("controller", {})
    if isinstance(controller, dict):
        if "shape" not in controller:
            small = {"shape": CONTROLLER_SHAPE, "ocpus": CONTROLLER_OCPUS, "memory_gb": CONTROLLER_MEMORY_GB}
            controller = {**small, **controller}
        spec["controller"] = _with_image(controller, local)
    slurm = spec.get("slurm", {})
    if isinstance(slurm, dict):
        spec["slurm"] = slurm = {"cluster_name": spec.get("name", ""), **slurm}
    if isinstance(pools, dict):
        domain = cloud.get("availability_domain") if isinstance(cloud, dict) else None
        spec["pools"] = pools = {name: _pool(name, pool, domain, local) for name, pool in pools.items()}
        if isinstance(slurm, dict):
            _agree_on_default(slurm, pools)
    if isinstance(slurm, dict) and slurm.get("enabled") is False:
        spec["storage"] = _without_home(spec.get("storage", {}))
    if isinstance(users, dict) and isinstance(users.get("people"), tuple):
        group = users.get("group", service.Users.model_fields["group"].default)
        spec["users"] = {**users, "people": tuple(_person(person, group) for person in users["people"])}
    return spec


def _with_image(machine: dict[str, Any], local: bool) -> dict[str, Any]:
    if local and "image" not in machine:
        machine = {**machine, "image": LOCAL_IMAGE}
    image = machine.get("image")
    if isinstance(image, dict) and "login_user" not in image:
        system = image.get("operating_system")
        login_user = LOGIN_USERS.get(system) if isinstance(system, str) else None
        if login_user:
            return {**machine, "image": {**image, "login_user": login_user}}
    return machine


def _pool(name: Any, pool: Any, domain: Any, local: bool) -> Any:
    if not isinstance(pool, dict):
        return pool
    # What is unfit in another key is told there, and not once more here.
    filled = {"max_count": pool.get("count", 0), "partition": name}
    if isinstance(domain, str) and re.fullmatch(WORD_PATTERN, domain):
        filled["availability_domain"] = domain
    return _with_image({**filled, **pool}, local)


def _without_home(storage: Any) -> Any:
    """A cluster without a scheduler shares no home, unless it says so."""
    if not isinstance(storage, dict) or not isinstance(storage.get("home", {}), dict):
        return storage
    return {**storage, "home": {"enabled": False, **storage.get("home", {})}}


def _person(person: Any, group: Any) -> Any:
    if not isinstance(person, dict) or "name" not in person:
        return person
    # What is unfit elsewhere is told there.
    primary = {"group": group} if isinstance(group, str) else {}
    return {"full_name": person["name"], **primary, **person}


def _agree_on_default(slurm: dict[str, Any], pools: dict[str, Any]) -> None:
    """Let slurm.default_partition and the pool's `default` say the same, whichever was written."""
    whole = {name: pool for name, pool in pools.items() if isinstance(pool, dict)}
    chosen = [name for name, pool in whole.items() if pool.get("default") is True]
    if "default_partition" not in slurm:
        first = (chosen or list(pools) or [""])[0]
        slurm["default_partition"] = whole[first].get("partition", first) if first in whole else first
    wanted = slurm["default_partition"]
    inside = [name for name, pool in whole.items() if pool.get("partition") == wanted]
    if not chosen and inside:
        pools[inside[0]] = {**pools[inside[0]], "default": True}
