"""The users program with all that a controller has: slapd, SSSD, the accounting database and slurmctld."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gpucluster.node_agent.errors import UNCONFIRMED
from tests.controller.users.harness import ACCOUNT, CONFIG, KEY, Controller, host_dn
from tests.waiting import PATIENCE_S, wait_for

DIRECTORY = "/etc/gpucluster/directory.json"
pytestmark = [pytest.mark.containers, pytest.mark.slurm]


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    with Controller(slurm=True) as started:
        started.run("sacctmgr", "--immediate", "add", "account", "ml", "cluster=demo")
        yield started


def associations(controller: Controller) -> list[str]:
    words = ("list", "associations", "cluster=demo", "format=user,account,maxsubmitjobs")
    lines = controller.run("sacctmgr", "--noheader", "--parsable2", *words)[1].splitlines()
    return sorted(line for line in lines if not line.startswith(("|", "root|")))


def id_of(controller: Controller, name: str) -> str:
    return controller.run("id", name, check=False)[1]


def knows(controller: Controller, name: str, group: str) -> None:
    wait_for(f"the host knows {name} in {group}", lambda: f"({group})" in id_of(controller, name))


def level(controller: Controller, name: str) -> str:
    words = ("list", "users", name, "format=adminlevel")
    return controller.run("sacctmgr", "--noheader", "--parsable2", *words)[1].strip()


def submit(controller: Controller, name: str) -> int:
    script = ("sbatch", "--chdir=/", "--output=/dev/null", "--wrap=true")
    return controller.run("runuser", "-u", name, "--", *script, check=False)[0]


def test_from_the_first_day_to_the_last(controller: Controller) -> None:
    user = controller.request("user.add", name="alice", full_name="Алиса Müller", ssh_keys=[KEY], groups=["privilege"])[
        "user"
    ]
    assert (user["slurm_account"], associations(controller)) == ("everybody", ["alice|everybody|"])
    assert controller.run("id", "alice")[1] == "uid=10001(alice) gid=9999(people) groups=9999(people),9876(privilege)\n"
    assert "no account nope" in controller.refused("user.edit", name="alice", slurm_account="nope")
    assert controller.request("user.edit", name="alice", slurm_account="ml")["user"]["slurm_account"] == "ml"
    assert controller.request("user.edit", name="alice", slurm_account="ml")["changed"] is False
    assert associations(controller) == ["alice|ml|"]
    assert submit(controller, "alice") == 0

    off = controller.request("user.disable", name="alice")
    assert (off["ended"]["jobs"], off["unreachable"], off["unconfirmed"]) == (1, ["gone"], {})
    assert associations(controller) == ["alice|ml|0"]
    assert submit(controller, "alice") != 0
    controller.request("user.enable", name="alice")
    assert associations(controller) == ["alice|ml|"]
    assert submit(controller, "alice") == 0

    removed = controller.request("user.remove", name="alice", home="archive")
    assert removed["removed"] == {"entry": True, "association": True, "keys": 1, "jobs": 1, "processes": 0}
    assert (associations(controller), removed["kept"], removed["unconfirmed"]) == ([], [], {})
    assert controller.run("getent", "passwd", "alice", check=False)[0] == 2
    assert controller.run("squeue", "--all", "--noheader")[1] == ""


def test_the_cluster_follows_a_directory_that_exists(controller: Controller) -> None:
    """The same slapd, as if it were another one: who joins a group can submit jobs, who leaves can't."""
    for name, group in (("ann", "hpc"), ("ben", "hpc"), ("eve", "hpcadm")):
        controller.request("group.add", name=group)
        controller.request("user.add", name=name, groups=[group])
        controller.run("sacctmgr", "--immediate", "delete", "user", name)
        knows(controller, name, group)
    password = controller.entries()["demo-controller"]["password"]
    controller.run("sh", "-c", "umask 077; cat > /run/bind", given=password)
    existing = {
        "kind": "ldap", "servers": ["ldaps://127.0.0.1"], "base": CONFIG["suffix"],
        "bind_dn": host_dn("demo-controller"),
        "schema": "rfc2307", "user_groups": ["hpc"], "admin_groups": ["hpcadm"], "id_mapping": False, "first_id": 2000,
        "last_id": 600_000_000, "password_file": "/run/bind", "ca_file": "/etc/ldap/test.pem",
    }  # fmt: skip
    own = controller.run("cat", DIRECTORY)[1]

    def follow() -> str:
        """With the setting for this moment only: `cluster` refuses to change such a directory."""
        controller.run("tee", DIRECTORY, given=json.dumps({**json.loads(own), "existing": existing}))
        ends: list[tuple[int, str, str]] = []

        def ended_well() -> bool:
            # Its timer runs it again where the directory or SSSD does not answer in time. Nothing is changed then.
            words = ("/usr/local/bin/gpucluster-agent", "directory", "follow", "--quiet")
            ends.append(controller.run(*words, check=False))
            return ends[-1][0] == 0

        try:
            wait_for("the cluster follows the directory", ended_well, state=lambda: ends[-1])
        finally:
            controller.run("tee", DIRECTORY, given=own)
        return ends[-1][1]

    assert json.loads(follow())["result"] == {"changed": True, "users": [], "warnings": []}
    assert {f"ann|{ACCOUNT}|", f"ben|{ACCOUNT}|", f"eve|{ACCOUNT}|"} <= set(associations(controller))
    assert [submit(controller, name) for name in ("ann", "ben")] == [0, 0]
    assert level(controller, "eve") == "Administrator"
    assert level(controller, "ann") == "None"
    assert follow() == ""

    # A limit of an administrator of Slurm stays; who leaves has a job that goes on, and submits no other.
    controller.run("sacctmgr", "--immediate", "modify", "user", "ann", "set", "maxsubmitjobs=7")
    controller.request("group.remove_member", group="hpc", user="ben")
    controller.request("group.remove_member", group="hpcadm", user="eve")
    wait_for(
        "the host has other groups",
        lambda: (now := id_of(controller, "ben")).startswith("uid=") and "(hpc)" not in now,
    )
    controller.run("sss_cache", "--everything")
    follow()
    assert {f"ann|{ACCOUNT}|7", f"ben|{ACCOUNT}|0", f"eve|{ACCOUNT}|0"} <= set(associations(controller))
    assert submit(controller, "ben") != 0
    assert level(controller, "eve") == "None"
    assert "ben" in controller.run("squeue", "--all", "--noheader", "--format=%u")[1].split()
    controller.request("group.add_member", group="hpc", user="ben")
    knows(controller, "ben", "hpc")
    controller.run("sss_cache", "--everything")
    follow()
    assert submit(controller, "ben") == 0
    for name in ("ann", "ben", "eve"):
        controller.request("user.remove", name=name)


