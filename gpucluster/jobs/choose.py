"""From a user's options to a `Job`: values are read, and what can't run is refused with what to do instead. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpucluster.errors import InputError
from gpucluster.jobs import registry
from gpucluster.jobs.model import Job, Launcher, Option, Template, Value
from gpucluster.text import count, did_you_mean

if TYPE_CHECKING:
    from gpucluster.shapes import Shape


def options(template: Template, launcher: Launcher) -> tuple[Option, ...]:
    """Everything that can be set: of the template, of the launcher, of its scheduler."""
    return (*template.options, *launcher.options, *launcher.scheduler.options)


def choose(
    template: Template,
    launcher: Launcher,
    settings: Mapping[str, str],
    *,
    nodes: int,
    shape: Shape | None,
    gpus: int | None = None,
    rdma: bool | None = None,
) -> Job:
    """A job that can run.

    Args:
        settings: values of options as text, by name. Options without a value have their defaults.
        nodes: 1 or more.
        gpus: of each node that are used; those of the shape by default.
        rdma: whether the nodes have an RDMA network; the shape decides it by default.

    Raises:
        InputError: there is no such option, a value is wrong, or the template can't run on this hardware.
    """
    job = describe(template, launcher, settings, nodes=nodes, shape=shape, gpus=gpus, rdma=rdma)
    why = refusal(job)
    if why:
        raise InputError(f"{template.name} can't run here: {why}")
    return job


def describe(
    template: Template,
    launcher: Launcher,
    settings: Mapping[str, str],
    *,
    nodes: int,
    shape: Shape | None,
    gpus: int | None = None,
    rdma: bool | None = None,
) -> Job:
    """A job that may not be able to run: to show it, or to judge what it has printed. Arguments as those of `choose`.

    Raises:
        InputError: there is no such option, or a value is wrong.
    """
    known = {option.name: option for option in options(template, launcher)}
    for name in settings:
        if name not in known:
            hint = did_you_mean(name, known) or f"See: gpucluster job show {template.name}"
            raise InputError(f"{template.name} with the launcher {launcher.name} has no option {name!r}", hint=hint)
    values: dict[str, Value] = {
        name: option.parse(settings[name]) if name in settings else option.default for name, option in known.items()
    }
    if nodes < 1:
        raise InputError(f"a job has 1 node or more, and not {nodes}", hint="Pass --nodes with a number from 1")
    if gpus is None:
        gpus = 1 if values.get("mig") else shape.gpus if shape else 0
    if rdma is None:
        rdma = shape.rdma if shape else False
    return Job(template, launcher, nodes, shape, gpus, rdma, values)


def refusal(job: Job) -> str:
    """Why the job can't run on this hardware, with what to do instead; "" if it can."""
    where = job.shape.name if job.shape else "this node"
    profile = str(job.values.get("mig") or "")
    if profile and (why := _no_instance(job, profile, where)):
        return why
    if job.shape and job.gpus > job.shape.gpus:
        return f"{where} has {count(job.shape.gpus, 'GPU')}, and not {job.gpus}"
    if job.template.needs_gpus and not job.gpus:
        without = [each.name for each in registry.templates() if not each.needs_gpus and not each.needs_rdma]
        other = f"Take a pool with GPUs (--pool, --shape), or a template that needs none: {', '.join(without)}"
        return f"{where} has no GPU. {other}" if job.shape else f"it is not known which GPUs there are. {other}"
    if job.template.needs_rdma and not job.rdma:
        return f"{where} has no RDMA network. Take a pool that has one: --pool, --shape"
    return job.template.refuses(job)


def _no_instance(job: Job, profile: str, where: str) -> str:
    """Why the job can't have an instance of a divided GPU instead of whole GPUs; "" if it can."""
    if job.values.get("gpu_claims"):
        return f"it claims whole GPUs (gpu_claims), and is to have an instance ({profile})"
    if job.template.whole_gpus:
        return f"it measures the links between whole GPUs, which instances ({profile}) do not have"
    if job.gpus > 1:
        return f"CUDA uses one instance in a process, so a pod gets one {profile}, and not {job.gpus}. Take --gpus 1"
    if job.shape:
        from gpucluster import mig

        known = mig.catalogue()[job.shape.mig_gpu].profiles if job.shape.mig_gpu else {}
        if profile not in known:
            return f"the GPUs of {where} have no profile {profile}. Known: {', '.join(known) or 'none'}"
    return ""


def from_dict(data: Mapping[str, Any]) -> Job:
    """The job that `Job.to_dict` has described: the first line of an output.

    Values of options that no longer exist are dropped, and new options have their defaults: the output may be of
    another version.

    Raises:
        InputError: it is not a job, or its template does not exist any more.
    """
    try:
        template = registry.template(str(data["template"]))
        launcher = registry.launcher(template, str(data["launcher"]))
        shape_name = str(data["shape"])
        settings = dict(data["values"])
        nodes, gpus, rdma = int(data["nodes"]), int(data["gpus"]), bool(data["rdma"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"not a description of a job: {type(error).__name__}: {error}") from None
    shape = None
    if shape_name:
        from gpucluster import shapes

        shape = shapes.catalogue().get(shape_name)
    values = {option.name: _value(option, settings) for option in options(template, launcher)}
    return Job(template, launcher, nodes, shape, gpus, rdma, values)


def _value(option: Option, settings: Mapping[str, Any]) -> Value:
    try:
        return option.parse(str(settings[option.name]))
    except (InputError, KeyError):
        return option.default
