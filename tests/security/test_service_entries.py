"""Root of a host against the directory that all hosts read.

Root of a host reads the password with which the host binds. Its entry reads what hosts need, and must change nothing,
not even itself. When the host is removed from the cluster, no client can bind with it any more.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.controller.users.harness import KEY, SUFFIX, Controller, host_dn

pytestmark = [pytest.mark.containers, pytest.mark.slow]
HOST, OTHER = "compute-1", "compute-2"
ENTRY = host_dn(HOST)
BOB = f"uid=bob,ou=people,{SUFFIX}"
#: What is changed: the entry, and how.
CHANGES = {
    "its password": (ENTRY, "modify\nreplace: userPassword\nuserPassword: mine"),
    "one more password": (ENTRY, "modify\nadd: userPassword\nuserPassword: mine"),
    "no password": (ENTRY, "modify\ndelete: userPassword"),
    "its description": (ENTRY, "modify\nadd: description\ndescription: mine"),
    "its policy": (ENTRY, "modify\ndelete: pwdPolicySubentry"),
    "its name": (ENTRY, "modrdn\nnewrdn: cn=other\ndeleteoldrdn: 1"),
    "its end": (ENTRY, "delete"),
    "another host's password": (host_dn(OTHER), "modify\nreplace: userPassword\nuserPassword: mine"),
    "another host": (host_dn("mine"), "add\nobjectClass: organizationalRole\ncn: mine"),
    "an entry below its own": (f"cn=mine,{ENTRY}", "add\nobjectClass: organizationalRole\ncn: mine"),
    "a user's password": (BOB, "modify\nreplace: userPassword\nuserPassword: mine"),
    "a user's keys": (BOB, f"modify\nadd: sshPublicKey\nsshPublicKey: {KEY}"),
    "a user's state": (BOB, "modify\ndelete: shadowExpire"),
}


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    with Controller() as running:
        running.request("base_tree", hosts={"ctl": "i-0", HOST: "i-1", OTHER: "i-2"})
        for name in ("bob", "carol"):
            running.request("user.add", name=name, password=f"the word of {name}")
        yield running


@pytest.mark.parametrize("change", CHANGES)
def test_the_entry_of_a_host_changes_nothing(controller: Controller, change: str) -> None:
    before = controller.content()
    entry, how = CHANGES[change]
    password = controller.entries()[HOST]["password"]
    status, said = controller.bound(HOST, password, "ldapmodify", given=f"dn: {entry}\nchangetype: {how}\n")
    assert status != 0, said
    assert "Insufficient access" in said, said
    assert controller.content() == before


def test_nor_by_the_operation_for_passwords(controller: Controller) -> None:
    before = controller.content()
    password = controller.entries()[HOST]["password"]
    status, said = controller.bound(HOST, password, "ldappasswd", "-s", "mine")
    assert (status != 0, "Insufficient access" in said) == (True, True), said
    assert controller.content() == before


def test_it_reads_what_hosts_need_and_no_password(controller: Controller) -> None:
    password = controller.entries()[HOST]["password"]
    status, said = controller.bound(HOST, password, "ldapsearch", "-LLL", "-b", SUFFIX, "(objectClass=*)", "*", "+")
    assert status == 0, said
    assert {"dn: " + BOB, f"dn: {host_dn(OTHER)}"} <= set(said.splitlines())
    assert "userPassword:" not in said


def test_wrong_passwords_lock_no_host(controller: Controller) -> None:
    for _ in range(8):
        assert controller.bound(HOST, "wrong", "ldapwhoami") == (49, "ldap_bind: Invalid credentials (49)\n")
    assert controller.bound(HOST, controller.entries()[HOST]["password"], "ldapwhoami")[0] == 0


def test_a_user_changes_the_own_password_as_before(controller: Controller) -> None:
    bind = ("-x", "-H", "ldapi://%2Frun%2Fslapd%2Fldapi", "-D", f"uid=carol,ou=people,{SUFFIX}")
    controller.run("ldappasswd", *bind, "-w", "the word of carol", "-s", "another word")
    controller.run("ldapwhoami", *bind, "-w", "another word")


def test_no_password_of_a_host_is_where_others_read_or_in_an_answer(controller: Controller) -> None:
    status, said = controller.answer("base_tree", hosts={"compute-9": "i-9"})
    assert (status, said) == (0, {"result": {"changed": True}})
    mode = controller.run("stat", "-c", "%a %U %n", "/var/lib/gpucluster-directory/hosts.json")[1]
    folder = controller.run("stat", "-c", "%a %U", "/var/lib/gpucluster-directory")[1]
    assert (mode.split()[:2], folder.split()) == (["600", "root"], ["700", "root"])
    for host, entry in controller.entries().items():
        assert entry["password"] not in controller.content(), host
        look = f"grep -rlsF -e '{entry['password']}' /etc /run /tmp /var /root --exclude-dir=gpucluster-directory"
        assert controller.run("sh", "-c", f"rm -f /run/test.password; {look} || true")[1] == "", host


def test_who_leaves_the_cluster_is_refused_and_others_are_not(controller: Controller) -> None:
    known = controller.entries()
    permanent = ["ctl", OTHER]
    controller.request("converge", hosts={"permanent": permanent})
    assert controller.bound(HOST, known[HOST]["password"], "ldapwhoami")[0] == 49
    assert controller.bound(OTHER, known[OTHER]["password"], "ldapsearch", "-b", SUFFIX, "uid=bob")[0] == 0
    assert set(controller.entries()) == set(permanent)
    # One with its name is another host.
    controller.request("base_tree", hosts={"ctl": "i-0", HOST: "i-3", OTHER: "i-2"})
    again = controller.entries()
    assert again[HOST]["password"] != known[HOST]["password"]
    assert again[OTHER] == known[OTHER]
    assert controller.bound(HOST, known[HOST]["password"], "ldapwhoami")[0] == 49
    assert controller.bound(HOST, again[HOST]["password"], "ldapwhoami")[0] == 0