def cut_off(controller: Controller) -> None:
    """The entry of the host has another password, and SSSD's connection ends."""
    words = ("-Q", "-Y", "EXTERNAL", "-H", CONFIG["uri"], "-s", "another", host_dn("demo-controller"))
    controller.run("ldappasswd", *words)
    controller.ask("start_sssd")
    # The first answer comes when the directory has refused the password.
    controller.until("SSSD answers from its cache", "getent", "--service=sss", "passwd", "zoe")


def test_a_change_is_done_when_sssd_of_every_host_confirms_it(controller: Controller) -> None:
    controller.request("group.add", name="lab")
    controller.request("user.add", name="zoe", ssh_keys=[KEY], groups=["lab"])
    wait_for("the host knows zoe", lambda: "(lab)" in controller.run("id", "zoe", check=False)[1])
    assert KEY in controller.run("sss_ssh_authorizedkeys", "zoe")[1]
    here = ("ctl", "node-1")
    cut_off(controller)
    controller.ask("patience", seconds=0)
    said = controller.request("group.remove_member", group="lab", user="zoe")
    assert said["unconfirmed"] == dict.fromkeys(here, "SSSD has other groups of zoe")
    said = controller.request("user.edit", name="zoe", ssh_keys=[])
    assert said["unconfirmed"] == dict.fromkeys(here, "SSSD has other ssh keys of zoe")
    said = controller.request("group.remove", name="lab")
    assert said["unconfirmed"] == dict.fromkeys(here, "SSSD still knows the group lab")
    status, answer = controller.answer("user.disable", name="zoe")
    assert (status, answer["done"]["unreachable"]) == (UNCONFIRMED, ["gone"])
    assert answer["done"]["unconfirmed"] == dict.fromkeys(here, "SSSD still lets zoe in")
    message = "zoe is disabled, but not every host confirms it: gone does not answer; ctl: SSSD still lets zoe in"
    assert message in answer["error"]["message"]
    said = controller.request("user.remove", name="zoe")
    assert (said["removed"]["entry"], said["unconfirmed"]) == (True, dict.fromkeys(here, "SSSD still knows zoe"))

    # Apply repairs the password; the same commands then ask the hosts again, and change nothing else.
    controller.request("base_tree")
    controller.ask("patience", seconds=PATIENCE_S)
    controller.run("sed", "-i", 's/, "gone": "opc"//', "/etc/gpucluster/directory.json")
    # On a busy machine SSSD may take longer to come back than the command waits for it.
    controller.until("all hosts confirm it", "cluster", "user", "remove", "zoe")
    assert controller.run("cluster", "user", "remove", "zoe")[1].startswith("zoe is removed: nothing was left")
    again = {"name": "lab", "changed": False, "unreachable": [], "unconfirmed": {}}
    assert controller.answer("group.remove", name="lab") == (0, {"result": again})
    assert controller.run("id", "zoe", check=False)[0] == 1


