"""What users of a shared machine see and get, from the roles' templates; tests/e2e/test_people.py attacks it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.ansible.render import CONTROLLER, NODES, evaluate, render, render_slurm, variables

DAEMONS = {"slurmctld": "slurm", "slurmdbd": "slurm", "munge": "slurm", "slapd": "ldap"}


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def words(text: str, key: str) -> set[str]:
    found = [line.partition("=")[2].split(",") for line in lines(text) if line.startswith(f"{key}=")]
    return {word for each in found for word in each}


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_daemon_that_nodes_reach_sees_no_homes_and_runs_nothing_of_them(daemon: str) -> None:
    role = DAEMONS[daemon]
    found = lines(render(role, f"{daemon}.service", variables(role=role)))
    assert {"ProtectHome=yes", "InaccessiblePaths=-/mnt/home", "ProtectSystem=strict"} <= set(found)
    assert {"NoNewPrivileges=yes", "PrivateTmp=yes", "Restart=always", "StartLimitIntervalSec=0"} <= set(found)
    (kept,) = [line.split("=")[1].split() for line in found if line.startswith("NoExecPaths=")]
    assert {"/", "/tmp", "/var/tmp"} <= set(kept)
    (programs,) = [line for line in found if line.startswith("ExecPaths=")]
    (writable,) = [line for line in found if line.startswith("ReadWritePaths=")]
    assert set(writable.partition("=")[2].split()) <= set(kept)
    assert not {word.lstrip("-") for word in programs.partition("=")[2].split()} & {
        word.lstrip("-") for word in writable.partition("=")[2].split()
    }


def test_a_controller_with_elastic_nodes_writes_its_requests() -> None:
    elastic = {"slurm_power": {"resume_timeout": 1, "suspend_timeout": 1, "max_powered_nodes": 1}}
    for inventory, wanted in ((elastic, True), ({"slurm_power": None}, False)):
        text = render("slurm", "slurmctld.service", variables(inventory, role="slurm"))
        assert ("-/var/spool/gpucluster-autoscaler" in text) is wanted


@pytest.mark.parametrize("private", [True, False])
def test_jobs_and_accounting_of_others_are_hidden_unless_they_are_opened(private: bool) -> None:
    found = render_slurm({"slurm_private": private})
    for file in ("slurm.conf", "slurmdbd.conf"):
        assert ({"jobs", "usage", "users"} <= words(found[file], "PrivateData")) is private, file


@pytest.mark.parametrize(("needs", "flags"), [(True, {"Contain"}), (False, {"Alloc"})])
def test_jobs_adopt_sessions_where_a_login_needs_a_job(needs: bool, flags: set[str]) -> None:
    assert words(render_slurm({"slurm_login_needs_job": needs})["slurm.conf"], "PrologFlags") == flags


def test_jobs_have_time_limits_unless_they_are_removed() -> None:
    assert " DefaultTime=1440 MaxTime=10080" in render_slurm()["slurm.conf"]
    without = render_slurm({"slurm_default_minutes": None, "slurm_max_minutes": None})["slurm.conf"]
    assert "DefaultTime" not in without
    assert "MaxTime" not in without


def pam(runtimes: list[str], *, needs: bool = True) -> Any:
    known = variables({"slurm_login_needs_job": needs, "containers_runtimes": runtimes}, role="slurm", host=NODES[0])
    return evaluate("{{ slurm_pam_adopts_sessions }}", known)


def test_sessions_of_rootless_containers_stay_with_systemd() -> None:
    assert pam(["enroot"]) is True
    assert pam(["enroot", "containerd"]) is False
    assert pam(["enroot"], needs=False) is False


def test_who_has_no_job_is_asked_for_one_after_those_who_need_none() -> None:
    text = render("slurm", "pam_account", variables(role="slurm", host=NODES[0]))
    found = [line.split() for line in lines(text)]
    local, operator, adopt, _ = found
    assert (local[1:], operator[1]) == (["[success=2", "default=ignore]", "pam_localuser.so"], "[success=1")
    assert operator[-1] == "privilege"
    assert adopt[1:3] == ["required", "pam_slurm_adopt.so"]
    # Without a job, without slurmd or with an unknown state no user gets in.
    assert "action_generic_failure=deny" in adopt


def test_where_a_login_needs_no_job_nothing_of_it_is_left_in_pam() -> None:
    known = variables({"slurm_login_needs_job": False}, role="slurm", host=NODES[0])
    opened = evaluate("{{ slurm_pam_files }}", known)[-1]
    assert "block" not in opened
    block = render("slurm", "pam_account", variables(role="slurm", host=NODES[0]))
    before = f"account include common\n# BEGIN gpucluster\n{block.strip()}\n# END gpucluster\nsession x\n"
    change = opened["replace"]
    assert re.sub(change["regexp"], change["with"], before, flags=re.MULTILINE) == "account include common\nsession x\n"


@pytest.mark.parametrize(
    ("limits", "row"),
    [
        ({}, "||"),
        ({"jobs": 4, "gpus": 8}, "4||gres/gpu=8"),
        ({"submitted_jobs": 9, "nodes": 2, "cpus": 64}, "|9|cpu=64,node=2"),
    ],
)
def test_limits_are_compared_as_slurm_prints_them(limits: dict[str, int], row: str) -> None:
    every = dict.fromkeys(("jobs", "submitted_jobs", "cpus", "gpus", "nodes")) | limits
    known = variables({"slurm_user_limits": every}, role="slurm", host=CONTROLLER)
    assert evaluate("{{ slurm_limits_row }}", known) == row
    assert evaluate("{{ slurm_limits_wanted }}", known) is bool(limits)
    settings = evaluate("{{ slurm_limits_settings }}", known)
    assert f"MaxJobsPerUser={limits.get('jobs', -1)}" in settings


def test_processes_are_hidden_before_any_user_logs_in() -> None:
    text = render("base", "gpucluster-proc.service", variables(role="base"))
    assert "hidepid=2,gid=9876 /proc" in text
    assert "systemd-logind.service" in text.split("Before=")[1].splitlines()[0]
    opened = render("base", "gpucluster-proc.service", variables({"base_hide_processes": False}, role="base"))
    assert "hidepid=0,gid=0 /proc" in opened
