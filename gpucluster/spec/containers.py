"""Rules of what is installed: container runtimes, where releases come from; and of clusters without a scheduler."""

from __future__ import annotations

import re
from ipaddress import IPv4Network
from urllib.parse import urlsplit

from gpucluster.spec import fields, software
from gpucluster.spec.document import Path
from gpucluster.spec.draft import Draft, is_elastic
from gpucluster.spec.wording import shown

_RUNTIMES: Path = ("containers", "runtimes")
_MIRROR: Path = ("software", "mirror")
_COMPONENT = r"[a-z][a-z0-9-]*"
#: For tests of networks, and so never routed: the networks of Docker and of containerd.
CONTAINER_NETWORKS = IPv4Network("198.18.0.0/15")
_FILE = r"[A-Za-z0-9][A-Za-z0-9._+~-]*"


def check_containers(draft: Draft) -> None:
    """Note every fault of `containers` and of the releases in `software`."""
    runtimes = draft.section("containers").get("runtimes") or ()
    for index, runtime in enumerate(runtimes):
        if runtime is not None and runtime in runtimes[:index]:
            draft.fault((*_RUNTIMES, index), f"{runtime} stands twice", "Delete one")
    if draft.section("slurm").get("enabled") is False and "enroot" in runtimes:
        message = "enroot runs the containers of Slurm's jobs, and slurm.enabled is false"
        draft.fault((*_RUNTIMES, runtimes.index("enroot")), message, "Take docker or containerd")
    if draft.section("containers").get("pull") and not {"docker", "containerd"} & set(runtimes):
        message = "nothing would pull them: neither docker nor containerd is among the runtimes"
        hint = "For Enroot, one import serves every job: gpucluster image import URI"
        draft.fault(("containers", "pull"), message, hint, key=True)
    if {"docker", "containerd"} & set(runtimes):
        _networks_apart(draft)
    _mirror(draft)
    for key, pattern, what in (("versions", _COMPONENT, "release"), ("checksums", _FILE, "file")):
        for name in draft.section("software").get(key) or {}:
            if not re.fullmatch(pattern, name):
                draft.fault(("software", key, name), f"is not the name of a {what}: {shown(name)}", key=True)


def check_without_slurm(draft: Draft) -> None:
    """Note every fault of a cluster that has no scheduler, and of one that has it but shares no home."""
    slurm, home = draft.section("slurm"), draft.section("storage", "home")
    if slurm.get("enabled") is True and home.get("enabled") is False:
        message = "Slurm's jobs need it: they find their files on every node"
        draft.fault(("storage", "home", "enabled"), message, "Write true, or set slurm.enabled to false")
    if slurm.get("enabled") is False:
        for name, pool in draft.section("pools").items():
            if is_elastic(pool):
                message = "without Slurm nobody asks for nodes that come and go"
                draft.fault(("pools", name, "max_count"), message, "Let max_count be count, or enable slurm")


def _networks_apart(draft: Draft) -> None:
    """From inside of a container, an address of its own network is never one of the VCN."""
    for key in ("vcn_cidr", "private_subnet_cidr", "public_subnet_cidr"):
        text = draft.section("network").get(key)
        try:
            network = IPv4Network(text) if isinstance(text, str) else None
        except ValueError:
            continue  # it is told elsewhere
        if network is not None and network.overlaps(CONTAINER_NETWORKS):
            message = f"overlaps {CONTAINER_NETWORKS}, where the networks of containers lie"
            draft.fault(("network", key), message, "Take a private network, such as 10.0.0.0/16")
            return


def _mirror(draft: Draft) -> None:
    name = draft.section("software").get("mirror")
    if not isinstance(name, str):
        return
    if name.startswith(software.REMOTE):
        if not _is_url(name):
            draft.fault(_MIRROR, f"is not a URL: {shown(name)}", "Such as https://mirror.example/gpucluster")
        elif "@" in urlsplit(name).netloc:
            draft.fault(_MIRROR, "must not hold a password: this file is for Git", "Use a mirror that asks for none")
        return
    try:
        found = fields.located(name, draft.directory).is_dir()
    except (RuntimeError, OSError, ValueError):
        found = False
    if not found:
        hint = "Fill one: gpucluster software fetch DIR; or write a URL that begins with http:// or https://"
        draft.fault(_MIRROR, f"there is no directory {shown(name)}", hint)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    return bool(parts.hostname) and not parts.query and not parts.fragment and (port is None or port > 0)
