"""Whatever is missing, lost or killed: no file system with users' files is deleted without `--delete-data`.

The real `Teardown` and `DataGuard` act on a world of doubles: file systems, hosts, a state. A run may be killed at each
of its calls to the world (kill -9: nothing of it runs afterwards), and users may write at each of them. Not proved:
that OCI, Terraform and the hosts do what these doubles do; tests/terraform/test_destroy_guard.py meets the real ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from gpucluster.cloud.file_systems import FileSystem
from gpucluster.cloud.tagged_resources import TaggedResource
from gpucluster.errors import DataGuardError
from gpucluster.events import Event, ignore
from gpucluster.lifecycle.adoption import Adoption
from gpucluster.lifecycle.data_guard import DataGuard, UserFiles
from gpucluster.lifecycle.teardown import Teardown
from gpucluster.oci.tags import UsersFiles
from gpucluster.paths import ClusterPaths
from gpucluster.spec import loads
from gpucluster.terraform.plan import ResourceChange, TerraformPlan
from gpucluster.terraform.state import StateContents, StateEntry
from gpucluster.workspace.saved_state import SavedState
from tests.examples import examples
from tests.spec.spec_texts import LOCAL

SPEC = loads(LOCAL.replace("    max_count: 4", "    count: 1"), "cluster.yml")
ADDRESS = "module.home[0].oci_file_storage_file_system.this[0]"


class Killed(BaseException):
    """The process does not exist any more."""


@dataclass
class Share:
    """A file system in the cloud. `present` is False once it was deleted; its files at that time stay known."""

    id: str
    files: int = 0
    snapshots: int = 0
    tag: UsersFiles | None = UsersFiles.UNUSED
    exported: bool = False
    writable: bool = False
    present: bool = True
    consented: bool = False


@dataclass
class World:
    """The cloud with the hosts of one cluster, and Terraform's state of it.

    Args:
        others: the resources that exist besides file systems.
        mounts: which host is configured to use which file system. A mount never leads to another one.
        state: what of it the state knows, by address; `lives`: how many more calls the present run gets through.
        writes: at which of these calls a user writes a file, if it is possible then.
        late: file systems that a listing shows only after the guard has looked.
        volumes: names of block volumes.
    """

    shares: list[Share] = field(default_factory=list)
    others: set[str] = field(default_factory=set)
    state: dict[str, str] = field(default_factory=dict)
    answering: bool = True
    mounts: set[tuple[str, str]] = field(default_factory=set)
    consent: bool = False
    lives: int = 0
    writes: set[int] = field(default_factory=set)
    late: list[Share] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)

    @property
    def present(self) -> list[Share]:
        return [share for share in self.shares if share.present]

    @property
    def hosts(self) -> set[str]:
        return self.others & {"controller", "node"}

    @property
    def lost(self) -> list[Share]:
        """File systems that were deleted with files, without consent."""
        gone = [share for share in self.shares if not share.present and not share.consented]
        return [share for share in gone if share.files or share.snapshots]

    def call(self) -> None:
        """One call of a run: it may be the last, and a user may write a file at the same time."""
        if self.lives <= 0:
            raise Killed
        self.lives -= 1
        if self.lives in self.writes:
            self.write()

    def write(self) -> None:
        """A user writes a file wherever a configured host can."""
        for share in self.present:
            if self.reaches(share) and share.writable:
                share.files += 1

    def reaches(self, share: Share) -> bool:
        """Whether users can reach a file system."""
        return share.exported and any((host, share.id) in self.mounts for host in self.hosts)

    def remove(self, ocid: str) -> None:
        """Remove what is not a file system."""
        self.others.discard(ocid)
        self.mounts = {(host, share) for host, share in self.mounts if host != ocid}
        if ocid == "export":
            for share in self.shares:
                share.exported = False

    def delete(self, share: Share) -> None:
        share.present, share.consented = False, self.consent


class FileSystemsDouble:
    """Stands for `FileSystems`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def find(self, _known: Sequence[str] = ()) -> tuple[FileSystem, ...]:
        self._world.call()
        return tuple(
            FileSystem(
                share.id,
                "home",
                (share.id,) if share.exported else (),
                share.exported and share.writable,
                share.tag,
                ("monday",) * share.snapshots,
                has_homes=True,
            )
            for share in self._world.present
        )

    def _one(self, ocid: str) -> Share:
        self._world.call()
        (share,) = [share for share in self._world.present if share.id == ocid]
        return share

    def note(self, ocid: str, files: UsersFiles) -> None:
        self._one(ocid).tag = files

    def seal(self, ocid: str) -> None:
        self._one(ocid).writable = False

    def unseal(self, ocid: str) -> None:
        self._one(ocid).writable = True


