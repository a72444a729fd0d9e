"""Judges manifests: by the schemas of the oldest and the newest release that the package kubernetes-validate has.

The package's schemas are Kubernetes' own OpenAPI description, in the strict form: an unknown field is refused. Its
oldest release is 1.25. For what we support below, `_SINCE` and `_FIELDS_SINCE` name the kinds and the fields that came
after 1.20 (from the description of each API in Kubernetes' reference, "Feature gates" and the changelogs of the
releases). Kinds of operators have schemas of ours: custom_resources.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.kubernetes import cni
from tests.kubernetes.custom_resources import SCHEMAS

#: The oldest release of Kubernetes that gpucluster builds.
SUPPORTED_SINCE = 20
#: Kinds that a release does not serve before this minor number.
_SINCE = {
    ("batch/v1", "CronJob"): 21,
    ("policy/v1", "PodDisruptionBudget"): 21,
    ("discovery.k8s.io/v1", "EndpointSlice"): 21,
    ("autoscaling/v2", "HorizontalPodAutoscaler"): 23,
    ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema"): 29,
    ("resource.k8s.io/v1", "DeviceClass"): 34,
    ("resource.k8s.io/v1", "ResourceClaim"): 34,
    ("resource.k8s.io/v1", "ResourceClaimTemplate"): 34,
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"): 30,
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"): 30,
}
#: Fields that an older release drops without a word, by the field that holds them: on by default since this release.
_FIELDS_SINCE = {
    ("spec", "completionMode"): 22,
    ("spec", "suspend"): 22,
    ("spec", "podFailurePolicy"): 26,
    ("spec", "podReplacementPolicy"): 29,
    ("spec", "backoffLimitPerIndex"): 29,
    ("spec", "successPolicy"): 31,
    ("spec", "managedBy"): 32,
    ("spec", "schedulingGates"): 27,
    ("spec", "hostUsers"): 30,
    ("spec", "resourceClaims"): 32,
    ("topologySpreadConstraints", "minDomains"): 25,
    ("topologySpreadConstraints", "matchLabelKeys"): 27,
    ("topologySpreadConstraints", "nodeTaintsPolicy"): 26,
    ("securityContext", "appArmorProfile"): 30,
    ("initContainers", "restartPolicy"): 29,
    ("ports", "endPort"): 22,
    ("parameters", "namespace"): 23,
}
#: Kinds that are gone from this minor number on, with what our manifests write of them.
_UNTIL = {("policy/v1beta1", "PodSecurityPolicy"): 25}


class Invalid(AssertionError):
    """A manifest that an API server would not take as it is meant."""


@cache
def releases() -> tuple[int, ...]:
    """The minor numbers of the releases that the package has, in order."""
    names = [each.name for each in _schemas().iterdir()]
    return tuple(
        sorted({int(found[1]) for name in names if (found := re.match(r"v1\.(\d+)\.\d+-local-strict$", name))})
    )


def validate(manifest: Mapping[str, Any], *, oldest: int = SUPPORTED_SINCE, newest: int | None = None) -> None:
    """Judge one object by the oldest and the newest release.

    Args:
        oldest: the minor number of the oldest release that gets this object.
        newest: that of the newest; None for the newest of all.

    Raises:
        Invalid: a release refuses it, drops a field of it, or there is no schema for its kind.
    """
    kind = (str(manifest.get("apiVersion")), str(manifest.get("kind")))
    if kind == ("v1", "List"):
        validate_all(manifest["items"], oldest=oldest, newest=newest)
        return
    if _SINCE.get(kind, 0) > oldest:
        raise Invalid(
            f"{_name(manifest)}: 1.{oldest} does not serve {kind[0]} {kind[1]}: it came with 1.{_SINCE[kind]}"
        )
    if kind in _UNTIL and (newest is None or newest >= _UNTIL[kind]):
        raise Invalid(f"{_name(manifest)}: from 1.{_UNTIL[kind]} on there is no {kind[1]}")
    for place, since in _young_fields(manifest):
        if since > oldest:
            raise Invalid(f"{_name(manifest)}: 1.{oldest} drops {'.'.join(place)}: it came with 1.{since}")
    known = releases()
    first = next((each for each in known if each >= oldest), known[-1])
    last = known[-1] if newest is None else max((each for each in known if each <= newest), default=first)
    for release in dict.fromkeys((first, last)):
        for error in _validator(release, *kind).iter_errors(manifest):
            where = ".".join(map(str, error.absolute_path)) or "the object"
            raise Invalid(f"{_name(manifest)}: 1.{release} refuses {where}: {error.message[:300]}")
    if kind[1] == "NetworkAttachmentDefinition":
        for problem in cni.problems(manifest):
            raise Invalid(f"{_name(manifest)}: {problem}")


def served_since(manifest: Mapping[str, Any]) -> int:
    """The minor number of the first release that serves this kind; 0 for kinds that every release has."""
    return _SINCE.get((str(manifest.get("apiVersion")), str(manifest.get("kind"))), 0)


def validate_all(
    manifests: Iterable[Mapping[str, Any]], *, oldest: int = SUPPORTED_SINCE, newest: int | None = None
) -> None:
    """Judge each object; see `validate`.

    Raises:
        Invalid: one is not valid, two have the same name, or there is none.
    """
    seen: set[tuple[str, ...]] = set()
    for manifest in manifests:
        validate(manifest, oldest=oldest, newest=newest)
        identity = (*(str(manifest[key]) for key in ("apiVersion", "kind")), *_place(manifest))
        if identity in seen:
            raise Invalid(f"{_name(manifest)} is there twice")
        seen.add(identity)
    if not seen:
        raise Invalid("there is no manifest to judge")


def fields(name: str) -> frozenset[str]:
    """The fields of a part of the API in the newest release.

    Args:
        name: as Kubernetes' OpenAPI description has it, such as `io.k8s.api.core.v1.Volume`.
    """
    return frozenset(_read(releases()[-1], "_definitions.json")["$defs"][name]["properties"])


def _place(manifest: Mapping[str, Any]) -> tuple[str, str]:
    return str(manifest["metadata"].get("namespace", "")), str(manifest["metadata"]["name"])


def _name(manifest: Mapping[str, Any]) -> str:
    return f"{manifest.get('kind')} {manifest.get('metadata', {}).get('name')}"


def _young_fields(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            here = (*path, key)
            since = _FIELDS_SINCE.get((path[-1] if path else "", key))
            if since is not None:
                yield here, since
            yield from _young_fields(inner, here)
    elif isinstance(value, list):
        for inner in value:
            yield from _young_fields(inner, path)


def _schemas() -> Any:
    return resources.files("kubernetes_validate").joinpath("kubernetes-json-schema")


@cache
def _read(release: int, file: str) -> Any:
    return json.loads(_schemas().joinpath(f"v1.{release}.0-local-strict", file).read_text(encoding="utf-8"))


@cache
def _definitions(release: int) -> Registry[Any]:
    return Resource.from_contents(_read(release, "_definitions.json")) @ Registry()


@cache
def _validator(release: int, api_version: str, kind: str) -> Draft202012Validator:
    schema = SCHEMAS.get((api_version, kind))
    if schema is None:
        group, _slash, version = api_version.rpartition("/")
        prefix = f"{group.partition('.')[0]}-" if group else ""
        try:
            schema = _read(release, f"{kind.lower()}-{prefix}{version}.json")
        except FileNotFoundError:
            known = ", ".join(sorted(name for _version, name in SCHEMAS))
            raise Invalid(
                f"no schema for {api_version} {kind} in 1.{release}; schemas of ours are there for {known}: "
                "add one with its source to tests/kubernetes/custom_resources.py"
            ) from None
    return Draft202012Validator(schema, registry=_definitions(release))
