"""roles/ldap/files/gpucluster-directory: what it plans for what it finds, and what it does to a home directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.loading import load

directory = load("roles/ldap/files/gpucluster-directory")

SUFFIX = "dc=demo,dc=local"
KEY = "ssh-ed25519 AAAA alice@laptop"


class Server:
    """A directory server that understands what the program says."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, list[str]]] = {}
        self.applied = 0

    def search(self, base: str, _scope: str, *_attributes: str) -> list[dict[str, list[str]]]:
        return [entry for dn, entry in self.entries.items() if dn.endswith(base)]

    def apply(self, changes: list[str]) -> None:
        for text in changes:
            self.applied += 1
            (record,) = directory.parse_ldif(text)
            (dn,), (kind,) = record.pop("dn"), record.pop("changetype", ["modify"])
            if kind == "delete":
                del self.entries[dn]
            elif kind == "add":
                assert dn not in self.entries
                self.entries[dn] = {"dn": [dn], **record}
            else:
                del record["replace"]
                self.entries[dn].update(record)

    def uid(self, name: str) -> int:
        return int(self.entries[f"uid={name},ou=people,{SUFFIX}"]["uidnumber"][0])


@pytest.fixture
def config(tmp_path: Path) -> Any:
    return directory.Config("ldapi:///", SUFFIX, "privilege", 9876, 10001, tmp_path, "/bin/bash")


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture(autouse=True)
def share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Homes are only noted; the temporary directory counts as mounted."""
    homes: dict[str, Any] = {}

    def make_home(person: Any, keys: list[str]) -> bool:
        changed = homes.get(person.name) != (person.uid, keys)
        homes[person.name] = (person.uid, keys)
        return changed

    monkeypatch.setattr(directory, "make_home", make_home)
    monkeypatch.setattr(directory, "home_owners", lambda _base: {name: uid for name, (uid, _keys) in homes.items()})
    monkeypatch.setattr(Path, "is_mount", lambda self: self == tmp_path)
    return homes


def person(name: str, uid: int | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "full_name": name.title(), "uid": uid, "ssh_keys": [KEY]} | more


def people(*names: str) -> dict[str, Any]:
    return {"people": [person(name) for name in names]}


def test_people_get_the_next_uids_and_nothing_happens_twice(config: Any, server: Server) -> None:
    found = directory.converge(config, server, people("alice", "bob"))
    assert found["changed"] is True
    assert [(user["name"], user["uid"], user["gid"]) for user in found["users"]] == [
        ("alice", 10001, 9876),
        ("bob", 10002, 9876),
    ]
    applied = server.applied
    again = directory.converge(config, server, people("alice", "bob"))
    assert again["changed"] is False
    assert server.applied == applied


def test_the_frame_is_made_before_the_people(config: Any, server: Server) -> None:
    directory.converge(config, server, people("alice"))
    assert list(server.entries) == [
        SUFFIX,
        f"ou=people,{SUFFIX}",
        f"ou=groups,{SUFFIX}",
        f"cn=next-uid,{SUFFIX}",
        f"cn=privilege,ou=groups,{SUFFIX}",
        f"uid=alice,ou=people,{SUFFIX}",
    ]


def test_people_who_are_not_mentioned_stay(config: Any, server: Server) -> None:
    directory.converge(config, server, people("alice", "bob"))
    found = directory.converge(config, server, people("bob"))
    assert found["changed"] is False
    assert [user["name"] for user in found["users"]] == ["alice", "bob"]


def test_a_removed_person_s_uid_is_not_given_again(config: Any, server: Server, share: dict[str, Any]) -> None:
    directory.converge(config, server, people("alice", "bob"))
    assert directory.converge(config, server, {"absent": ["bob", "nobody-knows"]})["removed"] == ["bob"]
    del share["bob"]  # and even their home is gone
    directory.converge(config, server, people("carol"))
    assert server.uid("carol") == 10003


def test_a_person_who_comes_back_has_the_uid_of_their_home(config: Any, server: Server) -> None:
    directory.converge(config, server, people("alice", "bob"))
    directory.converge(config, server, {"absent": ["alice"]})
    directory.converge(config, server, people("carol", "alice"))
    assert (server.uid("alice"), server.uid("carol")) == (10001, 10003)


def test_a_rebuilt_controller_gives_everybody_their_own_files(config: Any, server: Server) -> None:
    directory.converge(config, server, people("alice", "bob"))
    empty = Server()
    directory.converge(config, empty, people("zoe", "bob", "alice"))
    assert (empty.uid("alice"), empty.uid("bob"), empty.uid("zoe")) == (10001, 10002, 10003)


def test_a_wished_uid_is_given_and_does_not_move_the_counter(config: Any, server: Server) -> None:
    directory.converge(config, server, {"people": [person("alice"), person("erin", 10001), person("hugo", 20000)]})
    assert (server.uid("erin"), server.uid("hugo"), server.uid("alice")) == (10001, 20000, 10002)


def test_names_of_any_script_survive(config: Any, server: Server) -> None:
    wish = {"people": [person("alice", full_name="Алиса Müller")]}
    directory.converge(config, server, wish)
    assert directory.converge(config, server, wish)["users"][0]["full_name"] == "Алиса Müller"


def test_a_changed_name_is_changed_and_the_uid_is_not(config: Any, server: Server) -> None:
    directory.converge(config, server, people("alice"))
    found = directory.converge(config, server, {"people": [person("alice", full_name="Alice Cooper")]})
    assert found["users"][0] | {"changed": True} == found["users"][0]
    assert server.entries[f"uid=alice,ou=people,{SUFFIX}"]["sn"] == ["Cooper"]
    assert server.uid("alice") == 10001


@pytest.mark.parametrize(
    ("wish", "word"),
    [
        ({"people": [person("alice", 10009)]}, "has uid 10001"),
        ({"people": [person("dora", 10001)]}, "belongs to alice"),
        ({"people": [person("dora", 12)]}, "begin at 1000"),
        ({"people": [person("root")]}, "account of this host"),
        ({"people": [person("Dora")]}, "can not be a user name"),
        ({"people": [person("dora"), person("dora")]}, "mentioned twice"),
        ({"people": [person("dora")], "absent": ["dora"]}, "mentioned twice"),
        ({"people": [person("dora", ssh_keys=["a\nb"])]}, "one line"),
        ({"persons": []}, "standard input"),
    ],
)
def test_wishes_that_can_not_be_fulfilled_change_nothing(
    config: Any, server: Server, wish: dict[str, Any], word: str
) -> None:
    directory.converge(config, server, people("alice"))
    applied = server.applied
    with pytest.raises(directory.WishError, match=word):
        directory.converge(config, server, wish)
    assert server.applied == applied


def test_a_group_does_not_change_its_gid(config: Any, server: Server) -> None:
    directory.converge(config, server, people("alice"))
    other = directory.Config("ldapi:///", SUFFIX, "privilege", 9999, 10001, config.home_base, "/bin/bash")
    with pytest.raises(directory.WishError, match="has gid 9876"):
        directory.converge(other, server, people("alice"))


def test_without_the_share_no_home_is_made(config: Any, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_mount", lambda _self: False)
    with pytest.raises(SystemExit):
        directory.converge(config, server, people("alice"))
    assert server.applied == 0


@pytest.mark.parametrize("value", ["plain", " leading", "trailing ", ":colon", "<less", "Müller", "two\nlines", ""])
def test_ldif_carries_any_value(value: str) -> None:
    text = directory.ldif_entry("cn=x", [("description", value)])
    assert directory.parse_ldif(text) == [{"dn": ["cn=x"], "description": [value]}]


@pytest.mark.parametrize(
    ("before", "keys", "after"),
    [
        ("", [KEY], "B\nKEY\nE\n"),
        ("own\n", [KEY], "B\nKEY\nE\nown\n"),
        ("own", [KEY], "B\nKEY\nE\nown\n"),
        ("first\nB\nold\nE\nown\n", [KEY], "first\nB\nKEY\nE\nown\n"),
        ("B\nold\nE\nown\n", [], "own\n"),
        ("own\n", [], "own\n"),
    ],
)
def test_own_keys_survive(before: str, keys: list[str], after: str) -> None:
    def spell(text: str) -> str:
        words = {"B": directory.KEYS_BEGIN, "E": directory.KEYS_END, "KEY": KEY}
        return "".join(f"{words.get(line, line)}\n" for line in text.splitlines()) if text.endswith("\n") else text

    assert directory.with_keys(spell(before), keys) == spell(after)


def test_a_new_home_is_furnished_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skeleton, home = tmp_path / "skel", tmp_path / "alice"
    skeleton.mkdir()
    (skeleton / ".bashrc").write_text("alias\n")
    monkeypatch.setattr(directory, "SKELETON", skeleton)
    home.mkdir()
    assert directory.furnish(home, [KEY]) is True
    assert (home / ".bashrc").read_text() == "alias\n"
    modes = [path.stat().st_mode & 0o777 for path in (home, home / ".ssh", home / ".ssh" / "authorized_keys")]
    assert modes == [0o700, 0o700, 0o600]
    assert directory.furnish(home, [KEY]) is False
    (home / ".bashrc").unlink()
    assert directory.furnish(home, [KEY]) is False, "what a person has removed does not come back"


def test_what_is_done_in_a_home_is_done_as_its_owner(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    who = directory.Person("alice", 4_000_001, 4_000_001, "Alice", str(tmp_path), "/bin/bash")
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents:
        if str(parent).startswith("/tmp/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    file = tmp_path / "mine"

    def work() -> bool:
        file.write_text("x")
        return True

    assert directory.as_person(who, work) is True
    assert file.stat().st_uid == 4_000_001
    # A link to what is not theirs does not become writable by being in their home.
    target = tmp_path.parent / f"{tmp_path.name}-root"
    target.write_text("root's")
    target.chmod(0o600)
    (tmp_path / "link").symlink_to(target)

    def trespass() -> bool:
        (tmp_path / "link").write_text("mine now")
        return True

    with pytest.raises(directory.WishError, match="Permission denied"):
        directory.as_person(who, trespass)
    assert target.read_text() == "root's"
