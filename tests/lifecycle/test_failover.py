"""The order of a failover, and that it goes on after a kill at any step: a model of the cloud and of both hosts.

The model refuses what the cloud refuses, and fails the test where two hosts could write to the volume. The programs
are in tests/e2e/test_standby.py, the real SDK is in tests/cloud/test_service_move.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from gpucluster import process
from gpucluster.errors import InputError, ProcessError, ToolError
from gpucluster.events import Event
from gpucluster.handover import Outputs, ServiceRecord
from gpucluster.handover.inventory import hosts as hosts_of
from gpucluster.handover.inventory import standby_host
from gpucluster.lifecycle.failover import Failover
from gpucluster.lifecycle.hosts import Deployment
from gpucluster.operations.controller_state import AttachedState
from gpucluster.operations.standby import MirrorResult
from gpucluster.process import Completed
from gpucluster.spec import loads
from gpucluster.ssh import Host
from tests.spec.spec_texts import LOCAL

SPEC = loads(LOCAL.replace("controller:", "controller:\n  state_volume_gb: 50\n  standby: true", 1), "cluster.yml")
READY = {"address": "10.0.0.9", "current": "yes"}
ONE, TWO = "one", "two"


class Killed(BaseException):
    """The command ends here, as by SIGKILL."""


class Model:
    """The cloud, both hosts and Terraform's state. Each effect is counted, and one of them kills the command."""

    def __init__(self, **record: str) -> None:
        instances = {
            "controller": {"id": ONE, "name": "demo-controller", "private_ip": "10.0.0.2", "public_ip": "1.1.1.1"},
            "standby": {"id": TWO, "name": "demo-standby", "private_ip": "10.0.0.3", "public_ip": "1.1.1.2"},
        }
        self.values: dict[str, Any] = {
            "cluster": {
                "contract_version": 1, "name": "demo", "region": "r", "compartment_id": "c", "availability_domain": "a",
                "home": {"file_system_id": None, "mount_target_ip": None, "export_path": None}, "pools": {},
                "state_volume_id": "volume", **instances,
            },
            "service": {**READY, **record},
        }  # fmt: skip
        self.states = {ONE: "RUNNING", TWO: "RUNNING"}
        self.volume, self.address = ONE, ONE
        #: Where the services write; a host that is not running writes nothing.
        self.writers = {ONE}
        self.answers = {ONE, TWO}
        self.done: list[str] = []
        self.kill_at = 0
        self.has_attachment = True
        #: The instance to which ssh leads by the name of the controller.
        self.reaches = ONE

    def effect(self, what: str) -> None:
        self.done.append(what)
        if len(self.done) == self.kill_at:
            raise Killed(what)

    # --- Terraform and what writes into its state

    def outputs(self) -> dict[str, Any]:
        return self.values

    def note_service(self, _terraform: Any, record: ServiceRecord) -> None:
        self.values["service"] = record.to_dict()
        self.effect("note")

    def record(self, _terraform: Any, **_what: Any) -> None:
        self.effect("record")

    def forget_attachment(self, _terraform: Any) -> None:
        self.has_attachment = False

    # --- the cloud

    def state(self, ocid: str) -> str:
        return self.states[ocid]

    def stop(self, ocid: str, _name: str, *, at_once: bool = False) -> None:
        assert at_once
        if self.states[ocid] == "RUNNING":
            self.states[ocid] = "STOPPED"
            self.writers.discard(ocid)
            self.effect(f"stop {ocid}")

    def start(self, ocid: str, _name: str) -> bool:
        if self.states[ocid] == "STOPPED":
            self.states[ocid] = "RUNNING"
            assert self.volume != ocid, "its services would start"
            self.effect(f"start {ocid}")
        return self.states[ocid] != "TERMINATED"

    def holder(self, volume: str) -> str:
        assert volume == "volume"
        return self.volume

    def give_volume(self, _volume: str, ocid: str) -> None:
        if self.volume == ocid:
            return
        if self.volume:
            assert self.states[self.volume] != "RUNNING", "two hosts could write to the volume"
            self.volume = ""
            self.effect("detach")
        self.volume = ocid
        self.effect("attach")

    def give_address(self, address: str, ocid: str) -> str:
        if self.address != ocid:
            self.address = ocid
            self.effect("address")
        return address or "10.0.0.9"

    # --- the hosts

    def attach(self, controller: Host, *, address: str, networks: Any, take_over: bool) -> AttachedState:
        assert take_over
        assert (address, bool(networks)) == ("10.0.0.9", True)
        assert self.volume == controller.instance_id == self.reaches
        assert not self.writers - {controller.instance_id}, "two hosts write"
        self.effect("mount")
        self.writers = {controller.instance_id}
        return AttachedState(formatted=False, moved=(), restored=(), new_host=True)

    def release(self, controller: Host, _seconds: float) -> bool:
        if controller.instance_id not in self.answers:
            return False
        self.writers.discard(controller.instance_id)
        self.effect("release")
        return True

    wanted = True

    def update(self, controller: Any, *rest: Any, **how: Any) -> MirrorResult | None:
        """The mirror's, and that of the program on the standby."""
        if isinstance(controller, Deployment):
            self.effect("watch")
            return None
        return self.mirrored(controller, *rest, **how)

    def mirrored(
        self, controller: Host, standby: Host, _address: str, *, operator_keys: Sequence[str], automatic: bool
    ) -> MirrorResult:
        assert operator_keys == ("ssh-ed25519 AAAAoperator",)
        assert automatic
        assert controller.instance_id == self.volume != standby.instance_id
        self.effect("mirror")
        return MirrorResult(2, ("/etc/a", "/etc/b"))

    def end(self, controller: Host) -> None:
        assert controller.instance_id == self.volume
        self.effect("end")

    def compare(self, _controller: Host, _standby: Host, _address: str) -> MirrorResult:
        return MirrorResult(1, ("/etc/slurm/slurm.conf",))

    def look(self) -> Deployment:
        self.reaches = self.volume
        return self.locate()

    def locate(self) -> Deployment:
        return self.locate_with(Outputs.parse(self.values))

    def locate_with(self, outputs: Outputs) -> Deployment:
        return Deployment(outputs, {}, hosts_of(SPEC, outputs.controller, {}), standby_host(SPEC, outputs))

    def reach_standby(self, _deployment: Deployment) -> None:
        pass

    def operator_keys(self) -> tuple[str, ...]:
        return ("ssh-ed25519 AAAAoperator",)

    def host_keys(self, _deployment: Deployment) -> dict[str, str]:
        return {}

    def remember(self, _deployment: Deployment) -> None:
        pass

    # --- ssh

    def argv(self, host: str, command: list[str]) -> list[str]:
        return [host, *command]

    def ssh(self, argv: list[str], **_how: Any) -> Completed:
        ocid = self.locate().controller.instance_id if argv[1] != "true" else TWO
        return Completed((), 0 if ocid in self.answers else 255, "Slurmctld(primary) at x is UP", "no answer")


