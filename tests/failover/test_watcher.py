"""The loop, with a clock, probes and steps of the test; `test_promotion.py` has the cloud's API."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import CloudError, InputError, LockedError
from gpucluster.failover import __main__ as program
from gpucluster.failover.decide import Decision
from gpucluster.failover.settings import WatchSettings, Witness
from gpucluster.failover.watcher import ROUND_SECONDS, Watcher
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.standby import keeping, scope, watching
from gpucluster.node_agent.state_volume import layout

SETTINGS = WatchSettings(
    cluster="pair", region="r", compartment_id="c", authentication={"method": "instance_principal"}, own="two",
    other="one", own_name="pair-standby", other_name="pair-controller", name="pair-controller", user="debian",
    volume="volume", lock="vcn", address="10.0.0.9", other_address="10.0.0.2", networks=("10.0.0.0/16",), patience=15.0,
    witnesses=(Witness("compute-1", "debian@10.0.0.7", "ssh-ed25519 AAAA"),), tags={"gpucluster": "pair"},
)  # fmt: skip


class World:
    """A controller, a witness and the cloud, and a clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.answers = True
        self.sees: bool | None = True
        self.instance, self.volume, self.run = "RUNNING", "one", ""
        self.error: Exception | None = None
        self.done: list[str] = []
        self.comes_back = False

    def probe(self, _settings: WatchSettings) -> dict[str, bool]:
        return {"ssh": self.answers, "slurmctld": False}

    def ask(self, settings: WatchSettings) -> dict[str, bool | None]:
        return {each.name: self.sees for each in settings.witnesses}

    def state(self) -> str:
        if self.error:
            raise self.error
        return self.instance

    def holder(self) -> str:
        return self.volume

    def held_by(self) -> str:
        return self.run

    def carry_out(self, still_lost: Callable[[], bool]) -> bool:
        self.answers = self.answers or self.comes_back
        if not still_lost():
            return False
        if self.error:
            raise self.error
        self.done.append("over")
        return True


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in (scope.FOLDER, str(Path(keeping.FAILOVER_FILE).parent)):
        (tmp_path / folder.lstrip("/")).mkdir(parents=True)
    (tmp_path / layout.PASSIVE.lstrip("/")).touch()
    return tmp_path


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def watcher(world: World, root: Path) -> Watcher:
    return Watcher(
        SETTINGS, world, world.probe, world.ask, lambda: world.now, lambda: 1e9 + world.now, lambda _s: None, root
    )


def rounds(watcher: Watcher, world: World, number: int) -> list[Decision]:
    found = []
    for _ in range(number):
        world.now += ROUND_SECONDS
        found.append(watcher.round().decision)
    return found


def lose(world: World) -> None:
    world.answers, world.sees = False, False


def status(root: Path, world: World) -> dict[str, Any]:
    return watching.status(root, lambda: 1e9 + world.now)


def test_a_controller_that_answers_is_watched(watcher: Watcher, world: World, root: Path) -> None:
    assert rounds(watcher, world, 3) == [Decision.WATCH] * 3
    assert status(root, world) == {"ready": True, "reason": ""}


def test_a_lost_controller_is_followed_once(watcher: Watcher, world: World, root: Path) -> None:
    rounds(watcher, world, 2)
    lose(world)
    assert rounds(watcher, world, 4) == [Decision.WATCH] * 3 + [Decision.GO_ON]
    assert world.done == ["over"]
    record = json.loads((root / watching.RECORD.lstrip("/")).read_text())
    assert (record["host"], record["seconds"]) == ("pair-standby", 15.0)
    assert "other hosts do not reach it" in record["reason"]
    metric = (root / keeping.FAILOVER_FILE.lstrip("/")).read_text()
    assert "gpucluster_standby_automatic_failover_timestamp_seconds 1000001030.000" in metric
    # It is the controller now: the program ends.
    (root / layout.PASSIVE.lstrip("/")).unlink()
    watcher.run()
    assert world.done == ["over"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sees": True}, "reached by compute-1"),
        ({"sees": None}, "0 of 1 hosts confirm it"),
        ({"run": "apply by alice"}, "a run holds the cluster: apply by alice"),
        (
            {"error": CloudError("the cloud can't be reached")},
            "does not answer: the controller can't be stopped there: ",
        ),
        ({"instance": "STARTING"}, "the controller's instance is STARTING"),
    ],
)
def test_it_waits_and_states_why(
    watcher: Watcher, world: World, root: Path, change: dict[str, Any], reason: str
) -> None:
    rounds(watcher, world, 1)
    lose(world)
    vars(world).update(change)
    assert rounds(watcher, world, 5)[-2:] == [Decision.WAIT] * 2
    assert reason in status(root, world)["reason"]
    assert world.done == []


