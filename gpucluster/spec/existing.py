"""Rules of an existing network: its subnets are named with it, and only those that are used."""

from __future__ import annotations

from typing import Any

from gpucluster.spec.draft import Draft

_SUBNETS = ("public_subnet_id", "private_subnet_id")
_EXAMPLE = "ocid1.subnet.oc1.iad.exampleuniqueid"


def check_existing(draft: Draft) -> None:
    """Note every fault of `network.vcn_id` and of the ids of subnets."""
    network = draft.section("network")
    if not {"vcn_id", *_SUBNETS} <= network.keys():
        return  # one is unfit, and told
    if network.get("access") == "bastion" and network["public_subnet_id"] is not None:
        message = "has no meaning with access bastion: the controller stands in the private subnet"
        draft.fault(("network", "public_subnet_id"), message, "Delete the line", key=True)
        return
    said = [key for key in _SUBNETS if network[key] is not None]
    if network["vcn_id"] is None:
        if said:
            hint = f"Add `vcn_id: ocid1.vcn.oc1.iad.exampleuniqueid`, or delete {' and '.join(said)}"
            draft.fault(("network", said[0]), "needs vcn_id, the network that it is in", hint, key=True)
        return
    for key in _used(network):
        if key not in said:
            message = "is missing: in an existing network the subnets exist, too"
            draft.fault(("network", key), message, f"Add `{key}: {_EXAMPLE}`")
    if len(said) == len(_SUBNETS) and network[said[0]] == network[said[1]]:
        message = "is that of public_subnet_id: nodes have no public addresses"
        draft.fault(("network", "private_subnet_id"), message, "Name another subnet, or write `access: bastion`")


def _used(network: dict[str, Any]) -> tuple[str, ...]:
    return _SUBNETS if network.get("access") == "public" else _SUBNETS[1:]
