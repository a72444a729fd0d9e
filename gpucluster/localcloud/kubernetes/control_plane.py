"""The control plane of one cluster: a container with etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

It has the address of the cluster's endpoint and is not an instance: the compute API does not know it. Nothing in the
container is worth keeping: its files, certificates and etcd's data are in `<home>/kubernetes/CLUSTER`, and a start
makes the container again.
"""

from __future__ import annotations

import json
import secrets
import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import NOT_FOUND, OK
from pathlib import Path
from typing import Any

from gpucluster.controller.kubernetes import kubeconfig
from gpucluster.errors import CloudError
from gpucluster.localcloud.compute.addresses import engine_network
from gpucluster.localcloud.engine.link_local import METADATA_ADDRESS
from gpucluster.localcloud.engine.protocol import LaunchRequest, RunState
from gpucluster.localcloud.image.contents import DEBIAN_13
from gpucluster.localcloud.kubernetes import addons, certificates, releases
from gpucluster.localcloud.kubernetes.releases import MirroredRelease
from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.names import short
from gpucluster.localcloud.state.region import REGION, SERVICE_HOSTS
from gpucluster.localcloud.state.store import Resource
from gpucluster.paths import make_private, write_private
from gpucluster.systems.units import argument
from gpucluster.waiting import wait_until

API_PORT = 6443
#: Where API servers ask who a token belongs to, one path for each cluster.
REVIEWS = "/localcloud/kubernetes/token-reviews"
#: The file with the certificate and the key of an administrator, below `files`.
ADMIN = "admin.pem"
_READY_S = 180.0
_FILES, _PROGRAMS, _DATA = "/run/localcloud/control-plane", "/opt/kubernetes", "/var/lib/etcd"
_PORT_GONE = 24  # the minor release that has lost the ports without TLS
_UNIT = """\
[Unit]
Description={name} of a cluster of Kubernetes Engine
StartLimitIntervalSec=0
{order}
[Service]
ExecStart={command}
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
"""
_ADDONS = """\
[Unit]
Description=What each new cluster has
StartLimitIntervalSec=0

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={command}
Restart=on-failure
RestartSec=2

[Install]
WantedBy=multi-user.target
"""
_START = f"""\
#!/bin/sh
set -eu
cp {_FILES}/units/*.service /etc/systemd/system/
systemctl daemon-reload
cd {_FILES}/units
systemctl enable --quiet -- *.service
systemctl start --no-block -- *.service
"""


def container(row: Resource) -> str:
    """The engine's name for a cluster's control plane."""
    return f"gpucluster-oke-{short(row.id)}"


def folder(cloud: CloudState, row: Resource) -> Path:
    """Where a cluster's files are."""
    return cloud.home / "kubernetes" / short(row.id)


def start(cloud: CloudState, row: Resource, release: MirroredRelease) -> bool:
    """Make the control plane of a cluster, or make it again, and wait until it answers.

    Returns False where the server of the local cloud ends meanwhile: its next start does it again.

    Raises:
        GpuClusterError: the container did not start, or the API server does not answer within three minutes.
    """
    place = folder(cloud, row)
    programs = releases.programs(cloud.home, release)
    make_private(place)
    (place / "etcd").mkdir(mode=0o700, exist_ok=True)
    _write_files(cloud, row, release, place / "files")
    network, gateway = engine_network(cloud.get("vcn", row.body["vcnId"]), row.hidden["ip"])
    cloud.engine.launch(
        LaunchRequest(
            name=container(row),
            hostname=f"oke-{short(row.id)}",
            image=cloud.engine.platform_image(DEBIAN_13),
            network=network,
            ip=row.hidden["ip"],
            user_data=f"#cloud-config\nruncmd: [[sh, {_FILES}/start]]\n".encode(),
            metadata={},
            ssh_authorized_keys=(),
            labels=cloud.labels(row.id),
            exports_dir=place / "exports",
            name_server=METADATA_ADDRESS,
            hosts={gateway: SERVICE_HOSTS},
            trusted_ca=cloud.home / "credentials" / "ca.pem",
            folders={_FILES: place / "files", _PROGRAMS: programs},
            writable_folders={_DATA: place / "etcd"},
        )
    )
    if not wait_until(lambda: cloud.closing.is_set() or answers(cloud, row), _READY_S, 0.5):
        raise CloudError(
            f"the API server of the cluster {row.body['name']} does not answer at {row.hidden['ip']}:{API_PORT}",
            where=container(row),
            hint=f"Read its log: podman exec {container(row)} journalctl -u kube-apiserver",
        )
    return not cloud.closing.is_set()


