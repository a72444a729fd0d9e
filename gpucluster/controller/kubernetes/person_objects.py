"""The objects of Kubernetes for the users of the directory: pure, from users and a release to manifests.

Each user has a namespace that is closed: its pods reach each other, the DNS of the cluster and its API, and run as
the user's own uid. What the user may do there is one role for all; access is a binding to it, which users
who are disabled do not have. Rights are bound to names, never to a group in a certificate: a change has effect at once.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucluster.controller.kubernetes import admission
from gpucluster.node_agent.rules.devices import CLASS_QUOTA, GPU_CLASS, GPU_RESOURCES, instance_resource
from gpucluster.node_agent.rules.labels import HOST

Manifest = dict[str, Any]

MANAGED_BY = ("app.kubernetes.io/managed-by", "gpucluster")
#: What `sync` reads back: objects with this label are those of this module.
SET = ("gpucluster.io/set", "people")
#: On the namespace of a user, and on what belongs to it.
USER_LABEL = "gpucluster.io/user"
UID, GIDS, CONTENT = "gpucluster.io/uid", "gpucluster.io/gids", "gpucluster.io/content"
#: Annotation of a user's namespace: the name of the user, which the name of the namespace does not always have.
USER_NAME = "gpucluster.io/user-name"

#: The group in an operator's certificate.
OPERATORS = "gpucluster:operators"
#: Where privileged pods run. Only operators have rights there.
OPERATORS_NAMESPACE = "gpucluster-operators"
#: With a control plane of Oracle: where the service accounts of users are, by the names of their namespaces. No pod
#: runs there, so only a token that was requested acts as a user.
ACCOUNTS_NAMESPACE = "gpucluster-people"
ROLE, HOME, ACCESS = "gpucluster:person", "home", "person"
#: The policy, and the role to use it, of pods outside of the namespaces of users; until POLICIES_UNTIL.
PRIVILEGED = "gpucluster-privileged"

#: Minor releases: labels of Pod Security (on by default since 1.23), PodSecurityPolicy (gone with 1.25), and
#: ValidatingAdmissionPolicy v1, the only one of them that can compare a uid with that of a namespace.
LABELS_SINCE, POLICIES_UNTIL, ADMISSION_SINCE = 23, 24, 30
#: The release from which on pods can claim devices by an API that is stable (resource.k8s.io/v1).
CLAIMS_SINCE = 34

#: The seccomp profiles that pods of a policy may name (without it, none), and that of pods that name none.
_PROFILES = "seccomp.security.alpha.kubernetes.io/allowedProfileNames"
_PROFILE = "seccomp.security.alpha.kubernetes.io/defaultProfileName"
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_ALL = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
_READ = ["get", "list", "watch"]


@dataclass(frozen=True)
class KubernetesUser:
    """A user of the directory.

    Args:
        gids: all groups, the primary one first.
        home: the path of their home on every host.
        enabled: whether they may log in.
        privileged: whether they are an administrator.
    """

    name: str
    uid: int
    gids: tuple[int, ...]
    home: str
    enabled: bool = True
    privileged: bool = False

    @property
    def namespace(self) -> str:
        """Its name: `user-NAME`. A name that a namespace can't have gets the uid at its end."""
        if _DNS_LABEL.fullmatch(self.name):
            return f"user-{self.name}"
        return f"user-{re.sub('[^a-z0-9]+', '-', self.name).strip('-')}-{self.uid}".replace("--", "-")


@dataclass(frozen=True)
class Quota:
    """What the pods of one user may have at the same time; None means no limit. Memory in GB; instances of divided
    GPUs by the name of their profile."""

    gpus: int | None = None
    gpu_instances: Mapping[str, int] = field(default_factory=dict)
    cpus: int | None = None
    memory_gb: int | None = None
    pods: int | None = None


@dataclass(frozen=True)
class Api:
    """Where the API server listens, as pods reach it."""

    addresses: tuple[str, ...]
    port: int


def objects(
    people: Sequence[KubernetesUser], quota: Quota, minor: int, api: Api, *, engine: bool = False
) -> list[Manifest]:
    """All objects for these users, each with a digest of its content.

    Args:
        minor: of the release of the API server: 34 of 1.34.2.
        engine: the control plane is that of Oracle Kubernetes Engine. Certificates can't be signed there, so users
            have service accounts; and nodes that it manages have no homes.
    """
    made = [
        *_of_cluster(people, minor, engine=engine),
        *(one for person in people for one in of_person(person, quota, minor, api, engine=engine)),
    ]
    return [_digested(each) for each in made]


# ---- for all users


