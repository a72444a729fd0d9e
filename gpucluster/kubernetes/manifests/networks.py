"""How pods get RDMA: by the network of their host, by devices that move into them, or by virtual functions.

Sources: k8snetworkplumbingwg/multus-cni v4.3.0 (deployments), whereabouts v0.9.4 (doc/crds and README), rdma-cni v1.6.0
(deployment and README); oci-hpc-oke v26.7.0 for virtual functions on OCI: MTU, settings of the interfaces, range of
addresses, names.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Any, Literal

from gpucluster.kubernetes import images
from gpucluster.kubernetes.labels import INSTANCE_TYPE, gpu_tolerations
from gpucluster.kubernetes.manifests import SYSTEM_NAMESPACE, Manifest, daemon_set, metadata
from gpucluster.node_agent.rules.devices import NETWORKS, RDMA_RESOURCE
from gpucluster.shapes import Shape

RdmaAccess = Literal["host", "device", "sr-iov"]

#: Of RDMA interfaces on OCI.
MTU = 4220
#: The namespace of NVIDIA's network operator, which reads its policies there only.
OPERATOR_NAMESPACE = "nvidia-network-operator"
VF_NETWORK = "rdma-vf"

_VENDOR_MELLANOX = "15b3"
_IP_POOL = "sriov-pool"
_ADDRESSES_PER_NODE = 100
_CNI_VERSION = "0.3.1"
# All interfaces are in one subnet: a request for an address is answered by the interface that has it, and no other.
_TUNING = {
    "type": "tuning",
    "sysctl": {
        "net.ipv4.conf.all.arp_announce": "2",
        "net.ipv4.conf.all.arp_filter": "1",
        "net.ipv4.conf.all.arp_ignore": "1",
        "net.ipv4.conf.all.rp_filter": "0",
        "net.ipv4.conf.all.accept_local": "1",
    },
    "mtu": MTU,
}


@dataclass(frozen=True)
class PodRdma:
    """What a pod needs to use RDMA on a node of a shape.

    Args:
        annotations: of the pod.
        spec: of the pod, beside its containers and volumes.
        container: of the container that uses RDMA.
        volumes: of the pod.
        environment: of the container.
    """

    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    container: Mapping[str, Any] = field(default_factory=dict)
    volumes: tuple[Mapping[str, Any], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def privileged(self) -> bool:
        """Whether its namespace must allow more than Kubernetes' Pod Security level `baseline`."""
        return bool(self.container.get("securityContext", {}).get("privileged") or self.spec.get("hostNetwork"))


def attachment_name(shape: Shape, number: int) -> str:
    """The name of the NetworkAttachmentDefinition of an RDMA interface, from 0."""
    return f"{_slug(shape)}-rdma-{number}"


def refusal(access: RdmaAccess, shape: Shape) -> str:
    """Why a pod without privilege gets no RDMA device of a node; empty if it gets them all, with the node's GPUs."""
    if access == "host":
        return "with kubernetes.rdma: host only pods in the network of their host reach it, as operators may run them"
    if access == "device" and not shape.has_nvidia_gpus:
        return "with kubernetes.rdma: device only the device plugin of NVIDIA's GPUs lets pods open RDMA devices"
    return ""


def pod_rdma(access: RdmaAccess, shape: Shape, *, privileged: bool) -> PodRdma:
    """What a pod needs that takes all RDMA devices of a node. Nothing for a shape without RDMA.

    A container may open files of devices that a device plugin gave it: that of virtual functions, or with `device`
    that of the GPUs (`gpus.device_plugins`). A privileged one has all files of its host, if it mounts /dev/infiniband.

    Args:
        privileged: whether it is a privileged pod where one without privilege gets no device (`refusal`), or gets it
            with GPUs alone.
    """
    if not shape.rdma:
        return PodRdma()
    count = len(shape.rdma_devices)
    if access == "sr-iov":
        return PodRdma(
            annotations={NETWORKS: ",".join([f"{SYSTEM_NAMESPACE}/{VF_NETWORK}"] * count)},
            container={"resources": {"limits": {RDMA_RESOURCE: str(count)}, "requests": {RDMA_RESOURCE: str(count)}}},
            # The names of virtual functions differ from those of the devices: NCCL takes all that begin so.
            environment={"NCCL_IB_HCA": "mlx5"},
        )
    moved = access == "device"
    names = [f"{SYSTEM_NAMESPACE}/{attachment_name(shape, number)}" for number in range(count)]
    annotations = {NETWORKS: ",".join(names)} if moved else {}
    if not privileged:
        return PodRdma(annotations=annotations)
    host = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return PodRdma(
        annotations=annotations,
        spec={} if moved else host,
        container={
            "securityContext": {"privileged": True, "capabilities": {"add": ["IPC_LOCK"]}},
            "volumeMounts": [{"name": "infiniband", "mountPath": "/dev/infiniband"}],
        },
        volumes=({"name": "infiniband", "hostPath": {"path": "/dev/infiniband"}},),
    )


