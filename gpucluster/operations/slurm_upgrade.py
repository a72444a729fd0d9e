"""Which Slurm a cluster runs, and by which steps it becomes another release. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from gpucluster.advisories import evaluate
from gpucluster.artifacts.catalogue import SLURM, slurm_version
from gpucluster.errors import InputError, ToolError
from gpucluster.handover import login_names
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.schedulers import require_slurm
from gpucluster.slurm import releases
from gpucluster.spec import ClusterSpec

# A node that is down has no version; one that never registered neither.
_READ = (
    'PATH=$PATH:/usr/sbin; echo "controller $(slurmctld -V)"; '
    "sinfo --noheader --Node --format='node %n %v' 2>/dev/null | sort -u; "
    'echo "jobs $(squeue --noheader --states=running 2>/dev/null | wc -l)"'
)
# Login nodes run no slurmd, so Slurm does not know theirs. The controller asks with its key, from ansible/roles/base.
_READ_LOGIN = (
    'echo "node {name} $(ssh -i ~/.ssh/gpucluster -o IdentitiesOnly=yes -o BatchMode=yes -o ConnectTimeout=5 '
    "-o StrictHostKeyChecking=yes {name} srun --version </dev/null 2>/dev/null | cut -d ' ' -f 2)\""
)


@dataclass(frozen=True)
class SlurmUpgrade:
    """What an upgrade would do.

    Args:
        version: that of slurmctld and slurmdbd, `24.11.5`.
        nodes: the versions of the nodes that have registered, and of the login nodes that answer.
        release: the wanted one.
        steps: the releases to go through, the last one is `release`; empty if the controller has it already.
        running_jobs: they go on.
        warnings: what is known against the version that the release would have: one sentence for each.
    """

    version: str
    nodes: Mapping[str, str]
    release: str
    steps: tuple[str, ...]
    running_jobs: int
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


class SlurmReleases:
    """The releases of one cluster."""

    def __init__(self, spec: ClusterSpec, controller: ControllerConnection) -> None:
        self._spec = spec
        self._controller = controller

    def plan(self) -> SlurmUpgrade:
        """The way from what the cluster runs to what cluster.yml wants.

        Raises:
            InputError: there is no such way.
            ToolError: the controller can't be reached, or has no Slurm yet.
        """
        require_slurm(self._spec, "slurm upgrade", kubernetes="Run: gpucluster kubernetes upgrade --plan")
        release = self._spec.slurm.built_release
        if release is None:
            raise InputError(
                "cluster.yml names no release of Slurm that could be built",
                where=f"{self._spec.file}: slurm.release",
                hint=f'Write slurm: {{release: "{releases.NEWEST}"}}, or name one with --to',
            )
        login = (_READ_LOGIN.format(name=name) for name in login_names(self._spec))
        version, nodes, jobs = _parsed(self._controller.ask("; ".join([_READ, *login])).stdout)
        if not version:
            raise ToolError("the controller has no Slurm yet", hint="Run: gpucluster apply")
        current = releases.release_of(version)
        steps = releases.steps(current, release)
        if steps is None:
            older = release < current
            why = "Slurm does not go back to an earlier release" if older else f"{current} is older than any step needs"
            raise InputError(
                f"no upgrade leads from Slurm {version} to {release}: {why}",
                where=f"{self._spec.file}: slurm.release",
                hint="See docs/how-to/slurm-release.md to restore the copy from before an upgrade"
                if older
                else "Upgrade Slurm by hand, or build the cluster again",
            )
        target = slurm_version(self._spec)
        known = evaluate.warnings(SLURM, target, datetime.now(UTC).date())
        return SlurmUpgrade(version, nodes, release, steps, jobs, known)

    def check(self) -> SlurmUpgrade:
        """The same for an upgrade that begins now: it takes one step.

        Raises:
            InputError: it would take several, or there is no way.
            ToolError: the controller can't be reached, or has no Slurm yet.
        """
        plan = self.plan()
        if len(plan.steps) > 1:
            raise InputError(
                f"Slurm {plan.version} can't become {plan.release} in one step: by way of {', '.join(plan.steps)}",
                hint=f"Run: gpucluster slurm upgrade --to {plan.steps[0]}; the next one when its jobs have ended",
            )
        return plan


def _parsed(text: str) -> tuple[str, dict[str, str], int]:
    """Versions and the number of jobs, in the output of `_READ`."""
    version, nodes, jobs = "", {}, 0
    for line in text.splitlines():
        match line.split():
            case ["controller", _, found]:  # Debian's calls itself slurm-wlm
                version = found
            case ["node", name, found] if found[:1].isdigit():
                nodes[name] = found
            case ["jobs", number] if number.isdigit():
                jobs = int(number)
    return version, nodes, jobs
