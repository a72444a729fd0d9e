"""Does what was decided: reads the directory, plans, applies, and brings homes, associations and processes after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from directory import frame, lock, names, passwords
from directory.config import Config
from directory.controller import Controller
from directory.errors import Failed, InHome, PeopleError, Refused
from directory.leaving import Leaving
from directory.names import Surroundings
from directory.outcome import Outcome, partly
from directory.plan import Plan
from directory.slurm import Wanted
from directory.state import State, described
from directory.wishes import Wish


class Service:
    """The people of this cluster.

    Args:
        wait: seconds for a server that is still starting.
    """

    def __init__(self, config: Config, here: Surroundings, wait: float = 30) -> None:
        self.config, self.here = config, here
        self._controller = Controller(config, here, wait)
        self._homes = self._controller.homes
        self._slurm = self._controller.slurm
        self._state, self._plan = self._controller.state, self._controller.plan
        self.leaving = Leaving(self._controller)

    # ---- reading

    def users(self, state: State | None = None) -> list[dict[str, object]]:
        """Everybody, by uid. Where accounting does not answer, accounts are not known."""
        state = state or self._state()
        accounts = self._controller.accounts()
        everybody = sorted(state.people.values(), key=lambda person: person.uid)
        return [described(state, self.config, person, accounts) for person in everybody]

    def user(self, name: str) -> dict[str, object]:
        """One person.

        Raises:
            Refused: there is none with this name.
        """
        state = self._state()
        person = self._plan(state).user(name)
        return described(state, self.config, person, self._controller.accounts())

    def groups(self) -> list[dict[str, object]]:
        """All groups, by gid."""
        state = self._state()
        return [_group(state, name) for name in sorted(state.groups, key=lambda name: state.groups[name].gid)]

    # ---- people

    def frame(self, *, lock_held: bool = False) -> bool:
        """Make what is there before anybody is, the lookup's own account included; says whether anything changed.

        Args:
            lock_held: whoever asks has the lock already, as a restore of a backup does.
        """
        with nullcontext() if lock_held else lock.held():
            return frame.make(self._controller)

    def add(self, wish: Wish) -> dict[str, object]:
        """Make a person. Who is there already and is as asked for is completed.

        Raises:
            Refused: they are there and are otherwise, or it can't be had.
            Failed: a part did not work; the next run makes it.
        """
        return self._one(wish, new=True)

    def edit(self, wish: Wish) -> dict[str, object]:
        """Change a person.

        Raises:
            Refused: there is none, or it can't be had.
            Failed: a part did not work.
        """
        return self._one(wish, new=False)

    def _one(self, wish: Wish, *, new: bool) -> dict[str, object]:
        self._homes.check()
        with lock.held():
            self._check_accounts([wish])
            state = self._state()
            plan = self._plan(state)
            if not new:
                plan.user(wish.name)
            present = wish.name in state.people
            before = len(plan.records)
            plan.person(wish)
            if new and present and (len(plan.records) > before or self._other_password(plan, wish)):
                raise Refused(f"there is a user {wish.name} already", f"Change them: cluster user edit {wish.name}")
            outcome = self._carry_out(plan, [wish])
            if wish.name in outcome.problems:
                raise partly(outcome.problems[wish.name], f"{wish.name} is in the directory, but")
            user = described(plan.state, self.config, plan.user(wish.name), self._controller.accounts())
            return {"user": user, "changed": outcome.any_change}

    def _other_password(self, plan: Plan, wish: Wish) -> bool:
        return plan.user(wish.name).has_password and self._password_differs(plan, wish)

    def add_many(self, wishes: Sequence[Wish]) -> tuple[Outcome, State, set[str]]:
        """Make or change many, each on their own.

        Returns:
            What came of it, what is there now, and who was there before.
        """
        self._homes.check()
        with lock.held():
            state = self._state()
            before = set(state.people)
            outcome, plan = Outcome(), self._plan(state, reserved=_uids(wishes))
            able = []
            for wish in _numbered_first(wishes):
                try:
                    self._check_accounts([wish])
                    outcome.changed[wish.name] = plan.person(wish)
                    able.append(wish)
                except PeopleError as error:
                    outcome.problems[wish.name] = error
            self._carry_out(plan, able, outcome)
            return outcome, plan.state, before

    def converge(self, wishes: Sequence[Wish], absent: Sequence[str]) -> tuple[Outcome, State, list[str]]:
        """Bring people into the described state, all or none of them; who is not mentioned stays as they are.

        Returns:
            What came of it, what is there now, and who was removed. What is the matter inside of homes is noted there.

        Raises:
            Refused: one of them can't be had; nothing was changed.
            Failed: a part did not work; all others did.
        """
        self._homes.check()
        with lock.held():
            self._check_accounts(wishes)
            plan = self._plan(self._state(), reserved=_uids(wishes))
            outcome = Outcome()
            # A description names groups and has no other place to say that they shall be.
            for group in sorted({group for wish in wishes for group in wish.groups or ()} - set(plan.state.groups)):
                plan.add_group(names.group_name(group, self.here), None)
            for wish in _numbered_first(wishes):
                outcome.changed[wish.name] = plan.person(wish)
            gone = [name for name in absent if name in plan.state.people]
            self._carry_out(plan, wishes, outcome)
        for name in gone:
            self.leaving.remove(name, archive=False)
        for problem in outcome.problems.values():
            # What one person has in their home must not keep all others from being taken care of.
            if not isinstance(problem, InHome):
                raise problem
        outcome.general = outcome.general or bool(gone)
        state = self._state() if gone else plan.state
        return outcome, state, gone

    def _carry_out(self, plan: Plan, wishes: Sequence[Wish], outcome: Outcome | None = None) -> Outcome:
        """Apply a plan, and bring homes and associations after it."""
        outcome = outcome or Outcome()
        for wish in wishes:
            outcome.attempt(wish.name, lambda wish=wish: self._set_password(plan, wish))  # type: ignore[misc]
        outcome.general = self._controller.apply(plan) or outcome.general
        for wish in wishes:
            person = plan.user(wish.name)
            outcome.attempt(wish.name, lambda person=person: self._homes.make(person))  # type: ignore[misc]
        self._controller.settle({wish.name: _wanted(plan, wish) for wish in wishes}, outcome)
        return outcome

    def _set_password(self, plan: Plan, wish: Wish) -> bool:
        if wish.password is None or not self._password_differs(plan, wish):
            return False
        known = plan.state.service_scheme
        plan.password(wish.name, passwords.hashed(wish.password, (known,) if known else passwords.SCHEMES))
        return True

    def _password_differs(self, plan: Plan, wish: Wish) -> bool:
        person = plan.user(wish.name)
        if wish.password is None or not person.has_password:
            return wish.password is not None
        with passwords.in_a_file(wish.password) as file:
            return not self._controller.ldap.accepts(person.dn, file)

    def _check_accounts(self, wishes: Sequence[Wish]) -> None:
        asked = {wish.slurm_account for wish in wishes if wish.slurm_account}
        if not asked:
            return
        if self._slurm is None:
            raise Refused("this cluster has no accounts of Slurm", "Leave slurm_account out")
        try:
            self._slurm.check_accounts(asked)
        except Failed:
            # The directory's part is done without; what is missing is said when it comes to it.
            return

    # ---- groups

    def add_group(self, name: str, gid: int | None) -> dict[str, object]:
        """Make a group."""
        return self._group_change(name, lambda plan: plan.add_group(name, gid))

    def set_member(self, group: str, user: str, *, wanted: bool) -> dict[str, object]:
        """Put somebody into a group, or take them out."""
        return self._group_change(group, lambda plan: plan.set_member(group, user, wanted=wanted))

    def remove_group(self, name: str) -> dict[str, object]:
        """Take a group away."""
        with lock.held():
            plan = self._plan(self._state(), {})
            plan.remove_group(name)
            self._controller.apply(plan)
        return {"name": name, "changed": True}

    def _group_change(self, name: str, change: Callable[[Plan], bool]) -> dict[str, object]:
        with lock.held():
            plan = self._plan(self._state(), {})
            changed = change(plan)
            self._controller.apply(plan)
        return {"group": _group(plan.state, name), "changed": changed}


def _numbered_first(wishes: Sequence[Wish]) -> list[Wish]:
    """Wishes for a certain uid first, so that nobody else gets it."""
    return sorted(wishes, key=lambda wish: wish.uid is None)


def _uids(wishes: Sequence[Wish]) -> frozenset[int]:
    return frozenset(wish.uid for wish in wishes if wish.uid is not None)


def _wanted(plan: Plan, wish: Wish) -> Wanted:
    """Of those who may log in, only a newcomer's limit is ours to lift: an administrator may have set the others'."""
    enabled = plan.state.people[wish.name].enabled
    return Wanted(wish.slurm_account, None if enabled and wish.name not in plan.newcomers else enabled)


def _group(state: State, name: str) -> dict[str, object]:
    group = state.groups[name]
    return {"name": group.name, "gid": group.gid, "members": state.members_of(group)}
