"""Who wants an entry in the directory without being a node that boots, or the entry of another one.

The network shows which address asks, and from which port. What the autoscaler's user writes, that user can change: it
may name nodes of elastic pools and no other host. Everything is real but the autoscaler, whose file is written here,
and Slurm's answers.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpucluster.controller import booting_nodes
from gpucluster.node_agent import passwords
from tests.controller.users.harness import CONFIG, KEY, SUFFIX, Controller, host_dn
from tests.waiting import wait_for

pytestmark = [pytest.mark.containers, pytest.mark.slow]
NODE, OTHER, ADDRESS, THERE = "gpu-e1", "gpu-e2", "10.0.1.9", "10.0.1.8"
PERMANENT = "10.0.0.2"
HOST_KEY = " ".join(KEY.split()[:2])
KNOWN = {"hosts": {PERMANENT: ["ctl"]}, "elastic": ["gpu-e[1-90]"], "domain": ""}
BUSY = "another change of the directory runs"
NO_NODE = "no directory entry: no node boots at this address now"


@pytest.fixture(scope="module")
def running() -> Iterator[Controller]:
    with Controller() as made:
        made.run("mkdir", "-p", "/etc/gpucluster/authority", str(booting_nodes.FILE.parent))
        made.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/etc/gpucluster/authority/ssh_ca")
        made.run("sh", "-c", "cat >/etc/gpucluster/host-names.json", given=json.dumps(KNOWN))
        made.request("user.add", name="bob")
        hosts = {"login_user_by_host": {"ctl": "opc", "gpu-e[1-90]": "opc"}, "key": CONFIG["hosts"]["key"]}
        config = json.dumps({**CONFIG, "hosts": hosts})
        made.run("sh", "-c", "cat >/etc/gpucluster/directory.json", given=config)
        yield made


@pytest.fixture
def controller(running: Controller) -> Controller:
    """No node has an entry, and one boots."""
    running.run("rm", "-f", CONFIG["hosts_file"])
    running.request("base_tree", hosts={"ctl": "i-0"})
    boots(running, {ADDRESS: (NODE, "ocid1.instance.a")})
    return running


def boots(controller: Controller, nodes: dict[str, tuple[str, str]]) -> None:
    """What the autoscaler reports."""
    write(controller, json.dumps({"nodes": {at: {"node": node, "instance": one} for at, (node, one) in nodes.items()}}))


def write(controller: Controller, text: str) -> None:
    controller.run("sh", "-c", f"rm -rf {booting_nodes.FILE} && cat >{booting_nodes.FILE}", given=text)


def hash_of(password: str) -> str:
    return passwords.crypted([password])[0]


def asked(controller: Controller, *lines: str, address: str = ADDRESS, port: int = 900, path: str = "") -> str:
    """What the service answers, as systemd starts it."""
    environment = [f"REMOTE_ADDR={address}", f"REMOTE_PORT={port}", *([f"PATH={path}"] if path else [])]
    given = "".join(f"{line}\n" for line in (HOST_KEY, *lines))
    argv = ("env", *environment, "gpucluster-agent", "host-certificate", "answer")
    return controller.run(*argv, given=given, check=False)[1]


def admitted(controller: Controller, password: str, **more: Any) -> str:
    """The second line of the answer."""
    said = asked(controller, f"directory {hash_of(password)}", **more)
    first, _, second = said.partition("\n")
    assert first.startswith("ssh-ed25519-cert-v01@openssh.com "), said
    return second.strip()


def accepted(controller: Controller, host: str, password: str) -> bool:
    status, _said = controller.bound(host, password, "ldapwhoami")
    assert status in (0, 49)
    return status == 0


def apply(controller: Controller) -> None:
    """What an apply asks of the controller."""
    controller.request("base_tree", hosts={"ctl": "i-0"})
    controller.request("converge", hosts={"permanent": ["ctl"]})


def age(controller: Controller) -> None:
    """The entries were made long ago."""
    store(controller, {name: {**entry, "made": 1_000_000} for name, entry in controller.entries().items()})


def store(controller: Controller, entries: dict[str, dict[str, Any]]) -> None:
    controller.run("sh", "-c", f"cat >{CONFIG['hosts_file']}", given=json.dumps({"hosts": entries}))


@contextmanager
def slurm(controller: Controller, *lines: str) -> Iterator[None]:
    """A double of sinfo: it prints what Slurm prints in the format `%N %t %o`."""
    text = "".join(f"echo '{line}'\n" for line in lines)
    controller.run("sh", "-c", "cat >/usr/local/bin/sinfo; chmod 755 /usr/local/bin/sinfo", given=f"#!/bin/sh\n{text}")
    try:
        yield
    finally:
        controller.run("rm", "/usr/local/bin/sinfo")


def test_a_node_that_boots_gets_an_entry_that_reads_and_has_a_password_of_its_own(controller: Controller) -> None:
    assert admitted(controller, "a word") == f"directory entry {NODE}"
    entry = controller.entries()[NODE]
    assert (entry["password"], entry["instance"]) == ("", "ocid1.instance.a")
    status, said = controller.bound(NODE, "a word", "ldapsearch", "-LLL", "-b", SUFFIX, "uid=bob", "uid")
    assert (status, "uid: bob" in said) == (0, True), said
    change = f"dn: {host_dn(NODE)}\nchangetype: modify\nreplace: userPassword\nuserPassword: mine\n"
    assert "Insufficient access" in controller.bound(NODE, "a word", "ldapmodify", given=change)[1]
    # The answer was lost, and it asks again; or it was started again, and has another password.
    assert admitted(controller, "a word") == f"directory entry {NODE}"
    assert admitted(controller, "another word") == f"directory entry {NODE}"
    assert accepted(controller, NODE, "another word")
    assert not accepted(controller, NODE, "a word")


def test_a_user_of_the_node_is_refused(controller: Controller) -> None:
    before = controller.content()
    said = asked(controller, f"directory {hash_of('mine')}", port=4711)
    assert said == f"port 4711 of {ADDRESS} may belong to any user\n"
    assert controller.content() == before
    assert NODE not in controller.entries()


@pytest.mark.parametrize("address", [PERMANENT, THERE, ""])
def test_who_does_not_boot_gets_no_entry(controller: Controller, address: str) -> None:
    before = controller.content()
    said = asked(controller, f"directory {hash_of('mine')}", address=address)
    expected = NO_NODE if address == PERMANENT else "no host of this cluster has the address"
    assert expected in said or "Slurm does not know" in said, said
    assert controller.content() == before


def test_a_node_in_service_changes_its_entry_no_more(controller: Controller) -> None:
    admitted(controller, "a word")
    boots(controller, {})
    said = asked(controller, f"directory {hash_of('mine')}")
    assert "directory entry" not in said.replace("no directory entry", ""), said
    assert accepted(controller, NODE, "a word")


@pytest.mark.parametrize(
    "line",
    [
        "directory {CRYPT}$6$rounds=999999999$salt$" + "x" * 86,
        "directory {CRYPT}$6$salt$" + "x" * 80,
        "directory {CRYPT}x",
        f"directory {'{CRYPT}$6$salt$' + 'x' * 86}\nuserPassword: mine",
        f"directory {'{CRYPT}$6$salt$' + 'x' * 86}\n\ndn: {host_dn('ctl')}\nchangetype: delete",
        f"directory {'{CRYPT}$6$salt$' + 'x' * 86} {OTHER}",
        f"name {OTHER}",
    ],
)
def test_what_is_not_a_hash_makes_no_entry(controller: Controller, line: str) -> None:
    before = controller.content()
    said = asked(controller, line)
    assert "not the hash of a password" in said or "not an ed25519 host key" in said, said
    assert controller.content() == before


def test_the_next_instance_with_a_name_ends_the_password_of_the_one_before(controller: Controller) -> None:
    admitted(controller, "of the first")
    boots(controller, {THERE: (NODE, "ocid1.instance.b")})
    assert admitted(controller, "of the second", address=THERE) == f"directory entry {NODE}"
    assert accepted(controller, NODE, "of the second")
    assert not accepted(controller, NODE, "of the first")
    # Root of the first one still runs, and asks.
    assert "directory entry gpu" not in asked(controller, f"directory {hash_of('mine')}")
    assert accepted(controller, NODE, "of the second")


@pytest.mark.parametrize("name", ["ctl", "gpu-1", "gpu-e91", "image-gpu", "gpu-e1,ou=people", "../ctl", "GPU-E1", ""])
def test_the_autoscaler_names_no_other_host_than_elastic_nodes(controller: Controller, name: str) -> None:
    boots(controller, {ADDRESS: (name, "ocid1.instance.a")})
    before = controller.content()
    said = asked(controller, f"directory {hash_of('mine')}")
    assert "cert-v01" not in said
    assert controller.content() == before


def test_nor_does_it_make_a_permanent_host_a_node(controller: Controller) -> None:
    boots(controller, {PERMANENT: (NODE, "ocid1.instance.a")})
    assert admitted(controller, "mine", address=PERMANENT) == NO_NODE
    assert NODE not in controller.entries()


@pytest.mark.parametrize(
    "make", ["mkfifo {}", "ln -s /etc/gpucluster/directory.json {}", "mkdir {}", "truncate -s 2G {}"]
)
def test_what_the_autoscaler_puts_there_is_no_way_to_another_file(controller: Controller, make: str) -> None:
    controller.run("sh", "-c", f"rm -rf {booting_nodes.FILE}; {make.format(booting_nodes.FILE)}")
    said = asked(controller, f"directory {hash_of('mine')}")
    assert "cert-v01" not in said
    assert SUFFIX not in said
    controller.run("rm", "-rf", str(booting_nodes.FILE))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"nodes": []}', '{"nodes": {"10.0.1.9": 1}}', "[" * 100_000])
def test_a_word_of_another_form_has_no_effect(controller: Controller, text: str) -> None:
    write(controller, text)
    assert "cert-v01" not in asked(controller, f"directory {hash_of('mine')}")


def test_killed_after_the_file_and_before_the_directory_it_is_made_at_the_next_request(controller: Controller) -> None:
    kill = "#!/bin/sh\nkill -9 $PPID\n"
    controller.run("sh", "-c", "mkdir -p /run/kills && cat >/run/kills/ldapmodify", given=kill)
    controller.run("chmod", "755", "/run/kills/ldapmodify")
    path = "/run/kills:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert asked(controller, f"directory {hash_of('a word')}", path=path) == ""
    assert NODE in controller.entries()
    assert not accepted(controller, NODE, "a word")
    assert admitted(controller, "another word") == f"directory entry {NODE}"
    assert accepted(controller, NODE, "another word")
    assert accepted(controller, "ctl", controller.entries()["ctl"]["password"])


def test_many_that_boot_at_once_all_get_theirs(controller: Controller) -> None:
    number = 12
    boots(controller, {f"10.0.2.{each}": (f"gpu-e{each}", f"ocid1.instance.{each}") for each in range(1, number + 1)})
    waiting = Counter([*range(1, number + 1), 1])

    def all_have_asked() -> bool:
        lines = [
            f"printf '%s\\n' {shlex.quote(HOST_KEY)} {shlex.quote(f'directory {hash_of(str(each))}')} | "
            f"REMOTE_ADDR=10.0.2.{each} REMOTE_PORT=900 gpucluster-agent host-certificate answer &"
            for each in waiting.elements()
        ]
        said = controller.run("sh", "-c", "\n".join([*lines, "wait"]))[1]
        waiting.subtract(int(each) for each in re.findall(r"^directory entry gpu-e(\d+)$", said, re.MULTILINE))
        # On a busy machine some wait for the others longer than an answer may take. A node asks again then.
        assert set(re.findall("^no directory entry: (.*)$", said, re.MULTILINE)) <= {BUSY}
        return not +waiting

    wait_for("each node has its entry", all_have_asked)
    assert not -waiting
    assert all(accepted(controller, f"gpu-e{each}", str(each)) for each in range(1, number + 1))


def test_a_restored_directory_gets_the_entries_of_the_file_again(controller: Controller) -> None:
    admitted(controller, "a word")
    manager = ("-Q", "-Y", "EXTERNAL", "-H", CONFIG["uri"])
    controller.run("ldapdelete", *manager, host_dn(NODE))
    assert not accepted(controller, NODE, "a word")
    controller.run("cluster", "request", given=json.dumps({"operation": "base_tree", "arguments": {"lock_held": True}}))
    assert accepted(controller, NODE, "a word")


def test_an_apply_leaves_the_entries_of_nodes_that_are_up(controller: Controller) -> None:
    admitted(controller, "a word")
    boots(controller, {})
    apply(controller)
    assert accepted(controller, NODE, "a word")
    # It is up for longer than a node needs to join, and Slurm has it.
    age(controller)
    with slurm(controller, f"{NODE} mix {ADDRESS}"):
        apply(controller)
        assert accepted(controller, NODE, "a word")


def test_the_entry_of_a_node_that_is_gone_ends_with_an_apply_and_when_another_boots(controller: Controller) -> None:
    for end in ("an apply", "another node"):
        boots(controller, {ADDRESS: (NODE, "ocid1.instance.a"), THERE: (OTHER, "ocid1.instance.b")})
        admitted(controller, "a word")
        age(controller)
        with slurm(controller, f"{NODE} idle~ {NODE}", f"{OTHER} alloc# {OTHER}"):
            if end == "an apply":
                apply(controller)
            else:
                assert admitted(controller, "of the other", address=THERE) == f"directory entry {OTHER}"
                assert accepted(controller, OTHER, "of the other")
        assert not accepted(controller, NODE, "a word"), end
        assert NODE not in controller.entries(), end


def test_without_slurm_s_word_no_node_is_gone(controller: Controller) -> None:
    admitted(controller, "a word")
    age(controller)
    apply(controller)
    assert accepted(controller, NODE, "a word")


def test_without_the_file_of_passwords_no_entry_goes(controller: Controller) -> None:
    password = controller.entries()["ctl"]["password"]
    controller.run("rm", CONFIG["hosts_file"])
    assert admitted(controller, "a word") == f"no directory entry: there is no {CONFIG['hosts_file']}"
    assert accepted(controller, "ctl", password)
    assert not accepted(controller, NODE, "a word")