def _of_cluster(people: Iterable[KubernetesUser], minor: int, *, engine: bool) -> list[Manifest]:
    enabled = sorted((person for person in people if person.enabled), key=lambda person: person.uid)
    operators = [each for person in enabled if person.privileged for each in _subjects(person, engine=engine)]
    readers = [each for person in enabled for each in _subjects(person, engine=engine)]
    made = [
        _cluster_role(ROLE, _person_rules()),
        _cluster_role(
            "gpucluster:reader",
            [_rule("", ["nodes"], _READ), _rule("scheduling.k8s.io", ["priorityclasses"], _READ)],
        ),
        _cluster_binding("gpucluster:readers", "gpucluster:reader", readers),
        _cluster_binding(OPERATORS, "cluster-admin", [_group(OPERATORS), *operators]),
        _object("v1", "Namespace", OPERATORS_NAMESPACE, labels=_pod_security("privileged", minor)),
    ]
    if engine:
        closed = _object("v1", "ResourceQuota", "no-pods", ACCOUNTS_NAMESPACE)
        made += [
            _object("v1", "Namespace", ACCOUNTS_NAMESPACE, labels=_pod_security("restricted", minor)),
            {**closed, "spec": {"hard": {"pods": "0"}}},
        ]
    if minor >= ADMISSION_SINCE:
        made += _admission()
    if minor <= POLICIES_UNTIL:
        made += _privileged_policy()
    return made


def _person_rules() -> list[Manifest]:
    """Of the role `edit` what stays inside of the namespace: no change of network policies, endpoints, quotas, limits,
    roles or ingresses, and no use of other identities.
    """
    return [
        _rule("", ["pods", "services", "configmaps", "secrets", "persistentvolumeclaims"], _ALL),
        _rule("", ["pods/attach", "pods/exec", "pods/portforward"], ["get", "create"]),
        _rule("", ["pods/eviction"], ["create"]),
        _rule("", ["pods/log", "pods/status", "events", "endpoints", "serviceaccounts"], _READ),
        _rule("", ["resourcequotas", "limitranges", "replicationcontrollers"], _READ),
        _rule("", ["namespaces"], ["get"]),
        _rule("apps", ["deployments", "statefulsets", "replicasets"], _ALL),
        _rule("apps", ["deployments/scale", "statefulsets/scale", "replicasets/scale"], ["get", "update", "patch"]),
        _rule("apps", ["controllerrevisions", "daemonsets"], _READ),
        _rule("batch", ["jobs", "cronjobs"], _ALL),
        _rule("policy", ["poddisruptionbudgets"], _ALL),
        _rule("autoscaling", ["horizontalpodautoscalers"], _ALL),
        _rule("networking.k8s.io", ["networkpolicies"], _READ),
        _rule("events.k8s.io", ["events"], _READ),
        _rule("metrics.k8s.io", ["pods"], _READ),
        _rule("jobset.x-k8s.io", ["jobsets"], _ALL),
        _rule("kubeflow.org", ["mpijobs", "pytorchjobs"], _ALL),
        _rule("trainer.kubeflow.org", ["trainjobs", "trainingruntimes"], _ALL),
        _rule("kueue.x-k8s.io", ["localqueues", "workloads"], _READ),
        _rule("resource.k8s.io", ["resourceclaims", "resourceclaimtemplates"], _ALL),
        _rule("k8s.cni.cncf.io", ["network-attachment-definitions"], _READ),
    ]


def _admission() -> list[Manifest]:
    """The policies for the namespaces of users, in force there and nowhere else."""
    version, made = "admissionregistration.k8s.io/v1", []
    people = {"matchExpressions": [{"key": USER_LABEL, "operator": "Exists"}]}
    for name, spec in admission.policies(UID, GIDS).items():
        bound = {
            "policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": people},
        }  # fmt: skip
        made.append({**_object(version, "ValidatingAdmissionPolicy", name), "spec": spec})
        made.append({**_object(version, "ValidatingAdmissionPolicyBinding", name), "spec": bound})
    return made


def _privileged_policy() -> list[Manifest]:
    """What runs outside of the namespaces of users needs a policy, too, where the API server asks for one."""
    name = PRIVILEGED
    policy = _object("policy/v1beta1", "PodSecurityPolicy", name, annotations={_PROFILES: "*"})
    anything = {"rule": "RunAsAny"}
    policy["spec"] = {
        "privileged": True, "allowPrivilegeEscalation": True, "allowedCapabilities": ["*"], "volumes": ["*"],
        "hostNetwork": True, "hostIPC": True, "hostPID": True, "hostPorts": [{"min": 0, "max": 65535}],
        "runAsUser": anything, "seLinux": anything, "supplementalGroups": anything, "fsGroup": anything,
    }  # fmt: skip
    # Never for the whole cluster: controllers make the pods of users' Jobs, and are service accounts of kube-system.
    subjects = {
        "kube-system": [_group("system:nodes"), _accounts("kube-system")],
        OPERATORS_NAMESPACE: [_accounts(OPERATORS_NAMESPACE)],
    }
    bindings = [_binding(place, name, name, allowed) for place, allowed in subjects.items()]
    return [policy, _cluster_role(name, [_use(name)]), *bindings]


