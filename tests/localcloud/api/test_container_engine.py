"""Kubernetes Engine with the real SDK: clusters, node pools, add-ons, kubeconfig, work requests.

With the engine of these tests no Kubernetes runs behind a cluster; tests/e2e/test_kubernetes_oke.py has one.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from oci.container_engine import models

from gpucluster.localcloud.api.container_engine import ADDON_VERSION, VERSIONS
from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.kubernetes import releases
from gpucluster.localcloud.server.home import open_authority, open_cloud
from gpucluster.localcloud.server.recovery import recover
from tests.localcloud.api_harness import Api, refused, running
from tests.localcloud.kubernetes.test_releases import fill
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

OLDEST, NEXT, NEWEST = VERSIONS
_number = itertools.count()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("oke")) as api:
        yield api


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn("10.90.0.0/16", "oke"), "10.90.0.0/24", prohibit_public_ip_on_vnic=True)


def create(api: Api, subnet: Any, **changes: Any) -> str:
    """Create a cluster. Returns the id of the work request."""
    details = {
        "name": f"oke{next(_number)}",
        "compartment_id": api.tenancy,
        "vcn_id": subnet.vcn_id,
        "kubernetes_version": OLDEST,
        "type": "ENHANCED_CLUSTER",
        "endpoint_config": models.CreateClusterEndpointConfigDetails(subnet_id=subnet.id),
        **changes,
    }
    reply = api.kubernetes.create_cluster(models.CreateClusterDetails(**details))
    assert (reply.status, reply.data) == (202, None), "the answer has no body: clients read the work request"
    return str(reply.headers["opc-work-request-id"])


def finished(api: Api, work_request: str) -> Any:
    """The work request, when it has an end."""

    def found() -> Any:
        work = api.kubernetes.get_work_request(work_request).data
        return work if work.time_finished is not None else None

    return wait_for(f"the work request {work_request} ends", found, interval=0.02)


def cluster(api: Api, subnet: Any, **changes: Any) -> Any:
    """A cluster that is active, found as oracle/oci finds it: by its work request."""
    work = finished(api, create(api, subnet, **changes))
    assert (work.operation_type, work.status) == ("CLUSTER_CREATE", "SUCCEEDED")
    [resource] = work.resources
    assert (resource.entity_type, resource.action_type) == ("cluster", "CREATED")
    return api.kubernetes.get_cluster(resource.identifier).data


def update(api: Api, ocid: str, **changes: Any) -> Any:
    reply = api.kubernetes.update_cluster(ocid, models.UpdateClusterDetails(**changes))
    assert finished(api, reply.headers["opc-work-request-id"]).operation_type == "CLUSTER_UPDATE"
    return api.kubernetes.get_cluster(ocid).data


def test_a_cluster_has_an_endpoint_in_its_subnet_until_it_is_deleted(api: Api) -> None:
    own = api.subnet(api.vcn("10.89.0.0/24", "life"), "10.89.0.0/24")
    made = cluster(api, own, freeform_tags={"cluster": "a"})
    assert (made.lifecycle_state, made.kubernetes_version, made.type) == ("ACTIVE", OLDEST, "ENHANCED_CLUSTER")
    assert made.endpoints.private_endpoint == "10.89.0.2:6443"
    assert made.endpoints.public_endpoint is None
    assert [option.cni_type for option in made.cluster_pod_network_options] == ["FLANNEL_OVERLAY"]
    assert made.options.kubernetes_network_config.pods_cidr == "10.244.0.0/16"
    assert made.freeform_tags == {"cluster": "a"}
    assert made.available_kubernetes_upgrades == [NEXT]
    assert [each.id for each in api.kubernetes.list_clusters(api.tenancy, name=made.name).data] == [made.id]
    with refused(409, "Conflict"):
        api.network.delete_subnet(own.id)
    reply = api.kubernetes.delete_cluster(made.id)
    assert finished(api, reply.headers["opc-work-request-id"]).resources[0].action_type == "DELETED"
    assert api.kubernetes.get_cluster(made.id).data.lifecycle_state == "DELETED"
    with refused(404, "NotAuthorizedOrNotFound"):
        api.kubernetes.delete_cluster(made.id)
    api.network.delete_subnet(own.id)


def test_what_oke_does_not_accept_is_refused_and_leaves_nothing(api: Api, subnet: Any) -> None:
    import oci

    before = len(api.kubernetes.list_clusters(api.tenancy).data)
    with refused(400, "InvalidParameter") as said:
        create(api, subnet, kubernetes_version="1.34.1")
    assert NEXT in said[0], "it names what it takes, with the v"
    with refused(400, "InvalidParameter") as said:
        create(api, subnet, endpoint_config=models.CreateClusterEndpointConfigDetails(
            subnet_id=subnet.id, is_public_ip_enabled=True))  # fmt: skip
    assert "prohibits public IP addresses" in said[0]
    elsewhere = api.subnet(api.vcn("10.88.0.0/24", "other"), "10.88.0.0/24")
    with refused(400, "InvalidParameter"):
        create(api, subnet, endpoint_config=models.CreateClusterEndpointConfigDetails(subnet_id=elsewhere.id))
    ranges = {"pods_cidr": "10.90.128.0/17", "services_cidr": "10.96.0.0/16"}
    options = models.ClusterCreateOptions(kubernetes_network_config=models.KubernetesNetworkConfig(**ranges))
    with refused(400, "InvalidParameter") as said:
        create(api, subnet, options=options)
    assert "podsCidr 10.90.128.0/17 overlaps VCN 10.90.0.0/16" in said[0]
    native = [oci.container_engine.models.OciVcnIpNativeClusterPodNetworkOptionDetails()]
    found = cluster(api, subnet, options=options, cluster_pod_network_options=native)
    assert found.cluster_pod_network_options[0].cni_type == "OCI_VCN_IP_NATIVE", "its pods are in a subnet"
    assert len(api.kubernetes.list_clusters(api.tenancy).data) == before + 1


def test_a_cluster_is_upgraded_by_one_minor_release_and_never_goes_back(api: Api, subnet: Any) -> None:
    made = cluster(api, subnet)
    with refused(400, "InvalidParameter") as said:
        update(api, made.id, kubernetes_version=NEWEST)
    assert f"available upgrades: {NEXT}" in said[0]
    upgraded = update(api, made.id, kubernetes_version=NEXT)
    assert (upgraded.kubernetes_version, upgraded.available_kubernetes_upgrades) == (NEXT, [NEWEST])
    with refused(400, "InvalidParameter"):
        update(api, made.id, kubernetes_version=OLDEST)
    assert update(api, made.id, kubernetes_version=NEWEST).available_kubernetes_upgrades == []


def test_the_endpoint_becomes_public_and_private_again(api: Api) -> None:
    public = api.subnet(api.vcn("10.87.0.0/24", "public"), "10.87.0.0/24")
    made = cluster(api, public)
    for wanted in (True, False):
        details = models.UpdateClusterEndpointConfigDetails(is_public_ip_enabled=wanted)
        reply = api.kubernetes.update_cluster_endpoint_config(made.id, details)
        finished(api, reply.headers["opc-work-request-id"])
        found = api.kubernetes.get_cluster(made.id).data
        assert found.endpoint_config.is_public_ip_enabled is wanted
        assert (found.endpoints.public_endpoint is not None) is wanted


def test_the_kubeconfig_has_the_clusters_own_certificate_and_no_secret(api: Api, subnet: Any) -> None:
    made = cluster(api, subnet)
    config = yaml.safe_load(api.kubernetes.create_kubeconfig(made.id).data.content)
    [entry] = config["clusters"]
    assert entry["cluster"]["server"] == f"https://{made.endpoints.private_endpoint}"
    authority = x509.load_pem_x509_certificate(base64.b64decode(entry["cluster"]["certificate-authority-data"]))
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    [user] = config["users"]
    assert set(user["user"]) == {"exec"}
    assert user["user"]["exec"]["command"] == "oci"
    assert user["user"]["exec"]["args"][:3] == ["ce", "cluster", "generate-token"]
    assert made.id in user["user"]["exec"]["args"]
    [context] = config["contexts"]
    assert context["context"] == {"cluster": entry["name"], "user": user["name"]}
    assert config["current-context"] == context["name"]
    with refused(400, "InvalidParameter"):
        api.kubernetes.create_kubeconfig(
            made.id,
            create_cluster_kubeconfig_content_details=models.CreateClusterKubeconfigContentDetails(
                endpoint="PUBLIC_ENDPOINT"
            ),
        )


def test_add_ons_are_managed_in_enhanced_clusters(api: Api, subnet: Any) -> None:
    made = cluster(api, subnet, type="BASIC_CLUSTER")
    wanted = models.InstallAddonDetails(addon_name="CertManager", version=ADDON_VERSION)
    with refused(400, "InvalidParameter") as said:
        api.kubernetes.install_addon(made.id, wanted)
    assert "enhanced clusters only" in said[0]
    update(api, made.id, type="ENHANCED_CLUSTER")
    names = {addon.name for addon in api.kubernetes.list_addons(made.id).data}
    assert names == {"CoreDNS", "KubeProxy", "Flannel", "NvidiaGpuPlugin"}
    reply = api.kubernetes.install_addon(made.id, wanted)
    assert finished(api, reply.headers["opc-work-request-id"]).operation_type == "ENABLE_ADDON"
    addon = api.kubernetes.get_addon(made.id, "CertManager").data
    assert (addon.lifecycle_state, addon.version) == ("ACTIVE", ADDON_VERSION)
    with refused(409, "Conflict"):
        api.kubernetes.install_addon(made.id, wanted)
    changes = models.UpdateAddonDetails(configurations=[models.AddonConfiguration(key="useGpu", value="true")])
    finished(api, api.kubernetes.update_addon(made.id, "CertManager", changes).headers["opc-work-request-id"])
    assert api.kubernetes.get_addon(made.id, "CertManager").data.configurations[0].key == "useGpu"
    with refused(400, "InvalidParameter"):
        api.kubernetes.update_addon(made.id, "CertManager", models.UpdateAddonDetails(version="v9.9.9"))
    finished(api, api.kubernetes.disable_addon(made.id, "CertManager", True).headers["opc-work-request-id"])
    with refused(404, "NotAuthorizedOrNotFound"):
        api.kubernetes.get_addon(made.id, "CertManager")


def test_the_options_list_what_a_create_takes(api: Api) -> None:
    options = api.kubernetes.get_cluster_options("all").data
    assert tuple(options.kubernetes_versions) == VERSIONS
    offered = {option.name: option for option in api.kubernetes.list_addon_options(NEWEST).data}
    assert offered["CoreDNS"].is_essential
    assert not offered["NvidiaGpuPlugin"].is_essential
    assert offered["NvidiaGpuPlugin"].versions[0].version_number == ADDON_VERSION


def test_a_create_that_is_repeated_makes_one_cluster(api: Api, subnet: Any) -> None:
    details = models.CreateClusterDetails(
        name="once", compartment_id=api.tenancy, vcn_id=subnet.vcn_id, kubernetes_version=OLDEST,
        endpoint_config=models.CreateClusterEndpointConfigDetails(subnet_id=subnet.id),
    )  # fmt: skip
    works = {
        api.kubernetes.create_cluster(details, opc_retry_token="twice").headers["opc-work-request-id"] for _ in "12"
    }
    assert len(works) == 1
    assert len(api.kubernetes.list_clusters(api.tenancy, name="once").data) == 1


def test_the_next_start_finishes_what_a_stop_has_interrupted(tmp_path: Path) -> None:
    cloud = open_cloud(tmp_path, NullEngine(tmp_path / "null"), open_authority(tmp_path))
    try:
        body = {"lifecycleState": "CREATING", "clusterPodNetworkOptions": [], "metadata": {}}
        row = cloud.new("cluster", body)
        row.hidden["work_request"] = cloud.begin_work("CLUSTER_CREATE", "cluster", row, kind="clustersworkrequest")
        cloud.store.save(row)
        recover(cloud)
        request = row.hidden["work_request"]
        wait_for(
            "the interrupted work request succeeds",
            lambda: cloud.get("clustersworkrequest", request).body["status"] == "SUCCEEDED",
        )
        assert cloud.get("cluster", row.id).state == "ACTIVE"
    finally:
        cloud.close()


def test_the_versions_are_those_of_the_release_files(api: Api, subnet: Any, tmp_path: Path) -> None:
    fill(tmp_path, "1.30.2")
    config = api.home / releases.CONFIG
    config.write_text(json.dumps({"mirror": str(tmp_path)}))
    try:
        assert api.kubernetes.get_cluster_options("all").data.kubernetes_versions == ["v1.30.2"]
        with refused(400, "InvalidParameter") as said:
            create(api, subnet, kubernetes_version=OLDEST)
        assert said[0] == f"Invalid kubernetesVersion: {OLDEST}. Allowed values: v1.30.2"
        config.write_text("{}")
        with refused(400, "InvalidParameter") as said:
            api.kubernetes.get_cluster_options("all")
        assert str(config) in said[0], "it says which file is wrong"
    finally:
        config.unlink()