def test_a_limit_that_a_user_had_comes_back(controller: Controller) -> None:
    controller.request("user.add", name="lim")
    for limit in ("7", "0"):
        words = ("modify", "user", "where", "name=lim", "cluster=demo", "set", f"maxsubmitjobs={limit}")
        controller.run("sacctmgr", "--immediate", *words)
        assert controller.request("converge", people=[{"name": "lim"}])["changed"] is False
        if limit == "7":
            controller.request("user.disable", name="lim")
            assert associations(controller) == ["lim|everybody|0"]
            controller.request("user.disable", name="lim")
            controller.request("user.enable", name="lim")
        assert associations(controller) == [f"lim|everybody|{limit}"]
    controller.request("user.remove", name="lim")
    assert associations(controller) == []


def test_without_accounting_the_directory_s_part_is_done_and_the_rest_later(controller: Controller) -> None:
    controller.run("pkill", "-STOP", "-x", "slurmdbd")
    controller.run("mv", "/usr/bin/sacctmgr", "/usr/bin/sacctmgr.away")
    try:
        status, said = controller.answer("user.add", name="bob")
        assert status == 1
        assert "bob is in the directory" in said["error"]["message"]
        assert [user["name"] for user in controller.request("user.list")["users"]] == ["bob"]
    finally:
        controller.run("mv", "/usr/bin/sacctmgr.away", "/usr/bin/sacctmgr")
        controller.run("pkill", "-CONT", "-x", "slurmdbd")
    assert controller.request("user.add", name="bob")["changed"] is True
    assert associations(controller) == ["bob|everybody|"]
    assert controller.request("user.add", name="bob")["changed"] is False
    controller.request("user.remove", name="bob")


def test_many_at_once(controller: Controller) -> None:
    users = [{"name": f"m{number}"} for number in range(30)]
    assert {row["status"] for row in controller.request("user.import", users=users)["users"]} == {"added"}
    assert len(associations(controller)) == 30
    assert controller.request("user.import", users=users)["changed"] is False


#: It completes what the accounting has of jobs, when it was asked to delete a user whose jobs it takes for active ones.
LATE_ACCOUNTING = """#!/bin/sh
/usr/bin/sacctmgr "$@" > /run/sacctmgr.said 2>&1
status=$?
cat /run/sacctmgr.said
if grep -qF 'active, cancel' /run/sacctmgr.said; then
    echo refused >> /run/refusals
    mariadb slurm_acct_db --execute='UPDATE demo_job_table SET state = 4, time_end = time_submit WHERE time_end = 0'
fi
exit $status
"""


def test_a_user_is_removed_when_the_accounting_knows_that_the_jobs_are_over(controller: Controller) -> None:
    uid = controller.request("user.add", name="ida")["user"]["uid"]
    assert submit(controller, "ida") == 0
    controller.run("scancel", "--user=ida")
    sql = ("mariadb", "slurm_acct_db", "--batch", "--skip-column-names")
    ended = f"--execute=SELECT time_end > 0 FROM demo_job_table WHERE id_user = {uid}"
    wait_for("the accounting knows it", lambda: controller.run(*sql, ended)[1] == "1\n")
    controller.run(*sql, f"--execute=UPDATE demo_job_table SET state = 0, time_end = 0 WHERE id_user = {uid}")
    program = "/usr/local/bin/sacctmgr"
    controller.run("install", "/dev/stdin", program, given=LATE_ACCOUNTING)
    try:
        assert controller.request("user.remove", name="ida")["removed"]["association"] is True
    finally:
        controller.run("rm", program)
    assert controller.run("cat", "/run/refusals")[1] == "refused\n"
    assert not [line for line in associations(controller) if line.startswith("ida|")]
