"""The file format written down: a JSON schema for editors, a page for people. Both are made from the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gpucluster import shapes
from gpucluster.spec import containers, derive, fields, machines, model, network, place, service, software, state, taken

_DERIVED_DEFAULTS = {
    "cloud.region": "`local-1` with provider local",
    "network.public_subnet_cidr": "required with access public",
    "controller.image": "Debian 13 with provider local",
    "pools.<name>.image": "Debian 13 with provider local",
    "pools.<name>.max_count": "`count`",
    "pools.<name>.default": "the first pool",
    "pools.<name>.partition": "the pool's name",
    "pools.<name>.availability_domain": "`cloud.availability_domain`",
    "users.people[].full_name": "`name`",
    "users.people[].group": "`users.group`",
    "storage.home.enabled": "`slurm.enabled`",
    "slurm.cluster_name": "`name`",
    "slurm.default_partition": "that of the default pool",
    "controller.ocpus": f"`{derive.CONTROLLER_OCPUS}` without `shape`",
    "controller.memory_gb": f"`{derive.CONTROLLER_MEMORY_GB}` without `shape`",
}


def json_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of a cluster.yml: the keys and their types. Rules between keys only load() knows."""
    schema = model.ClusterSpec.model_json_schema(mode="validation")
    for definition in [schema, *schema["$defs"].values()]:
        for name, field in definition.get("properties", {}).items():
            field.pop("title", None)
            # A default that is filled in later is none for an editor.
            if field.get("default", "") in ("", None):
                field.pop("default", None)
            if name == "shape":
                field["enum"] = list(shapes.catalogue())
            if name == "extra_config":
                field["additionalProperties"] = {"type": ["string", "integer"]}
            if name == "config":
                field["additionalProperties"] = {"type": ["string", "integer", "boolean"]}
            if name == "times":
                field["propertyNames"] = {"enum": sorted(service.TIME_NAMES)}
        definition.pop("title", None)
    pools = schema["properties"]["pools"]
    pools["propertyNames"] = {"pattern": fields.POOL_NAME_PATTERN, "not": {"enum": sorted(taken.RESERVED_POOL_NAMES)}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"gpucluster cluster.yml, version {model.VERSION}",
        **schema,
    }


