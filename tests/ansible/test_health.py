"""The role health, and how Slurm and slurmd run the checks: the files, and the scripts as a shell runs them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from gpucluster.controller.health.settings import HealthSettings
from gpucluster.controller.kubernetes import health_access
from gpucluster.controller.reactions import policy as reactions
from gpucluster.node_agent.checks import expected
from gpucluster.spec.sections.monitoring import OnHang
from tests.ansible.loading import read
from tests.ansible.render import ELASTIC, evaluate, render, render_slurm, variables
from tests.ansible.test_templates import settings
from tests.waiting import PATIENCE_S

ON = {"health_enabled": True}
GOLDEN = Path(__file__).parents[1] / "golden"
SCRIPTS = ("prolog.sh", "epilog.sh", "health-check.sh")


def test_slurm_runs_the_checks_before_after_and_between_jobs() -> None:
    found = settings(render_slurm(ON)["slurm.conf"])
    assert found["Prolog"] == "prolog-gpucluster"
    assert found["Epilog"] == "epilog-gpucluster"
    assert found["HealthCheckProgram"] == "/usr/local/lib/gpucluster/health-check"
    assert (found["HealthCheckInterval"], found["HealthCheckNodeState"]) == ("300", "ANY,CYCLE")
    # Else a job whose node fails in the prolog is held until a user releases it.
    for inventory in (ON, ELASTIC | ON):
        assert "nohold_on_prolog_fail" in settings(render_slurm(inventory)["slurm.conf"])["SchedulerParameters"]


def test_without_checks_slurm_has_none_of_it() -> None:
    off = {"health_enabled": False, "containers_runtimes": [], "slurm_login_needs_job": False}
    found = settings(render_slurm(off)["slurm.conf"])
    assert not {name for name in found if name.startswith(("HealthCheck", "Prolog", "Epilog", "SchedulerP"))}
    assert "health" not in render("slurm", "slurmd.service", variables(off, role="slurm", host="compute-1"))


def test_the_administrator_has_the_last_word() -> None:
    extra = {"slurm_extra_config": {"HealthCheckProgram": "/usr/sbin/nhc", "HealthCheckInterval": 60}}
    found = settings(render_slurm(ON | extra)["slurm.conf"])
    assert (found["HealthCheckProgram"], found["HealthCheckInterval"]) == ("/usr/sbin/nhc", "60")


def _gate(host: str) -> str:
    inventory = ELASTIC | ON
    known = variables(inventory, role="slurm", host=host) | {"group_names": ["compute", "pool_compute"]}
    (line,) = [
        line for line in render("slurm", "slurmd.service", known).splitlines() if "health gate" in line and "=" in line
    ]
    return line


def test_slurmd_of_an_elastic_node_waits_for_its_checks_and_that_of_a_permanent_one_does_not() -> None:
    program = "/usr/local/bin/gpucluster-agent health gate --controller 10.0.0.2"
    assert _gate("compute-e1") == f"ExecStartPre={program} --hold"
    assert _gate("compute-1") == f"ExecStartPre=-{program}"


def _script(name: str, folder: Path, *, agent: str, enroot: str = "") -> subprocess.CompletedProcess[str]:
    """Run a script with stand-ins for the agent and for Enroot's prolog, as Slurm does: with hardly an environment."""
    for path, text in ((folder / "agent", agent), (folder / "enroot", enroot)):
        if text:
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
    known = variables(ON, role="slurm") | {
        "agent_program": str(folder / "agent"),
        "container_prolog": str(folder / "enroot"),
        "slurm_jobs_folder": str(folder / "jobs"),
    }
    file = folder / "script"
    file.write_text(render("slurm", name, known))
    job = {"SLURM_JOB_ID": "12"}
    return subprocess.run(["/bin/sh", file], env=job, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (75, 1), (1, 0), (2, 0), (124, 0), (137, 0)])
def test_only_a_drained_node_fails_the_prolog(status: int, expected: int, tmp_path: Path) -> None:
    done = _script("prolog.sh", tmp_path, agent=f'echo "$@" > {tmp_path}/said-"$1"; exit {status}')
    assert done.returncode == expected, done.stderr
    assert (tmp_path / "said-health").read_text() == "health run --controller 10.0.0.2 --profile prolog\n"
    # The counters before the job. How that ends is not a reason for anything.
    assert (tmp_path / "said-record").read_text() == "record begin\n"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_node_without_the_agent_runs_its_jobs(name: str, tmp_path: Path) -> None:
    done = _script(name, tmp_path, agent="")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", SCRIPTS[1:])
def test_after_a_job_and_between_jobs_nothing_fails(name: str, tmp_path: Path) -> None:
    assert _script(name, tmp_path, agent="exit 75").returncode == 0


def test_after_a_job_its_record_goes_to_the_controller(tmp_path: Path) -> None:
    assert _script("epilog.sh", tmp_path, agent=f'echo "$@" >> {tmp_path}/said').returncode == 0
    first, second = (tmp_path / "said").read_text().splitlines()
    # Before the checks, which may load the network.
    assert first == "record end --controller 10.0.0.2"
    assert second.startswith("health run")


