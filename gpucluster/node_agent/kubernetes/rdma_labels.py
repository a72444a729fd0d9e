"""The place of this host in the RDMA network, as labels of its node.

OCI reports it to each host of a dedicated pool (metadata service, `/opc/v2/host/rdmaTopologyData`). The node writes its
own labels with the rights of its kubelet: the API server lets it change no other node's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.kubernetes.kubectl import Kubectl, checked_name
from gpucluster.node_agent.kubernetes.node_name import registered_name
from gpucluster.node_agent.rules.labels import PLACE, label_value

URL = "http://169.254.169.254/opc/v2/host/rdmaTopologyData"
# As the labeler of oci-hpc-oke v26.7.0 does.
_OCID_END = 11
_SECONDS = 10.0
_MOST_BYTES = 65536
_NOT_FOUND = 404


def labels(data: Mapping[str, Any]) -> dict[str, str]:
    """The labels of a host's place. Empty where OCI does not report it: it does for dedicated pools. Pure.

    Args:
        data: the answer of the metadata service.
    """
    return {
        label: label_value(str(data[key])[-_OCID_END:])
        for label, key in PLACE.items()
        if isinstance(data.get(key), str) and data[key]
    }


def topology_data(url: str = URL) -> dict[str, Any]:
    """What the metadata service reports of this host's place; empty if it reports nothing (404).

    Raises:
        Failed: it gives no answer, or one that can't be read.
    """
    # Here, because these take longer to load than everything else.
    import urllib.error
    import urllib.request

    # Not by the proxy of the site, which would answer for itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers={"Authorization": "Bearer Oracle"})  # noqa: S310 - ours
    try:
        with opener.open(request, timeout=_SECONDS) as answer:
            place = json.loads(answer.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        if error.code == _NOT_FOUND:
            return {}
        raise Failed(f"the metadata service answers {error.code} to {url}", "Run the command again") from None
    except (OSError, ValueError) as error:
        raise Failed(
            f"the metadata service gives no answer that can be read: {error}", "Run the command again"
        ) from None
    if not isinstance(place, dict):
        raise Failed("the metadata service has no answer on the RDMA network that can be read", "Run the command again")
    return place


def keep(kubectl: Kubectl, data: Mapping[str, Any], name: str = "") -> dict[str, str | None]:
    """Set the labels of this node's place in the network, and remove those of an earlier place.

    Args:
        kubectl: with the rights of this host's kubelet.
        data: what the metadata service reports.
        name: of the node in the API; empty: that of this host.

    Returns:
        The labels that were changed; None for one that was removed.

    Raises:
        Failed: the API server gives no answer, or refuses. No label was changed.
    """
    desired = labels(data)
    node = checked_name(name or registered_name())
    has = kubectl.get("node", node)["metadata"].get("labels") or {}
    changes: dict[str, str | None] = {label: None for label in PLACE if label in has and label not in desired}
    changes.update({label: value for label, value in desired.items() if has.get(label) != value})
    if changes:
        kubectl.patch("node", node, {"metadata": {"labels": changes}})
    return changes
