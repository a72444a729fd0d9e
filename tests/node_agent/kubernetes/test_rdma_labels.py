"""Labels of a node's place in the RDMA network. The metadata service is a double: it does not prove OCI's answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent.errors import AgentError
from gpucluster.node_agent.kubernetes import rdma_labels
from gpucluster.node_agent.rules.labels import PLACE
from tests.controller.kubernetes.api_server import needs_api_server, running_with_kubelet
from tests.controller.kubernetes.objects import node

_DATA: dict[str, Any] = {
    "customerHPCIslandId": "ocid1.hpcisland.oc1.iad.anuwcljrg5pyaeycajoqlss",
    "customerNetworkBlock": "ocid1.computenetworkblock.oc1.iad.anuwclddsdef123",
    "customerLocalBlock": None,
    "customerHostId": 7,
}
_ISLAND, _BLOCK = (f"oci.oraclecloud.com/rdma.{name}_id" for name in ("hpc_island", "network_block"))


def test_the_place_has_the_labels_of_oke() -> None:
    assert rdma_labels.labels(_DATA) == {_ISLAND: "aeycajoqlss", _BLOCK: "clddsdef123"}
    assert rdma_labels.labels({}) == {}
    assert [name.rpartition(".")[2] for name in PLACE] == [
        "hpc_island_id", "network_block_id", "local_block_id", "host_id",
    ]  # fmt: skip


class _Metadata:
    """A double of the metadata service."""

    def __init__(self) -> None:
        self.status, self.body = 200, json.dumps(_DATA)
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                allowed = self.headers.get("Authorization") == "Bearer Oracle"
                self.send_response(double.status if allowed else 401)
                self.end_headers()
                self.wfile.write(double.body.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/opc/v2/host/rdmaTopologyData"


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Metadata]:
    # A proxy that must not be asked.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    double = _Metadata()
    threading.Thread(target=double.server.serve_forever, daemon=True).start()
    yield double
    double.server.shutdown()
    double.server.server_close()


def test_what_the_service_says(metadata: _Metadata) -> None:
    assert rdma_labels.topology_data(metadata.url) == _DATA
    metadata.status = 404
    assert rdma_labels.topology_data(metadata.url) == {}
    metadata.status = 500
    with pytest.raises(AgentError, match="answers 500"):
        rdma_labels.topology_data(metadata.url)
    metadata.status = 200
    for body in ("no JSON", "[]"):
        metadata.body = body
        with pytest.raises(AgentError, match="can be read"):
            rdma_labels.topology_data(metadata.url)
    metadata.server.shutdown()
    metadata.server.server_close()
    with pytest.raises(AgentError, match="no answer"):
        rdma_labels.topology_data(metadata.url)


@pytest.mark.slow
@needs_api_server
@pytest.mark.xdist_group("kubernetes-api-server")
def test_a_node_labels_itself_and_no_other(tmp_path: Path) -> None:
    with running_with_kubelet(tmp_path, "compute-1") as (api, kubelet):
        api.create(node("compute-1"), node("compute-2"))

        def has(name: str = "compute-1") -> dict[str, str]:
            found = api.kubectl.get("node", name)["metadata"].get("labels") or {}
            return {key: value for key, value in found.items() if "oraclecloud" in key}

        both = {_ISLAND: "aeycajoqlss", _BLOCK: "clddsdef123"}
        assert rdma_labels.keep(kubelet, _DATA, "compute-1") == both
        assert has() == both
        assert rdma_labels.keep(kubelet, _DATA, "compute-1") == {}
        # Another machine under this name: nothing of the earlier place is left.
        other = {"customerHPCIslandId": "ocid1.hpcisland.oc1.iad.xxxxxxxxxxx"}
        assert rdma_labels.keep(kubelet, other, "compute-1") == {_ISLAND: "xxxxxxxxxxx", _BLOCK: None}
        assert has() == {_ISLAND: "xxxxxxxxxxx"}
        with pytest.raises(AgentError):
            rdma_labels.keep(kubelet, _DATA, "compute-2")
        assert has("compute-2") == {}
