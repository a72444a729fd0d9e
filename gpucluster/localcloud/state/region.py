"""The one region of the local cloud, its availability domains and fault domains."""

from __future__ import annotations

from collections.abc import Mapping

from gpucluster.localcloud.state.wire import invalid

REGION = "local-1"
AVAILABILITY_DOMAINS = ("local:LOCAL-1-AD-1", "local:LOCAL-1-AD-2")
# As the metadata service shows it. No host can exist in this domain (RFC 2606).
REGION_INFO = {
    "realmDomainComponent": "invalid",
    "realmKey": "local",
    "regionIdentifier": REGION,
    "regionKey": "LOC",
}
FAULT_DOMAINS = ("FAULT-DOMAIN-1", "FAULT-DOMAIN-2", "FAULT-DOMAIN-3")


def check_domain(body: Mapping[str, object]) -> None:
    """Raise 400 unless the body names one of the availability domains."""
    if body.get("availabilityDomain") not in AVAILABILITY_DOMAINS:
        known = " or ".join(AVAILABILITY_DOMAINS)
        raise invalid(f"availabilityDomain {body.get('availabilityDomain')} does not exist; use {known}")
