"""Files of users: what an import reads, refuses and reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.errors import InputError
from tests.operations.directory_cluster import DirectoryCluster, directory_cluster
from tests.operations.test_users import OTHER_KEY
from tests.spec.spec_texts import KEY


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryCluster:
    return directory_cluster(tmp_path, monkeypatch)


def test_an_import_can_be_repeated_and_tells_of_each(controller: DirectoryCluster, tmp_path: Path) -> None:
    (tmp_path / "carol.pub").write_text(OTHER_KEY + "\n")
    people = tmp_path / "people.yml"
    people.write_text(
        "- {name: carol, uid: 10500, full_name: Carol Example, groups: [lab], ssh_key_files: [carol.pub]}\n"
        f"- name: alice\n  ssh_keys:\n    - {KEY}\n- name: Dave!\n"
    )
    first = controller.cluster.users.import_file(people)
    assert [(one.name, one.status) for one in first.users] == [
        ("carol", "added"),
        ("alice", "added"),
        ("Dave!", "failed"),
    ]
    assert first.changed
    assert [one.name for one in first.failed] == ["Dave!"]
    assert controller.cluster.users.show("carol").ssh_keys == (OTHER_KEY,)
    again = controller.cluster.users.import_file(people)
    assert [one.status for one in again.users] == ["unchanged", "unchanged", "failed"]
    assert not again.changed
    assert controller.warnings() == []
    people.write_text("users:\n  - {name: alice, shell: /bin/sh}\n")
    assert [one.status for one in controller.cluster.users.import_file(people).users] == ["changed"]
    assert "alice is in" in controller.warnings()[0]


def test_csv_means_the_same_as_yaml(controller: DirectoryCluster, tmp_path: Path) -> None:
    (tmp_path / "carol.pub").write_text(OTHER_KEY + "\n")
    sheet = tmp_path / "people.csv"
    sheet.write_bytes(
        b"\xef\xbb\xbfname,full_name,uid,groups,ssh_keys,ssh_key_files\r\n"
        + f'carol,"Example, Carol",10500,lab; privilege,{KEY},carol.pub\r\n\r\ndave,\u0646\u200c\u0645,,,,\r\n'.encode()
    )
    controller.cluster.users.import_file(sheet)
    assert controller.asked == [
        (
            "user.import",
            {
                "users": [
                    {
                        "name": "carol",
                        "full_name": "Example, Carol",
                        "uid": 10500,
                        "groups": ["lab", "privilege"],
                        "ssh_keys": [KEY, OTHER_KEY],
                    },
                    {"name": "dave", "full_name": "\u0646\u200c\u0645"},
                ]
            },
        )
    ]


FAULTS = {
    "yaml": (
        "people.yml",
        "users:\n"
        "  - name: carol\n    uid: '7'\n    colour: red\n"
        "  - full_name: Nobody\n"
        "  - {name: carol, gid: 1, group: lab, password: x}\n"
        "  - {name: dave, groups: lab, ssh_keys: [ssh-rsa AAAA], ssh_key_files: [nowhere.pub]}\n"
        "  - just words\n"
        "more: 1\n",
        [
            (3, "must be a whole number"), (4, "unknown key"), (5, "has no name"), (6, "occurs twice, first in line 2"),
            (6, "gid and group"), (6, "must not be in a file"), (7, "must be a list"), (7, "the key is damaged"),
            (7, "nowhere.pub"), (8, "must hold keys with values"), (9, "unknown key"),
        ],
    ),
    "csv": (
        "people.csv",
        "name,uid,colour,password\ncarol,x1,,\n,5,,\ncarol,,red,hunter2\ndave,1,2,3,4,5\nev\x1b[2Je,,,\n",
        [
            (2, "must be a whole number"), (3, "has no name"), (4, "occurs twice, first in line 2"), (4, "unknown key"),
            (4, "must not be in a file"), (5, "has 6 cells"), (5, "unknown key"), (5, "must not be in a file"),
            (6, "can't be seen"), (6, "has no name"),
        ],
    ),
    "csv without columns": ("people.csv", "carol,10500\ndave,10501\n", [(1, "must name the columns")]),
    "csv with a quote": ("people.csv", 'name\ncarol\n"dave\n', [(3, "not CSV")]),
    "latin": ("people.csv", "name\nren\udce9e\n", [(2, "not UTF-8")]),
    "empty": ("people.yml", "", [(1, "there are no users")]),
    "empty list": ("people.yml", "users: []\n", [(1, "there are no users")]),
    "no list": ("people.yml", "users: {carol: 1}\n", [(1, "there are no users")]),
    "not yaml": ("people.yml", "- name: [carol\n", [(2, "list that is never closed")]),
    "only columns": ("people.csv", "name,uid\n", [(1, "there are no users")]),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS.values(), ids=FAULTS.keys())
def test_every_fault_of_a_file_is_told_at_once_and_nothing_is_asked(
    controller: DirectoryCluster, tmp_path: Path, case: tuple[str, str, list[tuple[int, str]]]
) -> None:
    name, text, expected = case
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError) as refused:
        controller.cluster.users.import_file(tmp_path / name)
    told = [(one.line, one.message) for one in refused.value.findings]
    assert all("\x1b" not in message for _, message in told)
    assert len(told) == len(expected), told
    for line, words in expected:
        assert any(line == at and words in message for at, message in told), (line, words, told)
    assert controller.calls == []


def test_a_file_that_can_not_be_read(controller: DirectoryCluster, tmp_path: Path) -> None:
    for name in ("nowhere.csv", "bin", "a\0b"):
        with pytest.raises(InputError, match="can't be read"):
            controller.cluster.users.import_file(tmp_path / name)
    (tmp_path / "big.yml").write_text("#" * 300_000)
    with pytest.raises(InputError, match="too large"):
        controller.cluster.users.import_file(tmp_path / "big.yml")