def networks(access: RdmaAccess, shapes: Collection[Shape], cidr: str) -> list[Manifest]:
    """The objects of a cluster for its way to RDMA.

    Args:
        shapes: of the pools that use RDMA.
        cidr: the addresses of RDMA interfaces in pods.
    """
    if access == "host" or not shapes:
        return []
    if access == "sr-iov":
        return virtual_functions(shapes, cidr)
    return [
        *_definitions(),
        *_multus(),
        *_whereabouts(),
        _plugin_daemon("rdma-cni", {}),
        *(each for shape in shapes for each in attachments(shape, cidr)),
    ]


def attachments(shape: Shape, cidr: str) -> list[Manifest]:
    """A NetworkAttachmentDefinition for each RDMA interface of a shape.

    The interface moves into the pod, its RDMA device follows, and it gets an address that no other pod has. Empty if no
    source states where the interfaces are.
    """
    return [
        {
            "apiVersion": "k8s.cni.cncf.io/v1",
            "kind": "NetworkAttachmentDefinition",
            "metadata": metadata(attachment_name(shape, number), SYSTEM_NAMESPACE),
            "spec": {"config": json.dumps(_attachment(attachment_name(shape, number), address, cidr))},
        }
        for number, address in enumerate(shape.rdma_pci_addresses)
    ]


def _attachment(name: str, address: str, cidr: str) -> dict[str, Any]:
    addresses = {"type": "whereabouts", "range": cidr}
    moved = {"type": "host-device", "pciBusID": address, "ipam": addresses}
    # Without the device rdma-cni looks for the interface among virtual functions (cmd/rdma/main.go of 1.6.0, CmdAdd),
    # and this one is none. Multus would add it only for a device that a device plugin gave.
    follows = {"type": "rdma", "deviceID": address}
    return {"cniVersion": _CNI_VERSION, "name": name, "plugins": [moved, follows, _TUNING]}


def virtual_functions(shapes: Iterable[Shape], cidr: str) -> list[Manifest]:
    """Policies for NVIDIA's network operator: one virtual function of each RDMA interface, which the host has made.

    Only shapes of `has_virtual_functions` have one.
    """
    listed = [shape for shape in shapes if has_virtual_functions(shape)]
    if not listed:
        return []
    return [
        *(_policy(shape) for shape in listed),
        {
            "apiVersion": "nv-ipam.nvidia.com/v1alpha1",
            "kind": "IPPool",
            "metadata": metadata(_IP_POOL, OPERATOR_NAMESPACE),
            "spec": {"subnet": cidr, "perNodeBlockSize": _ADDRESSES_PER_NODE, "gateway": str(IPv4Network(cidr)[1])},
        },
        {
            "apiVersion": "sriovnetwork.openshift.io/v1",
            "kind": "SriovNetwork",
            "metadata": metadata(VF_NETWORK, OPERATOR_NAMESPACE),
            "spec": {
                "resourceName": RDMA_RESOURCE.rpartition("/")[2],
                "networkNamespace": SYSTEM_NAMESPACE,
                "spoofChk": "off",
                "ipam": json.dumps({"type": "nv-ipam", "poolName": _IP_POOL}),
                "metaPlugins": ",".join(map(json.dumps, (_TUNING, {"type": "rdma"}, {"type": "sbr"}))),
            },
        },
    ]


def has_virtual_functions(shape: Shape) -> bool:
    """Whether a shape's RDMA devices are NVIDIA's, and a source states where they are on the PCI bus."""
    return bool(shape.rdma_pci_addresses) and all(name.startswith("mlx5") for name in shape.rdma_devices)


def _policy(shape: Shape) -> Manifest:
    return {
        "apiVersion": "sriovnetwork.openshift.io/v1",
        "kind": "SriovNetworkNodePolicy",
        "metadata": metadata(_slug(shape), OPERATOR_NAMESPACE),
        "spec": {
            "resourceName": RDMA_RESOURCE.rpartition("/")[2],
            "nodeSelector": {INSTANCE_TYPE: shape.name},
            "nicSelector": {"vendor": _VENDOR_MELLANOX, "rootDevices": list(shape.rdma_pci_addresses)},
            "deviceType": "netdevice",
            "isRdma": True,
            "mtu": MTU,
            "numVfs": 1,
            "priority": 90,
            # The host makes the function at boot: the operator only offers it.
            "externallyManaged": True,
        },
    }


def network_operator_values() -> dict[str, Any]:
    """The values of the chart network-operator for virtual functions on hosts that have the driver."""
    return {
        "sriovNetworkOperator": {"enabled": True},
        "nfd": {"enabled": True, "deployNodeFeatureRules": True},
        "sriov-network-operator": {"operator": {"resourcePrefix": RDMA_RESOURCE.partition("/")[0]}},
    }


def _slug(shape: Shape) -> str:
    return shape.name.lower().replace(".", "-")


