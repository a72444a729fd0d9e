"""The controller's service goes from one of two hosts to the other, and the second host is kept ready for that.

The target is written into Terraform's state before anything happens (`ServiceRecord.begun`). So the next failover,
and the next apply, go on where one was killed, and every plan of Terraform agrees with it. Each step asks first what is
the case already. The order is what keeps two hosts from writing to one volume: the old one is stopped in the cloud, and
the volume moves only then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpucluster import process
from gpucluster.cloud.power import InstancePower
from gpucluster.cloud.service_move import ServiceMove
from gpucluster.errors import InputError, ProcessError, ToolError
from gpucluster.events import Sink, info, warn
from gpucluster.handover import Outputs, ServiceRecord
from gpucluster.handover.networks import cluster_networks
from gpucluster.lifecycle.automatic_failover import AutomaticFailover
from gpucluster.lifecycle.hosts import Deployment, HostConnections
from gpucluster.lifecycle.provision import Provisioning
from gpucluster.oci.states import LifecycleState
from gpucluster.operations.controller_state import ControllerState
from gpucluster.operations.standby import StandbyMirror
from gpucluster.spec import ClusterSpec
from gpucluster.ssh import SshClient
from gpucluster.terraform.runner import Terraform
from gpucluster.waiting import wait_until
from gpucluster.workspace.run import Run

# Seconds that the services of a host that answers get to end: a busy one needs half a minute. What they have not
# written then is lost with the fence, as with a host that does not answer.
RELEASE_SECONDS = 60.0
# For all questions to Slurm, and for one of them: without an answer scontrol itself gives up after 30.
_PING_SECONDS, _ONE_PING_SECONDS = 120.0, 40.0
# For all tries to reach the standby: ssh gives up one that takes ten, which a busy host may need.
_REACH_SECONDS = 30.0
_POLL = 0.5
_UP = "UP"
# Paths in a message, of those that differ.
_SHOWN = 5
_UPDATE = "Bring it up to date: gpucluster apply"


@dataclass(frozen=True)
class FailoverResult:
    """How a failover has ended.

    Args:
        host: which host is in service, by the name of its instance in the cloud.
        seconds: from the moment when the services of the old host ended to the one when Slurm answered again.
        released: the old host ended its services itself.
    """

    host: str
    seconds: float
    released: bool


class Failover:
    """The two hosts of one cluster that can be the controller.

    Args:
        service_move, power, ssh_client: make the clients of the started cloud, and of ssh.
    """

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        provisioning: Provisioning,
        hosts: HostConnections,
        state: ControllerState,
        mirror: StandbyMirror,
        automatic: AutomaticFailover,
        service_move: Callable[[], ServiceMove],
        power: Callable[[], InstancePower],
        ssh_client: Callable[[], SshClient],
        on_event: Sink,
    ) -> None:
        self._spec = spec
        self._provisioning = provisioning
        self._hosts = hosts
        self._state = state
        self._mirror = mirror
        self._automatic = automatic
        self._service_move = service_move
        self._power = power
        self._ssh_client = ssh_client
        self._on_event = on_event

    @property
    def networks(self) -> tuple[str, ...]:
        """Into which the controller speaks from the address that moves with the service."""
        return tuple(cluster_networks(self._spec))

    # --- within apply -----

    def prepare(self, terraform: Terraform) -> None:
        """Give the controller the address that moves with the service, after Terraform has made both hosts.

        Raises:
            GpuClusterError: see `errors`.
        """
        outputs = Outputs.parse(terraform.outputs())
        if outputs.standby is None:
            return
        record = ServiceRecord.parse(terraform.outputs())
        address = self._service_move().give_address(record.address, outputs.controller.id)
        self._note(terraform, replace(record, address=address, current=False))

    def resume(self, terraform: Terraform, run: Run) -> None:
        """End a failover that was killed, before Terraform looks at the hosts; and follow the cloud where the state
        does not name the host in service, because the standby has gone on by itself or the state was lost and
        recovered: a plan would move its volume away.

        Raises:
            GpuClusterError: see `errors`.
        """
        outputs = terraform.outputs()
        record = ServiceRecord.parse(outputs)
        if record.begun:
            info(self._on_event, "controller", "a failover that was interrupted goes on")
            self._go_over(terraform, run)
        elif self._standby_has_volume(outputs):
            other = replace(record, host=record.other)
            name = Outputs.parse(outputs).name
            info(self._on_event, "controller", f"{name}-{other.host} has the volume, and is in service")
            if record.address:
                self._follow(terraform, run, other)
            else:
                self._note(terraform, other)

    def _standby_has_volume(self, outputs: Mapping[str, Any]) -> bool:
        """Whether the host that is the standby, by the state, is in service."""
        if not (outputs.get("cluster") or {}).get("standby"):
            return False
        parsed = Outputs.parse(outputs)
        if parsed.standby is None or not parsed.state_volume_id:
            return False
        return self._service_move().holder(parsed.state_volume_id) == parsed.standby.id

    def _follow(self, terraform: Terraform, run: Run, record: ServiceRecord) -> FailoverResult:
        """Let the state agree with a failover that the standby has made by itself: the steps that are left of it."""
        self._note(terraform, replace(record, begun=True))
        return self._go_over(terraform, run)

    def update_standby(self, terraform: Terraform, deployment: Deployment, run: Run) -> None:
        """Make the standby like the controller, which was just configured. One that was given up is forgotten there.

        Raises:
            GpuClusterError: see `errors`. The controller works; until the next apply the standby is behind.
        """
        standby = deployment.standby
        if standby is None or deployment.outputs.standby is None:
            record = ServiceRecord.parse(terraform.outputs())
            if record.current:
                self._mirror.end(deployment.controller)
                self._note(terraform, replace(record, current=False))
            return
        with run.phase("standby"):
            self._power().start(standby.instance_id, standby.name)
            self._hosts.reach_standby(deployment)
            changed = self._mirror.update(
                deployment.controller,
                standby,
                deployment.outputs.standby.private_ip,
                operator_keys=self._hosts.operator_keys(),
                automatic=self._automatic.wanted,
            )
            self._automatic.update(deployment)
            self._provisioning.record(terraform, host_keys=self._hosts.host_keys(deployment))
            self._note(terraform, replace(ServiceRecord.parse(terraform.outputs()), current=True))
            if changed.differing:
                info(self._on_event, "standby", f"{changed.differing} files were brought up to date")

    def warn_if_behind(self, deployment: Deployment) -> None:
        """Compare both hosts, and announce why the standby could not go on as the controller; nothing if it could."""
        standby = deployment.standby
        if standby is None or deployment.outputs.standby is None:
            return
        try:
            state = self._power().state(standby.instance_id)
            if state != LifecycleState.RUNNING:
                raise ToolError(f"it is {state}")
            self._hosts.reach_standby(deployment)
            found = self._mirror.compare(deployment.controller, standby, deployment.outputs.standby.private_ip)
            files = ", ".join(found.paths[:_SHOWN])
            problem = f"{found.differing} files differ from the controller's: {files}" if found.differing else ""
        except ToolError as error:
            problem = error.what
        if problem or not deployment.outputs.service.current:
            text = problem or "the last apply has not ended with a standby that is like the controller"
            warn(self._on_event, "standby", f"{standby.name} could not go on as the controller: {text}. {_UPDATE}")

    # --- the failover -----

    def fail_over(self, terraform: Terraform, run: Run, *, accept_behind: bool = False) -> FailoverResult:
        """Let the other host be the controller. One that was killed goes on to the host that it was for.

        Args:
            accept_behind: also to a host that the last apply has not made like the controller.

        Raises:
            InputError: there is no standby.
            ToolError: it does not answer, or is behind. Nothing was changed.
            GpuClusterError: see `errors`. The same command goes on.
        """
        outputs = terraform.outputs()
        record = ServiceRecord.parse(outputs)
        if not record.begun and record.address and self._standby_has_volume(outputs):
            info(self._on_event, "controller", "the standby has gone on by itself already")
            return self._follow(terraform, run, replace(record, host=record.other))
        if not record.begun:
            with run.phase("standby"):
                target = Outputs.parse(outputs).turned()
                self._require_ready(target, record, accept_behind=accept_behind)
                self._note(terraform, replace(record, host=record.other, begun=True))
        return self._go_over(terraform, run)

    def _require_ready(self, target: Outputs, record: ServiceRecord, *, accept_behind: bool) -> None:
        """Refuse a host that could not go on.

        Raises:
            InputError: no apply has ended with a standby.
            ToolError: it is behind, or does not answer.
        """
        if not record.address or not target.state_volume_id:
            raise InputError("no apply has made the standby ready yet", hint="Run: gpucluster apply")
        if not record.current and not accept_behind:
            raise ToolError(
                "the standby is behind: the last apply has not ended with a standby that is like the controller",
                hint="Run `gpucluster apply`. If the controller is lost, pass --accept-behind: the configuration of "
                "Slurm may be an older one, and jobs on nodes that it does not have are lost",
            )
        ocid = target.controller.id
        if (state := self._power().state(ocid)) != LifecycleState.RUNNING:
            raise ToolError(
                f"the standby is {state}: nothing was changed",
                where=ocid,
                hint="Start it in the console of the cloud, or run: gpucluster apply",
            )
        self._hosts.locate_with(target)
        argv, why = self._ssh_client().argv(target.controller.name, ["true"]), ""

        def answers() -> bool:
            nonlocal why
            answer = process.run(argv, check=False, timeout=60.0)
            why = answer.stderr.strip()
            return answer.returncode == 0

        if not wait_until(answers, _REACH_SECONDS, _POLL):
            raise ToolError(
                f"the standby does not answer: {why}. Nothing was changed",
                where=ocid,
                hint="Look at it in the console of the cloud, and run: gpucluster apply",
            )

    def _go_over(self, terraform: Terraform, run: Run) -> FailoverResult:
        """Carry out what the record states. Every step may have been done before."""
        outputs = Outputs.parse(terraform.outputs())
        old, record = outputs.standby, outputs.service
        if old is None:
            raise InputError("the state has no standby", hint="Run: gpucluster apply")
        move, power = self._service_move(), self._power()
        begin = time.monotonic()
        with run.phase("fence"):
            released = self._release(outputs) if power.state(old.id) == LifecycleState.RUNNING else False
            if move.holder(outputs.state_volume_id) != outputs.controller.id:
                power.stop(old.id, old.name, at_once=True)
        with run.phase("volume"):
            move.give_volume(outputs.state_volume_id, outputs.controller.id)
            move.give_address(record.address, outputs.controller.id)
        with run.phase("services"):
            # Where the standby has gone on by itself, ssh still leads to the host before.
            deployment = self._hosts.look()
            attached = self._state.attach(
                deployment.controller, address=record.address, networks=self.networks, take_over=True
            )
            self._await_slurm(deployment)
        seconds = time.monotonic() - begin
        self._provisioning.forget_attachment(terraform)
        self._provisioning.record(terraform, host_keys=self._hosts.host_keys(deployment))
        self._note(terraform, replace(ServiceRecord.parse(terraform.outputs()), begun=False))
        self._hosts.remember(deployment)
        if not attached.new_host:
            info(self._on_event, "controller", "it has had the state already")
        if not power.start(old.id, old.name):
            text = f"{old.name} is gone, and there is no standby: run `gpucluster apply`, which makes another one"
            warn(self._on_event, "controller", text)
        return FailoverResult(in_service(outputs), seconds, released)

    def _release(self, outputs: Outputs) -> bool:
        """Let the old host end its services itself: Slurm writes all that it knows then."""
        deployment = self._hosts.locate_with(outputs)
        return deployment.standby is not None and self._state.release(deployment.standby, RELEASE_SECONDS)

    def _await_slurm(self, deployment: Deployment) -> None:
        """Raises:
        ToolError: Slurm does not answer on the new host.
        """
        argv = self._ssh_client().argv(deployment.controller.name, ["scontrol ping"])

        def answers() -> bool:
            try:
                result = process.run(argv, check=False, timeout=_ONE_PING_SECONDS)
            except ProcessError:
                return False  # it did not end: the next question may be answered
            return result.returncode == 0 and _UP in result.stdout

        if not wait_until(answers, _PING_SECONDS, _POLL):
            raise ToolError(
                f"Slurm does not answer on {deployment.controller.name} after {_PING_SECONDS:.0f} s",
                hint="See why: gpucluster ssh -- sudo journalctl -u slurmctld -u slurmdbd -u mariadb. Then run the "
                "same command again",
            )

    def _note(self, terraform: Terraform, record: ServiceRecord) -> None:
        if record != ServiceRecord.parse(terraform.outputs()):
            self._provisioning.note_service(terraform, record)


def in_service(outputs: Outputs) -> str:
    """The host that is in service, by the name of its instance in the cloud."""
    return f"{outputs.name}-{outputs.service.host}"
