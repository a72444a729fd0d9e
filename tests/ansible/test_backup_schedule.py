"""Backups on a schedule: what the role people writes, and what systemd makes of it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.backup import site as sites
from gpucluster.spec.sections.backup import DEFAULT_FOLDER, SCHEDULE_PATTERN, BackupSchedule
from tests.ansible.loading import read
from tests.ansible.render import CONTROLLER, evaluate, render, variables

ON: dict[str, Any] = {"certificate": "PEM", "calendar": "*-*-* 02:30:00", "keep": 14, "directory": None}
SLURM: dict[str, Any] = {"scheduler": "slurm"}
KUBERNETES: dict[str, Any] = {"slurm_enabled": False, "scheduler": "kubernetes", "kubernetes_control_plane": "self"}


def given(schedule: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    wanted = {**ON, "overdue_hours": 48, **schedule} if schedule is not None else None
    return variables(
        {"people_backup_schedule": wanted, "home_mount_path": "/mnt/home", "people_backup_service": "", **more},
        role="people",
        host=CONTROLLER,
    )


def settings(text: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)


def service(schedule: dict[str, Any], **more: Any) -> str:
    return render("people", "gpucluster-backup.service", given(schedule, **more))


def test_the_program_is_told_of_the_schedule() -> None:
    told = evaluate("{{ people_backup.schedule }}", given({}, gpucluster_name="demo"))
    assert told == {
        "certificate": "/etc/gpucluster/backup-certificate.pem", "directory": f"/mnt/home/{DEFAULT_FOLDER}/demo",
        "share": "/mnt/home", "keep": 14, "overdue_seconds": 172800, "metrics": "/var/lib/gpucluster/metrics",
    }  # fmt: skip
    own = evaluate("{{ people_backup.schedule }}", given({"directory": "/mnt/backup/demo"}))
    assert (own["directory"], own["share"]) == ("/mnt/backup/demo", None)
    assert evaluate("{{ people_backup.schedule }}", given(None)) is None


def test_the_folders_are_those_of_the_program_and_of_the_exporters() -> None:
    known = read("roles/people/vars/main.yml")
    assert known["people_backup_metrics"] == read("roles/exporters/vars/main.yml")["exporters_textfiles"]
    assert (known["people_backup_state"], known["people_backup_lock"]) == (str(sites.KEPT), str(sites.LOCK))


def test_what_is_installed_is_removed_with_the_setting() -> None:
    def files(schedule: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
        # The units are rendered by a lookup of Ansible; their templates have tests of their own here.
        which = "people_schedule" if schedule is not None else "people_no_schedule"
        paths = [each["path"] for each in read("roles/people/vars/main.yml")[which]["files"]]
        found = evaluate(paths, given(schedule))
        return dict(zip(found, read("roles/people/vars/main.yml")[which]["files"], strict=True))

    on, off = files({}), files(None)
    # The folder of the program stays: what a restore has replaced is in it.
    assert set(on) - set(off) == {str(sites.KEPT)}
    assert set(off) - set(on) == {"/var/lib/gpucluster/metrics/backup.prom", f"{sites.KEPT}/schedule.json"}
    assert all(each.get("absent") for each in off.values())
    assert not [path for path in off if DEFAULT_FOLDER in path]
    assert list(off)[-1].endswith(".service"), "it shows that there is something to remove"


@pytest.mark.parametrize("schedule", [{}, {"directory": "/mnt/backup/demo"}], ids=["share", "directory"])
@pytest.mark.parametrize("more", [SLURM, KUBERNETES], ids=["Slurm", "Kubernetes"])
def test_the_service_writes_where_it_has_to(schedule: dict[str, Any], more: dict[str, Any]) -> None:
    text = service(schedule, **more)
    (writes,) = settings(text, "ReadWritePaths")
    target = schedule.get("directory") or "/mnt/home"
    assert {f"-{sites.KEPT}", f"-{sites.LOCK}", f"-{target}", "-/var/lib/gpucluster/metrics"} <= set(writes.split())
    assert ("-/var/lib/etcd" in writes.split()) is (more is KUBERNETES)
    # The homes are closed, unless the backups are among them.
    assert settings(text, "InaccessiblePaths")[-1] == ("-/mnt/home" if schedule else "")
    assert settings(text, "ProtectHome")[-1] == "yes"


@pytest.mark.parametrize(
    ("schedule", "more"), [({}, {"home_mount_path": "/home"}), ({"directory": "/home/backups"}, {})]
)
def test_the_service_reaches_a_directory_below_home(schedule: dict[str, Any], more: dict[str, Any]) -> None:
    assert settings(service(schedule, **more), "ProtectHome")[-1] == "no"


@pytest.mark.parametrize("schedule", [{}, {"directory": "/mnt/backup/demo"}], ids=["share", "directory"])
def test_systemd_finds_little_exposure(schedule: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "gpucluster-backup.service"
    file.write_text(service(schedule, **KUBERNETES))
    argv = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(file)]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    overall = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert overall, said
    assert float(overall[1]) <= 3.5, said


def test_a_change_of_the_service_is_a_change_of_the_timer() -> None:
    """The role asks systemd about the timer alone: a new file of it lets systemd read both."""

    def timer(text: str) -> str:
        return render("people", "gpucluster-backup.timer", given({}, people_backup_service=text))

    assert timer("one") == timer("one") != timer("two")


CALENDARS = (
    "hourly", "daily", "weekly", "*-*-* 02:30:00", "02:30", "*:15", "Mon *-*-* 04:00", "Mon,Thu 04:00:30",
    "Mon..Fri *-*-* 01,13:00", "Sat,Sun 00,06,12,18:59:59", "Mon..Wed,Fri 23:00",
)  # fmt: skip


@pytest.mark.parametrize("calendar", CALENDARS)
def test_systemd_reads_each_schedule_that_is_allowed(calendar: str) -> None:
    assert re.fullmatch(SCHEDULE_PATTERN, calendar)
    text = render("people", "gpucluster-backup.timer", given({"calendar": calendar}))
    (written,) = settings(text, "OnCalendar")
    assert written == calendar
    done = subprocess.run(["systemd-analyze", "calendar", written], capture_output=True, text=True, check=False)
    assert (done.returncode, "Next elapse: " in done.stdout) == (0, True), done.stderr
    assert settings(text, "Persistent") == ["true"]


@pytest.mark.parametrize(
    ("calendar", "hours"), [("hourly", 48), ("daily", 48), ("02:30", 48), ("weekly", 216), ("Mon,Thu 04:00", 216)]
)
def test_a_backup_is_too_old_after_two_days_or_nine(calendar: str, hours: int) -> None:
    assert BackupSchedule(schedule=calendar).overdue_hours == hours