class TerraformOfWorld:
    """Stands for `Terraform`: removes what the state knows, one by one, and file systems as early as OCI allows it."""

    def __init__(self, world: World) -> None:
        self._world = world

    def contents(self, *, damaged_is_empty: bool = False) -> StateContents:
        return StateContents({}, tuple(StateEntry(*entry) for entry in self._world.state.items()))

    def addresses(self) -> tuple[str, ...]:
        return tuple(self._world.state)

    def plan(self, *, destroy: bool, only: Sequence[str] = ()) -> TerraformPlan:
        assert destroy
        return TerraformPlan(
            tuple(ResourceChange(address, "delete") for address in only or self._world.state), Path("none")
        )

    def apply(self, plan: TerraformPlan) -> None:
        order = ["export", ADDRESS]
        for change in sorted(plan.changes, key=lambda change: (change.address not in order, change.address)):
            self._world.call()
            ocid = self._world.state[change.address]
            for share in self._world.present:
                if share.id == ocid:
                    assert not share.exported, "OCI refuses: an export refers to it"
                    self._world.delete(share)
            self._world.remove(ocid)
            self._world.call()  # killed before the state is written
            del self._world.state[change.address]

    def forget(self) -> None:
        self._world.state.clear()


class TaggedDouble:
    """Stands for `TaggedResources`: what exists by its tag."""

    def __init__(self, world: World) -> None:
        self._world = world

    def volumes(self) -> tuple[TaggedResource, ...]:
        return tuple(TaggedResource("volume", name, name) for name in self._world.volumes)

    def find(self) -> tuple[TaggedResource, ...]:
        self._world.call()
        self._world.shares += self._world.late
        shares = [TaggedResource("file_system", share.id, "home") for share in self._world.present]
        return (*(TaggedResource(name, name, name) for name in sorted(self._world.others)), *shares)

    def remove(self, resources: Sequence[TaggedResource], *, leave_used: bool = False) -> tuple[TaggedResource, ...]:
        for resource in resources:
            self._world.call()
            for share in self._world.present:
                if share.id == resource.id:
                    self._world.delete(share)
            self._world.remove(resource.id)
        return ()


def destroy(world: World, *, delete_data: bool, events: list[Event] | None = None) -> None:
    """One run of destroy, on a machine with an empty folder."""
    none: Any = SimpleNamespace(
        remove_all=lambda _run: None, instances=lambda: (), remove=lambda *_: 0, retire_all=lambda: None
    )
    none.close = none.forget = none.stop_if_empty = lambda: None

    def look(sources: Sequence[str], **_how: bool) -> UserFiles | str:
        world.call()
        if not (sources and world.hosts and world.answering):
            return "nobody answers"
        (share,) = [share for share in world.present if share.id == sources[0]]
        return UserFiles({"alice": share.files} if share.files else {})

    nowhere = ClusterPaths(Path("/nonexistent/gpucluster"))
    teardown = Teardown(
        spec=SPEC,
        paths=nowhere,
        saved=SavedState(nowhere),
        cloud=none,
        guard=DataGuard(lambda: cast(Any, FileSystemsDouble(world)), look),
        elastic_teardown=none,
        baking=none,
        terraform=lambda: cast(Any, TerraformOfWorld(world)),
        elastic=lambda: none,
        adoption=Adoption("demo", lambda: cast(Any, TaggedDouble(world)), ignore),
        tagged=lambda: cast(Any, TaggedDouble(world)),
        ssh_client=lambda: none,
        bastion=lambda: none,
        on_event=events.append if events is not None else ignore,
    )
    run: Any = SimpleNamespace(phase=lambda _name: contextlib.nullcontext())
    world.consent = delete_data
    teardown.run(cast(Any, TerraformOfWorld(world)), run, delete_data=delete_data)


