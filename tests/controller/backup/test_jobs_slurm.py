"""A whole restore on real daemons: what slurmctld gives to the next job, and the end of jobs that no command ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.controller.users.harness import HOMES, SUFFIX, Controller
from tests.waiting import wait_for

pytestmark = [pytest.mark.containers, pytest.mark.slurm]

#: A stand-in for systemd, which does not run in this container: it starts and ends the daemons themselves. It does not
#: prove what units define about order, users and folders.
SYSTEMCTL = """\
#!/bin/bash
lives() { pgrep --runstates S,R,D --exact "$1" > /dev/null; }
begin() {
    case $1 in
        slapd) exec slapd -d 0 -f /etc/ldap/test.conf -h 'ldapi://%2Frun%2Fslapd%2Fldapi ldaps://127.0.0.1' ;;
        slurmdbd) exec runuser -u slurm -- slurmdbd -D ;;
        slurmctld) install -d -o slurm /run/slurmctld; exec runuser -u slurm -- slurmctld -D ;;
    esac
}
verb=$1 name=${!#}
case $name in mariadb | sssd) exit 0 ;; esac
case $verb in
    is-active) lives "$name" || exit 3 ;;
    start)
        pidwait --exact timeout
        lives "$name" || { begin "$name" > /dev/null 2>&1 < /dev/null & }
        until lives "$name"; do kill -0 $! || exit 1; done ;;
    stop)
        pkill --exact "$name"
        pidwait --exact "$name"
        if [ "$name" = slurmctld ]; then rm -rf /run/slurmctld; fi ;;
