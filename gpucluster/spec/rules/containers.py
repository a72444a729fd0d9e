"""Rules of `containers`: the container runtimes."""

from __future__ import annotations

from ipaddress import IPv4Network

from gpucluster.spec.document import Path
from gpucluster.spec.rules.context import RuleContext, usable

_RUNTIMES: Path = ("containers", "runtimes")
#: The networks of Docker and of containerd: a range that is reserved for network tests and so is never routed.
CONTAINER_NETWORKS = IPv4Network("198.18.0.0/15")

RULES = (
    "`enroot` needs `scheduler: slurm`.",
    f"With `docker` or `containerd` no network overlaps {CONTAINER_NETWORKS}.",
    "`containers.pull` is for `docker` and `containerd`.",
)


def check(context: RuleContext) -> None:
    """Add every error of `containers`."""
    runtimes = context.section("containers").get("runtimes") or ()
    for index, runtime in usable(runtimes):
        if runtime in runtimes[:index]:
            context.error((*_RUNTIMES, index), f"{runtime} occurs twice", "Delete one")
    scheduler = context.data.get("scheduler", "slurm")
    if scheduler != "slurm" and "enroot" in runtimes:
        message = f"enroot runs the containers of Slurm jobs, and the scheduler is {scheduler}"
        context.error(
            (*_RUNTIMES, runtimes.index("enroot")), message, "Use docker or containerd, or write `scheduler: slurm`"
        )
    if context.section("containers").get("pull") and not {"docker", "containerd"} & set(runtimes):
        message = "needs docker or containerd among the runtimes"
        hint = "With Enroot, import an image once for all jobs: gpucluster image import URI"
        context.error(("containers", "pull"), message, hint, key=True)
    if {"docker", "containerd"} & set(runtimes):
        _check_networks_apart(context)


def _check_networks_apart(context: RuleContext) -> None:
    """A container can't reach hosts of the VCN in the range of its own network."""
    for key in ("vcn_cidr", "private_subnet_cidr", "public_subnet_cidr"):
        text = context.section("network").get(key)
        try:
            network = IPv4Network(text) if isinstance(text, str) else None
        except ValueError:
            continue  # it is reported by the rules of the network
        if network is not None and network.overlaps(CONTAINER_NETWORKS):
            message = f"overlaps {CONTAINER_NETWORKS}, the range of the container networks"
            context.error(("network", key), message, "Use a private network, such as 10.0.0.0/16")
            return
