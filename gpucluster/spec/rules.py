"""Rules between the keys of a cluster.yml. Each looks only at values that are fit to be looked at, so that one fault is
told once and hides no other."""

from __future__ import annotations

import re
import zoneinfo

from gpucluster.spec import derive, fields
from gpucluster.spec.containers import check_containers, check_without_slurm
from gpucluster.spec.document import Path
from gpucluster.spec.draft import Draft
from gpucluster.spec.elastic import check_elastic
from gpucluster.spec.existing import check_existing
from gpucluster.spec.network import check_network
from gpucluster.spec.nodes import check_machine, check_nodes
from gpucluster.spec.people import check_ssh, check_users
from gpucluster.spec.state import check_state
from gpucluster.spec.storage import check_storage
from gpucluster.spec.tags import check_tags
from gpucluster.spec.taken import OWNED_SLURM_KEYS, RESERVED_POOL_NAMES
from gpucluster.spec.wording import alike, shown


def check(draft: Draft) -> None:
    """Note every fault; afterwards `draft.public_keys` and `draft.prices` hold what the files that were named hold."""
    _cloud(draft)
    check_tags(draft)
    check_network(draft)
    check_existing(draft)
    check_ssh(draft)
    check_machine(draft, ("controller",), draft.section("controller"))
    check_storage(draft)
    _pools(draft)
    check_elastic(draft)
    check_users(draft)
    check_containers(draft)
    check_without_slurm(draft)
    _slurm(draft)
    check_state(draft)
    _timezone(draft)
    _wheels(draft)


def _cloud(draft: Draft) -> None:
    cloud = draft.section("cloud")
    if cloud.get("provider") == "oci":
        for key, example in (("region", "us-ashburn-1"), ("compartment_id", "ocid1.compartment.oc1..exampleuniqueid")):
            if cloud.get(key) in ("", None) and key in cloud:
                draft.fault(("cloud", key), "is missing: provider oci needs it", f"Add `{key}: {example}`")
    elif cloud.get("provider") == "local":
        if draft.written(("cloud", "profile")) and cloud.get("profile") is not None:
            draft.fault(("cloud", "profile"), "has no meaning with provider local", "Delete the line", key=True)
        if cloud.get("region") not in (None, derive.LOCAL_REGION):
            message = f"the local cloud has one region; got {shown(cloud['region'])}"
            draft.fault(("cloud", "region"), message, f"Delete the line, or write {derive.LOCAL_REGION}")


def _pools(draft: Draft) -> None:
    first_default: Path | None = None
    for name, pool in draft.section("pools").items():
        path: Path = ("pools", name)
        if not re.fullmatch(fields.POOL_NAME_PATTERN, name):
            message = f"the name of a pool is at most 20 lower-case letters, digits and -; got {shown(name)}"
            draft.fault(path, message, "It becomes part of host names", key=True)
        elif name in RESERVED_POOL_NAMES:
            draft.fault(path, f"the name {name} is taken", "Choose another, such as compute", key=True)
        if not isinstance(pool, dict):
            continue
        check_machine(draft, path, pool)
        check_nodes(draft, name, pool)
        if pool.get("partition") in RESERVED_POOL_NAMES and draft.written((*path, "partition")):
            message = f"the name {pool['partition']} is taken"
            draft.fault((*path, "partition"), message, "Choose another, such as gpu")
        if pool.get("default") is True and draft.written((*path, "default")):
            if first_default:
                message = f"a second default pool; the first is in line {draft.line(first_default)}"
                draft.fault((*path, "default"), message, "Keep one")
            else:
                first_default = (*path, "default")


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
        found = fields.located(name, draft.directory).is_dir()
    except (RuntimeError, OSError):
        found = False
    if not found:
        draft.fault(path, f"there is no directory {name}", "docs/how-to/elastic-nodes.md says what it must hold")
