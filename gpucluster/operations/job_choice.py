"""A job for a pool of a cluster: the spec has the hardware of its nodes, and their partition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpucluster.errors import InputError
from gpucluster.jobs import choose, registry
from gpucluster.jobs.model import Job, Launcher, Template
from gpucluster.node_agent.rules import mig
from gpucluster.text import count, did_you_mean

if TYPE_CHECKING:
    from gpucluster.spec import ClusterSpec, PoolSpec

#: The launcher that needs Enroot and Pyxis on the nodes.
PYXIS = "pyxis"
#: What to do where a template can't run on a pool.
OTHER_POOL = "What each template needs: gpucluster job templates"


def job_for(
    spec: ClusterSpec,
    template: Template,
    launcher: Launcher,
    settings: Mapping[str, str],
    *,
    nodes: int,
    pool: str = "",
    has_run: bool = False,
) -> Job:
    """A job on nodes of a pool, in its partition if `settings` names none.

    Args:
        pool: its name; "" for the first on which the template can run.
        has_run: the job describes an output, perhaps of another cluster with such a pool: nothing of it is emulated.

    Raises:
        InputError: there is no such pool, or the template can't run on its nodes.
    """
    if pool and pool not in spec.pools:
        raise InputError(
            f"{spec.file} has no pool {pool!r}",
            hint=did_you_mean(pool, spec.pools) or f"Known: {', '.join(spec.pools) or 'none'}",
        )
    candidates = [pool] if pool else list(spec.pools)
    if not candidates:
        raise InputError(f"{spec.file} has no pool", hint="Add one below `pools`")
    emulated = spec.cloud.traits.hardware_emulated and not has_run
    jobs = [_on(spec, template, launcher, settings, nodes, name, emulated=emulated) for name in candidates]
    for job in jobs:
        if not choose.refusal(job):
            return job
    why = choose.refusal(jobs[0])
    gpus = spec.cloud.real_gpus

    def needs_hardware(each: Template) -> bool:
        return each.needs_rdma or (each.needs_gpus and not gpus)

    if emulated and needs_hardware(template):
        without = [each.name for each in registry.templates() if not needs_hardware(each)]
        what = "its network is emulated" if gpus else "its GPUs and its network are emulated"
        why = f"{what}. These templates need none: {', '.join(without)}"
    raise InputError(f"{template.name} can't run on the pool {candidates[0]}: {why}", hint=OTHER_POOL)


def own_launchers(spec: ClusterSpec, template: Template) -> list[str]:
    """The launchers of a template that this cluster can run, in the template's order."""
    known = registry.launchers()
    return [
        name
        for name in template.launchers
        if known[name].scheduler.name == spec.scheduler and (name != PYXIS or "enroot" in spec.containers.runtimes)
    ]


def check_divided(spec: ClusterSpec, name: str, job: Job) -> None:
    """See that a job takes what there is on a pool whose GPUs are divided (`gpus.mig`).

    Raises:
        InputError: it takes whole GPUs, or an instance, that the nodes of the pool do not have.
    """
    pool = spec.pools[name]
    if not job.gpus or not pool.gpus.mig:
        if job.values.get("mig"):
            raise InputError(
                f"{job.template.name} can't run on the pool {name}: its GPUs are not divided, and the option mig is "
                f"{job.values['mig']}",
                where=str(spec.file),
                hint="Leave out the option mig, or name another pool with --pool",
            )
        return
    cannot = f"{job.template.name} can't run on the pool {name}: "
    profiles = list(_instances(pool))
    if spec.scheduler != "kubernetes":
        raise InputError(
            f"{cannot}templates count whole GPUs, and those of the pool are divided (gpus.mig)",
            where=str(spec.file),
            hint=f"Run: sbatch --gres=gpu:{mig.gres_type(profiles[0])}:1 ...; or name another pool with --pool",
        )
    profile, whole = str(job.values.get("mig") or ""), sum(not words for words in pool.mig_parts)
    if profile and profile not in profiles:
        raise InputError(
            f"{cannot}its GPUs are not divided into {profile} (gpus.mig)",
            where=str(spec.file),
            hint=did_you_mean(profile, profiles) or f"Known: {', '.join(profiles)}",
        )
    if not profile and job.gpus > whole:
        raise InputError(
            f"{cannot}{whole} of {count(len(pool.mig_parts), 'GPU')} of its nodes are not divided (gpus.mig), and the "
            f"job takes {job.gpus}",
            where=str(spec.file),
            hint=f"Take an instance: --set mig={profiles[0]}" + (f"; or whole GPUs: --gpus {whole}" if whole else ""),
        )


def _instances(pool: PoolSpec) -> dict[str, None]:
    """The profiles of the instances of a pool's nodes, in the order of cluster.yml."""
    return {profile: None for group in pool.gpus.mig for profile in group.mig_devices}


def _only_instance(pool: PoolSpec) -> str:
    """The profile of all that a pool's nodes have of GPUs; "" where there is a choice, or no GPU is divided."""
    profiles = list(_instances(pool))
    return profiles[0] if len(profiles) == 1 and all(pool.mig_parts) else ""


def _on(
    spec: ClusterSpec,
    template: Template,
    launcher: Launcher,
    settings: Mapping[str, str],
    nodes: int,
    name: str,
    *,
    emulated: bool,
) -> Job:
    """Emulated GPUs compute nothing, and an emulated network is none. GPUs of this machine may be of another model than
    the shape's, so nothing is known of their figures.
    """
    pool, gpus = spec.pools[name], spec.cloud.real_gpus
    known = {option.name for option in launcher.scheduler.options}
    rdma = pool.uses_rdma and not emulated
    place = {
        "partition": pool.partition or name,
        "pool": name,
        "rdma": spec.kubernetes.rdma if rdma else "",
        "mig": "" if emulated else _only_instance(pool),
        "gpu_claims": "true" if name in spec.claiming_pools else "",
    }
    return choose.describe(
        template,
        launcher,
        {**{option: value for option, value in place.items() if value and option in known}, **settings},
        nodes=nodes,
        shape=None if emulated and gpus else pool.hardware,
        gpus=(pool.hardware.gpus if gpus else 0) if emulated else None,
        rdma=rdma,
    )
