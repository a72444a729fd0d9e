"""Clusters of the local cloud's Kubernetes Engine with a real Kubernetes 1.20.2 (tests/kubernetes_sources.py).

Doubles: `oci` (tests/doubles/oci), CoreDNS. kubectl, the API server and its parts are real.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest
import yaml
from oci.container_engine import models

from gpucluster.localcloud.kubernetes import releases
from tests.addresses import free_range
from tests.e2e.site_harness import PATIENCE_TO_BUILD_S
from tests.kubernetes_sources import NEXT, RELEASE, mirror, need_kubernetes
from tests.localcloud.api_harness import SHAPE, Api, running
from tests.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(PATIENCE_TO_BUILD_S)]
DOUBLES = Path(__file__).resolve().parents[1] / "doubles" / "oci"


class Oke:
    """A local cloud with one cluster, and kubectl as its operator calls it."""

    def __init__(self, api: Api, subnet: Any, cluster: str) -> None:
        self.api = api
        self.subnet = subnet
        self.cluster = cluster
        self.kubeconfig = api.home / "kubeconfig"
        self.kubeconfig.write_bytes(api.kubernetes.create_kubeconfig(cluster).data.content)

    def call(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        path = f"{DOUBLES}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "OCI_CLI_CONFIG_FILE": str(self.api.home / "credentials" / "config")}
        program = releases.find(self.api.home, RELEASE).kubectl
        argv = [str(program), f"--kubeconfig={self.kubeconfig}", *words]
        return subprocess.run(
            argv, env=env, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        done = self.call(*words, stdin=stdin)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def token(self, cluster: str) -> str:
        """The operator's token for a cluster."""
        env = {**os.environ, "OCI_CLI_CONFIG_FILE": str(self.api.home / "credentials" / "config")}
        argv = [sys.executable, str(DOUBLES / "oci"), "ce", "cluster", "generate-token", "--cluster-id", cluster]
        said = subprocess.run(
            [*argv, "--region", "local-1"], env=env, capture_output=True, check=True, timeout=PATIENCE_S
        )
        return str(json.loads(said.stdout)["status"]["token"])

    def status_of(self, token: str) -> int:
        """What the API server answers to a client with this token."""
        [entry] = yaml.safe_load(self.kubeconfig.read_text())["clusters"]
        authority = base64.b64decode(entry["cluster"]["certificate-authority-data"]).decode()
        request = urllib.request.Request(
            f"{entry['cluster']['server']}/api/v1/nodes", headers={"Authorization": f"Bearer {token}"}
        )
        try:
            with urllib.request.urlopen(request, context=ssl.create_default_context(cadata=authority)) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code

    def on(self, address: str, *command: str) -> subprocess.CompletedProcess[str]:
        """A command in the instance with an address."""
        names = _podman("ps", "--format={{.Names}}", f"--filter=label=gpucluster.home={self.api.home}").split()
        shown = {name: _podman("inspect", "--format={{json .NetworkSettings.Networks}}", name) for name in names}
        [name] = [name for name, text in shown.items() if f'"{address}"' in text]
        argv = ["podman", "exec", name, *command]
        return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def container(self) -> str:
        [name] = _podman("ps", "--all", "--format={{.Names}}", f"--filter=label=gpucluster.ocid={self.cluster}").split()
        return name


