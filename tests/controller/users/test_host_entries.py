"""The entries with which hosts bind: which ones exist, and that the directory has those of the controller's file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpucluster.controller.users import host_entries
from gpucluster.controller.users.config import Config
from gpucluster.controller.users.host_entries import JOINING_SECONDS, ClusterHosts, DesiredHost, HostEntry
from gpucluster.controller.users.hosts import lists
from gpucluster.node_agent.errors import Refused
from tests.controller.users.harness import CONFIG, SUFFIX, Controller, host_dn

NOW = 1_000_000
OLD = NOW - JOINING_SECONDS


def entry(name: str, made: int = OLD, instance: str = "i") -> HostEntry:
    return HostEntry(name, f"password of {name}", f"hash of {name}", made, instance)


def entries(*found: HostEntry) -> dict[str, HostEntry]:
    return {each.name: each for each in found}


def made(number: int) -> list[tuple[str, str]]:
    return [(f"new {each}", f"new hash {each}") for each in range(number)]


def cluster(permanent: tuple[str, ...] = (), existing: tuple[str, ...] | None = ()) -> ClusterHosts:
    return ClusterHosts(permanent, lambda name: lists("gpu-e[1-8]", name), existing)


def test_who_stays_keeps_the_password_and_who_is_made_again_does_not() -> None:
    known = entries(entry("a"), entry("b"), entry("c", instance=""), entry("d"))
    desired = [
        DesiredHost("a", "i"),
        DesiredHost("b", "other"),
        DesiredHost("c", "i"),
        DesiredHost("d"),
        DesiredHost("e", "i"),
    ]
    after = host_entries.put(known, desired, made, NOW)
    assert [after[name].password for name in "abcde"] == [
        "password of a", "new 0", "new 1", "password of d", "new 2",
    ]  # fmt: skip
    assert (after["b"].made, after["b"].instance) == (NOW, "other")
    assert host_entries.put(known, [DesiredHost("a", "i")], lambda _: pytest.fail("no password is made"), NOW) == known


def hashed(letter: str) -> str:
    return "{CRYPT}$6$salt$" + letter * 86


def test_a_node_of_an_image_has_an_entry_whose_password_only_the_node_knows() -> None:
    known = entries(entry("a"), entry("gpu-e1"))
    after = host_entries.put_hash(known, DesiredHost("gpu-e1", "new"), hashed("x"), NOW)
    assert after == known | {"gpu-e1": HostEntry("gpu-e1", "", hashed("x"), NOW, "new")}
    assert host_entries.parse(host_entries.text(after)) == after
    # Asked again, because the answer was lost; then by the next instance with that name.
    assert host_entries.put_hash(after, DesiredHost("gpu-e1", "new"), hashed("x"), NOW + 9) == after
    last = host_entries.put_hash(after, DesiredHost("gpu-e1", "newer"), hashed("x"), NOW + 9)
    assert (last["gpu-e1"].instance, last["gpu-e1"].made) == ("newer", NOW + 9)
    # Where the controller configures a host, it needs a password that it knows.
    assert host_entries.put(after, [DesiredHost("gpu-e1", "")], made, NOW)["gpu-e1"].password == "new 0"


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "word",
        "$6$salt$" + "x" * 86,
        "{CRYPT}$6$salt$" + "x" * 85,
        "{CRYPT}$6$salt$" + "x" * 86 + "\nuserPassword: other",
        # slapd would compute for minutes at each bind.
        "{CRYPT}$6$rounds=999999999$salt$" + "x" * 86,
        "{CLEARTEXT}" + "x" * 86,
        "{CRYPT}$1$salt$" + "x" * 86,
    ],
)
def test_what_is_no_hash_of_the_kind_that_hosts_make_is_refused(bad: str) -> None:
    with pytest.raises(Refused, match="not the hash of a password"):
        host_entries.put_hash({}, DesiredHost("gpu-e1", "i"), bad, NOW)


def test_an_entry_goes_with_its_host() -> None:
    known = entries(entry("a"), entry("b"), entry("gpu-e1"), entry("gpu-e2"), entry("gpu-e3", NOW - 5))
    assert set(host_entries.without_removed(known, cluster(("a",), ("gpu-e1",)), NOW)) == {"a", "gpu-e1", "gpu-e3"}
    # A join knows nothing of permanent hosts, and without the scheduler no elastic node is known to be gone.
    unknown = replace(cluster(), permanent=None, existing=None)
    assert host_entries.without_removed(known, unknown, NOW) == known
    # The pool is no more.
    assert set(host_entries.without_removed(known, ClusterHosts(("a",), lambda _: False, ()), NOW)) == {"a"}


def test_the_directory_is_made_like_the_file() -> None:
    config = Config.parse(CONFIG)
    present = {host_dn("a"): ("hash of a",), host_dn("b"): ("{CRYPT}another",), host_dn("gone"): ("x",)}
    records = host_entries.records(config, entries(entry("a"), entry("b"), entry("c")), present)
    assert [record.split("\n")[:2] for record in records] == [
        [f"dn: {host_dn('gone')}", "changetype: delete"],
        [f"dn: {host_dn('b')}", "changetype: modify"],
        [f"dn: {host_dn('c')}", "changetype: add"],
    ]
    assert all(f"cn=services,ou=policies,{SUFFIX}" in record for record in records[1:])


def test_another_password_is_accepted_beside_the_one_before() -> None:
    known = entries(entry("a"), entry("b"), HostEntry("gpu-e1", "", hashed("x"), OLD, "i"))
    after = host_entries.renew(known, ["a", "gpu-e1"], made, NOW)
    assert after["a"] == HostEntry("a", "new 0", "new hash 0", NOW, "i", "hash of a")
    # Of a node of an image the controller knew the hash alone.
    assert after["gpu-e1"] == HostEntry("gpu-e1", "new 1", "new hash 1", NOW, "i", hashed("x"))
    assert after["b"] == known["b"]
    assert host_entries.parse(host_entries.text(after)) == after
    # A host that is made again has no former one.
    assert host_entries.put(after, [DesiredHost("a", "other")], made, NOW)["a"].former == ""

    confirmed = host_entries.confirm(after, {"a": "new hash 0", "gpu-e1": "of another life", "gone": "x"})
    assert (confirmed["a"].former, confirmed["gpu-e1"].former) == ("", hashed("x"))
    assert "former" not in host_entries.text(entries(confirmed["a"], confirmed["b"]))
    assert host_entries.renew(known, [], lambda _: pytest.fail("no password is made"), NOW) == known


def changed(present: tuple[str, ...] | None, former: str = "former") -> list[list[str]]:
    """The lines about the password in each record that makes an entry of the directory like the file."""
    found = entries(replace(entry("a"), hash="next", former=former))
    records = host_entries.records(Config.parse(CONFIG), found, {} if present is None else {host_dn("a"): present})
    kept = ("changetype", "add", "replace", "delete", "userPassword")
    return [[line for line in record.splitlines() if line.startswith(kept)] for record in records]


def test_the_directory_gets_one_value_in_each_record() -> None:
    also = ["changetype: modify", "add: userPassword", "userPassword: {}"]

    def adds(value: str) -> list[str]:
        return [line.format(value) for line in also]

    assert changed(("former", "next")) == changed(("next", "former")) == changed(("next",), "") == []
    # The host binds with the former one, at every moment.
    assert changed(("former",)) == [adds("next")]
    assert changed(("former", "next"), "") == [
        ["changetype: modify", "replace: userPassword", "userPassword: next", "replace: pwdPolicySubentry"]
    ]
    # Of another time, or no entry at all, as a restore leaves it.
    assert changed(("x",))[0][1:3] == ["replace: userPassword", "userPassword: next"]
    assert changed(("x",))[1:] == changed(None)[1:] == [adds("former")]


def test_the_file_is_read_as_it_was_written() -> None:
    known = entries(entry("a"), entry("b"))
    assert host_entries.parse(host_entries.text(known)) == known


@pytest.mark.parametrize("name", ["", "a,ou=people", "a b", "a=b", "ü", "-a", "a\n", "a" * 253])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="is not a host"):
        host_entries.desired_hosts({name: ""})


# ---- with a real slapd


@pytest.fixture
def controller() -> Iterator[Controller]:
    with Controller() as started:
        yield started


@pytest.mark.containers
@pytest.mark.slow
def test_a_directory_gets_the_entries_of_the_controllers_file(controller: Controller) -> None:
    hosts = {"ctl": "i-0", "node-1": "i-1"}
    assert controller.request("base_tree", hosts=hosts)["changed"] is True
    assert controller.request("base_tree", hosts=hosts)["changed"] is False
    first = controller.entries()
    assert controller.bound("node-1", first["node-1"]["password"], "ldapwhoami")[0] == 0
    assert controller.request("converge", hosts={"permanent": list(hosts)})["changed"] is False
    assert controller.entries() == first

    # A directory of another time, as a restore leaves it: other passwords, and hosts that are gone.
    manager = ("-Q", "-Y", "EXTERNAL", "-H", CONFIG["uri"])
    controller.run("ldappasswd", *manager, "-s", "of-another-time", host_dn("node-1"))
    classes = "objectClass: organizationalRole\nobjectClass: simpleSecurityObject\nuserPassword: old\n"
    controller.run("ldapadd", *manager, given=f"dn: {host_dn('gone')}\n{classes}")
    controller.run("ldapdelete", *manager, host_dn("ctl"))
    assert controller.bound("gone", "old", "ldapwhoami")[0] == 0
    request = json.dumps({"operation": "base_tree", "arguments": {"lock_held": True}})
    controller.run("cluster", "request", given=request)
    for host in hosts:
        assert controller.bound(host, first[host]["password"], "ldapwhoami")[0] == 0, host
    assert controller.bound("node-1", "of-another-time", "ldapwhoami")[0] == 49
    assert controller.bound("gone", "old", "ldapwhoami")[0] == 49

    # Without the file no password is known: hosts keep theirs until the next apply.
    controller.run("rm", CONFIG["hosts_file"])
    controller.run("cluster", "request", given=request)
    assert controller.bound("node-1", first["node-1"]["password"], "ldapwhoami")[0] == 0
    controller.request("base_tree", hosts=hosts)
    assert controller.bound("node-1", first["node-1"]["password"], "ldapwhoami")[0] == 49
    assert controller.bound("node-1", controller.entries()["node-1"]["password"], "ldapwhoami")[0] == 0
    controller.run("sh", "-c", f"echo secret-word >{CONFIG['hosts_file']}")
    status, said = controller.answer("base_tree", hosts=hosts)
    assert status == 1
    assert "can't be read" in said["error"]["message"]
    assert "secret-word" not in json.dumps(said)
