"""The way of instances to 169.254.169.254: rules of this host's packet filter, for the bridges of one local cloud only.

The table has the rules of `reach`, too: who reaches the instances.

A request that an instance sends leaves the instance like any other, through the instance's own firewall, and becomes
one to the listener at the bridge. The host's own addresses and routes stay as they are: the host may be an instance of
a cloud itself, with a metadata service of its own at the same address. That one must not be reached by instances of the
local cloud, so nothing that comes from their bridges is forwarded to link-local addresses.
The API with TLS is at port 443 of the gateway for them, where the host itself may have another web server.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from gpucluster import process
from gpucluster.errors import CloudError
from gpucluster.localcloud.engine import reach
from gpucluster.localcloud.engine.protocol import NetworkListeners

#: Of the metadata service, and of the resolver of a VCN.
METADATA_ADDRESS = "169.254.169.254"
_LINK_LOCAL = "169.254.0.0/16"
_PREFIX = "gpucluster_"
_DNS_PORT = 53
_HANDLE = re.compile(r"^table ip \S+ \{ # handle ([0-9]+)$", re.MULTILINE)
_TRIES = 5


def table_name(home: Path) -> str:
    """The name of a local cloud's table."""
    return f"{_PREFIX}{hashlib.sha256(str(home).encode()).hexdigest()[:12]}"


def rules(table: str, paths: Mapping[str, NetworkListeners]) -> str:
    """The input of `nft -f`, which replaces the table at once; without paths it is removed.

    Args:
        paths: by the interface of this host that a network's instances are connected to.
    """
    removal = _removal(table)
    if not paths:
        return removal
    to_address, kept, direct = [], [], []
    for bridge, to in paths.items():
        sent = f'iifname "{bridge}" ip daddr {METADATA_ADDRESS}'
        to_address += [
            f"{sent} tcp dport 80 dnat to {to.gateway}:{to.metadata_port}",
            f"{sent} udp dport {_DNS_PORT} dnat to {to.gateway}:{to.udp_name_port}",
            f"{sent} tcp dport {_DNS_PORT} dnat to {to.gateway}:{to.tcp_name_port}",
            f'iifname "{bridge}" ip daddr {to.gateway} tcp dport 443 dnat to {to.gateway}:{to.api_port}',
        ]
        kept.append(f'iifname "{bridge}" ip daddr {_LINK_LOCAL} reject')
        # Or a firewall in the instance, which guards the address, could be passed by.
        listener = f"ip daddr {to.gateway} tcp dport {to.metadata_port}"
        direct.append(f"{listener} ct original ip daddr != {METADATA_ADDRESS} reject with tcp reset")
    forwarded, received = reach.rules(paths)
    chains = (
        ("prerouting", "type nat hook prerouting priority dstnat - 5", to_address),
        ("forward", "type filter hook forward priority filter - 5", kept + forwarded),
        ("input", "type filter hook input priority filter - 5", direct + received),
    )
    body = "".join(
        f" chain {name} {{\n  {hook}; policy accept;\n{''.join(f'  {line}{chr(10)}' for line in lines)} }}\n"
        for name, hook, lines in chains
    )
    return f"{removal}table ip {table} {{\n{body}}}\n"


def _removal(table: str) -> str:
    # The first line makes the removal succeed where there is none.
    return f"table ip {table}\ndelete table ip {table}\n"


def set_paths(home: Path, paths: Mapping[str, NetworkListeners]) -> None:
    """Make these the paths of a local cloud, in place of the earlier ones.

    Raises:
        CloudError: the packet filter refused.
    """
    own = table_name(home)
    for _ in range(_TRIES):
        left = _left_behind(own, paths)
        removals = "".join(f"delete table ip handle {handle}\n" for handle in left)
        result = process.run(["nft", "-f", "-"], input=removals + rules(own, paths), check=False)
        if result.returncode == 0:
            return
        if not left:
            break  # else another local cloud may have replaced its table since we looked: then nothing was changed
    raise CloudError(
        f"the instances' access to {METADATA_ADDRESS} and to the API can't be set up: {result.stderr.strip()}",
        where="nft",
        hint="The kernel needs nf_tables with NAT: modprobe nft_chain_nat",
    )


def _left_behind(own: str, paths: Mapping[str, NetworkListeners]) -> list[str]:
    """The tables, by handle, of local clouds that were killed and deleted, whose bridges or addresses are ours now.

    Podman uses names of bridges again; and rules for an address admit no other bridge than theirs. A table has
    another handle when its owner has replaced it: that one is not meant.
    """
    if not paths:
        return []
    ours = [f'iifname "{bridge}"' for bridge in paths] + [f"ip daddr {to.gateway} " for to in paths.values()]
    listed = process.run(["nft", "list", "tables", "ip"], check=False).stdout.split()
    texts = [_text_of(table) for table in listed if table.startswith(_PREFIX) and table != own]
    found = [_HANDLE.search(text) for text in texts if any(rule in text for rule in ours)]
    return [match[1] for match in found if match]


def _text_of(table: str) -> str:
    return process.run(["nft", "--handle", "list", "table", "ip", table], check=False).stdout
