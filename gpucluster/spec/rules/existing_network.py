"""Rules of an existing network: the file names its subnets with it, and only those that are used."""

from __future__ import annotations

from typing import Any

from gpucluster.spec.rules.context import RuleContext

RULES = (
    "`vcn_id` needs `private_subnet_id` and, with access `public`, `public_subnet_id`; no subnet id without `vcn_id`.",
)

_SUBNETS = ("public_subnet_id", "private_subnet_id")
_EXAMPLE = "ocid1.subnet.oc1.iad.exampleuniqueid"


def check(context: RuleContext) -> None:
    """Add every error of `network.vcn_id` and of the ids of subnets."""
    network = context.section("network")
    if not {"vcn_id", *_SUBNETS} <= network.keys():
        return  # one of them is invalid, and reported
    if network.get("access") == "bastion" and network["public_subnet_id"] is not None:
        message = "has no meaning with access bastion: the controller is in the private subnet"
        context.error(("network", "public_subnet_id"), message, "Delete the line", key=True)
        return
    subnets = [key for key in _SUBNETS if network[key] is not None]
    if network["vcn_id"] is None:
        if subnets:
            hint = f"Add `vcn_id: ocid1.vcn.oc1.iad.exampleuniqueid`, or delete {' and '.join(subnets)}"
            context.error(("network", subnets[0]), "needs vcn_id, the network that contains it", hint, key=True)
        return
    for key in _used(network):
        if key not in subnets:
            message = "is missing: with an existing network, its subnets must be named, too"
            context.error(("network", key), message, f"Add `{key}: {_EXAMPLE}`")
    if len(subnets) == len(_SUBNETS) and network[subnets[0]] == network[subnets[1]]:
        message = "is the same as public_subnet_id; nodes have no public addresses"
        context.error(("network", "private_subnet_id"), message, "Name another subnet, or write `access: bastion`")


def _used(network: dict[str, Any]) -> tuple[str, ...]:
    return _SUBNETS if network.get("access") == "public" else _SUBNETS[1:]
