"""Tokens of Kubernetes Engine: the user of a token, as the local cloud reports it to the API server of a cluster."""

from __future__ import annotations

import base64
import json
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import oci
import pytest
from oci._vendor import requests
from oci.container_engine import models

from gpucluster.localcloud.api.container_engine import VERSIONS
from gpucluster.localcloud.auth.instance_principals import Principal, PrincipalAuthority
from gpucluster.localcloud.kubernetes.control_plane import REVIEWS
from tests.localcloud.api_harness import Api, running
from tests.localcloud.entitled import Entitled
from tests.localcloud.test_oke_program import load_oke

pytestmark = pytest.mark.slow


class Server:
    """The API server of a cluster, as far as it asks whom tokens belong to."""

    def __init__(self, api: Api, instance: str, node: str) -> None:
        self.api = api
        self.instance, self.node = instance, node
        self.cluster = api.kubernetes.list_clusters(api.tenancy).data[0].id
        with sqlite3.connect(api.home / "cloud.db") as store:
            [(hidden,)] = store.execute("SELECT hidden FROM resource WHERE id = ?", (self.cluster,))
        self.secret = str(json.loads(hidden)["review_secret"])

    def ask(self, token: str, secret: str = "") -> Mapping[str, Any]:
        """The status of a review."""
        body = json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}})
        headers = {"Authorization": f"Bearer {secret or self.secret}", "Content-Type": "application/json"}
        url = f"{self.api.endpoint}{REVIEWS}/{self.cluster}"
        with urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers)) as reply:
            status: dict[str, Any] = json.load(reply)["status"]
        return status

    def token(
        self, settings: Mapping[str, str] | None = None, *, cluster: str = "", host: str = "", late: int = 0
    ) -> str:
        """A token as oci-cli makes it, by default the operator's for this cluster."""
        given = dict(settings or self.api.config)
        signer = oci.Signer(given["tenancy"], given["user"], given["fingerprint"], given["key_file"])
        name = host or "containerengine.local-1.oraclecloud.com"
        url = f"https://{name}/cluster_request/{cluster or self.cluster}"
        date = format_datetime(datetime.now(UTC) - timedelta(seconds=late), usegmt=True)
        request = requests.Request("GET", url, headers={"date": date}).prepare()
        headers = signer.do_request_sign(request).headers
        signed = f"{url}?{urlencode({'authorization': headers['authorization'], 'date': headers['date']})}"
        return base64.urlsafe_b64encode(signed.encode()).decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("tokens")) as api:
        subnet = api.subnet(api.vcn("10.86.0.0/24", "tokens"), "10.86.0.0/24")
        details = models.CreateClusterDetails(
            name="tokens", compartment_id=api.tenancy, vcn_id=subnet.vcn_id, kubernetes_version=VERSIONS[0],
            endpoint_config=models.CreateClusterEndpointConfigDetails(subnet_id=subnet.id),
        )  # fmt: skip
        api.kubernetes.create_cluster(details)
        instance = api.launch(subnet)
        [attached] = api.compute.list_vnic_attachments(api.tenancy, instance_id=instance.id).data
        yield Server(api, instance.id, api.network.get_vnic(attached.vnic_id).data.private_ip)


@pytest.fixture
def entitled(server: Server, tmp_path: Path) -> Iterator[Entitled]:
    made = Entitled(server.api, server.instance, tmp_path / "config", name=f"t{tmp_path.name[-8:]}")
    made.in_group()
    yield made
    made.allow([])


def test_the_operator_is_an_administrator(server: Server) -> None:
    status = server.ask(server.token())
    assert status["authenticated"] is True
    assert (status["user"]["username"], status["user"]["groups"]) == (server.api.config["user"], ["system:masters"])


def test_a_token_is_for_one_cluster_and_five_minutes(server: Server) -> None:
    assert server.ask(server.token(late=200))["authenticated"] is True
    refused = {
        "s off": server.token(late=400),
        "its request is for": server.token(cluster="ocid1.cluster.local..other"),
        "its request is to": server.token(host="iaas.local-1.oraclecloud.com"),
        "not a URL in base64": "abcde",
    }
    for said, token in refused.items():
        status = server.ask(token)
        assert status["authenticated"] is False
        assert said in status["error"]
    changed = base64.urlsafe_b64decode(server.token()).decode().replace("date=", "date=x")
    assert server.ask(base64.urlsafe_b64encode(changed.encode()).decode())["authenticated"] is False