def test_a_job_whose_record_could_not_be_made_is_over_nevertheless(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    for name in ("12.json", "12.counters", "120.json", "1.json"):
        (jobs / name).touch()
    assert _script("epilog.sh", tmp_path, agent="kill -KILL $$").returncode == 0
    assert sorted(file.name for file in jobs.iterdir()) == ["1.json", "120.json"]


def test_the_exporter_knows_the_jobs_of_a_node_without_checks_too() -> None:
    found = settings(render_slurm({"health_enabled": False, "monitoring_enabled": True})["slurm.conf"])
    assert (found["Prolog"], found["Epilog"]) == ("prolog-gpucluster", "epilog-gpucluster")
    known = variables({"health_enabled": False, "monitoring_enabled": True}, role="slurm")
    epilog = render("slurm", "epilog.sh", known)
    assert "record end > /dev/null" in epilog
    assert "health run" not in epilog


def test_enroot_comes_first_and_its_failure_counts(tmp_path: Path) -> None:
    note = f">> {tmp_path}/order"
    assert _script("prolog.sh", tmp_path, agent=f"echo agent {note}", enroot=f"echo enroot {note}").returncode == 0
    assert (tmp_path / "order").read_text().split() == ["enroot", "agent", "agent"]
    assert _script("prolog.sh", tmp_path, agent=f"echo agent {note}", enroot="exit 3").returncode == 1
    assert (tmp_path / "order").read_text().split() == ["enroot", "agent", "agent"]


def test_the_service_reads_what_the_role_writes(tmp_path: Path) -> None:
    known = variables(ELASTIC | ON, role="health")
    file = tmp_path / "health.json"
    file.write_text(json.dumps(evaluate("{{ health_settings }}", known)))
    found = HealthSettings.load(file)
    assert (found.slurm, found.interval, found.max_drained_percent, found.shadow) == (True, 300.0, 20, False)
    assert found.hosts["10.0.1.2"] == "compute-1"
    assert found.pool_of("compute-1") == found.pool_of("compute-e6") == "compute"
    assert [found.pool_of(name) for name in ("compute-e7", "compute-e0", "compute-e01", "compute-e1x", "other")] == [
        ""
    ] * 5
    assert found.allows("10.0.1.2")
    assert found.networks
    assert not any(found.allows(address) for address in ("192.0.2.7", "", "x", "::1"))
    assert found.reactions is None
    assert evaluate("{{ health_group }}", known) == "gpucluster"
    assert evaluate("{{ health_group }}", variables(ON, role="health")) == "slurm"


def test_the_service_reads_what_follows_a_hang(tmp_path: Path) -> None:
    assert get_args(OnHang) == tuple(choice.value for choice in reactions.Choice)
    wanted = {"on_hang": "tell", "partitions": {"gpu": "requeue"}, "end_idle_seconds": 7200}
    known = variables(ON | {"health_reactions": wanted, "health_shadow": True}, role="health")
    file = tmp_path / "health.json"
    file.write_text(json.dumps(evaluate("{{ health_settings }}", known)))
    assert HealthSettings.load(file).reactions == reactions.ReactionSettings(
        reactions.Choice.TELL, {"gpu": reactions.Choice.REQUEUE}, 7200.0, shadow=True
    )


def test_a_host_reads_what_it_should_have() -> None:
    golden = json.loads((GOLDEN / "local_demo" / "inventory.json").read_text())["all"]["children"]
    wanted = golden["compute"]["children"]["pool_compute"]["vars"]["node_expectation"]
    known = variables(ON, role="base", host="compute-1") | {"node_expectation": wanted}
    (file,) = evaluate("{{ checks_files }}", known)
    assert file["path"] == expected.PATH
    assert expected.parse(file["content"]).to_dict() == wanted
    assert evaluate("{{ checks_files }}", variables(ON, role="base")) == []


def test_the_service_runs_as_slurm_and_writes_to_its_folder_alone() -> None:
    found = render("health", "gpucluster-health.service", variables(ON, role="health")).splitlines()
    assert {"User=slurm", "NoNewPrivileges=yes", "CapabilityBoundingSet=", "Restart=always"} <= set(found)
    assert "ReadWritePaths=-/var/lib/gpucluster/health -/var/lib/gpucluster/job-records" in found


def test_with_kubernetes_the_service_is_roots_and_waits_for_no_part_of_slurm() -> None:
    known = variables({"scheduler": "kubernetes", "slurm_enabled": False, **ON}, role="health")
    unit = render("health", "gpucluster-health.service", known)
    assert "User=root" in unit
    # It has a kubeconfig of its own, and can't read the administrator's.
    assert "InaccessiblePaths=-/etc/kubernetes" in unit
    assert evaluate("{{ health_access_file }}", known) == str(health_access.FILE)
    assert not str(health_access.FILE).startswith("/etc/kubernetes")
    (made, _service) = read("roles/health/tasks/present.yml")
    assert made["ansible.builtin.command"]["argv"][1:] == ["kubernetes", "health-access"]
    assert "slurm" not in unit
    written = evaluate("{{ health_settings }}", known)
    assert (written["slurm"], written["kubernetes"]) == (False, True)
    assert (evaluate("{{ health_account }}", known), evaluate("{{ health_group | trim }}", known)) == ("root", "root")
    timer = render("health", "gpucluster-checks.timer", known)
    assert f"OnUnitInactiveSec={known['health_interval']}s" in timer
    assert "health publish" in render("health", "gpucluster-checks.service", known)