class RunDouble:
    @contextmanager
    def phase(self, _name: str) -> Iterator[None]:
        yield


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def make(events: list[Event], monkeypatch: pytest.MonkeyPatch) -> Callable[[Model], Failover]:
    def made(model: Model) -> Failover:
        monkeypatch.setattr(process, "run", model.ssh)
        double: Any = model
        return Failover(
            spec=SPEC,
            provisioning=double,
            hosts=double,
            state=double,
            mirror=double,
            automatic=double,
            service_move=lambda: double,
            power=lambda: double,
            ssh_client=lambda: double,
            on_event=events.append,
        )

    return made


RUN: Any = RunDouble()


def over(model: Any) -> None:
    """The other host is in service, with everything that belongs to it."""
    assert (model.volume, model.address, model.writers) == (TWO, TWO, {TWO})
    assert model.values["service"] == {**READY, "host": "standby"}
    assert not model.has_attachment


def test_the_old_host_is_stopped_before_the_volume_moves(make: Callable[[Model], Failover]) -> None:
    model: Any = Model()
    result = make(model).fail_over(model, RUN)
    assert (result.host, result.released) == ("demo-standby", True)
    order = ["note", "release", "stop one", "detach", "attach", "address", "mount", "record", "note", "start one"]
    assert model.done == order
    over(model)


