"""The address that moves with the service: the host in service has it beside its own, and speaks from it.

Peers know the controller by this address alone: firewalls and host names of the cluster refer to it. So connections
into the cluster's networks begin at it. Two routes, each to one half of a network, win against the route that the
system or a DHCP client keeps for the whole, and leave that one as it is. They end with the address.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed

_ETHERNET_ARP = 0x0806
_BROADCAST = b"\xff" * 6
_LONGEST = 32
SSH_PORT = 22  # each host has a server there
_ANSWER_SECONDS = 1.0


def halves(network: str) -> list[str]:
    """The two halves of a network; itself if it is one address."""
    parsed = ipaddress.IPv4Network(network)
    if parsed.prefixlen == _LONGEST:
        return [str(parsed)]
    return [str(each) for each in parsed.subnets(1)]


def announcement(address: str, mac: bytes) -> bytes:
    """An ARP frame that tells all neighbours who has an address now (RFC 5227: ARP announcement)."""
    ip = socket.inet_aton(address)
    header = _BROADCAST + mac + struct.pack("!H", _ETHERNET_ARP)
    return header + struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + mac + ip + b"\0" * 6 + ip


def routes(networks: Sequence[str], own: str, gateway: str) -> list[tuple[str, str]]:
    """Each half of these networks and of this host's own, the widest first, with its gateway; "" on the link. Pure."""
    wide_first = sorted({*networks, own}, key=lambda each: ipaddress.IPv4Network(each).prefixlen)
    link = ipaddress.IPv4Network(own)
    return [
        (half, "" if ipaddress.IPv4Network(half).subnet_of(link) else gateway)
        for network in wide_first
        for half in halves(network)
    ]


def answers(address: str) -> bool:
    """Whether a host has the address: its ssh server takes a connection."""
    try:
        socket.create_connection((address, SSH_PORT), timeout=_ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def add(address: str, networks: Sequence[str]) -> None:
    """Give this host the address, and speak from it to these networks. Does nothing twice.

    Raises:
        Failed: `ip` failed.
    """
    device, own, gateway = _primary()
    _ip("address", "replace", f"{address}/32", "dev", device)
    for half, via in routes(networks, own, gateway):
        _ip("route", "replace", half, *(["via", via] if via else []), "dev", device, "src", address)
    _announce(address, device)


def remove(address: str) -> None:
    """Take the address from this host; the routes from it end with it."""
    device, _, _ = _primary()
    programs.call(["ip", "address", "delete", f"{address}/32", "dev", device])


def _primary() -> tuple[str, str, str]:
    """The interface of the default route, the network of its first address, and the gateway."""
    default = _json("route", "show", "default")
    if not default:
        raise Failed("this host has no default route, which its main interface would have", "Try again")
    device, gateway = str(default[0]["dev"]), str(default[0].get("gateway") or "")
    for interface in _json("address", "show", "dev", device):
        for each in interface.get("addr_info", ()):
            if each.get("family") == "inet" and each.get("prefixlen") != _LONGEST:
                network = ipaddress.IPv4Interface(f"{each['local']}/{each['prefixlen']}").network
                return device, str(network), gateway
    raise Failed(f"{device} has no address", "Try again")


def _announce(address: str, device: str) -> None:
    mac = bytes.fromhex(Path(f"/sys/class/net/{device}/address").read_text().strip().replace(":", ""))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
        raw.bind((device, _ETHERNET_ARP))
        raw.send(announcement(address, mac))


def _json(*words: str) -> list[Mapping[str, Any]]:
    ended = programs.call(["ip", "-json", "-4", *words])
    try:
        found = json.loads(ended.stdout or "[]") if ended.returncode == 0 else []
    except ValueError:
        found = []
    return [each for each in found if isinstance(each, dict)]


def _ip(*words: str) -> None:
    ended = programs.call(["ip", "-4", *words])
    if ended.returncode != 0:
        raise Failed(f"`ip {' '.join(words)}` failed: {ended.stderr.strip()}", "Try again")
