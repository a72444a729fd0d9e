"""Rules of `gpus` of a pool: GPUs that are divided (NVIDIA's Multi-Instance GPU)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucluster import mig, shapes
from gpucluster.spec.document import Path
from gpucluster.spec.messages import shown
from gpucluster.spec.rules.context import RuleContext, usable
from gpucluster.text import count, did_you_mean

RULES = (
    "`gpus.mig` of a pool is for Slurm and Kubernetes, not for nodes that OKE manages (`managed`), and for shapes "
    "whose GPUs can be divided: "
    + ", ".join(f"`{shape.name}`" for shape in shapes.catalogue().values() if shape.mig_gpu)
    + ".",
    "An entry of `gpus.mig` names GPUs that the shape has, each once in the whole list; one without `devices` is the "
    "only entry.",
    "The profiles of `mig_devices` are those of the shape's GPU, and one GPU has room for all of them: NVIDIA's MIG "
    "User Guide states where an instance can begin, so 8 x `1g.10gb`, or `3g` with `4g` and `1g`, are refused.",
)


def check(context: RuleContext) -> None:
    """Add every error of `gpus` of pools."""
    for name, pool in context.section("pools").items():
        groups = list(usable(context.section("pools", name, "gpus").get("mig")))
        if not groups:
            continue
        path: Path = ("pools", name, "gpus", "mig")
        gpu = _gpu(context, path, pool)
        if gpu is None:
            continue
        shape = shapes.get(pool["shape"])
        _check_devices(context, path, shape, [(index, group.get("devices")) for index, group in groups])
        for index, group in groups:
            if isinstance(group.get("mig_devices"), dict):
                _check_profiles(context, (*path, index, "mig_devices"), gpu, group["mig_devices"])


def _gpu(context: RuleContext, path: Path, pool: Mapping[str, Any]) -> mig.MigGpu | None:
    """The GPU of the pool; None where it can't be divided, which is reported."""
    scheduler = context.data.get("scheduler")
    if scheduler not in ("slurm", "kubernetes"):
        if isinstance(scheduler, str):
            message = f"GPUs are divided for Slurm and Kubernetes, and the scheduler is {scheduler}"
            context.error(path, message, "Delete it, and divide them with nvidia-smi", key=True)
        return None
    if pool.get("managed") is True:
        message = "OKE makes these nodes, and gpucluster runs no program on them that divides their GPUs"
        context.error(path, message, "Write `managed: false`: its nodes join as instances of gpucluster", key=True)
        return None
    shape = shapes.catalogue().get(str(pool.get("shape")))
    if shape is None:
        return None
    if not shape.mig_gpu:
        why = f"{shape.name} has no GPU" if not shape.gpus else f"the GPUs of {shape.name} can't be divided (MIG)"
        known = [each.name for each in shapes.catalogue().values() if each.mig_gpu and not each.memory_fabric]
        context.error(path, why, f"Delete it, or choose one of {', '.join(known)}", key=True)
        return None
    return mig.catalogue()[shape.mig_gpu]


def _check_devices(
    context: RuleContext, path: Path, shape: shapes.Shape, each: list[tuple[int, tuple[int | None, ...] | None]]
) -> None:
    everything = [index for index, devices in each if devices is None]
    if everything and len(each) > 1:
        message = "is for all GPUs, for it has no `devices`, and there are other entries"
        context.error((*path, everything[0]), message, "Write `devices: [0, 1]` with the numbers of its GPUs")
        return
    seen: set[int] = set()
    for index, devices in each:
        for place_of, number in usable(devices):
            at: Path = (*path, index, "devices", place_of)
            if number >= shape.gpus:
                message = f"{shape.name} has {count(shape.gpus, 'GPU')}, from 0 to {shape.gpus - 1}; got {number}"
                context.error(at, message)
            elif number in seen:
                context.error(at, f"GPU {number} is divided twice", "Name it once")
            seen.add(number)


def _check_profiles(context: RuleContext, path: Path, gpu: mig.MigGpu, numbers: Mapping[str, Any]) -> None:
    unknown = [name for name in numbers if name not in gpu.profiles]
    for name in unknown:
        hint = did_you_mean(name, gpu.profiles) or f"Known: {', '.join(gpu.profiles)}"
        context.error((*path, name), f"{gpu.name} has no profile {shown(name)}", hint, key=True)
    if unknown or not all(isinstance(number, int) for number in numbers.values()):
        return
    try:
        gpu.place(numbers)
    except mig.DoesNotFit as error:
        largest = ", ".join(f"{profile.most} x {profile.name}" for profile in gpu.profiles.values())
        context.error(path, str(error), f"Alone it holds: {largest}", key=True)
