"""`cluster.controller`: the controller itself."""

from __future__ import annotations

from gpucluster.cluster.composition import Parts
from gpucluster.errors import InputError
from gpucluster.lifecycle.failover import FailoverResult
from gpucluster.lifecycle.provision import Consent
from gpucluster.lifecycle.result import RunResult


class ControllerOperations:
    """Operates the controller of one cluster."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def require_volume(self) -> None:
        """Refuse to replace a controller whose state would be lost.

        Raises:
            InputError: the state has no volume of its own. It names what to do, and what a backup does not have.
        """
        spec = self._parts.spec
        if not spec.controller.has_state_volume:
            raise InputError(
                "the controller's state is on its boot disk: another controller would not have it",
                where=str(spec.file),
                hint="While the controller lives, set controller.state_volume_gb and run `gpucluster apply`, then this "
                "command again. If it is lost, run `gpucluster apply`, then `gpucluster restore FILE` with the newest "
                "backup (`gpucluster backup --list` shows the scheduled ones). A backup has users and accounting. It "
                "has neither the queue, nor running jobs, the CAs, the munge key and the ssh host keys",
            )

    def require_standby(self) -> None:
        """Refuse a failover of a cluster without a standby.

        Raises:
            InputError: it names what to do.
        """
        if not self._parts.spec.controller.standby:
            raise InputError(
                "this cluster has no standby",
                where=str(self._parts.spec.file),
                hint="Set `standby: true` in controller and run `gpucluster apply`. Without one, a lost controller is "
                "replaced by: gpucluster controller replace",
            )

    def failover(self, *, accept_behind: bool = False) -> FailoverResult:
        """Let the other of the two hosts be the controller, and stop the one that was. Also the way back.

        Jobs on the nodes go on. The old host is stopped in the cloud before the volume with the state moves, and starts
        again as the standby. May be killed at any point: the same call goes on.

        Args:
            accept_behind: also to a host that the last apply has not made like the controller.

        Raises:
            InputError: there is no standby.
            ToolError: it does not answer, or is behind. Nothing was changed.
            GpuClusterError: see `errors`.
        """
        self.require_standby()
        parts, phases = self._parts, self._parts.phases
        with parts.identity.runs.run("controller failover", prepares=True) as run:
            terraform = phases.provisioning.prepare(run, keep_variables=True)
            return phases.failover.fail_over(terraform, run, accept_behind=accept_behind)

    def replace(self) -> RunResult:
        """Put another machine in the place of the controller, also of one that is gone, then verify the cluster.

        The volume with the state goes to the new one, which gets the private address, the host keys and the CAs of the
        old one. Jobs on the nodes go on. A controller that runs is stopped in the cloud first: two never write to one
        volume. May be killed at any point and run again.

        Raises:
            InputError: the state has no volume of its own.
            VerifyError: the controller was replaced, but a check failed or could not run.
            GpuClusterError: see `errors`.
        """
        self.require_volume()
        if self._parts.spec.controller.standby:
            raise InputError(
                "this cluster has a standby, which goes on in the place of the controller",
                where=str(self._parts.spec.file),
                hint="Run `gpucluster controller failover`. The host that was the controller is the standby then: if "
                "it is gone, `gpucluster apply` makes another one",
            )
        parts, phases = self._parts, self._parts.phases
        with parts.identity.runs.run("controller replace", prepares=True) as run:
            terraform = phases.provisioning.prepare(run, to_build=True)
            built = phases.building.build(terraform, run, Consent(replace_controller=True))
            verdict = phases.verification.run(built.deployment, run, built.facts)
            result = phases.building.result(run, built.deployment, built=built, verdict=verdict)
        return result
