"""What of the cloud's own services a host reaches, and on which physical host it is."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from typing import Any

from gpucluster.node_agent import metadata
from gpucluster.node_agent.rules import rdma_place

#: What of the cloud's own services no user may reach: the identity of the instance, and its boot volume.
CLOUD_SERVICES: Mapping[str, tuple[str, int]] = {
    "metadata": ("169.254.169.254", 80),
    "boot volume": ("169.254.0.2", 3260),
}
NOBODY = 65534
_CONNECT_SECONDS = 3


def is_reached(address: tuple[str, int]) -> bool:
    """Whether this process can connect there."""
    # `create_connection` imports modules, which a process of another user may not read.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        connection.settimeout(_CONNECT_SECONDS)
        return connection.connect_ex(address) == 0


class Connecting:
    """A child process of a user that tries to connect to services. Start it before any thread: it is a fork.

    Args:
        uid: the user; its own rights, and no group.
    """

    def __init__(self, uid: int, services: Mapping[str, tuple[str, int]]) -> None:
        reading, writing = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            try:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
                found = [name for name, address in services.items() if is_reached(address)]
                os.write(writing, json.dumps(found).encode())
            finally:
                os._exit(0)
        os.close(writing)
        self._answer = reading

    def reached(self) -> list[str]:
        """The names of the services to which it can connect."""
        with os.fdopen(self._answer) as answer:
            told = answer.read()
        os.waitpid(self._child, 0)
        return list(json.loads(told))


def physical_host() -> str:
    """The cloud's id of the physical host of this instance; empty where the metadata service reports none.

    The OCID is reported in dedicated capacity (docs of oci-hpc-oke: "Using RDMA Network Locality"), the other id by
    the same document elsewhere (Oracle's oci-dr-hpc-v2).
    """
    document = metadata.host_document()
    rdma = document.get("rdmaTopologyData")
    own = rdma.get("customerHostId") if isinstance(rdma, Mapping) else None
    return next((str(value) for value in (own, document.get("id")) if _is_id(value)), "")


def place_in_network() -> dict[str, Any]:
    """The place of this host in its RDMA network, if the metadata service reports one (`known`)."""
    where = rdma_place.place(metadata.host_document())
    found = where or rdma_place.Place("", "", "")
    return {
        "known": where is not None,
        "island": found.island,
        "network_block": found.network_block,
        "local_block": found.local_block,
    }


def _is_id(value: Any) -> bool:
    """Whether this can be an id of the cloud."""
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9._:-]{1,255}", value) is not None
