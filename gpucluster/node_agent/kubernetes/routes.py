"""Routes to the pods of other nodes, where the network of the hosts carries any address: the local cloud's does.

Kubernetes gives each node a part of the pods' range. This program, on every host, writes that part into the
configuration of the network plugins, and keeps one route for each other node: to its part, by its address. A host that
joined again has another part: the plugins refuse every pod while their bridge has an address of the former one.

Traffic of pods to addresses outside of the range leaves with the address of the host. The program asks as the kubelet
of the host, which the role lets list the nodes, by one request on a connection of its own: kubectl would cost a second
of a processor each time.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import AgentError, Failed
from gpucluster.node_agent.kubernetes.kubectl import KUBELET

AUTHORITY = "/etc/kubernetes/pki/ca.crt"
#: kubelet's certificate and key, which it renews itself.
CERTIFICATE = "/var/lib/kubelet/pki/kubelet-client-current.pem"
_SERVER = re.compile(r"^\s*server: (https://\S+)$", re.MULTILINE)
#: containerd writes it too, from the template, when kubelet first knows this host's part: old kubelets look for the
#: network at that moment and not again for 10 s, in which the node is not ready. The name is containerd's.
CONFIGURATION = "/etc/cni/net.d/10-containerd-net.conflist"
TEMPLATE = "/etc/cni/gpucluster.conflist.template"
#: Marks our routes for the kernel: no other program of a host uses this number (rtnetlink leaves 17 to 255 free).
PROTOCOL = "201"
TABLE = "gpucluster_pods"
BRIDGE = "cni0"
_EVERY = 3.0
_UNTIL_JOINED = 0.5
_SECONDS = 20.0


@dataclass(frozen=True)
class NodeRange:
    """A node, its address and its part of the pods' range."""

    node: str
    address: str
    pods: str


def parts(nodes: Sequence[Mapping[str, Any]]) -> list[NodeRange]:
    """The nodes of the API that have an address and a part of the range."""
    node_parts = []
    for node in nodes:
        addresses = node.get("status", {}).get("addresses") or []
        address = next((each["address"] for each in addresses if each.get("type") == "InternalIP"), "")
        pods = node.get("spec", {}).get("podCIDR", "")
        if address and pods:
            node_parts.append(NodeRange(node["metadata"]["name"], address, pods))
    return node_parts


def desired_routes(known: Sequence[NodeRange], own: str) -> dict[str, str]:
    """By destination, the address that routes go to: of every node but our own."""
    return {part.pods: part.address for part in known if part.node != own}


def changes(desired: Mapping[str, str], present: Mapping[str, str]) -> list[list[str]]:
    """The arguments of `ip` that make the present routes the wanted ones."""
    lines = [
        ["route", "replace", pods, "via", address, "proto", PROTOCOL]
        for pods, address in sorted(desired.items())
        if present.get(pods) != address
    ]
    gone = sorted(set(present) - set(desired))
    return lines + [["route", "del", pods, "via", present[pods], "proto", PROTOCOL] for pods in gone]


def plugins(pods: str) -> str:
    """The configuration of the network plugins of a host with this part of the range."""
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    mapped = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.3.1", "name": "gpucluster", "plugins": [bridge, mapped]}, indent=2) + "\n"


def masquerade(pods: str) -> str:
    """Rules of nft: what pods send to the outside has the address of the host."""
    return (
        f"table ip {TABLE} {{}}\ndelete table ip {TABLE}\n"
        f"table ip {TABLE} {{\n"
        "  chain postrouting {\n"
        "    type nat hook postrouting priority srcnat; policy accept;\n"
        f"    ip saddr {pods} ip daddr != {pods} masquerade\n"
        "  }\n"
        "}\n"
    )


def present_routes(text: str) -> dict[str, str]:
    """Our routes, from `ip -json route show proto PROTOCOL`."""
    try:
        return {each["dst"]: each.get("gateway", "") for each in json.loads(text or "[]")}
    except (ValueError, KeyError, TypeError):
        raise Failed("ip printed no routes that can be read") from None


