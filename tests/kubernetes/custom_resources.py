"""Schemas of custom resources, by API version and kind.

Each is smaller than its project's own: what it does not list is refused, so a manifest of ours has only fields that
this file gives a source for.

Sources (read on 2026-11-23)
  NetworkAttachmentDefinition  the "multi-net-spec" of the Network Plumbing Working Group: `spec.config` is text
  MPIJob                       kubeflow/mpi-operator 0.8.0, its CustomResourceDefinition, version v2beta1
  PyTorchJob                   kubeflow/training-operator 1.x, API reference of kubeflow.org/v1
  JobSet                       kubernetes-sigs/jobset, API reference of jobset.x-k8s.io/v1alpha2
  TrainJob, TrainingRuntime    kubeflow/trainer 2.3.0, manifests/base/crds, version v1alpha1 (read on 2026-11-28)
  Kueue                        kubernetes-sigs/kueue 0.19.2, config/components/crd/bases, version v1beta2 (read on
                               2026-11-28, with the rules of x-kubernetes-validations that our objects could break)
  SriovNetwork*                k8snetworkplumbingwg/sriov-network-operator, api/v1; manifests of oci-hpc-oke
  IPPool of NVIDIA's IPAM      Mellanox/nvidia-k8s-ipam, API v1alpha1; manifests of oci-hpc-oke
  PodSecurityPolicy            Kubernetes' API reference of 1.24, policy/v1beta1; the package has no release that has it
"""

from __future__ import annotations

from typing import Any

