"""The objects that a new cluster of the local cloud has: addresses, images, rights and their names."""

from __future__ import annotations

import ipaddress
import json
from typing import Any

import pytest

from gpucluster.localcloud.kubernetes import addons

IMAGES = ["registry.k8s.io/kube-proxy:v1.31.1", "registry.k8s.io/coredns/coredns:v1.11.3", "registry.k8s.io/pause:3.10"]
PODS, SERVICES = "10.244.0.0/16", "10.96.0.0/16"


def objects(images: list[str] | None = None) -> dict[tuple[str, str], Any]:
    made = addons.objects(
        IMAGES if images is None else images, server="https://10.0.0.9:6443", pods=PODS, services=SERVICES
    )
    found = {(each["kind"], each["metadata"]["name"]): each for each in made}
    assert len(found) == len(made), "each object has a name of its own"
    return found


@pytest.mark.parametrize(
    ("services", "server", "dns"),
    [
        ("10.96.0.0/16", "10.96.0.1", "10.96.5.5"),
        ("10.96.0.0/12", "10.96.0.1", "10.96.5.5"),
        ("10.96.0.0/24", "10.96.0.1", "10.96.0.10"),
    ],
)
def test_the_addresses_of_the_api_server_and_of_dns(services: str, server: str, dns: str) -> None:
    assert (addons.service_address(services), addons.dns_address(services)) == (server, dns)
    assert ipaddress.ip_address(dns) in ipaddress.ip_network(services)


def test_images_are_those_of_the_release_whatever_their_registry() -> None:
    made = objects()
    pods = [made[kind, name]["spec"]["template"]["spec"]["containers"][0]["image"]
            for kind, name in (("DaemonSet", "kube-proxy"), ("Deployment", "coredns"))]  # fmt: skip
    assert pods == IMAGES[:2]


def test_kube_proxy_asks_the_api_server_and_knows_the_range_of_pods() -> None:
    data = objects()["ConfigMap", "kube-proxy"]["data"]
    assert json.loads(data["config.json"])["clusterCIDR"] == PODS
    assert json.loads(data["kubeconfig.json"])["clusters"][0]["cluster"]["server"] == "https://10.0.0.9:6443"


def test_pods_ask_dns_at_the_address_that_nodes_read() -> None:
    made = objects()
    service, network = made["Service", "kube-dns"], made["ConfigMap", "oke-network"]
    assert service["spec"]["clusterIP"] == network["data"]["dns"] == "10.96.5.5"
    assert network["data"]["pods"] == PODS
    labels = made["Deployment", "coredns"]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_every_binding_names_a_role_and_who_has_it() -> None:
    made = objects()
    for (kind, name), each in made.items():
        if not kind.endswith("Binding"):
            continue
        role, subjects = each["roleRef"], each["subjects"]
        # Roles that begin with "system:" are Kubernetes' own.
        assert role["name"].startswith("system:") or (role["kind"], role["name"]) in made, name
        for subject in subjects:
            assert subject["kind"] == "Group" or ("ServiceAccount", subject["name"]) in made, name


def test_what_pods_run_as_exists() -> None:
    made = objects()
    for kind, name in (("DaemonSet", "kube-proxy"), ("Deployment", "coredns")):
        pod = made[kind, name]["spec"]["template"]["spec"]
        assert ("ServiceAccount", pod["serviceAccountName"]) in made
        assert all(("ConfigMap", volume["configMap"]["name"]) in made for volume in pod["volumes"])