def apply(world: World, *, outside: bool = False) -> None:
    """One run of apply, as far as file systems and hosts go."""

    def made(address: str, ocid: str) -> None:
        world.call()
        if not outside:
            world.state[address] = ocid

    if ADDRESS not in world.state:
        world.shares.append(Share(f"ocid1.filesystem.{len(world.shares)}"))
        made(ADDRESS, world.shares[-1].id)
    own = next(share for share in world.shares if share.id == world.state.get(ADDRESS, world.shares[-1].id))
    if not own.present:  # as a refresh finds it
        world.state.pop(ADDRESS, None)
        return
    for address in ("export", "controller", "node"):
        world.others.add(address)
        made(address, address)
        if address == "export":
            own.exported = own.writable = True
    world.call()
    own.tag = UsersFiles.IN_USE
    world.mounts |= {(host, own.id) for host in world.hosts}


LIVES = st.integers(0, 25)
WRITES = st.sets(st.integers(0, 25), max_size=3)
FOREVER = 10_000


class Clusters(RuleBasedStateMachine):
    """A cluster that is built, used, damaged and destroyed, each of them as far as it gets."""

    @initialize()
    def begin(self) -> None:
        self.world = World()

    @rule(lives=LIVES, outside=st.booleans())
    def apply(self, lives: int, outside: bool) -> None:
        """An apply, which may be killed. With `outside`, it does not get to write its state."""
        self.world.lives, self.world.writes = lives, set()
        with contextlib.suppress(Killed):
            apply(self.world, outside=outside)

    @rule()
    def write(self) -> None:
        self.world.write()

    @rule()
    def snapshot(self) -> None:
        for share in self.world.present:
            share.snapshots = int(share.files > 0)

    @rule()
    def clean(self) -> None:
        """Users take their files away."""
        for share in self.world.present:
            if self.world.reaches(share) and share.writable:
                share.files = share.snapshots = 0

    @rule()
    def lose_state(self) -> None:
        self.world.state.clear()

    @rule(what=st.sampled_from(["controller", "node", "export"]))
    def lose(self, what: str) -> None:
        """An operator deletes it in the console."""
        self.world.remove(what)

    @rule()
    def lose_tag(self) -> None:
        """An operator removes it in the console."""
        for share in self.world.present:
            share.tag = None

    @rule(answering=st.booleans())
    def network(self, answering: bool) -> None:
        self.world.answering = answering

    @rule(lives=LIVES, writes=WRITES, delete_data=st.sampled_from([False, False, False, True]))
    def destroy(self, lives: int, writes: set[int], delete_data: bool) -> None:
        self.world.lives, self.world.writes = lives, writes
        with contextlib.suppress(Killed, DataGuardError):
            destroy(self.world, delete_data=delete_data)

    @rule()
    def destroy_in_peace(self) -> None:
        """Where there are no files and a host that can look at each share answers, destroy always ends."""
        world = self.world
        world.lives, world.writes = FOREVER, set()
        can_look = world.answering and world.hosts and all(share.exported for share in world.present)
        if any(share.files or share.snapshots for share in world.present):
            with pytest.raises(DataGuardError):
                destroy(world, delete_data=False)
        elif can_look or not world.present:
            destroy(world, delete_data=False)
            assert (world.present, world.others, world.state) == ([], set(), {})

    @invariant()
    def no_file_is_lost(self) -> None:
        assert getattr(self, "world", World()).lost == []


def test_no_file_is_lost_whatever_is_missing_or_killed() -> None:
    run_state_machine_as_test(Clusters, settings=examples(100, stateful_step_count=25))


# --- what was seen -----


def _used(files: int) -> World:
    share = Share("ocid1.filesystem.a", files, 0, UsersFiles.IN_USE, True, True)
    others = {"controller", "node", "export"}
    state = {ADDRESS: share.id, **{name: name for name in others}}
    mounts = {(host, share.id) for host in ("controller", "node")}
    return World([share], others, state, mounts=mounts, lives=FOREVER)


