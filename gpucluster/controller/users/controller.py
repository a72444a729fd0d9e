"""What every operation uses: the directory, the homes, and Slurm."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpucluster.controller.users import kubernetes, nss, written
from gpucluster.controller.users.config import Config
from gpucluster.controller.users.desired import DesiredUser
from gpucluster.controller.users.homes import Homes
from gpucluster.controller.users.ldap import Ldap
from gpucluster.controller.users.outcome import UserOutcomes, partly
from gpucluster.controller.users.plan import Plan
from gpucluster.controller.users.slurm import DesiredAssociation, SlurmAccounting
from gpucluster.controller.users.state import ATTRIBUTES, DirectoryState
from gpucluster.controller.users.values import LocalAccounts
from gpucluster.node_agent.errors import AgentError, Failed


class DirectoryController:
    """What is on this cluster's controller.

    Args:
        wait: seconds to wait for a server that is still starting.
    """

    def __init__(self, config: Config, local: LocalAccounts, wait: float = 30) -> None:
        self.config, self.local = config, local
        self.ldap = Ldap(config.uri)
        self.homes = Homes(config.home_base)
        self.slurm = SlurmAccounting(config.slurm) if config.slurm else None
        self._wait = wait
        self._unfollowed: AgentError | None = None

    def state(self) -> DirectoryState:
        """The state of the whole directory."""
        self.ldap.wait(self._wait)
        return DirectoryState.read(self.config, self.ldap.search(self.config.suffix, "sub", ATTRIBUTES))

    def plan(
        self, state: DirectoryState, homes: Mapping[str, int] | None = None, reserved: frozenset[int] = frozenset()
    ) -> Plan:
        """An empty plan. Without `homes`, the owners of the existing homes are read."""
        before = written.described(state)
        plan = Plan(self.config, state, self.local, self.homes.owners() if homes is None else homes, reserved)
        plan.before = before
        return plan

    def apply(self, plan: Plan, asked_for: Collection[DesiredUser] = ()) -> bool:
        """Apply a plan to the directory; returns whether there was anything to do. `asked_for`: of these users."""
        records = plan.records
        self.ldap.apply(records)
        confirmed = written.asked_for(asked_for, plan.state)
        written.record(self.config.written_file, plan.before, written.described(plan.state), confirmed)
        if records:
            nss.expire_cache()
            self.tell_kubernetes()
        return bool(records)

    def tell_kubernetes(self) -> bool:
        """Make Kubernetes follow the directory; returns whether anything changed. `check_followed` has its error: the
        rest of an operation is done in any case.
        """
        self._unfollowed = None
        try:
            return kubernetes.follow(self.config, self.state()) if self.config.kubernetes else False
        except AgentError as error:
            self._unfollowed = error
            return False

    def check_followed(self, result: dict[str, object]) -> None:
        """Report that Kubernetes did not follow the last change.

        Raises:
            Failed: it did not.
        """
        if self._unfollowed is not None:
            raise partly(self._unfollowed, "the directory is as requested, but in Kubernetes something is not:", result)

    def accounts(self) -> Mapping[str, str]:
        """User -> account in Slurm; empty where accounting does not answer."""
        try:
            return self.slurm.accounts() if self.slurm else {}
        except Failed:
            return {}

    def associate(self, desired: Mapping[str, DesiredAssociation], outcome: UserOutcomes) -> bool:
        """Make Slurm associations as wanted and note the outcome; returns whether that worked."""
        if self.slurm is None or not desired:
            return True
        try:
            for name in self.slurm.associate(desired, nss.await_names):
                outcome.changed[name] = True
        except AgentError as error:
            for name in desired:
                outcome.note(name, error)
            return False
        return True
