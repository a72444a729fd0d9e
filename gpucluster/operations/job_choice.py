"""A job for a pool of a cluster: the spec says which hardware its nodes have, and which partition they are in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpucluster.errors import InputError
from gpucluster.jobs import choose, registry
from gpucluster.jobs.model import Job, Launcher, Template
from gpucluster.text import did_you_mean

if TYPE_CHECKING:
    from gpucluster.spec import ClusterSpec


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
    if emulated and (template.needs_gpus or template.needs_rdma):
        without = [each.name for each in registry.templates() if not (each.needs_gpus or each.needs_rdma)]
        why = f"its GPUs and its network are emulated. These templates need none: {', '.join(without)}"
    raise InputError(f"{template.name} can't run on the pool {candidates[0]}: {why}")


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
    """Emulated GPUs compute nothing, and an emulated network is none."""
    pool = spec.pools[name]
    known = {option.name for option in launcher.scheduler.options}
    rdma = pool.uses_rdma and not emulated
    place = {"partition": pool.partition or name, "pool": name, "rdma": spec.kubernetes.rdma if rdma else ""}
    return choose.describe(
        template,
        launcher,
        {**{option: value for option, value in place.items() if value and option in known}, **settings},
        nodes=nodes,
        shape=pool.hardware,
        gpus=0 if emulated else None,
        rdma=rdma,
    )
