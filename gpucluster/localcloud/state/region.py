"""The one region of the local cloud, its availability domains and fault domains."""

from __future__ import annotations

from collections.abc import Mapping

from gpucluster.localcloud.state.wire import invalid

REGION = "local-1"
AVAILABILITY_DOMAINS = ("local:LOCAL-1-AD-1", "local:LOCAL-1-AD-2")
# Where nobody chooses, and for what does not belong to one here (a virtual cloud network's own addresses).
AVAILABILITY_DOMAIN = AVAILABILITY_DOMAINS[0]
FAULT_DOMAINS = ("FAULT-DOMAIN-1", "FAULT-DOMAIN-2", "FAULT-DOMAIN-3")


def check_domain(body: Mapping[str, object]) -> None:
    """The availability domain must be one of ours."""
    if body.get("availabilityDomain") not in AVAILABILITY_DOMAINS:
        known = " or ".join(AVAILABILITY_DOMAINS)
        raise invalid(f"availabilityDomain {body.get('availabilityDomain')} does not exist; use {known}")