@pytest.mark.parametrize(
    ("permission", "user", "groups"),
    [
        ("manage clusters", "INSTANCE", ["system:masters"]),
        ("{CLUSTER_JOIN}", "NODE", ["system:nodes"]),
        ("use clusters", "INSTANCE", []),
        ("read clusters", None, None),
        ("manage instances", None, None),
    ],
)
def test_an_instance_is_what_policies_make_it(
    server: Server, entitled: Entitled, permission: str, user: str | None, groups: list[str] | None
) -> None:
    token = server.token(entitled.settings)
    assert server.ask(token)["authenticated"] is False
    entitled.allow([f"Allow dynamic-group id {entitled.group.id} to {permission} in tenancy"])
    status = server.ask(token)
    if user is None:
        assert status["authenticated"] is False
        assert "CLUSTER_JOIN" in status["error"]
        return
    named = {"INSTANCE": server.instance, "NODE": f"system:node:{server.node}"}
    assert status["user"] == {"username": named[user], "uid": server.instance, "groups": groups}


def test_only_the_api_server_of_the_cluster_may_ask(server: Server) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        server.ask(server.token(), secret="guessed")
    assert caught.value.code == 401


def test_a_node_of_a_pool_needs_no_policy(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    api = server.api
    subnet = api.kubernetes.get_cluster(server.cluster).data.endpoint_config.subnet_id
    details = models.CreateNodePoolDetails(
        compartment_id=api.tenancy, cluster_id=server.cluster, name="work", kubernetes_version=VERSIONS[0],
        node_shape="VM.Standard.E5.Flex",
        node_shape_config=models.CreateNodeShapeConfigDetails(ocpus=1, memory_in_gbs=4),
        node_source_details=models.NodeSourceViaImageDetails(image_id=api.image().id),
        node_config_details=models.CreateNodePoolNodeConfigDetails(
            size=1,
            placement_configs=[models.NodePoolPlacementConfigDetails(
                availability_domain=api.domain, subnet_id=subnet)],
        ),
    )  # fmt: skip
    work = api.kubernetes.create_node_pool(details).headers["opc-work-request-id"]
    pool = api.kubernetes.get_work_request(work).data.resources[0].identifier
    [node] = api.wait(api.kubernetes.get_node_pool, pool, "ACTIVE").nodes
    made = Entitled(api, node.id, api.home / "config-of-node")
    status = server.ask(server.token(made.settings))
    assert status["user"]["username"] == f"system:node:{node.private_ip}"
    program = load_oke()
    authority = PrincipalAuthority.open(api.home / "credentials" / "instance_authority.pem")
    leaf = authority.leaf(Principal(node.id, api.tenancy, api.tenancy))
    documents = {
        "identity/cert.pem": leaf.certificate,
        "identity/key.pem": leaf.key,
        "identity/intermediate.pem": authority.intermediate,
        "instance/": json.dumps({"region": "local-1", "tenantId": api.tenancy}),
    }
    monkeypatch.setattr(program, "metadata", documents.__getitem__)
    monkeypatch.setattr(program, "CLOUD_CA", str(api.home / "credentials" / "ca.pem"))
    monkeypatch.setattr(program.urllib.request, "build_opener", lambda *_: Here(api.endpoint))
    own = api.kubernetes.get_cluster(server.cluster).data.endpoints.private_endpoint.split(":")[0]
    token = program.token(own)
    monkeypatch.undo()
    assert server.ask(token)["user"]["username"] == f"system:node:{node.private_ip}", "as the program on the node asks"


class Here:
    """Opens what is asked of OCI's hosts at the local cloud, as the names of an instance lead there."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def open(self, request: urllib.request.Request, timeout: float) -> Any:
        path = "/" + request.full_url.split("/", 3)[3]
        moved = urllib.request.Request(self._endpoint + path, request.data, dict(request.header_items()))
        return urllib.request.urlopen(moved, timeout=timeout)