# ---- for one user


def of_person(person: KubernetesUser, quota: Quota, minor: int, api: Api, *, engine: bool = False) -> list[Manifest]:
    """The objects of one user. Without access, everything stays, but no pod starts, and their tokens end."""
    place, labels = person.namespace, {USER_LABEL: person.namespace[len("user-") :]}
    numbers = {UID: str(person.uid), GIDS: ",".join(map(str, person.gids)), USER_NAME: person.name}
    level = "baseline" if minor >= ADMISSION_SINCE or minor <= POLICIES_UNTIL else "restricted"
    made = [
        _object("v1", "Namespace", place, labels={**labels, **_pod_security(level, minor)}, annotations=numbers),
        _quota(person, quota, minor),
        _no_system_priority(place),
        _limits(place),
        _network_policy(place, api),
        *_home(person, labels, engine=engine),
    ]
    if person.enabled:
        made.append(_binding(place, ACCESS, ROLE, _subjects(person, engine=engine)))
    if person.enabled and engine:
        account = _object("v1", "ServiceAccount", place, ACCOUNTS_NAMESPACE, labels=labels)
        made.append({**account, "automountServiceAccountToken": False})
    if minor <= POLICIES_UNTIL:
        made += _own_policy(person, labels, engine=engine)
    return made


def _pod_security(level: str, minor: int) -> dict[str, str]:
    return {"pod-security.kubernetes.io/enforce": level} if minor >= LABELS_SINCE else {}


def _quota(person: KubernetesUser, quota: Quota, minor: int) -> Manifest:
    hard = {
        **{f"requests.{name}": quota.gpus for name in GPU_RESOURCES.values()},
        # As many again, where pods claim devices: a node offers its GPUs in one of the two ways.
        **({CLASS_QUOTA.format(GPU_CLASS): quota.gpus} if minor >= CLAIMS_SINCE else {}),
        **{f"requests.{instance_resource(name)}": number for name, number in quota.gpu_instances.items()},
        "requests.cpu": quota.cpus,
        "requests.memory": None if quota.memory_gb is None else f"{quota.memory_gb}G",
        "pods": quota.pods if person.enabled else 0,
        # Both are ways into the namespace from other networks.
        "services.nodeports": 0,
        "services.loadbalancers": 0,
    }
    made = _object("v1", "ResourceQuota", "person", person.namespace)
    made["spec"] = {"hard": {key: str(value) for key, value in hard.items() if value is not None}}
    return made


def _no_system_priority(place: str) -> Manifest:
    """The classes of Kubernetes' own pods may be named in any namespace, and would push away the pods of others."""
    made = _object("v1", "ResourceQuota", "no-system-priority", place)
    classes = ["system-cluster-critical", "system-node-critical"]
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": classes}
    made["spec"] = {"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": [scope]}}
    return made


def _limits(place: str) -> Manifest:
    """A quota of requests refuses pods without requests: they get these."""
    made = _object("v1", "LimitRange", "defaults", place)
    made["spec"] = {"limits": [{"type": "Container", "defaultRequest": {"cpu": "500m", "memory": "1G"}}]}
    return made


def _network_policy(place: str, api: Api) -> Manifest:
    here: Manifest = {"podSelector": {}}
    # Kubernetes' own label of a namespace's name is younger than 1.20. A pod elsewhere that has this label takes no
    # connection from here: its own namespace is closed.
    dns = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}
    servers = [{"ipBlock": {"cidr": f"{address}/{128 if ':' in address else 32}"}} for address in api.addresses]
    made = _object("networking.k8s.io/v1", "NetworkPolicy", "closed", place)
    egress: list[Manifest] = [
        {"to": [here]},
        {"to": [dns], "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]},
    ]
    if servers:
        egress.append({"to": servers, "ports": [{"protocol": "TCP", "port": api.port}]})
    made["spec"] = {
        "podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{"from": [here]}], "egress": egress,
    }  # fmt: skip
    return made


def _home(person: KubernetesUser, labels: Mapping[str, str], *, engine: bool) -> list[Manifest]:
    """The home as every host has it mounted, with the same options; a pod does not start where it is not mounted.

    Only this one folder is in the volume, and only this namespace can claim it.
    """
    name, size = f"home-{person.namespace}", {"storage": "1Ti"}
    volume = _object("v1", "PersistentVolume", name, labels=labels)
    volume["spec"] = {
        "capacity": size, "accessModes": ["ReadWriteMany"], "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "", "claimRef": {"namespace": person.namespace, "name": HOME},
        "hostPath": {"path": person.home, "type": "Directory"},
    }  # fmt: skip
    if engine:
        ours = {"matchExpressions": [{"key": HOST, "operator": "Exists"}]}
        volume["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": [ours]}}
    claim = _object("v1", "PersistentVolumeClaim", HOME, person.namespace)
    claim["spec"] = {
        "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": name,
        "resources": {"requests": size},
    }  # fmt: skip
    return [volume, claim]


