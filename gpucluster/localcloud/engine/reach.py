"""Who reaches the instances: this host, and instances of the same VCN. Rules of this host's packet filter (pure).

Podman makes this host a router, and its own rules accept each host that has a route: a machine of the same network that
sends packets for a VCN's range to this host, or a container of another network. On OCI no host outside of the VCN does.
An instance still reaches what this host reaches, and the answers come back.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpucluster.localcloud.engine.protocol import NetworkListeners

# An answer to what an instance, or this host, has asked for.
_NOT_AN_ANSWER = "ct state != { established, related }"


def rules(paths: Mapping[str, NetworkListeners]) -> tuple[list[str], list[str]]:
    """The rules of the hooks `forward` and `input`, in nft's words.

    Args:
        paths: by the interface of this host that a network's instances are connected to.
    """
    forward, received = [], []
    for bridge, to in paths.items():
        # The blocks of one VCN are networks of their own here.
        own = ", ".join(f'"{name}"' for name, other in paths.items() if name == bridge or other.vcn == to.vcn != "")
        forward.append(f'oifname "{bridge}" iifname != {{ {own} }} {_NOT_AN_ANSWER} drop')
        # This host itself reaches the address over its loopback interface.
        received.append(f'ip daddr {to.gateway} iifname != {{ "lo", {own} }} {_NOT_AN_ANSWER} drop')
    return forward, received
