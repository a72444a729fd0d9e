"""module_utils/gpucluster_units.py with a scripted systemctl."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.loading import FakeModule, ModuleFailed, load

gpucluster_units = load("module_utils/gpucluster_units.py")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpucluster_units, "SETTLE_SECONDS", 0)


def shown(
    active: str = "active", *, enabled: str = "enabled", load: str = "loaded", reload: str = "no", age: float = 100
) -> str:
    """A block of `systemctl show`; the unit was started `age` seconds ago."""
    start = int((time.clock_gettime(time.CLOCK_MONOTONIC) - age) * 1e6)
    return (
        f"Id=x.service\nLoadState={load}\nActiveState={active}\nSubState=x\nUnitFileState={enabled}\n"
        f"NeedDaemonReload={reload}\nDropInPaths=\nInactiveExitTimestampMonotonic={start}\n"
    )


def run(
    *answers: str, follows: list[str] | None = None, state: str = "started", check_mode: bool = False
) -> tuple[Any, list[str]]:
    """Run the module for munge; each `systemctl show` returns the next of the answers, the last one repeatedly."""
    left = list(answers)

    class Module(FakeModule):
        def run_command(self, argv: list[str], **options: Any) -> tuple[int, str, str]:
            if argv[:2] == ["systemctl", "show"]:
                return 0, left.pop(0) if len(left) > 1 else left[0], ""
            return super().run_command(argv, **options)

    module = Module(check_mode=check_mode, answers={"journalctl": (0, "it broke", "")})
    found = gpucluster_units.run_units(module, [{"name": "munge", "follows": follows or [], "state": state}], 9)
    return found, [call.removeprefix("timeout 10 ") for call in module.calls if "systemctl" in call]


def test_a_running_unit_is_left_alone() -> None:
    found, calls = run(shown())
    assert not any(found.values())
    assert calls == []


def test_systemd_is_asked_again_where_it_does_not_answer_about_a_unit() -> None:
    """A busy host: the answer was empty, without an error."""
    assert run("", "\n", shown())[1] == []
    with pytest.raises(ModuleFailed, match=r"systemctl show munge\.service describes 0 of 1 units"):
        run("")


def test_a_new_unit_is_enabled_and_started() -> None:
    found, calls = run(shown("inactive", enabled="disabled"), shown())
    assert found == {"enabled": ["munge.service"], "started": ["munge.service"], "restarted": [], "stopped": []}
    assert calls == ["systemctl enable --quiet munge.service", "systemctl start munge.service"]


def test_a_unit_that_gave_up_may_start_again() -> None:
    _found, calls = run(shown("failed"), shown())
    assert calls == ["systemctl reset-failed munge.service", "systemctl start munge.service"]


@pytest.mark.parametrize(("file_age", "restarts"), [(50, True), (200, False)])
def test_a_unit_restarts_if_it_is_older_than_its_configuration(tmp_path: Path, file_age: float, restarts: bool) -> None:
    file = tmp_path / "key"
    file.write_text("x")
    os.utime(file, (time.time() - file_age,) * 2)
    found, calls = run(shown(age=100), follows=[str(file), str(tmp_path / "missing")])
    assert bool(found["restarted"]) is restarts
    assert calls == (["systemctl restart munge.service"] if restarts else [])


def test_a_unit_for_which_a_reload_is_enough_is_not_restarted(tmp_path: Path) -> None:
    file = tmp_path / "drop-in"
    file.write_text("x")
    os.utime(file, (time.time() - 50,) * 2)
    unit = {"name": "sshd", "follows": [str(file)], "state": "started", "reload": True}

    def calls(reloaded_ago: float) -> list[str]:
        changed = int((time.clock_gettime(time.CLOCK_MONOTONIC) - reloaded_ago) * 1e6)
        answer = shown(age=100) + f"StateChangeTimestampMonotonic={changed}\n"
        module = FakeModule(answers={"systemctl show": (0, answer, "")})
        gpucluster_units.run_units(module, [unit], 9)
        return [call for call in module.calls if "reload" in call or "restart" in call]

    assert calls(100) == ["timeout 10 systemctl reload sshd.service"]
    assert calls(10) == []


def test_systemd_reads_its_files_again_when_they_changed() -> None:
    _found, calls = run(shown(reload="yes"), shown())
    assert calls == ["systemctl daemon-reload"]


def test_a_first_drop_in_is_seen_and_leads_to_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    drop_in = "/etc/systemd/system/munge.service.d/gpucluster.conf"
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda self: str(self) == drop_in or exists(self))
    found, calls = run(shown(), follows=[drop_in])
    assert found["restarted"] == ["munge.service"]
    assert calls == ["systemctl daemon-reload", "systemctl restart munge.service"]


def test_a_unit_that_does_not_stay_up_fails_with_its_last_words() -> None:
    with pytest.raises(ModuleFailed, match=r"(?s)munge\.service is failed .* it broke"):
        run(shown("inactive"), shown("failed"))


def test_an_unknown_unit_is_named() -> None:
    with pytest.raises(ModuleFailed, match=r"does not know munge\.service"):
        run(shown("inactive", load="not-found", enabled=""))


def test_check_mode_touches_nothing() -> None:
    found, calls = run(shown("inactive", enabled="disabled", load="not-found"), check_mode=True)
    assert found["started"] == ["munge.service"]
    assert calls == []


def test_a_unit_s_own_file_is_not_a_drop_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # systemd never lists it among the drop-ins: the unit would restart at every run.
    own = "/etc/systemd/system/munge.service"
    exists, stat = Path.exists, Path.stat
    old = tmp_path / "old"
    old.write_text("")
    os.utime(old, (1, 1))
    monkeypatch.setattr(Path, "exists", lambda self: str(self) == own or exists(self))
    monkeypatch.setattr(Path, "stat", lambda self, **more: stat(old if str(self) == own else self, **more))
    found, calls = run(shown(), follows=[own])
    assert not any(found.values())
    assert calls == []


def test_a_unit_can_be_left_to_the_next_boot() -> None:
    found, calls = run(shown("inactive", enabled="disabled"), state="enabled")
    assert found == {"enabled": ["munge.service"], "started": [], "restarted": [], "stopped": []}
    assert calls == ["systemctl enable --quiet munge.service"]


def test_a_failure_of_a_unit_that_is_not_wanted_is_forgotten() -> None:
    found, calls = run(shown("failed", enabled="static"), state="stopped")
    assert calls == ["systemctl reset-failed munge.service"]
    assert not any(found.values())
    _found, calls = run(shown("failed", enabled="static"), state="stopped", check_mode=True)
    assert calls == []


def test_a_unit_is_stopped_once() -> None:
    found, calls = run(shown(), state="stopped")
    assert found["stopped"] == ["munge.service"]
    assert calls == ["systemctl disable --now --quiet munge.service"]
    found, calls = run(shown("inactive", enabled="", load="not-found"), state="stopped")
    assert not any(found.values())
    assert not [call for call in calls if "disable" in call]


def change(tmp_path: Path, *answers: tuple[int, str], ran: bool = True, files: list[str] | None = None) -> list[str]:
    """A unit whose file has changed does not start: the calls of systemctl, and the message at the end.

    Args:
        answers: of `systemctl restart` (or `start`), one after the other.
    """
    file = tmp_path / "config"
    file.write_text("x")
    left = list(answers)

    class Module(FakeModule):
        def run_command(self, argv: list[str], **options: Any) -> tuple[int, str, str]:
            code, out, err = super().run_command(argv, **options)
            if {"restart", "start"} & set(argv):
                code, err = left.pop(0)
            return code, out, err

    state = shown() if ran else shown("inactive")
    module = Module(answers={"journalctl": (0, "bogus key", ""), "systemctl show": (0, state, "")})
    unit = {"name": "munge", "follows": [str(file)], "state": "started"}
    with pytest.raises(ModuleFailed) as failed:
        gpucluster_units.run_units(module, [unit], 9, lambda: files or [])
    verbs = [call.removeprefix("timeout 10 ").split()[1] for call in module.calls if "systemctl" in call]
    return [*(verb for verb in verbs if verb != "show"), str(failed.value)]


def test_a_unit_that_ran_before_runs_again_with_the_files_of_before(tmp_path: Path) -> None:
    *verbs, said = change(tmp_path, (1, "failed"), (0, ""), files=["/etc/config"])
    assert verbs == ["restart", "daemon-reload", "reset-failed", "restart"]
    assert "files of before are in place again (/etc/config), and it runs with them" in said
    assert "bogus key" in said


def test_a_unit_that_runs_with_no_files_reports_both_reasons(tmp_path: Path) -> None:
    said = change(tmp_path, (1, "failed"), (1, "failed again"), files=["/etc/config"])[-1]
    assert "does not come up with them either" in said
    assert "failed again" in said


@pytest.mark.parametrize(("ran", "files"), [(False, ["/etc/config"]), (True, [])])
def test_nothing_is_put_back_where_nothing_ran_or_changed(tmp_path: Path, ran: bool, files: list[str]) -> None:
    *verbs, said = change(tmp_path, (1, "failed"), ran=ran, files=files)
    assert verbs == (["restart"] if ran else ["start"])
    assert "in place again" not in said


def test_a_unit_that_ends_before_it_answers_has_not_come_up(tmp_path: Path) -> None:
    """slurmctld is ready for systemd before it loads its plugins."""
    asked: list[list[str]] = []

    class Module(FakeModule):
        def run_command(self, argv: list[str], **options: Any) -> tuple[int, str, str]:
            if argv[:2] == ["systemctl", "show"]:
                states = {0: "inactive", 1: "active", 2: "active"}
                number = sum(call == ["show"] for call in asked)
                asked.append(["show"])
                return 0, shown(states.get(number, "activating")), ""
            if argv[2:] == ["scontrol", "ping"]:
                asked.append(argv[2:])
                return 1, "", "DOWN"
            return super().run_command(argv, **options)

    module = Module(answers={"journalctl": (0, "fatal: failed to initialize mcs plugin", "")})
    unit = {"name": "slurmctld", "follows": [], "state": "started", "answers": ["scontrol", "ping"]}
    with pytest.raises(ModuleFailed, match="failed to initialize mcs plugin"):
        gpucluster_units.run_units(module, [unit], 9)
    assert asked == [["show"], ["show"], ["scontrol", "ping"], ["show"], ["scontrol", "ping"], ["show"]]


def test_a_unit_that_never_answers_is_given_up() -> None:
    class Module(FakeModule):
        def run_command(self, argv: list[str], **options: Any) -> tuple[int, str, str]:
            if argv[:2] == ["systemctl", "show"]:
                return 0, shown("active" if self.calls else "inactive"), ""
            if argv[2:] == ["scontrol", "ping"]:
                return 1, "", "DOWN"
            return super().run_command(argv, **options)

    unit = {"name": "slurmctld", "follows": [], "state": "started", "answers": ["scontrol", "ping"]}
    with pytest.raises(ModuleFailed, match=r"slurmctld\.service gives no answer to scontrol ping"):
        gpucluster_units.run_units(Module(), [unit], 0)
