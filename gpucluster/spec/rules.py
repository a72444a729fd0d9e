"""Rules between the keys of a cluster.yml. Each looks only at values that are fit to be looked at, so that one fault is
told once and hides no other."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Mapping
from typing import Any

from gpucluster import shapes
from gpucluster.spec import model
from gpucluster.spec.document import Path
from gpucluster.spec.draft import Draft
from gpucluster.spec.elastic import check_elastic
from gpucluster.spec.network import check_network
from gpucluster.spec.people import check_ssh, check_users
from gpucluster.spec.taken import NEVER_UNDER, OWNED_SLURM_KEYS, RESERVED_POOL_NAMES, SYSTEM_DIRECTORIES
from gpucluster.spec.wording import alike, shown


def check(draft: Draft) -> None:
    """Note every fault; afterwards `draft.public_keys` and `draft.prices` hold what the files that were named hold."""
    _cloud(draft)
    check_network(draft)
    check_ssh(draft)
    _machine(draft, ("controller",), draft.section("controller"))
    _home(draft)
    _pools(draft)
    check_elastic(draft)
    check_users(draft)
    _slurm(draft)
    _timezone(draft)
    _wheels(draft)


def _cloud(draft: Draft) -> None:
    cloud = draft.section("cloud")
    if cloud.get("provider") == "oci":
        for key, example in (("region", "us-ashburn-1"), ("compartment_id", "ocid1.compartment.oc1..exampleuniqueid")):
            if cloud.get(key) in ("", None) and key in cloud:
                draft.fault(("cloud", key), "is missing: provider oci needs it", f"Add `{key}: {example}`")
    elif cloud.get("provider") == "local":
        for key in ("compartment_id", "profile"):
            if draft.written(("cloud", key)) and cloud.get(key) is not None:
                message = "has no meaning with provider local"
                draft.fault(("cloud", key), message, "Delete the line", key=True)
        if cloud.get("region") not in (None, model.LOCAL_REGION):
            message = f"the local cloud has one region; got {shown(cloud['region'])}"
            draft.fault(("cloud", "region"), message, f"Delete the line, or write {model.LOCAL_REGION}")


def _machine(draft: Draft, path: Path, machine: Mapping[str, Any]) -> None:
    _image(draft, (*path, "image"), machine)
    name = machine.get("shape")
    if not isinstance(name, str):
        return
    shape = shapes.catalogue().get(name)
    if shape is None:
        near = shapes.suggestions(name)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(shapes.catalogue())}"
        draft.fault((*path, "shape"), f"unknown shape {shown(name)}", hint)
    elif shape.flex_limits is None:
        for key in ("ocpus", "memory_gb"):
            if machine.get(key) is not None:
                message = f"{name} has a fixed size; only flexible shapes take {key}"
                draft.fault((*path, key), message, "Delete the line", key=True)
    else:
        _flex(draft, path, machine, name, shape.flex_limits)


def _flex(draft: Draft, path: Path, machine: Mapping[str, Any], name: str, limits: shapes.Flex) -> None:
    ocpus, memory = machine.get("ocpus"), machine.get("memory_gb")
    for key, example in (("ocpus", 4), ("memory_gb", 32)):
        if key in machine and machine[key] is None:
            draft.fault((*path, key), f"is missing: {name} is a flexible shape", f"Add `{key}: {example}`")
    if isinstance(ocpus, int) and ocpus > limits.ocpus_max:
        draft.fault((*path, "ocpus"), f"{name} has at most {limits.ocpus_max} OCPUs; got {ocpus}")
    elif isinstance(ocpus, int) and isinstance(memory, int):
        most = min(limits.memory_gb_max, ocpus * limits.memory_gb_per_ocpu_max)
        if not ocpus <= memory <= most:
            message = f"{name} with {ocpus} OCPUs takes {ocpus} to {most} GB; got {memory}"
            draft.fault((*path, "memory_gb"), message)


def _image(draft: Draft, path: Path, machine: Mapping[str, Any]) -> None:
    image = machine.get("image", {})
    if image is None and draft.section("cloud").get("provider") == "oci":
        hint = 'Add `image: {operating_system: Canonical Ubuntu, version: "24.04"}`'
        draft.fault(path, "is missing: provider oci needs it", hint)
    if not isinstance(image, dict) or not {"operating_system", "version", "ocid"} <= image.keys():
        return
    by_name = [key for key in ("operating_system", "version") if image[key] is not None]
    missing = [key for key in ("operating_system", "version") if image[key] is None]
    if image["ocid"] is not None and by_name:
        draft.fault((*path, "ocid"), f"stands beside {by_name[0]}", "Keep one of the two", key=True)
    elif image["ocid"] is None and missing:
        hint = 'Write {operating_system: Debian, version: "13"}, or {ocid: ocid1.image..., login_user: ubuntu}'
        draft.fault(path, f"does not say its {' and '.join(missing)}", hint)
    elif image.get("login_user") == "":
        hint = f"Add `login_user:`; known by itself for {', '.join(model.LOGIN_USERS)}"
        draft.fault((*path, "login_user"), "is missing: which user does this image let in?", hint)


def _home(draft: Draft) -> None:
    home = draft.section("storage", "home")
    for key in ("mount_path", "export_path"):
        path, text = ("storage", "home", key), home.get(key)
        if isinstance(text, str) and {".", ".."} & set(text.split("/")):
            draft.fault(path, f"must not have . or .. in it; got {shown(text)}")
    text = home.get("mount_path")
    if not isinstance(text, str):
        return
    if text in SYSTEM_DIRECTORIES or any(text.startswith(f"{parent}/") for parent in NEVER_UNDER):
        hint = "Take a directory of its own, such as /mnt/home"
        draft.fault(("storage", "home", "mount_path"), f"{text} belongs to the system, and would be hidden", hint)


def _pools(draft: Draft) -> None:
    first_default: Path | None = None
    for name, pool in draft.section("pools").items():
        path: Path = ("pools", name)
        if not re.fullmatch(model.POOL_NAME_PATTERN, name):
            message = f"the name of a pool is at most 20 lower-case letters, digits and -; got {shown(name)}"
            draft.fault(path, message, "It becomes part of host names", key=True)
        elif name in RESERVED_POOL_NAMES:
            draft.fault(path, f"the name {name} is taken", "Choose another, such as compute", key=True)
        if not isinstance(pool, dict):
            continue
        _machine(draft, path, pool)
        _counts(draft, path, pool)
        if pool.get("partition") in RESERVED_POOL_NAMES and draft.written((*path, "partition")):
            message = f"the name {pool['partition']} is taken"
            draft.fault((*path, "partition"), message, "Choose another, such as gpu")
        if pool.get("default") is True and draft.written((*path, "default")):
            if first_default:
                message = f"a second default pool; the first is in line {draft.line(first_default)}"
                draft.fault((*path, "default"), message, "Keep one")
            else:
                first_default = (*path, "default")


def _counts(draft: Draft, path: Path, pool: Mapping[str, Any]) -> None:
    count, most = pool.get("count"), pool.get("max_count")
    if not isinstance(count, int) or not isinstance(most, int):
        return
    if most < count:
        draft.fault((*path, "max_count"), f"is below count: {most} < {count}", f"Write at least {count}")
    elif most == 0:
        draft.fault((*path, "count"), "the pool has no nodes", "Set count, or max_count for nodes on demand")


def _slurm(draft: Draft) -> None:
    slurm, pools = draft.section("slurm"), draft.section("pools")
    name = slurm.get("default_partition")
    path: Path = ("slurm", "default_partition")
    if draft.written(path) and isinstance(name, str) and pools:
        whole = {other: pool for other, pool in pools.items() if isinstance(pool, dict)}
        others = [other for other, pool in whole.items() if pool.get("default") is True]
        partitions = list(dict.fromkeys(str(pool.get("partition")) for pool in whole.values()))
        if name not in partitions:
            hint = alike(name, partitions) or f"Partitions: {', '.join(partitions)}"
            if name in whole:
                hint = f"The pool of that name is in the partition {whole[name].get('partition')}"
            draft.fault(path, f"there is no partition {shown(name)}", hint)
        elif others and name not in [whole[other].get("partition") for other in others]:
            draft.fault(path, f"the pool {others[0]} is the default already", "Say it in one place")
    owned = {key.casefold(): key for key in OWNED_SLURM_KEYS}
    for key, value in (slurm.get("extra_config") or {}).items():
        where: Path = ("slurm", "extra_config", key)
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", key):
            draft.fault(where, f"is not a key of slurm.conf: {shown(key)}", key=True)
        elif key.casefold() in owned:
            message = f"{owned[key.casefold()]} is set by gpucluster itself"
            draft.fault(where, message, "Delete the line; most of it follows from other keys of this file", key=True)
        elif isinstance(value, bool) or not isinstance(value, (str, int)):
            draft.fault(
                where, f"must be text or a whole number; got {shown(value)}", 'Write it in quotes, such as "YES"'
            )
        elif isinstance(value, str) and (not value.strip() or re.search(r"[\n#\\]", value)):
            draft.fault(where, f"can't stand in slurm.conf: {shown(value)}", "One line, without # and backslash")


def _timezone(draft: Draft) -> None:
    name = draft.section("software").get("timezone")
    if not isinstance(name, str) or not name:
        return
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        known = zoneinfo.available_timezones()
        # A machine without a time zone database knows none, and can't judge.
        if known and name not in known:
            hint = alike(name, known) or "Such as UTC or Europe/Berlin"
            draft.fault(("software", "timezone"), f"unknown time zone {shown(name)}", hint)


def _wheels(draft: Draft) -> None:
    name = draft.section("software").get("wheels")
    if not isinstance(name, str):
        return
    path: Path = ("software", "wheels")
    try:
        found = model.located(name, draft.directory).is_dir()
    except (RuntimeError, OSError):
        found = False
    if not found:
        draft.fault(path, f"there is no directory {name}", "docs/how-to/elastic-nodes.md says what it must hold")
