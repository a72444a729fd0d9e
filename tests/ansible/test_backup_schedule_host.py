"""The schedule of backups on a booted host: the role, real systemd with the service's sandbox, slapd's database, and
openssl.

What this does not prove: MariaDB and etcd in the sandbox, and a share that is NFS. tests/e2e/test_people.py has MariaDB
and the share.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest

from gpucluster.artifacts import agent_archive
from tests.ansible.booted import Booted, booted
from tests.ansible.in_container import Played
from tests.ansible.render import INVENTORY
from tests.controller.users.harness import HOMES, SUFFIX
from tests.waiting import wait_for

pytestmark = pytest.mark.containers

DATA, SERVER = "/var/lib/ldap/gpucluster", "/etc/ldap/slapd-gpucluster.conf"
#: As the role ldap gives them to the tasks.
OF_LDAP = {
    "people_directory_uri": "ldapi:///", "people_directory_suffix": SUFFIX, "people_directory_server": SERVER,

    "people_hosts_file": "/var/lib/gpucluster-directory/hosts.json",
}  # fmt: skip
TASKS: list[dict[str, Any]] = [
    {"import_role": {"name": "base", "tasks_from": "gather_facts"}},
    {"include_role": {"name": "people", "tasks_from": "program"}, "vars": OF_LDAP},
]
#: Databases of its own belong to other tests.
VARIABLES = INVENTORY | {
    "home_mount_path": HOMES,
    "slurm_enabled": False,
    "slurm_accounting": False,
    "scheduler": "none",
}
SERVER_CONF = f"""\
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
database mdb
suffix "{SUFFIX}"
rootdn "cn=manager,{SUFFIX}"
directory {DATA}
"""
ENTRIES = f"""\
dn: {SUFFIX}
objectClass: dcObject
objectClass: organization
dc: demo
o: demo

dn: ou=people,{SUFFIX}
objectClass: organizationalUnit
ou: people

dn: uid=alice,ou=people,{SUFFIX}
objectClass: inetOrgPerson
uid: alice
cn: alice
sn: alice
"""
SERVICE, TIMER = "gpucluster-backup.service", "gpucluster-backup.timer"
FOLDER = f"{HOMES}/.gpucluster-backups/demo"
METRICS = "/var/lib/gpucluster/metrics"


@pytest.fixture(scope="module")
def node() -> Iterator[Booted]:
    with booted(f"--tmpfs={HOMES}:mode=755") as host:
        host.put("/usr/local/bin/gpucluster-agent", agent_archive.of_controller(), 0o755)
        host.put(SERVER, SERVER_CONF)
        host.put("/root/entries.ldif", ENTRIES)
        host.sh(f"install -d -o openldap -g openldap -m 700 {DATA} && install -d {METRICS} /etc/gpucluster")
        host.sh(f"slapadd -f {SERVER} -b {SUFFIX} -l /root/entries.ldif && chown -R openldap:openldap {DATA}")
        argv = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=backup"
        host.sh(f"cd /root && {argv} -keyout key.pem -out certificate.pem 2> /dev/null")
        yield host


@cache
def calendar() -> str:
    """A time half a day away: the timer must not make a backup of its own meanwhile."""
    return f"{datetime.now(UTC) + timedelta(hours=12):%H:%M}"


def apply(node: Booted, *, scheduled: bool, **changes: Any) -> Played:
    schedule = {
        "certificate": node.read("/root/certificate.pem").strip(), "calendar": calendar(), "keep": 2, "directory": None,
        "overdue_hours": 48,
    }  # fmt: skip
    wanted = {"people_backup_schedule": {**schedule, **changes} if scheduled else None}
    return node.play(TASKS, VARIABLES | wanted, name="demo-controller")


def metrics(node: Booted) -> dict[str, float]:
    return {
        name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", node.read(f"{METRICS}/backup.prom"), re.M)
    }


def start(node: Booted) -> str:
    """Run the service once. Returns what systemd thinks of it."""
    node.sh(f"systemctl reset-failed {SERVICE}; systemctl start {SERVICE}", check=False)
    return node.sh(f"systemctl show --property=Result --value {SERVICE}").strip()


def fails(node: Booted, why: str) -> None:
    """The service fails, with these words in its journal, which journald may read after systemd knows of the end."""
    assert start(node) == "exit-code"
    wait_for(f"the journal has: {why}", lambda: why in journal(node), state=lambda: journal(node))


def journal(node: Booted) -> str:
    return node.sh(f"journalctl --unit {SERVICE} --output=cat")


def test_a_backup_is_made_in_the_sandbox_and_the_setting_goes_without_it(node: Booted) -> None:
    assert apply(node, scheduled=True).changed == 1
    assert apply(node, scheduled=True).changed == 0
    assert node.sh(f"systemctl is-active {TIMER}; systemctl is-enabled {TIMER}").split() == ["active", "enabled"]
    assert f"{calendar()}:00" in node.sh(f"systemctl show --property=TimersCalendar {TIMER}")

    assert start(node) == "success", journal(node)
    (name,) = node.sh(f"ls -A {FOLDER}").split()
    assert node.sh(f"stat -c '%a %U' {FOLDER} {FOLDER}/{name}").splitlines() == ["700 root", "600 root"]
    decrypt = f"openssl cms -decrypt -binary -inform DER -in {FOLDER}/{name} -inkey /root/key.pem"
    assert "uid=alice" in node.sh(f"{decrypt} | tar xzO directory.ldif")
    assert json.loads(node.sh(f"{decrypt} | tar xzO manifest.json"))["counts"]["people"] == 1
    found = metrics(node)
    assert found["gpucluster_backup_last_exit_code"] == 0
    # The exporter's account reads it.
    node.sh(f"setpriv --reuid=nobody --clear-groups cat {METRICS}/backup.prom")

    # A share that is gone: nothing is written in its place.
    node.sh(f"umount {HOMES}")
    fails(node, f"{HOMES} is not mounted here")
    assert node.sh(f"ls -A {HOMES}") == ""
    assert metrics(node) == {**found, "gpucluster_backup_last_exit_code": 1}

    # A directory of the operator's: only there it writes.
    own = "/srv/backups/demo"
    assert apply(node, scheduled=True, directory=own).changed == 1
    fails(node, f"the directory of backups, {own}, is not there")
    node.sh(f"install -d -m 700 {own}")
    assert start(node) == "success"
    assert len(node.sh(f"ls {own}").split()) == 1

    # The timer is stopped, then all is removed; that the last run has failed is forgotten.
    node.sh(f"chmod 777 {own}")
    fails(node, "others than root can write")
    assert apply(node, scheduled=False).changed == 2
    assert apply(node, scheduled=False).changed == 0
    assert node.sh("systemctl list-unit-files --no-legend 'gpucluster-backup*'", check=False) == ""
    assert node.sh(f"systemctl is-active {TIMER} {SERVICE}", check=False).split() == ["inactive", "inactive"]
    assert node.sh(f"ls /etc/gpucluster {METRICS} | grep -c -e backup.prom -e certificate; true").strip() == "0"
    assert len(node.sh(f"ls {own}").split()) == 1