@pytest.mark.parametrize("answers", [True, False])
def test_a_command_that_was_killed_at_any_step_goes_on(make: Callable[[Model], Failover], answers: bool) -> None:
    steps = 10 if answers else 9
    for kill_at in range(1, steps + 1):
        model: Any = Model()
        if not answers:
            model.answers = {TWO}
        model.kill_at = kill_at
        with pytest.raises(Killed):
            make(model).fail_over(model, RUN)
        ended = not model.values["service"].get("begun")
        if not ended:  # otherwise the same command would be the way back
            make(model).fail_over(model, RUN)
        over(model)


def test_an_apply_goes_on_with_a_failover_that_was_killed(make: Callable[[Model], Failover]) -> None:
    model: Any = Model()
    model.kill_at = 4
    with pytest.raises(Killed):
        make(model).fail_over(model, RUN)
    make(model).resume(model, RUN)
    over(model)
    model.done.clear()
    make(model).resume(model, RUN)
    assert model.done == []


def test_an_apply_follows_the_cloud_where_a_recovered_state_has_lost_the_record(
    make: Callable[[Model], Failover], events: list[Event]
) -> None:
    model: Any = Model()
    make(model).fail_over(model, RUN)
    model.values["service"] = {}
    model.done.clear()
    make(model).resume(model, RUN)
    assert model.values["service"] == {"host": "standby"}
    assert (model.done, model.volume) == (["note"], TWO)
    assert "demo-standby has the volume" in events[-1].message


def gone_on_by_itself() -> Any:
    """The standby has stopped the controller, and has all that belongs to it; the state does not know."""
    model: Any = Model()
    model.states[ONE] = "STOPPED"
    model.volume, model.address, model.writers = TWO, TWO, {TWO}
    model.answers = {TWO}
    return model


def test_an_apply_follows_a_standby_that_has_gone_on_by_itself(
    make: Callable[[Model], Failover], events: list[Event]
) -> None:
    """The old host starts again, as the standby, once the state agrees."""
    model = gone_on_by_itself()
    make(model).resume(model, RUN)
    over(model)
    assert model.done == ["note", "mount", "record", "note", "start one"]
    assert "demo-standby has the volume" in events[0].message
    for kill_at in range(1, 6):
        model = gone_on_by_itself()
        model.kill_at = kill_at
        with pytest.raises(Killed):
            make(model).resume(model, RUN)
        make(model).resume(model, RUN)
        over(model)


def test_the_command_follows_a_standby_that_has_gone_on_by_itself_and_not_back(
    make: Callable[[Model], Failover], events: list[Event]
) -> None:
    model = gone_on_by_itself()
    result = make(model).fail_over(model, RUN)
    assert (result.host, result.released) == ("demo-standby", False)
    over(model)
    assert "gone on by itself already" in events[0].message


def test_the_way_back_is_the_same_command(make: Callable[[Model], Failover]) -> None:
    model: Any = Model()
    make(model).fail_over(model, RUN)
    assert make(model).fail_over(model, RUN).host == "demo-controller"
    assert (model.volume, model.address, model.writers) == (ONE, ONE, {ONE})
    assert model.values["service"] == READY


def test_a_host_that_is_gone_needs_no_fence(make: Callable[[Model], Failover], events: list[Event]) -> None:
    model: Any = Model()
    model.states[ONE], model.volume, model.address, model.writers = "TERMINATED", "", "", set()
    result = make(model).fail_over(model, RUN)
    assert not result.released
    over(model)
    assert "there is no standby" in events[-1].message