_CORE = "https://kubernetes.io/api/_definitions.json#/$defs/io.k8s.api.core.v1."
_BATCH = "https://kubernetes.io/api/_definitions.json#/$defs/io.k8s.api.batch.v1."
_META = {"$ref": "https://kubernetes.io/api/_definitions.json#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
_SELECTOR = {
    "$ref": "https://kubernetes.io/api/_definitions.json#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"
}
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_FLAG: dict[str, Any] = {"type": "boolean"}
_NUMBER: dict[str, Any] = {"type": "integer", "minimum": 0}
_NAME: dict[str, Any] = {"type": "string", "maxLength": 253, "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}
_LABEL: dict[str, Any] = {
    "type": "string", "maxLength": 316, "pattern": r"^([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9][-A-Za-z0-9_.]*$",
}  # fmt: skip
_QUANTITY: dict[str, Any] = {
    "oneOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^[0-9.]+[A-Za-z]*$"}]
}
_LABELS: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _list(item: dict[str, Any], least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": least}


def _one_of(*words: str) -> dict[str, Any]:
    return {"enum": list(words)}


def _kind(api_version: str, kind: str, spec: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    whole = _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion=_one_of(api_version),
        kind=_one_of(kind),
        metadata=_META,
        spec=spec,
    )
    return {(api_version, kind): {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole}}


_RUN_POLICY = _object(
    cleanPodPolicy=_one_of("None", "Running", "All"),
    ttlSecondsAfterFinished=_NUMBER,
    activeDeadlineSeconds=_NUMBER,
    backoffLimit=_NUMBER,
    suspend=_FLAG,
    schedulingPolicy=_object(minAvailable=_NUMBER, queue=_TEXT, priorityClass=_TEXT, minResources={"type": "object"}),
)


def _replica(*restart: str) -> dict[str, Any]:
    return _object(
        ("template",),
        replicas=_NUMBER,
        restartPolicy=_one_of(*restart),
        template={"$ref": f"{_CORE}PodTemplateSpec"},
    )


_MPI_REPLICA = _replica("Never", "OnFailure")
_TORCH_REPLICA = _replica("Always", "OnFailure", "Never", "ExitCode")
_QUOTAS = _list(_object(("name", "nominalQuota"), name=_TEXT, nominalQuota=_QUANTITY, borrowingLimit=_QUANTITY), 1)
_NIC_SELECTOR = _object(
    vendor=_TEXT,
    deviceID=_TEXT,
    rootDevices=_list({"type": "string", "pattern": r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$"}, 1),
    pfNames=_list(_TEXT, 1),
)
_RULE = _one_of("RunAsAny", "MustRunAs", "MustRunAsNonRoot", "MayRunAs")
_STRATEGY = _object(("rule",), rule=_RULE, ranges=_list(_object(("min", "max"), min=_NUMBER, max=_NUMBER)))

SCHEMAS: dict[tuple[str, str], dict[str, Any]] = {
    **_kind("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition", _object(("config",), config=_TEXT)),
    **_kind(
        "kubeflow.org/v2beta1",
        "MPIJob",
        _object(
            ("mpiReplicaSpecs",),
            slotsPerWorker=_NUMBER,
            runLauncherAsWorker=_FLAG,
            sshAuthMountPath=_TEXT,
            launcherCreationPolicy=_one_of("AtStartup", "WaitForWorkersReady"),
            mpiImplementation=_one_of("OpenMPI", "Intel", "MPICH"),
            runPolicy=_RUN_POLICY,
            mpiReplicaSpecs=_object(("Launcher",), Launcher=_MPI_REPLICA, Worker=_MPI_REPLICA),
        ),
    ),
    **_kind(
        "kubeflow.org/v1",
        "PyTorchJob",
        _object(
            ("pytorchReplicaSpecs",),
            runPolicy=_RUN_POLICY,
            nprocPerNode=_TEXT,
            pytorchReplicaSpecs=_object(Master=_TORCH_REPLICA, Worker=_TORCH_REPLICA),
        ),
    ),
    **_kind(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        _object(
            ("replicatedJobs",),
            replicatedJobs=_list(
                _object(
                    ("name", "template"),
                    name=_TEXT,
                    replicas=_NUMBER,
                    template=_object(("spec",), metadata=_META, spec={"$ref": f"{_BATCH}JobSpec"}),
                ),
                1,
            ),
            network=_object(enableDNSHostnames=_FLAG, subdomain=_TEXT, publishNotReadyAddresses=_FLAG),
            successPolicy=_object(("operator",), operator=_one_of("All", "Any"), targetReplicatedJobs=_list(_TEXT)),
            failurePolicy=_object(maxRestarts=_NUMBER),
            startupPolicy=_object(("startupPolicyOrder",), startupPolicyOrder=_one_of("AnyOrder", "InOrder")),
            suspend=_FLAG,
            ttlSecondsAfterFinished=_NUMBER,
        ),
    ),
    **_kind(
        "trainer.kubeflow.org/v1alpha1",
        "TrainingRuntime",
        _object(
            ("template",),
            mlPolicy=_object(numNodes={"type": "integer", "minimum": 1}),
            template=_object(
                ("spec",),
                spec=_object(
                    ("replicatedJobs",),
                    replicatedJobs=_list(
                        _object(
                            ("name", "template"),
                            name=_TEXT,
                            # The webhook refuses any other number for a trainer.
                            replicas={"const": 1},
                            template=_object(("spec",), metadata=_META, spec={"$ref": f"{_BATCH}JobSpec"}),
                        ),
                        1,
                    ),
                    network=_object(enableDNSHostnames=_FLAG, subdomain=_TEXT, publishNotReadyAddresses=_FLAG),
                    failurePolicy=_object(maxRestarts=_NUMBER),
                ),
            ),
        ),
    ),
    **_kind(
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        _object(
            ("runtimeRef",),
            runtimeRef=_object(
                ("name",),
                apiGroup=_one_of("trainer.kubeflow.org"),
                kind=_one_of("TrainingRuntime", "ClusterTrainingRuntime"),
                name=_NAME,
            ),
            suspend=_FLAG,
            activeDeadlineSeconds={"type": "integer", "minimum": 1},
        ),
    ),
    **_kind(
        "kueue.x-k8s.io/v1beta2",
        "Topology",
        _object(
            ("levels",),
            levels={**_list(_object(("nodeLabel",), nodeLabel=_LABEL), 1), "maxItems": 16, "uniqueItems": True},
        ),
    ),
    **_kind(
        "kueue.x-k8s.io/v1beta2",
        "ResourceFlavor",
        _object(
            nodeLabels={**_LABELS, "minProperties": 1, "maxProperties": 8},
            topologyName=_NAME,
            tolerations=_list({"$ref": f"{_CORE}Toleration"}),
            nodeTaints=_list({"$ref": f"{_CORE}Taint"}),
        ),
    ),
    **_kind(
        "kueue.x-k8s.io/v1beta2",
        "ClusterQueue",
        _object(
            ("resourceGroups",),
            namespaceSelector=_SELECTOR,
            queueingStrategy=_one_of("StrictFIFO", "BestEffortFIFO"),
            resourceGroups=_list(
                _object(
                    ("coveredResources", "flavors"),
                    coveredResources=_list(_TEXT, 1),
                    flavors=_list(_object(("name", "resources"), name=_NAME, resources=_QUOTAS), 1),
                ),
                1,
            ),
        ),
    ),
    **_kind("kueue.x-k8s.io/v1beta2", "LocalQueue", _object(("clusterQueue",), clusterQueue=_NAME)),
    **_kind(
        "sriovnetwork.openshift.io/v1",
        "SriovNetworkNodePolicy",
        _object(
            ("resourceName", "nodeSelector", "nicSelector", "numVfs"),
            resourceName={"type": "string", "pattern": "^[a-zA-Z0-9_-]+$"},
            nodeSelector=_LABELS,
            nicSelector=_NIC_SELECTOR,
            numVfs=_NUMBER,
            deviceType=_one_of("netdevice", "vfio-pci"),
            isRdma=_FLAG,
            mtu={"type": "integer", "minimum": 1},
            priority={"type": "integer", "minimum": 0, "maximum": 99},
            externallyManaged=_FLAG,
            needVhostNet=_FLAG,
        ),
    ),
    **_kind(
        "sriovnetwork.openshift.io/v1",
        "SriovNetworkPoolConfig",
        _object(maxUnavailable=_QUANTITY, nodeSelector=_SELECTOR, rdmaMode=_one_of("shared", "exclusive")),
    ),
    **_kind(
        "sriovnetwork.openshift.io/v1",
        "SriovNetwork",
        _object(
            ("resourceName",),
            resourceName=_TEXT,
            networkNamespace=_TEXT,
            ipam=_TEXT,
            metaPlugins=_TEXT,
            spoofChk=_one_of("on", "off"),
            vlan=_NUMBER,
        ),
    ),
    **_kind(
        "nv-ipam.nvidia.com/v1alpha1",
        "IPPool",
        _object(
            ("subnet", "perNodeBlockSize"),
            subnet={"type": "string", "pattern": r"^[0-9.]+/[0-9]+$"},
            perNodeBlockSize={"type": "integer", "minimum": 1},
            gateway=_TEXT,
            nodeSelector={"$ref": f"{_CORE}NodeSelector"},
        ),
    ),
    **_kind(
        "policy/v1beta1",
        "PodSecurityPolicy",
        _object(
            ("seLinux", "runAsUser", "supplementalGroups", "fsGroup"),
            privileged=_FLAG,
            allowPrivilegeEscalation=_FLAG,
            defaultAllowPrivilegeEscalation=_FLAG,
            allowedCapabilities=_list(_TEXT),
            defaultAddCapabilities=_list(_TEXT),
            requiredDropCapabilities=_list(_TEXT),
            volumes=_list(_TEXT),
            hostNetwork=_FLAG,
            hostPID=_FLAG,
            hostIPC=_FLAG,
            hostPorts=_list(_object(("min", "max"), min=_NUMBER, max=_NUMBER)),
            readOnlyRootFilesystem=_FLAG,
            allowedHostPaths=_list(_object(pathPrefix=_TEXT, readOnly=_FLAG)),
            allowedUnsafeSysctls=_list(_TEXT),
            forbiddenSysctls=_list(_TEXT),
            seLinux=_STRATEGY,
            runAsUser=_STRATEGY,
            runAsGroup=_STRATEGY,
            supplementalGroups=_STRATEGY,
            fsGroup=_STRATEGY,
        ),
    ),
}
