"""The timer that keeps journals on the controller. tests/e2e/test_drift.py runs it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpucluster.controller.logs.__main__ import FOLDER
from gpucluster.controller.logs.collect import METRICS_FILE
from tests.ansible.loading import read
from tests.ansible.render import CONTROLLER, evaluate, render, variables


def given(**more: Any) -> dict[str, Any]:
    known = {"home_mount_path": "/mnt/home", "people_logs_keep_days": 30, "people_logs_max_gb": 5}
    return variables({**known, **more}, role="people", host=CONTROLLER)


def settings(text: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)


def test_the_service_may_write_its_folder_and_its_metrics() -> None:
    text = render("people", "gpucluster-logs.service", given())
    assert settings(text, "ReadWritePaths") == [f"-{FOLDER} -/var/lib/gpucluster/metrics"]
    assert settings(text, "CapabilityBoundingSet") == ["CAP_DAC_READ_SEARCH"]
    (command,) = settings(text, "ExecStart")
    program, *words = command.split()
    assert program == "/usr/local/bin/gpucluster-agent"
    assert " ".join(words) == "logs collect --keep-days 30 --max-mb 5000 --metrics /var/lib/gpucluster/metrics"


def test_the_timer_changes_with_the_service() -> None:
    texts = {render("people", "gpucluster-logs.timer", given(people_logs_service=service)) for service in "ab"}
    assert len(texts) == 2


def test_what_is_installed_is_removed_and_the_lines_stay() -> None:
    known = read("roles/people/vars/main.yml")
    made = [each["path"] for each in known["people_logs"]["files"]]
    removed = [each["path"] for each in known["people_no_logs"]["files"]]
    assert set(made) - set(removed) == {"{{ people_logs_folder }}"}
    assert known["people_logs_folder"] == str(FOLDER)
    # The fact of the host looks for the service: it goes last.
    assert removed[-1] == "{{ people_logs_units.service }}"
    assert removed[0].endswith(f"/{METRICS_FILE}")


@pytest.mark.parametrize(("days", "there", "expected"), [(30, True, 0), (0, False, 0), (0, True, 2)])
def test_a_timer_that_is_not_needed_any_more_is_stopped(days: int, there: bool, expected: int) -> None:
    known = given(people_logs_keep_days=days, people_backup_schedule=None, monitoring_enabled=True)
    known["ansible_facts"] = {"gpucluster_host": {"logs": there}}
    stopped = evaluate("{{ people_old_units }}", known)
    assert stopped == ["gpucluster-logs.timer", "gpucluster-logs.service"][:expected]
