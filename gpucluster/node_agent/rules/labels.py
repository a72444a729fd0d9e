"""Labels of nodes in Kubernetes that more than one part reads, and their values."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: The label with the name of a node's host, where the node has another one.
HOST = "gpucluster.io/host"
#: The place in the RDMA network, from far to near -> the key of OCI's metadata service. OKE and oci-hpc-oke name these
#: labels, whose values are the last characters of each OCID.
PLACE: Mapping[str, str] = {
    "oci.oraclecloud.com/rdma.hpc_island_id": "customerHPCIslandId",
    "oci.oraclecloud.com/rdma.network_block_id": "customerNetworkBlock",
    "oci.oraclecloud.com/rdma.local_block_id": "customerLocalBlock",
    "oci.oraclecloud.com/rdma.host_id": "customerHostId",
}
_LONGEST = 63
_EDGES = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$")
_WORD = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_DNS = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"(?:(?=[^/]{{1,253}}/){_DNS}(?:\.{_DNS})*/)?{_WORD}")


def is_label(name: str, value: str) -> bool:
    """Whether Kubernetes accepts a label: a name with or without a prefix of DNS, and a value of 63 characters at
    most."""
    return bool(_NAME.fullmatch(name)) and (not value or bool(re.fullmatch(_WORD, value)))


def label_value(text: str) -> str:
    """The text as the value of a label: 63 characters of letters, digits, `-`, `_` and `.`, its end if it is longer."""
    return _EDGES.sub("", re.sub(r"[^-A-Za-z0-9_.]", "-", text)[-_LONGEST:])