@pytest.mark.parametrize("error", [CloudError("stopping it: 404"), LockedError("a run holds the cluster")])
def test_a_fence_that_is_refused_is_tried_again(watcher: Watcher, world: World, root: Path, error: Exception) -> None:
    refusing = error

    def refuse(still_lost: Callable[[], bool]) -> bool:
        assert still_lost()
        raise refusing

    good = world.carry_out
    world.carry_out = refuse  # type: ignore[method-assign]
    lose(world)
    assert rounds(watcher, world, 5)[-2:] == [Decision.WAIT] * 2
    assert "pair-standby could not go on" in status(root, world)["reason"]
    assert not (root / watching.RECORD.lstrip("/")).exists()
    world.carry_out = good  # type: ignore[method-assign]
    assert rounds(watcher, world, 1) == [Decision.GO_ON]


def test_services_that_do_not_start_are_tried_again_although_this_host_answers_itself(
    watcher: Watcher, world: World, root: Path
) -> None:
    good = world.carry_out
    tried: list[str] = []

    def fail(still_lost: Callable[[], bool]) -> bool:
        assert still_lost()
        tried.append("fail")
        (root / layout.PASSIVE.lstrip("/")).unlink(missing_ok=True)
        world.answers, world.volume = True, "two"  # the address is here
        if len(tried) == 3:
            world.carry_out = good  # type: ignore[method-assign]
        raise Failed("mariadb does not start")

    world.carry_out = fail  # type: ignore[method-assign]
    world.comes_back = True
    rounds(watcher, world, 1)
    lose(world)
    assert rounds(watcher, world, 4)[-1] is Decision.WAIT
    assert "pair-standby has the volume, and could not go on: mariadb" in status(root, world)["reason"]
    watcher.run()
    assert (len(tried), world.done) == (3, ["over"])
    assert (root / watching.RECORD.lstrip("/")).exists()


def test_an_operator_who_takes_the_volume_back_ends_the_attempts(watcher: Watcher, world: World, root: Path) -> None:
    """A service has not started; then an operator lets the other host go on."""

    def fail(_still_lost: Callable[[], bool]) -> bool:
        world.carry_out = good  # type: ignore[method-assign]
        raise Failed("mariadb does not start")

    good = world.carry_out
    world.carry_out = fail  # type: ignore[assignment, method-assign]
    lose(world)
    assert rounds(watcher, world, 4)[-1] is Decision.WAIT
    world.answers, world.volume = True, "one"
    assert rounds(watcher, world, 3) == [Decision.WATCH] * 3
    assert world.done == []


def test_a_disk_that_is_full_is_no_reason_to_skip_the_questions(watcher: Watcher, world: World) -> None:
    def fail(_still_lost: Callable[[], bool]) -> bool:
        raise OSError(28, "No space left on device")

    world.carry_out = fail  # type: ignore[assignment, method-assign]
    lose(world)
    assert rounds(watcher, world, 4)[-1] is Decision.WAIT
    world.sees = True
    assert rounds(watcher, world, 1) == [Decision.WAIT]
    assert watcher._unfinished == ""


def test_one_that_comes_back_at_the_last_moment_is_left_alone(watcher: Watcher, world: World) -> None:
    lose(world)
    world.comes_back = True
    assert rounds(watcher, world, 6) == [Decision.WATCH] * 6
    assert world.done == []


def test_an_announced_shutdown_is_no_loss_until_its_time_is_over(watcher: Watcher, world: World, root: Path) -> None:
    def now() -> float:
        return 1e9 + world.now

    rounds(watcher, world, 1)
    watching.pause(root, now)
    lose(world)
    world.instance = "STOPPED"
    long = int(watching.PAUSE_SECONDS // ROUND_SECONDS) - 1
    assert set(rounds(watcher, world, long)) == {Decision.WATCH, Decision.WAIT}
    assert rounds(watcher, world, 2)[-1] is Decision.GO_ON


def test_a_reboot_ends_its_announcement(watcher: Watcher, world: World, root: Path) -> None:
    watching.pause(root, lambda: 1e9 + world.now)
    world.answers = False
    rounds(watcher, world, 4)
    world.answers = True
    rounds(watcher, world, 1)
    lose(world)
    assert rounds(watcher, world, 4)[-1] is Decision.GO_ON


def test_a_standby_that_could_not_go_on_states_it_before(watcher: Watcher, world: World, root: Path) -> None:
    world.sees = None
    rounds(watcher, world, 1)
    assert status(root, world) == {
        "ready": False, "reason": "these hosts can't be asked about the controller: compute-1"
    }  # fmt: skip
    world.sees, world.volume = True, ""
    rounds(watcher, world, 61)
    assert status(root, world)["reason"] == "the volume is on no host"
    world.now += 1000
    assert "was seen 1000 s ago" in status(root, world)["reason"]


def test_the_settings_are_read_as_they_were_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert WatchSettings.parse(SETTINGS.document()) == SETTINGS
    for text in ("", "[]", "{}", SETTINGS.document().replace('"version": 1', '"version": 2'), '{"version": 1}'):
        with pytest.raises(InputError, match="lack or misspell"):
            WatchSettings.parse(text)
    with pytest.raises(InputError, match="can't read"):
        WatchSettings.load(tmp_path / "none")
    assert program.main(["--help"]) == 2
    assert "usage" in capsys.readouterr().err
    assert replace(SETTINGS, witnesses=()) == WatchSettings.parse(replace(SETTINGS, witnesses=()).document())