def _own_policy(person: KubernetesUser, labels: Mapping[str, str], *, engine: bool) -> list[Manifest]:
    """Releases with PodSecurityPolicy: it also gives pods the uid where they name none."""
    name = f"person-{person.namespace}"
    groups = {"rule": "MustRunAs", "ranges": [{"min": gid, "max": gid} for gid in person.gids]}
    profiles = {_PROFILES: "runtime/default", _PROFILE: "runtime/default"}
    policy = _object("policy/v1beta1", "PodSecurityPolicy", name, labels=labels, annotations=profiles)
    policy["spec"] = {
        "privileged": False, "allowPrivilegeEscalation": False, "defaultAllowPrivilegeEscalation": False,
        "hostNetwork": False, "hostIPC": False, "hostPID": False,
        "volumes": ["configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected", "secret"],
        "runAsUser": {"rule": "MustRunAs", "ranges": [{"min": person.uid, "max": person.uid}]},
        "runAsGroup": groups, "supplementalGroups": groups, "fsGroup": groups, "seLinux": {"rule": "RunAsAny"},
    }  # fmt: skip
    # Pods of a Deployment or Job are created by a controller: there the service account of the pod must have it.
    subjects = [_accounts(person.namespace), *(_subjects(person, engine=engine) if person.enabled else [])]
    role = _cluster_role(name, [_use(name)], labels)
    return [policy, role, _binding(person.namespace, "pod-security", name, subjects)]


# ---- parts


def _object(
    version: str,
    kind: str,
    name: str,
    namespace: str = "",
    labels: Mapping[str, str] = {},
    annotations: Mapping[str, str] = {},
) -> Manifest:
    meta: Manifest = {"name": name, **({"namespace": namespace} if namespace else {})}
    meta["labels"] = dict([MANAGED_BY, SET], **labels)
    meta["annotations"] = dict(annotations)
    return {"apiVersion": version, "kind": kind, "metadata": meta}


def _rule(group: str, resources: Sequence[str], verbs: Sequence[str]) -> Manifest:
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}


def _use(policy: str) -> Manifest:
    return {**_rule("policy", ["podsecuritypolicies"], ["use"]), "resourceNames": [policy]}


def _cluster_role(name: str, rules: Sequence[Manifest], labels: Mapping[str, str] = {}) -> Manifest:
    return {**_object("rbac.authorization.k8s.io/v1", "ClusterRole", name, labels=labels), "rules": list(rules)}


def _cluster_binding(name: str, role: str, subjects: Sequence[Manifest]) -> Manifest:
    made = _object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", name)
    return {**made, "roleRef": _role(role), "subjects": list(subjects)}


def _binding(namespace: str, name: str, role: str, subjects: Sequence[Manifest]) -> Manifest:
    made = _object("rbac.authorization.k8s.io/v1", "RoleBinding", name, namespace)
    return {**made, "roleRef": _role(role), "subjects": list(subjects)}


def _role(name: str) -> Manifest:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}


def _subjects(person: KubernetesUser, *, engine: bool) -> list[Manifest]:
    """The name of a user for the API server: a name in a certificate, or a service account with its token."""
    if not engine:
        return [_user(person.name)]
    return [{"kind": "ServiceAccount", "name": person.namespace, "namespace": ACCOUNTS_NAMESPACE}]


def _user(name: str) -> Manifest:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}


def _group(name: str) -> Manifest:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name}


def _accounts(namespace: str) -> Manifest:
    """All service accounts of a namespace."""
    return _group(f"system:serviceaccounts:{namespace}")


def _digested(made: Manifest) -> Manifest:
    digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:32]
    annotations = {**made["metadata"]["annotations"], CONTENT: digest}
    return {**made, "metadata": {**made["metadata"], "annotations": annotations}}
