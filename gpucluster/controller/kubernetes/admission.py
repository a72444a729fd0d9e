"""What the API server refuses in the namespaces of users: the specs of ValidatingAdmissionPolicies, in CEL. Pure.

An object that was accepted under other rules, or before its owner left a group, still has to change: controllers take
their finalizers off a pod, or it would never go. So a change is looked at only where it concerns what the rules are
about. `oldObject` is null where an object is created.

Sources: Kubernetes' reference of ValidatingAdmissionPolicy v1 and of pods (volumes, tolerations, nodeName); multus-cni
v4.3.0, docs/how-to-use.md and docs/configuration.md, for its annotations; CVE-2020-8554 for externalIPs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucluster.node_agent.rules.devices import GPU_RESOURCES, NETWORKS, RDMA_RESOURCE

OWN_UID, PODS, SERVICES = "gpucluster-own-uid", "gpucluster-pods", "gpucluster-services"

#: Volumes that show nothing but what the namespace has. Others are mounted by root of the node, from where a pod names.
_VOLUMES = (
    "configMap", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret",
)  # fmt: skip
#: Taints that keep the pods of users away, and those of `node.kubernetes.io/` that Kubernetes lets pods tolerate.
_RESERVED = ("node-role.kubernetes.io/", "gpucluster.io/")
_OF_NODES = "node.kubernetes.io/"
_TOLERATED = tuple(_OF_NODES + name for name in ("not-ready", "unreachable", "memory-pressure"))
#: What a pod asks for that may take further networks: a device, which no other pod has and a quota can limit.
_DEVICES = (*GPU_RESOURCES.values(), RDMA_RESOURCE)
_DEFAULT_NETWORK = "v1.multus-cni.io/default-network"

_CHANGES_SPEC = "oldObject == null || object.spec != oldObject.spec"
_CHANGES_ANNOTATIONS = (
    "(has(object.metadata.annotations) && !(has(oldObject.metadata.annotations) "
    "&& object.metadata.annotations == oldObject.metadata.annotations))"
)


def policies(uid: str, gids: str) -> dict[str, dict[str, Any]]:
    """The spec of each policy, by its name.

    Args:
        uid, gids: the annotations of a namespace with its user's uid, and with all groups, separated by commas.
    """
    return {OWN_UID: _own_uid(uid, gids), PODS: _pods(), SERVICES: _services()}


def _own_uid(uid: str, gids: str) -> dict[str, Any]:
    """Pods have the user's uid and groups, and can't get others by a setuid program."""
    annotations = "namespaceObject.metadata.annotations"
    inherits = "(has(c.securityContext) && has(c.securityContext.{0}) ? c.securityContext.{0} == {1} : {2})"
    in_pod = (
        "has(object.spec.securityContext) && has(object.spec.securityContext.{0}) && object.spec.securityContext.{0}"
    )
    own_uid = inherits.format("runAsUser", "variables.uid", "variables.podHasUid")
    own_gid = (
        "(has(c.securityContext) && has(c.securityContext.runAsGroup) "
        "? c.securityContext.runAsGroup in variables.gids : variables.podHasGid)"
    )
    no_more = (
        "has(c.securityContext) && has(c.securityContext.allowPrivilegeEscalation) "
        "&& !c.securityContext.allowPrivilegeEscalation"
    )
    variables = {
        "uid": f"int({annotations}['{uid}'])",
        "gids": f"{annotations}['{gids}'].split(',').map(g, int(g))",
        "podHasUid": in_pod.format("runAsUser") + " == variables.uid",
        "podHasGid": in_pod.format("runAsGroup") + " in variables.gids",
    }
    validations = {}
    for field in ("containers", "initContainers", "ephemeralContainers"):
        absent = "" if field == "containers" else f"!has(object.spec.{field}) || "
        for test, message in (
            (own_uid, "runAsUser must be your own uid"),
            (own_gid, "runAsGroup must be one of your own groups"),
            (no_more, "allowPrivilegeEscalation must be false"),
        ):
            validations[f"{field}: securityContext.{message}"] = f"{absent}object.spec.{field}.all(c, {test})"
    for field, test in (("supplementalGroups", ".all(g, g in variables.gids)"), ("fsGroup", " in variables.gids")):
        place = f"object.spec.securityContext.{field}"
        expression = f"!has(object.spec.securityContext) || !has({place}) || {place}{test}"
        validations[f"securityContext.{field} must be your own groups"] = expression
    return _spec(["pods", "pods/ephemeralcontainers"], _CHANGES_SPEC, variables, validations)


def _pods() -> dict[str, Any]:
    """Pods see the files of their namespace alone, and run where and with what the cluster gives to users."""
    kinds = " || ".join(f"has(v.{kind})" for kind in _VOLUMES)
    reserved = "".join(f" && !t.key.startsWith('{prefix}')" for prefix in _RESERVED)
    usual = f"(!t.key.startsWith('{_OF_NODES}') || t.key in {list(_TOLERATED)})"
    requests_device = f"{list(_DEVICES)}.exists(r, r in c.resources.limits && c.resources.limits[r] != '0')"
    variables = {
        "annotations": "has(object.metadata.annotations) ? object.metadata.annotations : {}",
        "hasDevice": (
            f"object.spec.containers.exists(c, has(c.resources) && has(c.resources.limits) && {requests_device})"
        ),
    }
    validations = {
        f"volumes must be of these kinds: {', '.join(_VOLUMES)}": (
            f"!has(object.spec.volumes) || object.spec.volumes.all(v, {kinds})"
        ),
        "tolerations must name the taint, and not one of the control plane or of nodes that are out of service": (
            f"!has(object.spec.tolerations) || object.spec.tolerations.all(t, has(t.key) && t.key != ''{reserved}"
            f" && {usual})"
        ),
        "nodeName must be left to the scheduler; take nodeSelector": (
            "oldObject != null || !has(object.spec.nodeName) || object.spec.nodeName == ''"
        ),
        f"the annotation {_DEFAULT_NETWORK} is for operators": f"!('{_DEFAULT_NETWORK}' in variables.annotations)",
        f"the annotation {NETWORKS} is for pods that ask for one of these: {', '.join(_DEVICES)}": (
            f"!('{NETWORKS}' in variables.annotations) || variables.hasDevice"
        ),
    }
    changes = f"{_CHANGES_SPEC} || {_CHANGES_ANNOTATIONS}"
    return _spec(["pods", "pods/ephemeralcontainers"], changes, variables, validations)


def _services() -> dict[str, Any]:
    """Services take no address for themselves that pods of others talk to."""
    none = "!has(object.spec.externalIPs) || object.spec.externalIPs.size() == 0"
    return _spec(["services"], _CHANGES_SPEC, {}, {"externalIPs are for operators": none})


def _spec(
    resources: Sequence[str], when: str, variables: Mapping[str, str], validations: Mapping[str, str]
) -> dict[str, Any]:
    """The spec of a policy.

    Args:
        when: whether a request is looked at.
        validations: the expression that must be true, by the message where it is not.
    """
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": list(resources)}
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "changes", "expression": when}],
        "variables": [{"name": name, "expression": text} for name, text in variables.items()],
        "validations": [{"expression": text, "message": message} for message, text in validations.items()],
    }
