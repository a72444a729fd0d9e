"""`cluster.slurm`: Slurm's release, and tokens of its REST API."""

from __future__ import annotations

from dataclasses import replace

from gpucluster.cluster.composition import Parts, with_spec
from gpucluster.lifecycle.result import RunResult
from gpucluster.operations.rest_tokens import LIFESPAN, RestToken, RestTokens
from gpucluster.operations.slurm_upgrade import SlurmReleases, SlurmUpgrade


class SlurmOperations:
    """Operates Slurm on one cluster."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def plan_upgrade(self, release: str | None = None) -> SlurmUpgrade:
        """Which Slurm the hosts have, and the steps to a release. Reads only.

        Args:
            release: the target, such as "25.11"; None: the release in cluster.yml.

        Raises:
            InputError: there is no way to it, or the cluster has no Slurm.
            ToolError: the controller can't be reached, or has no Slurm yet.
        """
        parts = self._at(release)
        return SlurmReleases(parts.spec, parts.connections.controller).plan()

    def upgrade(self, release: str | None = None) -> RunResult:
        """Move Slurm on all hosts to a release, in SchedMD's order; running jobs go on. Then verify.

        What Slurm has stored is copied on the controller before. May be killed at any point and run again.

        Args:
            release: the target; None: the release in cluster.yml.

        Raises:
            InputError: it takes more than one step, there is no way, or the cluster has no Slurm.
            GpuClusterError: see `errors`; the next run continues from there.
        """
        parts = self._at(release)
        building = parts.phases.building
        with parts.identity.runs.run("slurm upgrade") as run:
            with run.phase("cloud"):
                parts.cloud.start(to_build=False)
            SlurmReleases(parts.spec, parts.connections.controller).check()
            deployment = parts.connections.hosts.reach(run)
            built, verdict = building.upgrade(deployment, run, slurm=True)
            result = building.result(run, deployment, built=built, verdict=verdict)
            facts = built.configured.facts.get(deployment.outputs.controller.name, {})
            copy = facts.get("gpucluster_slurm_copy")
            result = replace(result, slurm_copy=str(copy) if copy else None)
        return result

    def token(self, user: str, *, seconds: int = LIFESPAN) -> RestToken:
        """A new token with which a program acts as this user towards Slurm's REST API. Who has it has the user's rights
        until it ends; `secrets.rotate(["jwt"])` ends all tokens.

        Args:
            seconds: how long it is valid: 60 to 604800 (7 days).

        Raises:
            InputError: the cluster has no REST API or no such user, or the time is not reasonable.
            OtherClusterError: the cluster may be another one than that of this folder.
            ToolError: the controller can't be reached, or makes no token.
        """
        return RestTokens(self._parts.spec, self._parts.connections.controller).make(user, seconds)

    def _at(self, release: str | None) -> Parts:
        """The cluster with this release in its spec. Without Slurm it stays as it is: what uses it refuses it."""
        slurm = self._parts.spec.slurm
        if release is None or release == slurm.release or not slurm.enabled:
            return self._parts
        section = slurm.model_copy(update={"release": release})
        return with_spec(self._parts, self._parts.spec.model_copy(update={"slurm": section}))
