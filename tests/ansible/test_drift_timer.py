"""The timer that looks for drift on the controller. tests/e2e/test_drift.py runs it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.drift import watch
from gpucluster.controller.drift.__main__ import main
from tests.ansible.loading import read
from tests.ansible.render import CONTROLLER, evaluate, render, variables


def given(**more: Any) -> dict[str, Any]:
    return variables(
        {"home_mount_path": "/mnt/home", "people_drift_service": "", "people_backup_schedule": None, **more},
        role="people",
        host=CONTROLLER,
    )


def settings(text: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)


def test_the_service_may_write_its_metrics_and_nothing_else() -> None:
    text = render("people", "gpucluster-drift.service", given())
    assert settings(text, "ReadWritePaths") == ["-/var/lib/gpucluster/metrics"]
    assert settings(text, "CapabilityBoundingSet") == ["CAP_DAC_READ_SEARCH"]
    # The last one counts: the controller's key is in the home of its login user, and the share is compared.
    assert settings(text, "ProtectHome")[-1] == "read-only"
    assert settings(text, "InaccessiblePaths")[-1] == ""
    (command,) = settings(text, "ExecStart")
    assert command == "/usr/local/bin/gpucluster-agent drift watch --metrics /var/lib/gpucluster/metrics"


def test_the_program_takes_these_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(folder: Path) -> int:
        asked.append(str(folder))
        return 0

    monkeypatch.setattr(watch, "run", run)
    assert main(["watch", "--metrics", "/var/lib/gpucluster/metrics"]) == 0
    assert asked == [read("roles/exporters/vars/main.yml")["exporters_textfiles"]]


def test_the_timer_is_for_each_hour_and_changes_with_the_service() -> None:
    text = render("people", "gpucluster-drift.timer", given(people_drift_service="a"))
    assert settings(text, "OnCalendar") == ["hourly"]
    assert text != render("people", "gpucluster-drift.timer", given(people_drift_service="b"))


def test_what_is_installed_is_removed_with_monitoring() -> None:
    known = read("roles/people/vars/main.yml")
    made = {each["path"] for each in known["people_drift"]["files"]}
    removed = [each["path"] for each in known["people_no_drift"]["files"]]
    assert made < set(removed)
    # The fact of the host looks for the service: it goes last.
    assert removed[-1] == "{{ people_drift_units.service }}"
    assert removed[0].endswith(f"/{watch.METRICS_FILE}")


@pytest.mark.parametrize(
    ("monitoring", "facts", "expected"),
    [
        (True, {"drift": True}, []),
        (False, {"drift": False}, []),
        (False, {}, []),
        (False, {"drift": True}, ["gpucluster-drift.timer", "gpucluster-drift.service"]),
    ],
)
def test_a_timer_that_is_not_needed_any_more_is_stopped(
    monitoring: bool, facts: dict[str, bool], expected: list[str]
) -> None:
    known = given(monitoring_enabled=monitoring)
    known["ansible_facts"] = {"gpucluster_host": facts}
    assert evaluate("{{ people_old_units }}", known) == expected
    task = read("roles/people/tasks/program.yml")[0]
    known["people_old_units"] = expected
    units = evaluate(task["gpucluster_service"]["units"], known)
    assert units == [{"name": name, "state": "stopped"} for name in expected]