esac
"""
PLACES = {
    "cluster": "demo",
    "directory": {"suffix": SUFFIX, "config": "/etc/ldap/test.conf", "data": "/var/lib/ldap/test", "user": "root"},
    "accounting": {
        "settings": "/etc/slurm/slurmdbd.conf", "state": "/run/slurm-state", "cluster": "demo",
        "unit": "mariadb", "client": "mariadb", "dump": "mariadb-dump",
    },
}  # fmt: skip
#: All were submitted in one second, however long the commands took: of jobs of one time the highest id is the last.
#: One job ran at the time of the backup, one still waited, and one came from a federation, whose numbers are elsewhere.
THEN = """\
UPDATE demo_job_table SET time_submit = UNIX_TIMESTAMP();
UPDATE demo_job_table SET state = 3, time_start = time_submit, time_end = time_submit + 1;
UPDATE demo_job_table SET id_job = 41, state = 1, time_end = 0 WHERE id_job = 1;
UPDATE demo_job_table SET id_job = 40, state = 0, time_start = 0, time_end = 0 WHERE id_job = 2;
UPDATE demo_job_table SET id_job = 134217829 WHERE id_job = 3;
"""
RESTORE = "/usr/local/sbin/gpucluster-backup restore < /root/demo.tar.gz"


class Broken(Controller):
    """A controller that is lost now and then."""

    def sh(self, script: str) -> str:
        return self.run("bash", "-c", script)[1].strip()

    def sql(self, statement: str) -> list[str]:
        return self.run("mariadb", "--batch", "--skip-column-names", "slurm_acct_db", given=statement)[1].split("\n")[
            :-1
        ]

    def next_number(self) -> int:
        asked = "scontrol show config 2> /dev/null | sed -n 's/^NEXT_JOB_ID *= //p'"
        return int(
            wait_for("slurmctld answers", lambda: self.sh(asked), state=lambda: self.sh("tail /run/slurmctld/log"))
        )

    def submit(self) -> int:
        return int(self.sh("sbatch --parsable --hold --chdir=/ --output=/dev/null --wrap=true"))

    def lose(self) -> None:
        """As on a new controller: slurmctld has begun, and knows nothing."""
        self.sh("systemctl stop slurmctld; rm -rf /run/slurm-state/*; systemctl start slurmctld")
        assert self.next_number() == 1

    def restore(self) -> dict[str, Any]:
        """The answer."""
        said: dict[str, Any] = json.loads(self.sh(RESTORE))
        assert said["unfinished"] == []
        self.sh("test ! -e /etc/slurm/slurm-restore.conf")
        return said


@pytest.fixture(scope="module")
def controller() -> Iterator[Broken]:
    with Broken(slurm=True) as started:
        assert isinstance(started, Broken)
        started.run("install", "/dev/stdin", "/usr/local/bin/systemctl", given=SYSTEMCTL)
        started.run("install", "/dev/stdin", "/etc/gpucluster/backup.json", given=json.dumps(PLACES))
        started.run("mkdir", "-p", "/var/lib/gpucluster")
        started.run("sacctmgr", "--immediate", "add", "user", "root", "account=everybody", "cluster=demo")
        for _ in range(4):
            started.submit()
        # slurmctld tells the accounting of them every now and then.
        started.sh("scancel 1 2 3 4")
        ended = "SELECT COUNT(*) FROM demo_job_table WHERE time_end"
        wait_for("the accounting has the end of the four jobs", lambda: started.sql(ended) == ["4"])
        started.sql(THEN)
        started.sh("umask 077; /usr/local/sbin/gpucluster-backup create > /root/demo.tar.gz")
        yield started


def states(controller: Broken) -> dict[int, str]:
    """State and end of the jobs of the accounting."""
    rows = controller.sql("SELECT id_job, state, time_end > 0 FROM demo_job_table")
    return {int(number): f"{state}{end}" for number, state, end in (row.split("\t") for row in rows)}


def test_no_number_is_given_twice_when_the_controller_was_lost(controller: Broken) -> None:
    controller.lose()
    said = controller.restore()
    assert controller.submit() == 42
    # The one that ran is ended, and the one that waited.
    assert said["ended_jobs"] == 2
    assert {number: states(controller)[number] for number in (40, 41)} == {40: "31", 41: "31"}
    controller.sh("systemctl stop slurmctld; systemctl start slurmctld")
    assert controller.next_number() == 43


def test_who_knows_the_numbers_is_not_started_twice_and_keeps_jobs(controller: Broken) -> None:
    number = controller.submit()
    # What a restore leaves that was killed behind the moment in which slurmctld knew the number.
    controller.sh("touch /etc/slurm/slurm-restore.conf")
    controller.sh("truncate --size=0 /run/slurmctld/log; cp /etc/slurm/slurm.conf /root/slurm.conf")
    controller.restore()
    assert controller.next_number() == number + 1
    assert controller.sh(f"squeue --noheader --jobs={number} --format=%T") == "PENDING"
    controller.sh("cmp /etc/slurm/slurm.conf /root/slurm.conf")


def test_a_job_that_slurmctld_knows_is_not_ended(controller: Broken) -> None:
    controller.restore()
    number = controller.submit()
    controller.sql(f"UPDATE demo_job_table SET id_job = {number}, state = 1, time_end = 0 WHERE id_job = 41")
    ask = "from gpucluster.controller.backup import jobs; print(jobs.end_lost('demo'))"
    assert (
        controller.run("env", "PYTHONPATH=/usr/local/bin/gpucluster-agent", "python3", "-c", ask)[1].strip()
        == "(0, [])"
    )
    assert controller.sql("SELECT id_job FROM demo_job_table WHERE state = 1 AND time_end = 0") == [str(number)]


def test_a_state_that_never_was_is_made(controller: Broken) -> None:
    """slurmctld was killed before it had written anything."""
    controller.sh("pkill -KILL --exact slurmctld; pidwait --exact slurmctld; rm -rf /run/slurm-state/*")
    controller.restore()
    assert controller.submit() == 42


def test_another_restore_completes_one_that_was_killed(controller: Broken) -> None:
    controller.lose()
    # With what it had started, as at a reset of the machine: slurmctld alone would end well, and keep the number.
    moment = "until test -e /etc/slurm/slurm-restore.conf && pgrep --exact timeout || ! kill -0 $!; do :; done"
    killed = "kill -KILL $!; pkill -KILL --exact slurmctld; pidwait --exact slurmctld; wait"
    controller.run("bash", "-c", f"{RESTORE} & {moment}; {killed}", check=False)
    controller.sh("for name in slapd slurmdbd slurmctld; do systemctl start $name; done")
    # The second, where it had written its state before it was killed.
    assert controller.next_number() in (1, 42)
    controller.restore()
    assert controller.submit() == 42


def test_the_first_number_of_the_configuration_counts_when_it_is_higher(controller: Broken) -> None:
    controller.sh(
        "systemctl stop slurmctld; cp /etc/slurm/slurm.conf /root/; echo FirstJobId=7 >> /etc/slurm/slurm.conf"
    )
    controller.sh("rm -rf /run/slurm-state/*; systemctl start slurmctld")
    assert controller.next_number() == 7
    controller.restore()
    assert controller.next_number() == 42
    controller.sh("systemctl stop slurmctld; sed -i s/FirstJobId=7/FirstJobId=700/ /etc/slurm/slurm.conf")
    controller.restore()
    assert controller.next_number() == 700
    controller.sh("cp /root/slurm.conf /etc/slurm/")


def test_numbers_that_began_again_go_on_where_they_were(controller: Broken) -> None:
    controller.sql("UPDATE demo_job_table SET id_job = 67043327, time_submit = 5 WHERE id_job = 4")
    controller.sh("umask 077; /usr/local/sbin/gpucluster-backup create > /root/demo.tar.gz")
    controller.lose()
    controller.restore()
    assert controller.submit() == 42


def test_an_encrypted_backup_of_the_schedule_is_restored(controller: Broken) -> None:
    """On the share, as the role sets it up; the operator's part is openssl alone."""
    subject = "-nodes -days 2 -subj /CN=backup"
    certificate = "/etc/gpucluster/backup-certificate.pem"
    controller.sh(f"openssl req -x509 -newkey rsa:2048 {subject} -keyout /root/key.pem -out {certificate}")
    folder = f"{HOMES}/.gpucluster-backups/demo"
    plan = {
        "certificate": certificate, "directory": folder, "share": HOMES, "keep": 1, "overdue_seconds": 172800,
        "metrics": "/run",
    }  # fmt: skip
    controller.run(
        "install", "/dev/stdin", "/etc/gpucluster/backup.json", given=json.dumps({**PLACES, "schedule": plan})
    )
    jobs = controller.sql("SELECT COUNT(*) FROM demo_job_table")
    made = json.loads(controller.sh("umask 022; /usr/local/sbin/gpucluster-backup scheduled"))
    assert controller.sh(f"stat -c '%a %U' {folder} {folder}/{made['name']}").splitlines() == ["700 root", "600 root"]
    assert "gpucluster_backup_last_exit_code 0" in controller.sh("cat /run/backup.prom")
    assert controller.sh("ls /var/lib/gpucluster/backup | grep -c work-; true") == "0"
    (listed,) = json.loads(controller.sh("/usr/local/sbin/gpucluster-backup list"))["backups"]
    assert (listed["name"], listed["bytes"]) == (made["name"], made["bytes"])
    controller.sh(f"umask 077; /usr/local/sbin/gpucluster-backup fetch {made['name']} > /root/demo.cms")
    decrypt = "openssl cms -decrypt -binary -inform DER -in /root/demo.cms -inkey /root/key.pem"
    controller.sh(f"umask 077; {decrypt} -out /root/demo.tar.gz")
    controller.lose()
    assert [str(controller.restore()["accounting_jobs"])] == jobs