def answers(cloud: CloudState, row: Resource) -> bool:
    """Whether the API server is ready."""
    context = ssl.create_default_context(cadata=row.hidden["ca"])
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(f"https://{row.hidden['ip']}:{API_PORT}/readyz", timeout=3) as reply:
            return bool(reply.status == OK)
    except (OSError, ValueError):
        return False


def ask(cloud: CloudState, row: Resource, path: str, method: str = "GET") -> Any:
    """What the API server answers, as an administrator; None where there is no such object.

    Raises:
        CloudError: it does not answer, or refuses.
    """
    context = ssl.create_default_context(cadata=row.hidden["ca"])
    url = f"https://{row.hidden['ip']}:{API_PORT}{path}"
    try:
        context.load_cert_chain(folder(cloud, row) / "files" / ADMIN)
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        with urllib.request.build_opener(*handlers).open(
            urllib.request.Request(url, method=method), timeout=20
        ) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        if error.code == NOT_FOUND:
            return None
        raise CloudError(f"the API server of the cluster refuses {method} {path}: {error}", where=url) from error
    except (OSError, ValueError) as error:
        raise CloudError(f"the API server of the cluster does not answer: {error}", where=url) from error


def state(cloud: CloudState, row: Resource) -> RunState:
    """Whether the container runs."""
    return cloud.engine.state(container(row))


def remove(cloud: CloudState, row: Resource) -> None:
    """Remove the container and all files of a cluster. Does nothing if they are gone."""
    cloud.engine.terminate(container(row))
    shutil.rmtree(folder(cloud, row), ignore_errors=True)


def new_secrets() -> dict[str, str]:
    """What a cluster keeps in its row beside its CA: keys that a new container must have again."""
    return {"accounts_key": certificates.new_service_account_key(), "review_secret": secrets.token_urlsafe(32)}


def _write_files(cloud: CloudState, row: Resource, release: MirroredRelease, place: Path) -> None:
    network = row.body["options"]["kubernetesNetworkConfig"]
    ip, authority = str(row.hidden["ip"]), (str(row.hidden["ca"]), str(row.hidden["ca_key"]))
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
    hosts = (*names, "localhost", "127.0.0.1", ip, addons.service_address(network["servicesCidr"]))
    pairs = {
        "server": certificates.issue(authority, "kube-apiserver", use="server", hosts=hosts),
        "kubelet-client": certificates.issue(authority, "kube-apiserver", groups=("system:masters",), use="client"),
    }
    local = f"https://127.0.0.1:{API_PORT}"
    users = {
        "admin": certificates.issue(authority, "oke-admin", groups=("system:masters",), use="client"),
        "controller-manager": certificates.issue(authority, "system:kube-controller-manager", use="client"),
        "scheduler": certificates.issue(authority, "system:kube-scheduler", use="client"),
    }
    made = addons.objects(
        releases.images(release.archive), server=f"https://{ip}:{API_PORT}", pods=network["podsCidr"],
        services=network["servicesCidr"],
    )  # fmt: skip
    files = {
        "start": _START,
        "ca.crt": authority[0],
        "ca.key": authority[1],
        "accounts.key": str(row.hidden["accounts_key"]),
        "reviews.json": json.dumps(_reviewer(row)),
        "addons.json": json.dumps({"apiVersion": "v1", "kind": "List", "items": made}),
        **{f"{name}.crt": certificate for name, (certificate, _) in pairs.items()},
        **{f"{name}.key": key for name, (_, key) in pairs.items()},
        **{f"{name}.json": json.dumps(_kubeconfig(local, authority[0], pair)) for name, pair in users.items()},
        ADMIN: "".join(users["admin"]),
        **{f"units/{name}.service": text for name, text in _units(row, release).items()},
    }
    shutil.rmtree(place, ignore_errors=True)
    for name, text in files.items():
        make_private((place / name).parent)
        write_private(place / name, text)


