"""What offers GPUs to pods: a device plugin for each maker, or the values of NVIDIA's GPU operator or DRA driver.

The driver and the container toolkit are those of the host. Sources: NVIDIA/k8s-device-plugin v0.20.0 (its chart and
README), NVIDIA/gpu-operator v26.7.0 (its values), NVIDIA/k8s-dra-driver-gpu v0.4.0 (its chart),
ROCm/k8s-device-plugin v1.31.0.10 (its manifest).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from gpucluster.kubernetes import images
from gpucluster.kubernetes.labels import GPU_VENDOR, gpu_tolerations
from gpucluster.kubernetes.manifests import Manifest, daemon_set, metadata
from gpucluster.kubernetes.manifests.networks import RdmaAccess
from gpucluster.node_agent.rules.devices import GPU_RESOURCES
from gpucluster.node_agent.rules.labels import HOST
from gpucluster.shapes import GpuVendor, Shape

MigStrategy = Literal["single", "mixed"]
#: containerd's runtime that NVIDIA's toolkit makes on the host, and the RuntimeClass that selects it.
NVIDIA_RUNTIME = "nvidia"
#: From this minor release on kubelet passes CDI devices from a plugin to the runtime (DevicePluginCDIDevices, beta).
CDI_SINCE = 29

# Containers with a GPU get /dev/infiniband/uverbs* and rdma_cm (main.go, internal/cdi/cdi.go of the plugin, and
# internal/discover/mofed.go of the toolkit 1.20.0). A node without such files is not an error.
_RDMA = {"MOFED_ENABLED": "true"}
_PLUGINS_DIRECTORY = "/var/lib/kubelet/device-plugins"


def gives_rdma(access: RdmaAccess, rdma_shapes: Iterable[Shape]) -> bool:
    """Whether NVIDIA's plugin lets containers with GPUs open their node's RDMA devices: those that moved into the pod.

    A container sees the devices of its own network namespace alone, whatever files it may open.
    """
    return access == "device" and any(shape.has_nvidia_gpus for shape in rdma_shapes)


def device_plugins(
    vendors: Collection[GpuVendor],
    minor: int,
    *,
    rdma: bool = False,
    engine: bool = False,
    divided: bool = False,
) -> list[Manifest]:
    """The device plugins for the makers of a cluster's GPUs.

    Args:
        minor: the minor number of the cluster's release.
        rdma: see `gives_rdma`.
        engine: the control plane is that of Kubernetes Engine, whose own plugin serves the nodes that it manages.
        divided: whether GPUs of a pool are divided (`mig_strategy`).
    """
    manifests: list[Manifest] = []
    if "nvidia" in vendors:
        manifests += [runtime_class(), _nvidia(minor, mig_strategy(divided=divided), rdma=rdma)]
    if "amd" in vendors:
        manifests.append(_amd())
    for each in manifests:
        if engine and each["kind"] == "DaemonSet":
            each["spec"]["template"]["spec"]["affinity"] = on_hosts(ours=True)
    return manifests


def on_hosts(*, ours: bool) -> dict[str, Any]:
    """The affinity of pods to our hosts in a cluster of Kubernetes Engine, or to all nodes but those.

    Two plugins that offer the same resource on one node register in turn, and GPUs come and go.
    """
    rule = {"key": HOST, "operator": "Exists" if ours else "DoesNotExist"}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def runtime_class() -> Manifest:
    """The name for pods of the runtime that gives GPUs to containers."""
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": metadata(NVIDIA_RUNTIME),
        "handler": NVIDIA_RUNTIME,
    }


def mig_strategy(*, divided: bool) -> MigStrategy:
    """How NVIDIA's plugin offers GPUs that may be divided.

    `mixed` has a resource for each profile, and whole GPUs beside them. `single` calls instances `nvidia.com/gpu`, too,
    and fails where a node has instances of two profiles, or whole GPUs beside divided ones (internal/rm/device_map.go).
    Where no GPU is divided, both offer whole GPUs.
    """
    return "mixed" if divided else "single"


def device_list_strategy(minor: int) -> str:
    """How the plugin names devices to the runtime: by CDI where kubelet can, else by the environment of containers,
    which the runtime `nvidia` reads. So below that release `nvidia` is the default runtime of nodes with GPUs."""
    return "cdi-cri" if minor >= CDI_SINCE else "envvar"


def _nvidia(minor: int, mig: MigStrategy, *, rdma: bool) -> Manifest:
    environment = {
        "MIG_STRATEGY": mig,
        "DEVICE_LIST_STRATEGY": device_list_strategy(minor),
        "DEVICE_ID_STRATEGY": "uuid",
        "FAIL_ON_INIT_ERROR": "true",
        "NVIDIA_DRIVER_ROOT": "/",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "NVIDIA_MIG_MONITOR_DEVICES": "all",
        **(_RDMA if rdma else {}),
    }
    return _plugin(
        "nvidia-device-plugin",
        "nvidia",
        {
            "env": [{"name": name, "value": value} for name, value in environment.items()],
            # Its chart gives SYS_ADMIN where MIG is watched: the driver asks for it.
            "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}},
        },
        {"/driver-root": ("/", True), "/var/run/cdi": ("/var/run/cdi", False)},
        runtimeClassName=NVIDIA_RUNTIME,
    )


def _amd() -> Manifest:
    container = {"securityContext": {"privileged": True}}
    return _plugin("amd-device-plugin", "amd", container, {"/sys": ("/sys", False)})


def _plugin(
    name: str, vendor: GpuVendor, container: Mapping[str, Any], mounts: Mapping[str, tuple[str, bool]], **more: Any
) -> Manifest:
    """The DaemonSet of a plugin.

    Args:
        mounts: by the place in the container: the host's directory, and whether it is read only.
    """
    places = {_PLUGINS_DIRECTORY: (_PLUGINS_DIRECTORY, False), **mounts}
    return daemon_set(
        name,
        {
            "nodeSelector": {GPU_VENDOR: vendor},
            "tolerations": _everywhere(),
            "priorityClassName": "system-node-critical",
            **more,
            "containers": [
                {
                    "name": name,
                    "image": images.reference(name),
                    "imagePullPolicy": "IfNotPresent",
                    **container,
                    "resources": {"requests": {"cpu": "10m", "memory": "50Mi"}},
                    "volumeMounts": [
                        {"name": f"host-{number}", "mountPath": place, **({"readOnly": True} if read_only else {})}
                        for number, (place, (_directory, read_only)) in enumerate(places.items())
                    ],
                }
            ],
            "volumes": [
                {"name": f"host-{number}", "hostPath": {"path": directory}}
                for number, (directory, _read_only) in enumerate(places.values())
            ],
        },
    )


def _everywhere() -> list[dict[str, str]]:
    """A node that failed a check still has its GPUs: its plugin stays."""
    return [*gpu_tolerations(), {"key": "gpucluster.io/unhealthy", "operator": "Exists"}]


def operator_values(minor: int, *, exporter: bool, rdma: bool = False, divided: bool = False) -> dict[str, Any]:
    """The values of the chart gpu-operator for hosts that have the driver and the toolkit.

    Args:
        exporter: whether it runs its exporter of GPU metrics. Where the hosts are monitored, they have one.
        rdma: see `gives_rdma`.
        divided: whether cluster.yml divides GPUs of a pool. The operator's MIG manager would make them whole again: its
            configuration of a node without a label is all-disabled (deployments/gpu-operator/values.yaml).
    """
    settings = {"DEVICE_LIST_STRATEGY": device_list_strategy(minor), **(_RDMA if rdma else {})}
    software = images.software()
    return {
        "driver": {"enabled": False},
        "toolkit": {"enabled": False},
        "cdi": {"enabled": minor >= CDI_SINCE},
        "mig": {"strategy": mig_strategy(divided=divided)},
        "migManager": {"enabled": not divided, "version": software["mig-manager"].tag},
        "devicePlugin": {
            "version": software["nvidia-device-plugin"].tag,
            "env": [{"name": name, "value": value} for name, value in settings.items()],
        },
        "gfd": {"version": software["nvidia-device-plugin"].tag},
        "dcgmExporter": {
            "enabled": exporter,
            "version": software["dcgm-exporter"].tag,
            "serviceMonitor": {"enabled": False},
        },
        "operator": {"runtimeClass": NVIDIA_RUNTIME},
        "daemonsets": {"tolerations": _everywhere()},
        "nfd": {"enabled": True},
        # Other uses of GPUs: virtual machines and confidential computing.
        **{
            part: {"enabled": False}
            for part in ("vgpuDeviceManager", "vfioManager", "sandboxDevicePlugin", "ccManager")
        },
        "node-feature-discovery": {"worker": {"tolerations": _everywhere()}},
    }


def operator_images(*, exporter: bool) -> list[str]:
    """The images that the chart gpu-operator uses with these values."""
    names = ["gpu-operator", "nvidia-device-plugin", "mig-manager", "node-feature-discovery"]
    return [images.reference(name) for name in [*names, *(["dcgm-exporter"] if exporter else [])]]


def dra_driver_values(*, engine: bool) -> dict[str, Any]:
    """The values of the chart dra-driver-nvidia-gpu for hosts that have the driver and CDI.

    Its chart refuses to offer GPUs unless it is told that no device plugin is on the same nodes (templates/
    validation.yaml). Its other half, domains of GPUs with NVLink between hosts, is off.

    Args:
        engine: the control plane is that of Kubernetes Engine, whose own plugin serves the nodes that it manages.
    """
    ours = {"key": GPU_VENDOR, "operator": "In", "values": ["nvidia"]}
    rules: list[dict[str, Any]] = [ours, *([{"key": HOST, "operator": "Exists"}] if engine else [])]
    terms = {"nodeSelectorTerms": [{"matchExpressions": rules}]}
    entry = images.software()["dra-driver"]
    return {
        "image": {"repository": entry.image, "tag": entry.tag},
        "gpuResourcesEnabledOverride": True,
        "resources": {"gpus": {"enabled": True}, "computeDomains": {"enabled": False}},
        "nvidiaDriverRoot": "/",
        "kubeletPlugin": {
            "tolerations": _everywhere(),
            # Its own asks for labels of node feature discovery.
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        },
    }


def gpu_request(vendor: GpuVendor, count: int) -> dict[str, str]:
    """The limit of a container that asks for GPUs. Kubernetes takes the same number as its request."""
    return {GPU_RESOURCES[vendor]: str(count)}
