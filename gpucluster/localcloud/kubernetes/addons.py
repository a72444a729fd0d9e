"""The objects that OKE brings into each new cluster: rights of nodes, kube-proxy, DNS. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

Manifest = dict[str, Any]

_SYSTEM = "kube-system"
_DNS_PLACE = 5 * 256 + 5
_RBAC = "rbac.authorization.k8s.io"
_COREFILE = """\
.:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
    }
    forward . /etc/resolv.conf
    cache 30
    loop
    reload
}
"""


def dns_address(services: str) -> str:
    """The address of the cluster's DNS in the range of services: x.x.5.5 as on OKE, the tenth in a small range."""
    block = ipaddress.ip_network(services)
    return str(block[_DNS_PLACE if block.num_addresses > _DNS_PLACE else 10])


def service_address(services: str) -> str:
    """The address of the API server in the range of services: the first."""
    return str(ipaddress.ip_network(services)[1])


def objects(images: Sequence[str], *, server: str, pods: str, services: str) -> list[Manifest]:
    """All objects.

    Args:
        images: the names in the release's archive, which has kube-proxy and coredns.
        server: the URL of the API server, which kube-proxy asks.
        pods, services: their ranges of addresses.
    """
    proxy, dns = (_image(images, name) for name in ("kube-proxy", "coredns"))
    network = {"pods": pods, "dns": dns_address(services)}
    return [*_of_nodes(), *_of_network(network), *_proxy(proxy, server, pods), *_dns(dns, services)]


def _image(images: Sequence[str], name: str) -> str:
    return next((image for image in images if image.rsplit("/", 1)[-1].rsplit(":", 1)[0] == name), name)


def _of_nodes() -> list[Manifest]:
    """A node renews its own certificate, and sees the others: their parts of the range of pods become its routes."""
    return [
        _binding("oke:nodes-own-certificates", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"),
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "oke:nodes-see-nodes"},
            "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}],
        },
        _binding("oke:nodes-see-nodes", "oke:nodes-see-nodes"),
    ]


def _of_network(network: dict[str, str]) -> list[Manifest]:
    """What an instance must know of the network of pods to become a node, and that it may read it."""
    metadata = {"name": "oke-network", "namespace": _SYSTEM}
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["oke-network"], "verbs": ["get"]}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": network},
        {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": "oke-network"},
            "subjects": [{"apiGroup": _RBAC, "kind": "Group", "name": "system:nodes"}],
        },
    ]


def _binding(name: str, role: str, subject: Manifest | None = None) -> Manifest:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [subject or {"apiGroup": _RBAC, "kind": "Group", "name": "system:nodes"}],
    }


def _account(name: str) -> tuple[Manifest, Manifest]:
    """A service account, and how bindings name it."""
    metadata = {"name": name, "namespace": _SYSTEM}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}, {"kind": "ServiceAccount", **metadata}


def _proxy(image: str, server: str, pods: str) -> list[Manifest]:
    account, subject = _account("kube-proxy")
    # The nodes are containers, which can't set the limits of their kernel's connection tracking.
    options = [
        "--config=/var/lib/kube-proxy/config.json",
        "--hostname-override=$(NODE)",
    ]
    configuration = (
        '{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration","mode":"iptables",'
        f'"clusterCIDR":"{pods}","clientConnection":{{"kubeconfig":"/var/lib/kube-proxy/kubeconfig.json"}},'
        '"conntrack":{"maxPerCore":0,"min":0,"tcpEstablishedTimeout":"0s","tcpCloseWaitTimeout":"0s"}}'
    )
    secrets = "/var/run/secrets/kubernetes.io/serviceaccount"
    kubeconfig = (
        '{"apiVersion":"v1","kind":"Config","current-context":"own",'
        f'"clusters":[{{"name":"own","cluster":{{"certificate-authority":"{secrets}/ca.crt","server":"{server}"}}}}],'
        f'"users":[{{"name":"own","user":{{"tokenFile":"{secrets}/token"}}}}],'
        '"contexts":[{"name":"own","context":{"cluster":"own","user":"own"}}]}'
    )
    labels = {"k8s-app": "kube-proxy"}
    pod = {
        "hostNetwork": True,
        "serviceAccountName": "kube-proxy",
        "priorityClassName": "system-node-critical",
        "tolerations": [{"operator": "Exists"}],
        "containers": [
            {
                "name": "kube-proxy",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["/usr/local/bin/kube-proxy", *options],
                "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "securityContext": {"privileged": True},
                "volumeMounts": [{"name": "configuration", "mountPath": "/var/lib/kube-proxy"}],
            }
        ],
        "volumes": [{"name": "configuration", "configMap": {"name": "kube-proxy"}}],
    }
    return [
        account,
        _binding("oke:kube-proxy", "system:node-proxier", subject),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "kube-proxy", "namespace": _SYSTEM},
            "data": {"config.json": configuration, "kubeconfig.json": kubeconfig},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "kube-proxy", "namespace": _SYSTEM, "labels": labels},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
    ]


def _dns(image: str, services: str) -> list[Manifest]:
    account, subject = _account("coredns")
    labels = {"k8s-app": "kube-dns"}
    ports = [
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
    ]
    pod = {
        "serviceAccountName": "coredns",
        "priorityClassName": "system-cluster-critical",
        "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}],
        "dnsPolicy": "Default",
        "containers": [
            {
                "name": "coredns",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "args": ["-conf", "/etc/coredns/Corefile"],
                "ports": [{"containerPort": port["port"], "name": port["name"], "protocol": port["protocol"]}
                          for port in ports],
                "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}},
                "volumeMounts": [{"name": "configuration", "mountPath": "/etc/coredns"}],
            }
        ],
        "volumes": [{"name": "configuration", "configMap": {"name": "coredns"}}],
    }  # fmt: skip
    return [
        account,
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "oke:coredns"},
            "rules": [
                {
                    "apiGroups": [""],
                    "resources": ["endpoints", "services", "pods", "namespaces"],
                    "verbs": ["list", "watch"],
                },
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            ],
        },
        _binding("oke:coredns", "oke:coredns", subject),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "coredns", "namespace": _SYSTEM},
            "data": {"Corefile": _COREFILE},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "coredns", "namespace": _SYSTEM, "labels": labels},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": _SYSTEM, "labels": labels},
            "spec": {"selector": labels, "clusterIP": dns_address(services), "ports": ports},
        },
    ]