def _podman(*words: str) -> str:
    return subprocess.run(["podman", *words], check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout


def finished(api: Api, reply: Any) -> Any:
    """The work request of a reply, when it has an end."""
    ocid = reply.headers["opc-work-request-id"]

    def ended() -> Any:
        request = api.kubernetes.get_work_request(ocid).data
        return request if request.time_finished is not None else None

    found = wait_for("the work request has ended", ended, patience=6 * PATIENCE_S, interval=0.2)
    if found.status != "SUCCEEDED":
        [resource] = found.resources
        errors = api.kubernetes.list_work_request_errors(resource.identifier, found.id).data
        raise AssertionError(errors)
    return found


@pytest.fixture(scope="module")
def oke(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oke]:
    need_kubernetes()
    home = tmp_path_factory.mktemp("oke")
    (home / "kubernetes.json").write_text(json.dumps({"mirror": str(mirror(rehearsal=True))}))
    with free_range() as net, running(home, "podman") as api:
        subnet = api.subnet(api.vcn(f"{net}.0.0/16", "oke"), f"{net}.0.0/24")
        details = models.CreateClusterDetails(
            name="oke", compartment_id=api.tenancy, vcn_id=subnet.vcn_id, kubernetes_version=f"v{RELEASE}",
            type="ENHANCED_CLUSTER",
            endpoint_config=models.CreateClusterEndpointConfigDetails(subnet_id=subnet.id),
        )  # fmt: skip
        work = finished(api, api.kubernetes.create_cluster(details))
        yield Oke(api, subnet, work.resources[0].identifier)


def test_the_operators_token_is_an_administrators(oke: Oke) -> None:
    assert json.loads(oke.kubectl("get", "--raw=/version"))["gitVersion"] == f"v{RELEASE}"
    assert oke.kubectl("auth", "can-i", "delete", "nodes").strip() == "yes"
    assert "system:masters" not in oke.kubeconfig.read_text()
    named = oke.kubectl("get", "deployment,daemonset,service", "--namespace=kube-system", "--output=name").split()
    assert {"deployment.apps/coredns", "daemonset.apps/kube-proxy", "service/kube-dns"} <= set(named)


def test_no_other_user_gets_in(oke: Oke) -> None:
    own = oke.token(oke.cluster)
    assert oke.status_of(own) == 200
    assert oke.status_of(oke.token("ocid1.cluster.local..other")) == 401, "a token is for one cluster"
    changed = base64.urlsafe_b64decode(own).decode().replace("rsa-sha256", "rsa-sha1")
    assert oke.status_of(base64.urlsafe_b64encode(changed.encode()).decode()) == 401
    assert oke.status_of("no-token") == 401


def test_the_compute_api_does_not_know_the_control_plane(oke: Oke) -> None:
    assert oke.api.compute.list_instances(oke.api.tenancy).data == []


@pytest.fixture(scope="module")
def pool(oke: Oke) -> str:
    """The OCID of a node pool with two ready nodes, one taint and one label."""
    script = """#!/bin/bash
curl --fail -H "Authorization: Bearer Oracle" -L0 http://169.254.169.254/opc/v2/instance/metadata/oke_init_script \\
    | base64 --decode > /var/run/oke-init.sh
bash /var/run/oke-init.sh --kubelet-extra-args "--register-with-taints=dedicated=tests:NoSchedule"
"""
    details = models.CreateNodePoolDetails(
        compartment_id=oke.api.tenancy, cluster_id=oke.cluster, name="work", kubernetes_version=f"v{RELEASE}",
        node_shape=SHAPE, node_shape_config=models.CreateNodeShapeConfigDetails(ocpus=1, memory_in_gbs=4),
        node_source_details=models.NodeSourceViaImageDetails(image_id=oke.api.image().id),
        initial_node_labels=[models.KeyValue(key="gpucluster.test/kind", value="managed")],
        node_metadata={"user_data": base64.b64encode(script.encode()).decode()},
        node_config_details=models.CreateNodePoolNodeConfigDetails(
            size=2,
            placement_configs=[models.NodePoolPlacementConfigDetails(
                availability_domain=oke.api.domain, subnet_id=oke.subnet.id)],
        ),
    )  # fmt: skip
    work = finished(oke.api, oke.api.kubernetes.create_node_pool(details))
    return str(work.resources[0].identifier)


def test_managed_nodes_join_by_themselves_with_labels_and_taints(oke: Oke, pool: str) -> None:
    shown = oke.api.kubernetes.get_node_pool(pool).data
    assert [node.lifecycle_state for node in shown.nodes] == ["ACTIVE", "ACTIVE"]
    nodes = {node["metadata"]["name"]: node for node in json.loads(oke.kubectl("get", "nodes", "-o", "json"))["items"]}
    assert set(nodes) == {node.private_ip for node in shown.nodes}
    for node in shown.nodes:
        found = nodes[node.private_ip]
        assert found["metadata"]["labels"]["gpucluster.test/kind"] == "managed"
        assert found["spec"]["providerID"] == node.id
        assert {"key": "dedicated", "value": "tests", "effect": "NoSchedule"} in found["spec"]["taints"]
        assert found["status"]["nodeInfo"]["kubeletVersion"] == f"v{RELEASE}"


def test_a_pod_runs_on_a_managed_node_and_the_other_node_reaches_it(oke: Oke, pool: str) -> None:
    first, second = (node.private_ip for node in oke.api.kubernetes.get_node_pool(pool).data.nodes)
    container = {"name": "main", "image": "k8s.gcr.io/pause:3.2"}
    objects = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": first},
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "containers": [container],
        },
    }
    wait_for("the namespace has its account", lambda: oke.call("get", "serviceaccount", "default").returncode == 0)
    oke.kubectl("apply", "--filename=-", stdin=json.dumps(objects))
    oke.kubectl("wait", "--for=condition=Ready", "pod/one", f"--timeout={PATIENCE_S:.0f}s")
    address = json.loads(oke.kubectl("get", "pod", "one", "-o", "json"))["status"]["podIP"]
    wait_for("the other node reaches the pod", lambda: oke.on(second, "ping", "-c1", "-W1", address).returncode == 0)
    # kube-proxy leads the first address of the services' range to the API server.
    version = ("curl", "--silent", "--insecure", "https://10.96.0.1/version")
    wait_for("the address leads there", lambda: oke.on(second, *version).returncode == 0, interval=0.5)
    assert json.loads(oke.on(second, *version).stdout)["gitVersion"] == f"v{RELEASE}"


