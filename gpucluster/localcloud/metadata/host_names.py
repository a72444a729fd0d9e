"""Host names of the VCN's instances, as the resolver of a VCN answers them: which names there are, and the answer.

Facts of OCI (its page "DNS in Your Virtual Cloud Network"): the resolver of a VCN is at 169.254.169.254. It knows each
instance as `host name.DNS label of the subnet.DNS label of the VCN.oraclevcn.com`, for instances of the same VCN only,
and the way back from the address to the name. Every other name is one of the internet.
"""

from __future__ import annotations

import ipaddress

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.reversename
import dns.rrset

from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.store import Resource

_DOMAIN = dns.name.from_text("oraclevcn.com.")
# An elastic node that comes again under its name may have another address.
_SECONDS_KEPT = 0


def respond(cloud: CloudState, vcn: str, query: dns.message.Message) -> dns.message.Message | None:
    """The answer to a query of an instance; None where the internet has the name.

    Args:
        vcn: the OCID of the instance's VCN: names of others do not exist for it.
    """
    if len(query.question) != 1:
        return answer(query, dns.rcode.FORMERR)
    name = query.question[0].name
    if name.is_subdomain(_DOMAIN):
        return _with(query, dns.rdatatype.A, _addresses(cloud, vcn, name))
    address = _asked_address(name)
    if address is not None and _is_of(cloud, vcn, address):
        return _with(query, dns.rdatatype.PTR, _names(cloud, vcn, str(address)))
    # One label is not a name of the internet. It is asked for after the search domain has it not.
    return answer(query, dns.rcode.NXDOMAIN) if len(name.labels) <= 2 else None  # noqa: PLR2004 (the last is the root)


def answer(query: dns.message.Message, code: dns.rcode.Rcode) -> dns.message.Message:
    """An answer without records."""
    made = dns.message.make_response(query, recursion_available=True)
    made.set_rcode(code)
    return made


def _with(query: dns.message.Message, kind: dns.rdatatype.RdataType, values: list[str]) -> dns.message.Message:
    made = answer(query, dns.rcode.NOERROR if values else dns.rcode.NXDOMAIN)
    made.flags |= dns.flags.AA
    question = query.question[0]
    # A name that exists has no record of another kind: an instance has no IPv6 address here.
    if values and question.rdtype in (kind, dns.rdatatype.ANY):
        made.answer.append(dns.rrset.from_text_list(question.name, _SECONDS_KEPT, dns.rdataclass.IN, kind, values))
    return made


def _addresses(cloud: CloudState, vcn: str, name: dns.name.Name) -> list[str]:
    host, domain = name.labels[0].decode("ascii", "replace").lower(), _text(name.parent())
    return [
        row.body["ipAddress"]
        for subnet in cloud.store.find("subnet", vcnId=vcn)
        if _domain(subnet) == domain
        for row in cloud.store.find("privateip", subnetId=subnet.id)
        if _host_name(cloud, row) == host
    ]


def _names(cloud: CloudState, vcn: str, address: str) -> list[str]:
    domains = {subnet.id: _domain(subnet) for subnet in cloud.store.find("subnet", vcnId=vcn)}
    pairs = [
        (_host_name(cloud, row), domains.get(row.body["subnetId"], ""))
        for row in cloud.store.find("privateip", ipAddress=address)
    ]
    return [f"{host}.{domain}." for host, domain in pairs if host and domain]


def _host_name(cloud: CloudState, private: Resource) -> str:
    """The host name of a private address, in lower case; empty if it has none. That of a VNIC can be changed."""
    vnic = cloud.store.get("vnic", str(private.body["vnicId"]))
    instance = cloud.store.get("instance", str(private.hidden.get("owner")))
    label = (vnic.body.get("hostnameLabel") if vnic else None) or private.body.get("hostnameLabel")
    return str(label or (instance.hidden["hostname"] if instance else "")).lower()


def _domain(subnet: Resource) -> str:
    return str(subnet.body.get("subnetDomainName") or "").lower()


def _text(name: dns.name.Name) -> str:
    return name.to_text(omit_final_dot=True).lower()


def _asked_address(name: dns.name.Name) -> ipaddress.IPv4Address | None:
    """The IPv4 address whose name is asked for; None where the question is another one."""
    if not name.is_subdomain(dns.reversename.ipv4_reverse_domain):
        return None
    try:
        return ipaddress.IPv4Address(dns.reversename.to_address(name))
    except (dns.exception.DNSException, ValueError):
        return None


def _is_of(cloud: CloudState, vcn: str, address: ipaddress.IPv4Address) -> bool:
    row = cloud.store.get("vcn", vcn)
    return row is not None and any(address in ipaddress.IPv4Network(block) for block in row.body["cidrBlocks"])
