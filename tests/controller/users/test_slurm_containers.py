"""The users program with all that a controller has: slapd, SSSD, the accounting database and slurmctld."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpucluster.node_agent.errors import UNCONFIRMED
from tests.controller.users.harness import CONFIG, KEY, Controller, host_dn
from tests.waiting import wait_for

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


def cut_off(controller: Controller) -> None:
    """The entry of the host has another password, and SSSD's connection ends."""
    words = ("-Q", "-Y", "EXTERNAL", "-H", CONFIG["uri"], "-s", "another", host_dn("demo-controller"))
    controller.run("ldappasswd", *words)
    controller.ask("start_sssd")


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
    controller.ask("patience", seconds=60)
    controller.run("sed", "-i", 's/, "gone": "opc"//', "/etc/gpucluster/directory.json")
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