def test_a_pool_shrinks_and_its_nodes_are_forgotten(oke: Oke, pool: str) -> None:
    details = models.UpdateNodePoolDetails(node_config_details=models.UpdateNodePoolNodeConfigDetails(size=1))
    finished(oke.api, oke.api.kubernetes.update_node_pool(pool, details))
    [left] = [node for node in oke.api.kubernetes.get_node_pool(pool).data.nodes if node.lifecycle_state == "ACTIVE"]
    assert oke.kubectl("get", "nodes", "--output=name").split() == [f"node/{left.private_ip}"]
    finished(oke.api, oke.api.kubernetes.delete_node_pool(pool))
    assert oke.kubectl("get", "nodes", "--output=name").split() == []
    states = {instance.lifecycle_state for instance in oke.api.compute.list_instances(oke.api.tenancy).data}
    assert states == {"TERMINATED"}


def test_an_instance_of_our_own_joins_when_a_policy_lets_it(oke: Oke) -> None:
    api = oke.api
    config = yaml.safe_load(oke.kubeconfig.read_text())["clusters"][0]["cluster"]
    metadata = {
        "apiserver_host": config["server"].removeprefix("https://").split(":")[0],
        "cluster_ca_cert": config["certificate-authority-data"],
        "oke-k8version": f"v{RELEASE}",
        "oke-initial-node-labels": "gpucluster.test/kind=own",
        "user_data": base64.b64encode(b"#!/bin/sh\noke bootstrap\n").decode(),
    }
    instance = api.launch(oke.subnet, "own", metadata=metadata)
    [attached] = api.compute.list_vnic_attachments(api.tenancy, instance_id=instance.id).data
    address = api.network.get_vnic(attached.vnic_id).data.private_ip
    log = "/var/log/cloud-init-output.log"
    wait_for("no policy lets the instance join", lambda: "Unauthorized" in oke.on(address, "cat", log).stdout)
    assert oke.call("get", "node", address).returncode != 0
    group = oci.identity.models.CreateDynamicGroupDetails(
        compartment_id=api.tenancy, name="workers", description="of a test",
        matching_rule=f"instance.id = '{instance.id}'",
    )  # fmt: skip
    api.identity.create_dynamic_group(group)
    policy = oci.identity.models.CreatePolicyDetails(
        compartment_id=api.tenancy, name="workers", description="of a test",
        statements=["Allow dynamic-group workers to {CLUSTER_JOIN} in tenancy"],
    )  # fmt: skip
    api.identity.create_policy(policy)
    wait_for(
        "the instance has joined",
        lambda: oke.call("get", "node", address).returncode == 0,
        interval=1,
        state=lambda: oke.on(address, "cat", log).stdout,
    )
    oke.kubectl("wait", "--for=condition=Ready", f"node/{address}", f"--timeout={PATIENCE_S:.0f}s")
    node = json.loads(oke.kubectl("get", "node", address, "-o", "json"))
    assert (node["metadata"]["labels"]["gpucluster.test/kind"], node["spec"]["providerID"]) == ("own", instance.id)
    api.compute.terminate_instance(instance.id)
    oke.kubectl("delete", "node", address)


def test_a_control_plane_that_ends_is_reported_and_comes_back_with_what_it_had(oke: Oke) -> None:
    oke.kubectl("create", "namespace", "kept")
    _podman("stop", "--time=0", oke.container())
    wait_for(
        "the cluster is FAILED", lambda: oke.api.kubernetes.get_cluster(oke.cluster).data.lifecycle_state == "FAILED"
    )
    assert "container" in oke.api.kubernetes.get_cluster(oke.cluster).data.lifecycle_details
    oke.api.kill()
    oke.api.start()
    wait_for(
        "the cluster is ACTIVE", lambda: oke.api.kubernetes.get_cluster(oke.cluster).data.lifecycle_state == "ACTIVE"
    )
    wait_for("its objects are there", lambda: oke.call("get", "namespace", "kept").returncode == 0)


def test_a_control_plane_is_upgraded_and_keeps_what_it_has(oke: Oke) -> None:
    oke.kubectl("create", "namespace", "older")
    changes = models.UpdateClusterDetails(kubernetes_version=f"v{NEXT}")
    finished(oke.api, oke.api.kubernetes.update_cluster(oke.cluster, changes))
    assert json.loads(oke.kubectl("get", "--raw=/version"))["gitVersion"] == f"v{NEXT}"
    oke.kubectl("get", "namespace", "older")


def test_a_deleted_cluster_leaves_no_container_and_no_file(oke: Oke) -> None:
    name = oke.container()
    finished(oke.api, oke.api.kubernetes.delete_cluster(oke.cluster))
    assert name not in _podman("ps", "--all", "--format={{.Names}}").split()
    assert {entry.name for entry in (oke.api.home / "kubernetes").iterdir()} <= {"agent", "programs"}, (
        "what all clusters share"
    )