def json_schema_text() -> str:
    """json_schema() as the file docs/reference/cluster.schema.json."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def markdown() -> str:
    """The file docs/reference/cluster-yml.md."""
    lines = [
        "<!-- Made by `python -m gpucluster.spec reference`. Change gpucluster/spec instead. -->",
        "# cluster.yml",
        "",
        "One file says what a cluster is to be. Everything wrong in it is reported at once, with line and column,",
        "before anything is created. `gpucluster init` writes a first one. Unknown keys are refused, numbers stand",
        "without quotes, and only `true` and `false` are truth values. File names are relative to the file;",
        "`~` is your home.",
        "Editors that know JSON schema take [cluster.schema.json](cluster.schema.json).",
        "",
    ]
    for title, path, kind in _sections():
        lines += [f"## {title}", "", (kind.__doc__ or "").strip().partition("\n\n")[0].replace("\n    ", " "), ""]
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        lines += [_row(path, name, info) for name, info in kind.model_fields.items()]
        lines.append("")
    return "\n".join([*lines, *_rules(), *_shapes()]) + "\n"


def _sections() -> Iterator[tuple[str, str, type[BaseModel]]]:
    yield "Top level", "", model.ClusterSpec
    yield "`cloud`", "cloud.", place.Cloud
    yield "`network`", "network.", place.Network
    yield "`ssh`", "ssh.", place.Ssh
    yield "`controller`", "controller.", machines.Controller
    yield "`storage`", "storage.", machines.Storage
    yield "`storage.home`", "storage.home.", machines.Home
    yield "`storage.local_disk`", "storage.local_disk.", machines.LocalDisk
    yield "`pools.<name>`", "pools.<name>.", machines.Pool
    yield "`image`, of the controller and of each pool", "image.", machines.Image
    yield "`pools.<name>.platform`", "platform.", machines.Platform
    yield "`users`", "users.", service.Users
    yield "`users.people[]`", "users.people[].", service.Person
    yield "`iam`", "iam.", place.Iam
    yield "`state`", "state.", place.State
    yield "`slurm`", "slurm.", service.Slurm
    yield "`autoscaler`", "autoscaler.", service.Autoscaler
    yield "`containers`", "containers.", software.Containers
    yield "`nvidia`", "nvidia.", software.Nvidia
    yield "`software`", "software.", software.Software


def _row(path: str, name: str, info: FieldInfo) -> str:
    default = _DERIVED_DEFAULTS.get(path + name) or _default(info)
    return f"| `{name}` | {_type(info.annotation)} | {default} | {info.description} |"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    default = info.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return "see below"
    if default in ("", None, (), {}) or default is PydanticUndefined:
        return "none"
    return f"`{json.dumps(default)}`" if not isinstance(default, str) else f"`{default}`"


def _type(annotation: Any) -> str:
    arguments = [part for part in get_args(annotation) if part is not type(None)]
    origin = get_origin(annotation)
    if type(None) in get_args(annotation) or origin is Annotated:
        return _type(arguments[0])
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    return {str: "text", int: "whole number", float: "number", bool: "`true`, `false`"}.get(annotation, "mapping")


def _rules() -> list[str]:
    owned = ", ".join(f"`{key}`" for key in sorted(taken.OWNED_SLURM_KEYS))
    reserved = ", ".join(f"`{name}`" for name in sorted(taken.RESERVED_POOL_NAMES))
    fixed = (
        f"{network.MOUNT_TARGET_ADDRESSES} for the mount target of the shared home (none with `storage.home.server`), "
        f"{network.BASTION_ADDRESSES} with access bastion"
    )
    own = ", ".join(f"`{tag}`" for tag in taken.OWN_TAGS)
    return [
        "## Rules between keys",
        "",
        "- Both subnets lie inside `vcn_cidr` and apart from each other; all three are between "
        f"/{network.LARGEST_PREFIX} and /{network.SMALLEST_PREFIX}.",
        "- `private_subnet_cidr` has an address for every pool's `max_count`, one for the controller, "
        f"{fixed}, {network.BUILDERS} to bake images where a pool is elastic, and {network.RESERVED_ADDRESSES} that "
        "the cloud keeps.",
        f"- `ssh_allowed_cidrs` holds no network larger than /{network.LARGEST_SSH_PREFIX}, and no IPv6.",
        "- With access `public` there is a `public_subnet_cidr`, with access `bastion` there is none.",
        "- `vcn_id` comes with `private_subnet_id` and, with access `public`, `public_subnet_id`; no subnet without "
        "`vcn_id`.",
        "- `rdma_cidr` and `vcn_cidr` do not overlap. With `rdma_addressing: cloud-init` it has, for each RDMA "
        "interface of a node, as many addresses as `private_subnet_cidr`.",
        f"- `freeform_tags` takes none of these keys, which gpucluster sets itself: {own}. Keys have no spaces and no "
        "periods; those of `defined_tags` are `Namespace.Key`.",
        "- A pool's name is at most 20 lower-case letters, digits and `-`, beginning with a letter and not ending with "
        f"`-`; taken are {reserved}.",
        "- A flexible shape (`...Flex`) needs `ocpus` and `memory_gb`, any other refuses them.",
        "- `max_count` is at least `count`, and not 0.",
        "- Where a pool's `max_count` is above its `count` (it is *elastic*), `slurm.accounting` is on.",
        "- Elastic pools of one partition have the same `idle_timeout`.",
        "- `autoscaler.max_cost_per_hour` needs `autoscaler.prices_file`, with a price for the shape of every elastic "
        "pool.",
        "- What a pool's nodes stand in follows from the shape, `rdma` and the counts: with RDMA and `max_count` above "
        "`count` a compute cluster, with RDMA otherwise a cluster network, without RDMA neither.",
        "- `rdma: true` and `rdma_addressing: cloud-init` are for shapes with RDMA, the second one for those whose "
        "interfaces are known; `platform` is for bare metal.",
        "- Names in `removed_nodes` are those of the pool's own permanent nodes, `<pool>-<n>`, each once.",
        "- `image` is named in one way: `operating_system` and `version`; `name`, with `operating_system` or "
        "`login_user`; `listing` and `login_user`; or `ocid` and `login_user`.",
        "- `mount_path` is no directory of the system, and the two are not inside of one another.",
        "- `storage.home` has `file_system_id` or `server`, or neither.",
        *_backends(),
        "- Names and uids of people are unique, none belongs to the system, and every person has a public key (with "
        "provider local `generate_key: true` will do).",
        "- `users.group` and `users.privilege_group` are two; a person's `group` is one of them.",
        "- `slurm.enabled: true` needs `storage.home.enabled: true`. With `false` no pool is elastic, and `enroot` is "
        "not among the runtimes. Without a shared home every person has a `uid`.",
        f"- With `docker` or `containerd` no network overlaps {containers.CONTAINER_NETWORKS}.",
        "- `containers.pull` is for `docker` and `containerd`. `software.mirror` has no password in it.",
        "- Public keys are Ed25519, ECDSA (also on hardware tokens) or RSA of 2048 bits and more. A private key is "
        "refused.",
        "- At most one pool has `default: true`, and `slurm.default_partition` does not contradict it.",
        f"- `slurm.extra_config` takes none of these, which gpucluster sets itself: {owned}.",
        "- Provider `oci` needs `cloud.region`, `cloud.compartment_id`, `ssh.public_key_file` and every `image`.",
        "- YAML: one document of at most 256 KiB in UTF-8; no tabs in front of a line, no key twice, no tags, no merge "
        "keys.",
        "",
    ]


def _backends() -> Iterator[str]:
    for name, backend in state.BACKENDS.items():
        if not backend.settings:
            yield f"- `state.backend: {name}` has no settings."
            continue
        needed = " and ".join(f"`{key}`" for key in backend.required) or "none of its settings"
        known = ", ".join(f"`{key}`" for key in sorted(backend.settings))
        secrets = ", ".join(f"`{key}`" for key in sorted(backend.secrets))
        yield f"- `state.backend: {name}` needs {needed}, and knows {known}. Secrets are refused: {secrets}."


def _shapes() -> list[str]:
    lines = [
        "## Shapes",
        "",
        "From `gpucluster/shapes.toml`, which says where each value comes from. *Assumed* are those that no source",
        "states, or on which the sources disagree.",
        "",
        "| shape | GPUs | Slurm type | cores | memory, GiB | NVMe | RDMA, Gb/s | assumed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, shape in shapes.catalogue().items():
        cores = f"{shape.sockets} x {shape.cores_per_socket}" if shape.sockets else "flexible"
        rdma = f"{len(shape.rdma_devices)} x {shape.rdma_link_gbps}" if shape.rdma else "-"
        memory, gres, assumed = shape.memory_gib or "flexible", shape.gres_type or "-", ", ".join(shape.assumed) or "-"
        lines.append(
            f"| {name} | {shape.gpus} | {gres} | {cores} | {memory} | {shape.nvme_count} | {rdma} | {assumed} |"
        )
    return lines