def _kubeconfig(server: str, authority: str, user: tuple[str, str]) -> dict[str, object]:
    where = {"server": server, "certificate-authority-data": kubeconfig.encoded(authority)}
    return kubeconfig.content("own", where, kubeconfig.of_certificate(*user))


def _reviewer(row: Resource) -> dict[str, object]:
    """The kubeconfig with which the API server asks the local cloud who a token belongs to."""
    server = f"https://containerengine.{REGION}.oci.oraclecloud.com{REVIEWS}/{row.id}"
    where = {"server": server, "certificate-authority": "/run/localcloud/ca.pem"}
    return kubeconfig.content("cloud", where, {"token": row.hidden["review_secret"]})


def _units(row: Resource, release: MirroredRelease) -> dict[str, str]:
    insecure = {"port": "0"} if releases.numbers(release.number)[1] < _PORT_GONE else {}
    options = row.body["options"]
    network = options["kubernetesNetworkConfig"]
    policies = options.get("admissionControllerOptions", {}).get("isPodSecurityPolicyEnabled")
    parts: dict[str, Mapping[str, str]] = {
        "etcd": {
            "data-dir": f"{_DATA}/data",
            "listen-client-urls": "http://127.0.0.1:2379",
            "advertise-client-urls": "http://127.0.0.1:2379",
            "listen-peer-urls": "http://127.0.0.1:2380",
            "initial-advertise-peer-urls": "http://127.0.0.1:2380",
            "initial-cluster": "default=http://127.0.0.1:2380",
        },
        "kube-apiserver": {
            "advertise-address": str(row.hidden["ip"]),
            "secure-port": str(API_PORT),
            "etcd-servers": "http://127.0.0.1:2379",
            "allow-privileged": "true",
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction" + (",PodSecurityPolicy" if policies else ""),
            "client-ca-file": f"{_FILES}/ca.crt",
            "tls-cert-file": f"{_FILES}/server.crt",
            "tls-private-key-file": f"{_FILES}/server.key",
            "kubelet-client-certificate": f"{_FILES}/kubelet-client.crt",
            "kubelet-client-key": f"{_FILES}/kubelet-client.key",
            "kubelet-preferred-address-types": "InternalIP",
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": f"{_FILES}/accounts.key",
            "service-account-signing-key-file": f"{_FILES}/accounts.key",
            "service-cluster-ip-range": network["servicesCidr"],
            "authentication-token-webhook-config-file": f"{_FILES}/reviews.json",
            "authentication-token-webhook-version": "v1",
            "authentication-token-webhook-cache-ttl": "10s",
            "profiling": "false",
        },
        "kube-controller-manager": {
            **insecure,
            "bind-address": "127.0.0.1",
            "kubeconfig": f"{_FILES}/controller-manager.json",
            "use-service-account-credentials": "true",
            "service-account-private-key-file": f"{_FILES}/accounts.key",
            "root-ca-file": f"{_FILES}/ca.crt",
            "cluster-signing-cert-file": f"{_FILES}/ca.crt",
            "cluster-signing-key-file": f"{_FILES}/ca.key",
            "allocate-node-cidrs": "true",
            "cluster-cidr": network["podsCidr"],
            "service-cluster-ip-range": network["servicesCidr"],
            "leader-elect": "false",
            "profiling": "false",
        },
        "kube-scheduler": {
            **insecure,
            "bind-address": "127.0.0.1",
            "kubeconfig": f"{_FILES}/scheduler.json",
            "leader-elect": "false",
            "profiling": "false",
        },
    }
    units = {
        name: _UNIT.format(
            name=name,
            order="" if name == "etcd" else "After=etcd.service",
            command=" ".join(
                [f"{_PROGRAMS}/{name}", *(argument(f"--{option}={value}") for option, value in flags.items())]
            ),
        )
        for name, flags in parts.items()
    }
    kubectl = f"{_PROGRAMS}/kubectl --kubeconfig={_FILES}/admin.json"
    units["cluster-addons"] = _ADDONS.format(command=f"{kubectl} apply --filename={_FILES}/addons.json")
    return units