def is_of_another_part(text: str, pods: str) -> bool:
    """Whether the bridge of pods has an address outside of a part.

    Args:
        text: from `ip -json -4 address show`.
    """
    part = ipaddress.ip_network(pods)
    try:
        addresses = [
            ipaddress.ip_address(address["local"])
            for device in json.loads(text or "[]")
            if device.get("ifname") == BRIDGE
            for address in device["addr_info"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Failed("ip printed no addresses that can be read") from None
    return any(address not in part for address in addresses)


def _ip(*arguments: str) -> str:
    result = programs.call(["ip", *arguments], "", _SECONDS)
    if result.returncode != 0:
        raise Failed(f"ip {' '.join(arguments)} failed: {result.stderr.strip()[-200:]}")
    return result.stdout


def _write(path: str, text: str) -> None:
    try:
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return
    except FileNotFoundError:
        pass
    # Whole or not at all: the runtime reads every file of the folder.
    part = f"{path}.part"
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(part, path)


def server_in(kubeconfig: str) -> str:
    """The address of the API server in a kubeconfig.

    Raises:
        Failed: it has none.
    """
    match = _SERVER.search(kubeconfig)
    if match is None:
        raise Failed(f"{KUBELET} names no API server", "Run: gpucluster apply")
    return match[1]


def _nodes() -> list[dict[str, Any]]:
    import ssl

    with open(KUBELET, encoding="utf-8") as file:
        url = f"{server_in(file.read())}/api/v1/nodes"
    context = ssl.create_default_context(cafile=AUTHORITY)
    context.load_cert_chain(CERTIFICATE)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with opener.open(url, timeout=_SECONDS) as answer:
        return list(json.load(answer)["items"])


def follow_once(own: str, known: str = "") -> str:
    """Look at the nodes once, and make the routes and the configuration of this host what they should be.

    Args:
        known: this host's part of the last time.

    Returns:
        this host's part; empty if its node has none.

    Raises:
        OSError, ValueError: the API server does not answer, or not as it should; this host has not joined yet.
        Failed: a program refuses.
    """
    node_parts = parts(_nodes())
    present = present_routes(_ip("-json", "route", "show", "proto", PROTOCOL))
    for arguments in changes(desired_routes(node_parts, own), present):
        _ip(*arguments)
    mine = next((part.pods for part in node_parts if part.node == own), "")
    if mine:
        _write(CONFIGURATION, plugins(mine))
        if mine != known and is_of_another_part(_ip("-json", "-4", "address", "show"), mine):
            _ip("link", "delete", BRIDGE)
            sys.stderr.write(
                f"gpucluster-agent: this host has other addresses for pods now ({mine}): {BRIDGE} removed\n"
            )
    return mine


def main(pods: str, node: str = "") -> int:
    """Follow the nodes until a signal. An error is logged once, and the next look comes as always.

    Args:
        node: the name of this host in the API; empty for its host name.
    """
    try:
        ipaddress.ip_network(pods)
    except ValueError as error:
        sys.stderr.write(f"gpucluster-agent: {error}\n")
        return 2
    own, last_error, part = node or socket.gethostname(), "", ""
    rules = programs.call(["nft", "-f", "-"], masquerade(pods), _SECONDS)
    if rules.returncode != 0:
        sys.stderr.write(f"gpucluster-agent: nft refused: {rules.stderr.strip()[-200:]}\n")
        return 1
    _write(TEMPLATE, plugins("{{.PodCIDR}}"))
    while not os.path.exists(KUBELET):
        time.sleep(_UNTIL_JOINED)
    while True:
        try:
            part = follow_once(own, part)
            last_error = ""
        except (AgentError, OSError, ValueError, KeyError) as error:
            if str(error) != last_error:
                last_error = str(error)
                sys.stderr.write(f"gpucluster-agent: {last_error}\n")
        time.sleep(_EVERY)