def test_a_volume_that_nobody_has_goes_to_the_standby_after_the_fence(make: Callable[[Model], Failover]) -> None:
    model: Any = Model()
    model.volume = ""
    make(model).fail_over(model, RUN)
    assert "stop one" in model.done
    over(model)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda model: model.values["service"].pop("current"), ToolError, "the standby is behind"),
        (lambda model: model.values["service"].clear(), InputError, "no apply has made the standby ready"),
        (lambda model: model.states.update(two="STOPPED"), ToolError, "the standby is STOPPED"),
        (lambda model: model.answers.remove(TWO), ToolError, "does not answer"),
    ],
)
def test_a_standby_that_could_not_go_on_changes_nothing(
    make: Callable[[Model], Failover],
    change: Callable[[Any], Any],
    error: type[Exception],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpucluster.lifecycle.failover._REACH_SECONDS", 0.0)
    model: Any = Model()
    change(model)
    before = dict(model.values["service"])
    with pytest.raises(error, match=text):
        make(model).fail_over(model, RUN)
    assert (model.done, model.values["service"]) == ([], before)


def test_a_standby_that_is_behind_goes_on_if_the_operator_accepts_it(make: Callable[[Model], Failover]) -> None:
    model: Any = Model()
    del model.values["service"]["current"]
    make(model).fail_over(model, RUN, accept_behind=True)
    assert model.volume == TWO


def test_slurm_that_does_not_answer_is_an_error_and_the_failover_is_not_over(
    make: Callable[[Model], Failover], monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = Model()
    failover = make(model)
    monkeypatch.setattr("gpucluster.lifecycle.failover._PING_SECONDS", 0.0)
    monkeypatch.setattr(process, "run", lambda argv, **_how: Completed((), 0, "is DOWN", ""))
    with pytest.raises(ToolError, match="Slurm does not answer"):
        failover.fail_over(model, RUN)
    assert model.values["service"]["begun"]


def test_a_standby_that_answers_late_goes_on(
    make: Callable[[Model], Failover], monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = Model()
    failover, tries = make(model), []

    def late(argv: list[str], **how: Any) -> Completed:
        tries.append(argv[1])
        return Completed((), 255, "", "timed out") if tries == ["true"] else model.ssh(argv, **how)

    monkeypatch.setattr("gpucluster.lifecycle.failover._POLL", 0.0)
    monkeypatch.setattr(process, "run", late)
    failover.fail_over(model, RUN)
    assert tries[:2] == ["true", "true"]
    over(model)


def test_slurm_that_answers_the_second_question_has_answered(
    make: Callable[[Model], Failover], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slurmctld that has just started, on a busy host, lets scontrol wait for as long as it waits at all."""
    model: Any = Model()
    failover, questions = make(model), []

    def late(argv: list[str], **how: Any) -> Completed:
        questions.append(argv)
        if argv[1] == "scontrol ping" and sum(each[1] == "scontrol ping" for each in questions) == 1:
            raise ProcessError("ssh did not end within 40 s", returncode=124)
        return model.ssh(argv, **how)  # type: ignore[no-any-return]

    monkeypatch.setattr("gpucluster.lifecycle.failover._POLL", 0.0)
    monkeypatch.setattr(process, "run", late)
    assert failover.fail_over(model, RUN).host == "demo-standby"
    over(model)


def test_an_apply_gives_the_address_and_mirrors_the_controller(
    make: Callable[[Model], Failover], events: list[Event]
) -> None:
    model: Any = Model()
    model.values["service"] = {}
    failover = make(model)
    failover.prepare(model)
    assert model.values["service"] == {"address": "10.0.0.9"}
    failover.update_standby(model, model.locate(), RUN)
    assert model.values["service"] == READY
    assert model.done[-4:] == ["mirror", "watch", "record", "note"]
    assert "2 files were brought up to date" in events[-1].message


def test_a_standby_that_was_given_up_is_forgotten_once(make: Callable[[Model], Failover]) -> None:
    model: Any = Model()
    model.values["cluster"]["standby"] = None
    failover = make(model)
    for _ in range(2):
        failover.update_standby(model, model.locate(), RUN)
    assert model.done == ["end", "note"]
    assert "current" not in model.values["service"]


def test_a_standby_that_differs_is_announced(make: Callable[[Model], Failover], events: list[Event]) -> None:
    model: Any = Model()
    make(model).warn_if_behind(model.locate())
    assert "1 files differ from the controller's: /etc/slurm/slurm.conf" in events[-1].message
    model.states[TWO] = "STOPPED"
    make(model).warn_if_behind(model.locate())
    assert "it is STOPPED" in events[-1].message