def _definitions() -> list[Manifest]:
    """The kinds of Multus and whereabouts, with the fields that we and they use."""
    text: dict[str, Any] = {"type": "string"}
    allocation = {
        "type": "object",
        "required": ["id", "podref"],
        "properties": {"id": text, "podref": text, "ifname": text},
    }
    return [
        _definition(
            "k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition", "network-attachment-definition", {"config": text}
        ),
        _definition(
            "whereabouts.cni.cncf.io",
            "v1alpha1",
            "IPPool",
            "ippool",
            {"range": text, "allocations": {"type": "object", "additionalProperties": allocation}},
            ("allocations", "range"),
        ),
        _definition(
            "whereabouts.cni.cncf.io",
            "v1alpha1",
            "OverlappingRangeIPReservation",
            "overlappingrangeipreservation",
            {"containerid": text, "podref": text, "ifname": text},
            ("podref",),
        ),
    ]


def _definition(
    group: str, version: str, kind: str, singular: str, spec: Mapping[str, Any], required: tuple[str, ...] = ()
) -> Manifest:
    names = {"kind": kind, "listKind": f"{kind}List", "plural": f"{singular}s", "singular": singular}
    fields = {"type": "object", "properties": dict(spec), **({"required": list(required)} if required else {})}
    schema = {"type": "object", "properties": {"spec": fields}}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata(f"{singular}s.{group}"),
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [served]},
    }


def _multus() -> list[Manifest]:
    rules = [
        {"apiGroups": ["k8s.cni.cncf.io"], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get", "update"]},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
    ]
    binaries = {"/host/opt/cni/bin": "/opt/cni/bin"}
    install = {
        **_container("multus-install", "multus", binaries, privileged=True),
        "command": ["/install_multus"],
        "args": ["--type", "thin"],
    }
    settings = "/host/etc/cni/net.d"
    daemon = _plugin_daemon(
        "multus",
        {settings: "/etc/cni/net.d", "/host/opt/cni/bin": "/opt/cni/bin"},
        command=["/thin_entrypoint"],
        args=["--multus-conf-file=auto", f"--multus-autoconfig-dir={settings}", f"--cni-conf-dir={settings}"],
    )
    daemon["spec"]["template"]["spec"]["initContainers"] = [install]
    return [*_account("multus", rules), daemon]


def _whereabouts() -> list[Manifest]:
    every = ["get", "list", "watch", "create", "update", "patch", "delete"]
    read = ["get", "list", "watch"]
    pools = ["ippools", "overlappingrangeipreservations"]
    rules = [
        {"apiGroups": ["whereabouts.cni.cncf.io"], "resources": pools, "verbs": every},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": every},
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": read},
        {"apiGroups": ["k8s.cni.cncf.io"], "resources": ["network-attachment-definitions"], "verbs": read},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "get", "patch", "update"]},
    ]
    # Its image has three programs: one writes its settings and copies the plugin to the host, one renews its access to
    # the API, and one gives back addresses of pods that are gone.
    start = "SLEEP=false . /install-cni.sh; /token-watcher.sh & exec /ip-control-loop -log-level error"
    daemon = _plugin_daemon(
        "whereabouts",
        {"/host/etc/cni/net.d": "/etc/cni/net.d", "/host/opt/cni/bin": "/opt/cni/bin"},
        command=["/bin/sh", "-c", start],
        env=[
            {"name": "NODENAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "WHEREABOUTS_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        ],
    )
    return [*_account("whereabouts", rules), daemon]


def _account(name: str, rules: list[dict[str, Any]]) -> list[Manifest]:
    subject = {"kind": "ServiceAccount", "name": name, "namespace": SYSTEM_NAMESPACE}
    full = f"gpucluster-{name}"
    rbac = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(name, SYSTEM_NAMESPACE)},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": metadata(full), "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": metadata(full),
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": full},
            "subjects": [subject],
        },
    ]


def _container(name: str, software: str, mounts: Mapping[str, str], *, privileged: bool) -> dict[str, Any]:
    return {
        "name": name,
        "image": images.reference(software),
        "imagePullPolicy": "IfNotPresent",
        "resources": {"requests": {"cpu": "10m", "memory": "50Mi"}},
        "securityContext": {"privileged": privileged},
        "volumeMounts": [{"name": _volume(directory), "mountPath": place} for place, directory in mounts.items()],
    }


def _volume(directory: str) -> str:
    return directory.strip("/").replace("/", "-").replace(".", "-")


def _plugin_daemon(name: str, mounts: Mapping[str, str], **container: Any) -> Manifest:
    """The DaemonSet that brings a CNI plugin to each host and, but for rdma-cni, serves it.

    Args:
        mounts: by the place in the container, the host's directory; empty: the directory of CNI plugins.
    """
    places = mounts or {"/host/opt/cni/bin": "/opt/cni/bin"}
    account = {} if name == "rdma-cni" else {"serviceAccountName": name}
    pod = {
        "hostNetwork": True,
        **account,
        "priorityClassName": "system-node-critical",
        "tolerations": [*gpu_tolerations(), {"operator": "Exists", "effect": "NoSchedule"}],
        "containers": [{**_container(name, name, places, privileged=True), **container}],
        "volumes": [{"name": _volume(each), "hostPath": {"path": each}} for each in dict.fromkeys(places.values())],
    }
    return daemon_set(name, pod)
