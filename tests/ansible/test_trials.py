"""Nothing is installed that was not tried: the real programs, on a booted host, and new files that they refuse.

What this does not prove: other versions of these programs than Debian 13's, and nodes, which get Slurm's configuration
from the controller.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ansible.booted import Booted, booted
from tests.ansible.in_container import Played
from tests.ansible.loading import load
from tests.ansible.render import CONTROLLER, INVENTORY
from tests.stopping import all_stopped
from tests.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.containers, pytest.mark.slurm]

ADDRESS = "192.0.2.1"
VARIABLES = INVENTORY | {
    "gpucluster_hosts": [{"name": name, "address": ADDRESS} for name in (CONTROLLER, "compute-1", "compute-2")],
    "slurm_hardware_emulated": True,
    "slurm_gpus_emulated": True,
    # The account of this host that Ansible logs in with.
    "ansible_user": "root",
    "slurm_start_seconds": int(PATIENCE_S),
}
FACTS: dict[str, Any] = {"import_role": {"name": "base", "tasks_from": "gather_facts"}}
SLURM: list[dict[str, Any]] = [FACTS, {"import_role": {"name": "slurm"}}]
SLAPD = "/etc/ldap/trial.conf"
SLAPD_TEXT = "include /etc/ldap/schema/core.schema\nmodulepath /usr/lib/ldap\nmoduleload back_mdb\ndatabase mdb\n"
CONFIG = "/etc/slurm/slurm.conf"
SUBMIT = "runuser -u daemon -- sbatch --chdir=/tmp --wrap true 2>&1 || true"


def slurm(host: Booted, *, check: bool = True, **extra_config: Any) -> Played:
    return host.play(SLURM, VARIABLES | {"slurm_extra_config": extra_config}, check=check, name=CONTROLLER)


def refused(host: Booted, **extra_config: Any) -> str:
    """What the role reports of a setting that a trial finds; Slurm is as it was.

    On a busy machine a trial may end before slurmctld has reached the setting. Then the start finds it, the old files
    are back, and the next trial is another one.
    """

    def found() -> str:
        before = slurm_as_it_is(host)
        said = slurm(host, check=False, **extra_config).said
        if "slurmctld refuses" in said:
            assert slurm_as_it_is(host) == before
            return said
        assert "it runs with them" in said, said
        return ""

    return wait_for("a trial finds the setting", found)


def slurm_as_it_is(host: Booted) -> str:
    return host.sh(f"systemctl show slurmctld -p MainPID; cat {CONFIG}; squeue --noheader --format='%i %t'")


@pytest.fixture(scope="module")
def host() -> Iterator[Booted]:
    with booted() as node:
        node.sh(f"hostname {CONTROLLER}; ip address add {ADDRESS}/24 dev lo; mkdir -p /run/sshd; ssh-keygen -A")
        node.sh(f"echo '{ADDRESS} {CONTROLLER} compute-1 compute-2' >>/etc/hosts")
        node.connect("--net")
        yield node


@pytest.fixture(scope="module")
def controller(host: Booted) -> Booted:
    """A controller on which Slurm runs, with a job that waits, because no node does."""
    slurm(host)
    host.sh("sacctmgr --immediate add user daemon account=default")
    wait_for("slurmctld knows the user", lambda: "Submitted" in host.sh(SUBMIT))
    return host


def test_a_setting_that_slurm_does_not_know_leaves_slurm_as_it_is(controller: Booted) -> None:
    assert "1 PD" in slurm_as_it_is(controller)
    said = refused(controller, BogusKey=1)
    assert f"slurmctld refuses the new {CONFIG}" in said
    assert "unrecognized key: BogusKey" in said


def test_slurm_runs_again_with_the_old_files_if_it_does_not_come_up_with_the_new_ones(controller: Booted) -> None:
    before = slurm_as_it_is(controller)
    # slurmctld has not saved yet what its database has, so that the trial can't reach the plugin. It is stopped until
    # its restart, or it might save it again before the trial.
    controller.sh("systemctl kill --kill-who=main --signal=STOP slurmctld")
    threads = "cat /proc/$(systemctl show --property=MainPID --value slurmctld)/task/*/status"
    wait_for("slurmctld is stopped", lambda: all_stopped(controller.sh(threads)))
    controller.sh("rm -f /var/lib/slurm/slurmctld/last_tres* /var/lib/slurm/slurmctld/assoc_mgr_state*")
    said = slurm(controller, check=False, MCSPlugin="mcs/nosuch").said
    assert "cannot find mcs plugin for mcs/nosuch" in said, said
    assert "it runs with them" in said
    assert (
        f"slurmctld.service did not come up with new files; the files of before are in place again ({CONFIG})" in said
    )
    after = slurm_as_it_is(controller)
    assert after.split("\n")[1:] == before.split("\n")[1:]
    # What slurmctld saved when it ended is enough for a whole trial.
    assert "mcs/nosuch" in refused(controller, MCSPlugin="mcs/nosuch")
    # It accepts what is right.
    assert slurm(controller, MessageTimeout=31).changed == 2
    assert "MessageTimeout=31sec" in controller.sh("scontrol show config | tr -d ' '")


def test_limits_of_users_are_set_hold_and_are_taken_back(controller: Booted) -> None:
    def limited(**limits: int) -> int:
        every = dict.fromkeys(("jobs", "submitted_jobs", "cpus", "gpus", "nodes")) | limits
        role = {"import_role": {"name": "slurm", "tasks_from": "policies"}, "when": "slurm_limits_touched"}
        return controller.play([FACTS, role], VARIABLES | {"slurm_user_limits": every}, name=CONTROLLER).changed

    def seen() -> str:
        show = "sacctmgr -nP show qos normal format=MaxJobsPU,MaxSubmitPU,MaxTRESPU"
        return controller.sh(f"{show}; ls /etc/gpucluster/slurm-limits 2>/dev/null || true").strip()

    assert limited() == 0
    # What an administrator has set is theirs.
    controller.sh("sacctmgr --immediate modify qos normal set MaxJobsPerUser=7")
    assert (limited(), seen()) == (0, "7||")
    assert limited(submitted_jobs=2, cpus=64, gpus=8) > 0
    limits = seen()
    assert limits == "|2|cpu=64,gres/gpu=8\n/etc/gpucluster/slurm-limits"
    assert (limited(submitted_jobs=2, cpus=64, gpus=8), seen()) == (0, limits)
    # slurmdbd tells slurmctld of each change.
    wait_for("one job too many is refused", lambda: "QOSMaxSubmitJobPerUserLimit" in controller.sh(SUBMIT))
    assert limited() > 0
    assert seen() == "||"
    wait_for("a job is taken again", lambda: "Submitted" in controller.sh(SUBMIT))


def test_what_sssd_refuses_is_not_installed(host: Booted) -> None:
    task: list[dict[str, Any]] = [FACTS, {"import_role": {"name": "ldap", "tasks_from": "sssd"}}]
    # As tasks/share.yml reads them on the controller.
    passwords = json.dumps({"hosts": {CONTROLLER: {"password": "secret"}}}).encode()
    known = VARIABLES | {"ldap_passwords_seen": {"content": base64.b64encode(passwords).decode()}}
    host.play(task, known, name=CONTROLLER)
    before = host.read("/etc/sssd/sssd.conf")
    assert "ldap_default_authtok = secret\n" in before
    said = host.play(task, known | {"gpucluster_name": "two\nlines"}, name=CONTROLLER, check=False).said
    assert "sssctl refuses the new /etc/sssd/sssd.conf" in said
    assert (host.read("/etc/sssd/sssd.conf"), host.sh("systemctl is-active sssd").strip()) == (before, "active")


def test_a_check_that_has_closed_its_output_has_all_the_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = load("module_utils/gpucluster_trials.py")
    original, limits = subprocess.Popen.wait, []

    def wait(process: Any, timeout: float | None = None) -> int:
        limits.append(timeout)
        return original(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    monkeypatch.setattr(trials, "TRIAL_SECONDS", 10_000.0)
    assert trials._watch(["sh", "-c", "echo wrong; exec >&- 2>&-; exit 3"], None) == (3, "wrong\n")
    (limit,) = limits
    assert limit is not None
    assert limit > 5000


@pytest.mark.parametrize(
    ("command", "path", "good", "bad"),
    [
        (["slaptest", "-u", "-f", SLAPD], SLAPD, SLAPD_TEXT, "bogus_key"),
        (["visudo", "-c"], "/etc/sudoers.d/trial", "root ALL=(ALL) ALL\n", "bogus_key"),
        (["sshd", "-t"], "/etc/ssh/sshd_config.d/10-gpucluster.conf", "UsePAM yes\n", "bogus_key"),
        (["dockerd", "--validate"], "/etc/docker/daemon.json", "{}", '{"bogus_key": 1}'),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_program_tries_a_file_in_its_place(host: Booted, command: list[str], path: str, good: str, bad: str) -> None:
    """Whether a file is there already or not."""

    def install(text: str, *, check: bool = True) -> Played:
        file = {"path": path, "content": text, "mode": "0440"}
        trial = {"command": command, "files": [path]}
        # It is the run-time directory of a unit that does not run here, and goes when systemd has tried to start it.
        host.sh("mkdir -p /run/sshd")
        return host.play([{"gpucluster_service": {"files": [file], "trials": [trial]}}], {}, check=check)

    for before in ("", good):
        if before:
            assert install(good).changed == 1
        said = install(bad, check=False).said
        assert f"{command[0]} refuses the new {path}" in said
        assert "bogus_key" in said
        assert (host.read(path) if host.exists(path) else "") == before
