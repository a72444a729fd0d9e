"""Objects of Kubernetes as Python values, and their text. Each module makes the objects of one subject.

An object is a dict as the API has it. `gpucluster-agent kubernetes apply` marks what it applies, so nothing here sets
these labels: `app.kubernetes.io/managed-by` shows that gpucluster made an object; users' own objects lack it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

Manifest = dict[str, Any]

#: The namespace of everything that gpucluster itself runs in a cluster.
SYSTEM_NAMESPACE = "gpucluster-system"
#: The prefix of our labels, taints and annotations.
DOMAIN = "gpucluster.io"
#: Kubernetes' recommended label for the program that manages an object.
MANAGED_BY = ("app.kubernetes.io/managed-by", "gpucluster")
_PART = "app.kubernetes.io/name"


def metadata(
    name: str,
    namespace: str | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The metadata of an object that gpucluster makes.

    Args:
        namespace: None for kinds that are in no namespace.
        labels: beside `app.kubernetes.io/managed-by`.
    """
    made: dict[str, Any] = {"name": name}
    if namespace is not None:
        made["namespace"] = namespace
    made["labels"] = {MANAGED_BY[0]: MANAGED_BY[1], **(labels or {})}
    if annotations:
        made["annotations"] = dict(annotations)
    return made


def namespace(name: str, labels: Mapping[str, str] | None = None) -> Manifest:
    """A namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata(name, labels=labels)}


def daemon_set(
    name: str,
    pod: Mapping[str, Any],
    *,
    namespace: str = SYSTEM_NAMESPACE,
    max_unavailable: str = "10%",
) -> Manifest:
    """A DaemonSet whose pods have the label `app.kubernetes.io/name` with its name.

    Args:
        pod: the spec of its pods.
        max_unavailable: how many of its pods an update replaces at a time.
    """
    selector = {_PART: name}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata(name, namespace, selector),
        "spec": {
            "selector": {"matchLabels": selector},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": max_unavailable}},
            "template": {"metadata": {"labels": {MANAGED_BY[0]: MANAGED_BY[1], **selector}}, "spec": dict(pod)},
        },
    }


def to_json(manifests: Iterable[Mapping[str, Any]]) -> str:
    """One object of kind List, as `kubectl apply --filename=-` reads it: the form that we send to the controller."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)}, sort_keys=True) + "\n"


def to_yaml(manifests: Iterable[Mapping[str, Any]]) -> str:
    """The documents of a YAML file: the form for users. Texts of several lines are written as such."""
    return yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, width=120, explicit_start=True)


class _Dumper(yaml.SafeDumper):
    """Writes what PyYAML's own does, and texts of several lines as blocks."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def images(manifests: Iterable[Mapping[str, Any]]) -> list[str]:
    """The images of all containers in these objects, sorted, each once."""
    return sorted({image for manifest in manifests for image in _images(manifest)})


def _images(value: Any) -> Iterable[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in ("containers", "initContainers") and isinstance(inner, list):
                yield from (container["image"] for container in inner if "image" in container)
            yield from _images(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _images(inner)