def test_a_second_destroy_with_the_folder_and_the_state_gone_keeps_the_homes() -> None:
    world = _used(files=3)
    world.state.clear()
    with pytest.raises(DataGuardError, match="3 of alice"):
        destroy(world, delete_data=False)
    world.others.clear()  # and now the hosts as well
    world.shares[0].exported = False
    with pytest.raises(DataGuardError, match="nobody answers"):
        destroy(world, delete_data=False)
    assert world.shares[0].present


def test_a_copied_state_on_a_second_machine_is_not_a_reason_not_to_look() -> None:
    world = _used(files=1)  # a file that a running job wrote; the folder of `destroy` is empty here, as on that machine
    with pytest.raises(DataGuardError, match="1 of alice"):
        destroy(world, delete_data=False)
    assert world.hosts == {"controller", "node"}


@pytest.mark.parametrize("lives", range(1, 24))
def test_a_destroy_that_was_killed_anywhere_is_ended_by_the_next_without_a_host(lives: int) -> None:
    world = _used(files=0)
    world.lives = lives
    with contextlib.suppress(Killed):
        destroy(world, delete_data=False)
    world.lives = FOREVER
    destroy(world, delete_data=False)
    assert (world.present, world.others, world.state) == ([], set(), {})


# The number of calls of one destroy, and some.
CALLS = range(26)


@pytest.mark.parametrize("lose_hosts", [False, True])
def test_a_file_that_is_written_at_any_moment_of_a_destroy_is_not_lost(lose_hosts: bool) -> None:
    for killed, written in product((*CALLS, FOREVER), CALLS):
        world = _used(files=0)
        world.lives, world.writes = killed, {killed - written}
        with contextlib.suppress(Killed, DataGuardError):
            destroy(world, delete_data=False)
        for host in world.hosts if lose_hosts else ():
            world.remove(host)
        world.lives, world.writes = FOREVER, set()
        with contextlib.suppress(DataGuardError):
            destroy(world, delete_data=False)
        assert world.lost == [], (killed, written)


def test_an_apply_after_a_killed_destroy_makes_the_file_system_one_that_is_used_again() -> None:
    for killed, applied in product(CALLS, CALLS):
        world = _used(files=0)
        world.lives = killed
        with contextlib.suppress(Killed):
            destroy(world, delete_data=False)
        world.lives = applied
        with contextlib.suppress(Killed):
            apply(world)
        world.write()  # by a user who was never logged out
        for host in world.hosts:
            world.remove(host)
        world.lives = FOREVER
        with contextlib.suppress(DataGuardError):
            destroy(world, delete_data=False)
        assert world.lost == [], (killed, applied)


def test_file_systems_go_last() -> None:
    world = _used(files=0)
    for lives in range(1, 24):
        world.lives = lives
        try:
            destroy(world, delete_data=False)
        except Killed:
            assert world.present or not world.others
            continue
        break
    assert world.present == []


def test_a_file_system_that_appears_while_a_destroy_runs_is_not_deleted_unseen() -> None:
    world, late = _used(files=0), Share("ocid1.filesystem.late", files=2)
    world.late = [late]
    with pytest.raises(DataGuardError, match="was not checked for users' files"):
        destroy(world, delete_data=False)
    assert late.present


def test_a_controllers_state_is_not_deleted_unless_the_operator_allows_it() -> None:
    world = _used(files=0)
    world.volumes = ["demo-state"]
    before = list(world.others)
    with pytest.raises(DataGuardError, match="volume demo-state holds the controller's state"):
        destroy(world, delete_data=False)
    assert (list(world.others), len(world.present)) == (before, 1)
    destroy(world, delete_data=True)
    assert world.present == []


def test_a_cluster_that_was_never_built_is_destroyed_and_it_reports_it() -> None:
    events: list[Event] = []
    destroy(World(lives=FOREVER), delete_data=False, events=events)
    assert [event.message for event in events if event.kind == "log"] == [
        "nothing of the cluster demo was found, and so nothing was removed"
    ]
