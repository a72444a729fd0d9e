"""The one region of the local cloud, its availability domains and fault domains."""

from __future__ import annotations

from collections.abc import Mapping

from gpucluster.localcloud.state.wire import invalid

#: The domain of our realm. No host can exist there (RFC 2606): a client whose endpoint can't be set sends nothing about
#: a local cluster to Oracle.
NO_DOMAIN = "invalid"
REGION = "local-1"
AVAILABILITY_DOMAINS = ("local:LOCAL-1-AD-1", "local:LOCAL-1-AD-2")
# The hosts that the SDK derives from the region: it takes an unknown one for a region of Oracle's own domain, unless it
# is told to ask the metadata service.
_DOMAINS = ("oraclecloud.com", NO_DOMAIN)
SERVICE_HOSTS = tuple(
    f"{name}.{domain}"
    for domain in _DOMAINS
    for name in (
        *(f"{service}.{REGION}" for service in ("auth", "iaas")),
        *(f"{service}.{REGION}.oci" for service in ("bastion", "containerengine", "filestorage", "identity", "limits")),
    )
)
# As the metadata service shows it.
REGION_INFO = {
    "realmDomainComponent": NO_DOMAIN,
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
