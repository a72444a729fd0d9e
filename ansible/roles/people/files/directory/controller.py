"""What every operation works with: the directory, the homes, and Slurm."""

from __future__ import annotations

from collections.abc import Mapping

from directory import lookup
from directory.config import Config
from directory.errors import Failed, PeopleError
from directory.homes import Homes
from directory.ldap import Ldap
from directory.names import Surroundings
from directory.outcome import Outcome
from directory.plan import Plan
from directory.slurm import Slurm, Wanted
from directory.state import ATTRIBUTES, State


class Controller:
    """This cluster's controller.

    Args:
        wait: seconds for a server that is still starting.
    """

    def __init__(self, config: Config, here: Surroundings, wait: float = 30) -> None:
        self.config, self.here = config, here
        self.ldap = Ldap(config.uri)
        self.homes = Homes(config.home_base, config.name)
        self.slurm = Slurm(config.slurm) if config.slurm else None
        self._wait = wait

    def state(self) -> State:
        """All of the directory."""
        self.ldap.wait(self._wait)
        return State.read(self.config, self.ldap.search(self.config.suffix, "sub", ATTRIBUTES))

    def plan(
        self, state: State, homes: Mapping[str, int] | None = None, reserved: frozenset[int] = frozenset()
    ) -> Plan:
        """An empty plan; without `homes`, the owners of those that are there are looked up."""
        return Plan(self.config, state, self.here, self.homes.owners() if homes is None else homes, reserved)

    def apply(self, plan: Plan) -> bool:
        """Carry a plan out in the directory; says whether there was anything to do."""
        records = plan.records
        self.ldap.apply(records)
        if records:
            lookup.forget()
        return bool(records)

    def accounts(self) -> Mapping[str, str]:
        """Everybody's account of Slurm; nothing where accounting does not answer."""
        try:
            return self.slurm.accounts() if self.slurm else {}
        except Failed:
            return {}

    def settle(self, want: Mapping[str, Wanted], outcome: Outcome) -> bool:
        """Bring associations about, and note what came of it; says whether that worked."""
        if self.slurm is None or not want:
            return True
        try:
            for name in self.slurm.settle(want, lookup.await_names):
                outcome.changed[name] = True
        except PeopleError as error:
            for name in want:
                outcome.note(name, error)
            return False
        return True
