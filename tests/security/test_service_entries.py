"""Root of a host against the directory that all hosts read.

Every host has the password of the entry `cn=sssd`, and root there reads it. That entry reads what hosts need, and must
change nothing: with another password of its own no host could ask the directory any more, and would let users in from
its cache who have been disabled since.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.users.harness import KEY, SUFFIX, Controller

pytestmark = [pytest.mark.containers, pytest.mark.slow]
PASSWORD = "/etc/gpucluster/sssd.password"
ENTRY = f"cn=sssd,ou=services,{SUFFIX}"
BIND = ("-x", "-H", "ldapi://%2Frun%2Fslapd%2Fldapi", "-D", ENTRY, "-y", PASSWORD)
BOB = f"uid=bob,ou=people,{SUFFIX}"
#: What is changed: the entry, and how.
CHANGES = {
    "its password": (ENTRY, "modify\nreplace: userPassword\nuserPassword: mine"),
    "one more password": (ENTRY, "modify\nadd: userPassword\nuserPassword: mine"),
    "no password": (ENTRY, "modify\ndelete: userPassword"),
    "its description": (ENTRY, "modify\nadd: description\ndescription: mine"),
    "its name": (ENTRY, "modrdn\nnewrdn: cn=other\ndeleteoldrdn: 1"),
    "its end": (ENTRY, "delete"),
    "another service": (f"cn=mine,ou=services,{SUFFIX}", "add\nobjectClass: organizationalRole\ncn: mine"),
    "a user's password": (BOB, "modify\nreplace: userPassword\nuserPassword: mine"),
    "a user's keys": (BOB, f"modify\nadd: sshPublicKey\nsshPublicKey: {KEY}"),
    "a user's state": (BOB, "modify\ndelete: shadowExpire"),
}


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    with Controller() as running:
        running.request("base_tree")
        for name in ("bob", "carol"):
            running.request("user.add", name=name, password=f"the word of {name}")
        yield running


@pytest.mark.parametrize("change", CHANGES)
def test_the_entry_of_hosts_changes_nothing(controller: Controller, change: str) -> None:
    before = controller.content()
    entry, how = CHANGES[change]
    text = f"dn: {entry}\nchangetype: {how}\n"
    status, said, errors = controller.run("ldapmodify", *BIND, given=text, check=False)
    assert status != 0, said
    assert "Insufficient access" in errors, errors
    assert controller.content() == before


def test_nor_by_the_operation_for_passwords(controller: Controller) -> None:
    before = controller.content()
    status, said, errors = controller.run("ldappasswd", *BIND, "-s", "mine", check=False)
    assert (status != 0, "Insufficient access" in said + errors) == (True, True), (said, errors)
    assert controller.content() == before
    assert "bob" in controller.run("ldapsearch", *BIND, "-b", SUFFIX, "uid=bob")[1]


def test_a_user_changes_the_own_password_as_before(controller: Controller) -> None:
    bind = ("-x", "-H", "ldapi://%2Frun%2Fslapd%2Fldapi", "-D", f"uid=carol,ou=people,{SUFFIX}")
    controller.run("ldappasswd", *bind, "-w", "the word of carol", "-s", "another word")
    controller.run("ldapwhoami", *bind, "-w", "another word")
