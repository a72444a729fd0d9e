"""Rules of the controller, and of what login nodes and pools have in common with it: shape, size and image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucluster import shapes
from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.context import RuleContext
from gpucluster.spec.rules.images import check_image
from gpucluster.text import count

RULES = (
    "Shapes of GB200 and GB300 are for pools: OCI launches them in a GPU memory cluster only.",
    "A flexible shape (`...Flex`) needs `ocpus` and `memory_gb`, any other refuses them.",
    "`controller.state_volume_gb` needs `scheduler: slurm`.",
    "`controller.standby` needs `controller.state_volume_gb`, and with it `scheduler: slurm`.",
    "`controller.automatic_failover` needs `controller.standby`, and a network that gpucluster makes.",
    "`image` is named in one way: `operating_system` and `version`; `name`, with `operating_system` or `login_user`; "
    "`listing` and `login_user`; or `ocid` and `login_user`.",
)


def check(context: RuleContext) -> None:
    """Add every error of `controller`."""
    controller = context.section("controller")
    check_machine(context, ("controller",), controller)
    if controller.get("state_volume_gb") is not None and context.data.get("scheduler", "slurm") != "slurm":
        message = "a volume for the controller's state is there for Slurm only"
        hint = "Delete the line. What Kubernetes stores is in its backups: docs/how-to/kubernetes.md"
        context.error(("controller", "state_volume_gb"), message, hint, key=True)
    if controller.get("standby") is True and controller.get("state_volume_gb") is None:
        message = "a standby goes on with the controller's state, which has no volume of its own here"
        hint = "Add `state_volume_gb: 50` (or more) to controller. Without Slurm there is no standby: delete the line"
        context.error(("controller", "standby"), message, hint, key=True)
    if controller.get("automatic_failover") is True:
        _check_automatic(context, controller)


def _check_automatic(context: RuleContext, controller: Mapping[str, Any]) -> None:
    """Add what a standby needs that goes on by itself."""
    place = ("controller", "automatic_failover")
    if controller.get("standby") is not True:
        message = "there is no standby that could go on by itself"
        context.error(place, message, "Add `standby: true` to controller, or delete the line", key=True)
    if context.section("network").get("vcn_id") is not None:
        message = "a tag of the cluster's own network keeps runs and the standby apart, and this network exists already"
        hint = "Delete the line. The standby goes on by: gpucluster controller failover"
        context.error(place, message, hint, key=True)


def check_machine(context: RuleContext, path: Path, machine: Mapping[str, Any]) -> None:
    """Add every error of shape, size and image of the controller, the login nodes or a pool."""
    check_image(context, (*path, "image"), machine)
    name = machine.get("shape")
    if not isinstance(name, str):
        return
    shape = shapes.catalogue().get(name)
    if shape is None:
        context.error((*path, "shape"), f"unknown shape {shown(name)}", shapes.hint_for_unknown(name))
    elif shape.memory_fabric and path[0] != "pools":
        message = f"{name} is for pools only: OCI launches its hosts in a GPU memory cluster"
        context.error((*path, "shape"), message, "Choose another shape, such as VM.Standard.E5.Flex")
    elif shape.flex_limits is None:
        for key in ("ocpus", "memory_gb"):
            if machine.get(key) is not None:
                message = f"{name} has a fixed size; only flexible shapes have {key}"
                context.error((*path, key), message, "Delete the line", key=True)
    else:
        _check_size(context, path, machine, name, shape.flex_limits)


def _check_size(context: RuleContext, path: Path, machine: Mapping[str, Any], name: str, limits: shapes.Flex) -> None:
    ocpus, memory = machine.get("ocpus"), machine.get("memory_gb")
    for key, example in (("ocpus", 4), ("memory_gb", 32)):
        if key in machine and machine[key] is None:
            context.error((*path, key), f"is missing: {name} is a flexible shape", f"Add `{key}: {example}`")
    if isinstance(ocpus, int) and ocpus > limits.ocpus_max:
        context.error((*path, "ocpus"), f"{name} has at most {count(limits.ocpus_max, 'OCPU')}; got {ocpus}")
    elif isinstance(ocpus, int) and isinstance(memory, int):
        most = min(limits.memory_gb_max, ocpus * limits.memory_gb_per_ocpu_max)
        if not ocpus <= memory <= most:
            message = f"{name} with {count(ocpus, 'OCPU')} has {ocpus} to {most} GB; got {memory}"
            context.error((*path, "memory_gb"), message)
