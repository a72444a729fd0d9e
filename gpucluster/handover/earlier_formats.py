"""What earlier releases have stored of a cluster, in the format of now. Pure.

Each step leads from one format to the next, and leaves what has the later format already as it is: a run that was
killed in between is repeated. Examples that the releases themselves have written are in tests/lifecycle/releases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucluster.formats import RELEASE_OF_FORMAT_1

Values = Mapping[str, Any]


def outputs(stored: Values) -> Values:
    """The outputs of Terraform, values only; empty for an empty state."""
    return _outputs_of_1(stored)


def variables(stored: Values) -> Values:
    """The variables of Terraform that an apply has written, from which a destroy works; empty if none were written."""
    return _variables_of_1(stored)


def _outputs_of_1(stored: Values) -> Values:
    found = dict(stored)
    if isinstance(stored.get("cluster"), Mapping):
        found["cluster"] = {"standby": None, "state_volume_id": None, **stored["cluster"]}
    if isinstance(stored.get("identity"), Mapping):
        added = {"release": RELEASE_OF_FORMAT_1, "physical_hosts": {}, "reported_hosts": {}}
        found["identity"] = {**added, **stored["identity"]}
    return found


def _variables_of_1(stored: Values) -> Values:
    """The image of a host was a part of its machine, and is one of `images`."""
    if not stored or "images" in stored:
        return stored
    pools, oke = stored.get("pools") or {}, stored.get("oke")
    node_pools = (oke or {}).get("node_pools") or {}
    machines = {
        **{name: stored[name] for name in ("controller", "login") if stored.get(name)},
        **{f"pool/{name}": pool for name, pool in {**pools, **node_pools}.items()},
    }
    found = {
        **stored,
        **{name: _without_image(stored[name]) for name in ("controller", "login") if stored.get(name)},
        "pools": {name: _without_image(pool) for name, pool in pools.items()},
        "images": {user: machine["image"] for user, machine in machines.items()},
    }
    if oke:
        found["oke"] = {**oke, "node_pools": {name: _without_image(pool) for name, pool in node_pools.items()}}
    return found


def _without_image(machine: Values) -> Values:
    return {name: value for name, value in machine.items() if name != "image"}
