"""The commands of users: what they report, how they end, and what they take from standard input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpucluster.cli.user_options import settings_of
from gpucluster.errors import InputError, PartlyDone, UnconfirmedError
from tests.operations.directory_cluster import DirectoryCluster, directory_cluster
from tests.operations.test_users import NASTY, OTHER_KEY, SECRET
from tests.spec.spec_texts import KEY


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryCluster:
    return directory_cluster(tmp_path, monkeypatch)


def test_the_commands_report_what_they_did(controller: DirectoryCluster, tmp_path: Path) -> None:
    key = tmp_path / "carol.pub"
    key.write_text(KEY)
    words = ("user", "add", "carol", "--full-name", "Carol", "--groups", "privilege, lab", "--ssh-key", str(key))
    status, told = controller.json(*words, "--shell", "/bin/sh", "--group", "people")
    assert (status, told["user"]["groups"], told["changed"]) == (0, ["privilege", "lab"], True)
    assert controller.asked[-1][1] == {
        "name": "carol",
        "full_name": "Carol",
        "group": "people",
        "groups": ["privilege", "lab"],
        "ssh_keys": [KEY],
        "shell": "/bin/sh",
    }
    assert "can't log in. Next: gpucluster user edit dave --ssh-key" in controller.run("user", "add", "dave").stdout
    # A password opens no ssh server.
    erin = controller.run("user", "add", "erin", "--password-stdin", stdin=f"{SECRET}\n").stdout
    assert "can't log in. Next: gpucluster user edit erin --ssh-key" in erin
    listed = controller.run("user", "list").stdout
    assert "enabled, privileged" in listed
    assert "dave" in listed
    assert KEY in controller.run("user", "show", "carol").stdout
    assert controller.json("user", "show", "carol")[1]["user"]["name"] == "carol"
    assert controller.run("user", "edit", "carol", "--groups", "", "--gid", "9876").stdout == "carol changed\n"
    assert controller.asked[-1] == ("user.edit", {"name": "carol", "groups": [], "gid": 9876})
    off = controller.run("user", "disable", "carol").stdout
    assert "ended: jobs 1, processes 3" in off
    assert "! look with docker ps" in off
    assert "was enabled already" in controller.run("user", "enable", "dave").stdout
    assert "lab: members dave" in controller.run("group", "add-member", "lab", "dave").stdout
    assert "no change" in controller.run("group", "add-member", "lab", "dave").stdout
    assert "lab" in controller.run("group", "list").stdout
    assert "members -" in controller.run("group", "remove-member", "lab", "dave").stdout
    assert controller.json("group", "add", "team", "--gid", "20005")[1]["group"]["gid"] == 20005
    assert controller.run("group", "remove", "team").stdout == "team removed\n"
    assert "kept: /mnt/home/carol" in controller.run("user", "remove", "carol").stdout
    status, gone = controller.json("user", "remove", "dave", "--archive-home")
    assert (status, gone["archive"], gone["kept"]) == (0, "/mnt/home/.archive/dave.tar.gz", [])


def test_what_was_done_in_spite_of_an_error_is_told(controller: DirectoryCluster) -> None:
    removed = {"entry": True, "association": False, "keys": 2, "jobs": 1, "processes": 4}
    done = {"name": "carol", "removed": removed, "kept": ["/mnt/home/carol"], "archive": None, "unreachable": ["n-1"]}
    error = {"message": "carol is removed, but /mnt/home is not mounted", "hint": "See: cluster user show carol"}
    controller.answers(json.dumps({"error": error, "done": done}), status=1)
    with pytest.raises(PartlyDone) as partly:
        controller.cluster.users.remove("carol")
    assert partly.value.done.removed.processes == 4
    told = controller.run("user", "remove", "carol")
    assert told.exit_code == 1
    for words in ("is not mounted. See: gpucluster user show", "ssh keys 2, jobs 1, processes 4", "kept: ", "n-1"):
        assert words in told.stderr
    status, data = controller.json("user", "remove", "carol")
    assert (status, data["error"], data["done"]["unreachable"]) == (1, "PartlyDone", ["n-1"])


HALF = {"unreachable": ["n-1"], "unconfirmed": {"n-2": "SSSD still\x1b[2J lets carol in"}}


def test_a_change_that_not_every_host_confirms_ends_with_8(controller: DirectoryCluster) -> None:
    controller.run("user", "add", "alice")
    user = controller.json("user", "show", "alice")[1]["user"]
    error = {"message": "alice is disabled, but not every host confirms it", "hint": "Run the same command again"}
    removed = {"entry": True, "association": False, "keys": 2, "jobs": 1, "processes": 4}
    members = {"group": {"name": "lab", "gid": 20001, "members": []}, "changed": True}
    for words, done in (
        (("user", "disable", "alice"), {"user": user, "changed": True, "ended": {"jobs": 1, "processes": 2}}),
        (("user", "edit", "alice", "--groups", ""), {"user": user, "changed": True}),
        (("user", "remove", "alice"), {"name": "alice", "removed": removed}),
        (("group", "remove-member", "lab", "alice"), members),
        (("group", "remove", "lab"), {"name": "lab", "changed": True}),
    ):
        controller.answers(json.dumps({"error": error, "done": done | HALF}), status=8)
        told = controller.run(*words)
        assert told.exit_code == 8, words
        assert "not every host confirms it. Run the same command again" in told.stderr
        assert "! no answer from n-1: old groups, keys and processes may still be there" in told.stderr
        assert r"! not confirmed by n-2: SSSD still\x1b[2J lets carol in" in told.stderr
        status, data = controller.json(*words)
        assert (status, data["exit_code"], data["error"]) == (8, 8, "UnconfirmedError")
        assert {key: data["done"][key] for key in HALF} == HALF
    # There is a warning about the content of the file nevertheless.
    with pytest.raises(UnconfirmedError):
        controller.cluster.groups.remove("lab")
    controller.answers(json.dumps({"error": error, "done": {"name": "alice", "removed": removed} | HALF}), status=8)
    with pytest.raises(UnconfirmedError) as unconfirmed:
        controller.cluster.users.remove("alice")
    assert unconfirmed.value.done.unconfirmed == HALF["unconfirmed"]
    assert "adds them again" in controller.warnings()[0]


def test_a_user_who_exists_is_not_reported_as_added(controller: DirectoryCluster) -> None:
    controller.run("user", "add", "carol")
    user = controller.json("user", "show", "carol")[1]["user"]
    controller.answers(json.dumps({"result": {"user": user, "changed": False}}))
    assert controller.run("user", "add", "carol").stdout.startswith("carol exists already: uid ")


def test_an_import_with_failures_ends_with_1(controller: DirectoryCluster, tmp_path: Path) -> None:
    people = tmp_path / "people.csv"
    people.write_text("name\ncarol\nDave!\n")
    done = controller.run("user", "import", str(people))
    assert done.exit_code == 1
    assert "1 of 2 users failed" in done.stdout
    status, told = controller.json("user", "import", str(people))
    assert (status, told["status"], told["changed"]) == (1, "failed", False)
    assert told["users"][1] == {"name": "Dave!", "status": "failed", "message": "Dave! can't be a name"}
    assert (told["error"], told["what"], told["exit_code"]) == ("ToolError", "1 of 2 users failed", 1)
    people.write_text("name\ncarol\n")
    assert controller.run("user", "import", str(people)).exit_code == 0


def test_the_reason_of_a_failed_import_names_the_command_of_this_machine(
    controller: DirectoryCluster, tmp_path: Path
) -> None:
    reasons = ("To create it, run: cluster group add lab", "Run: sudo sacctmgr add account physics")
    failed = [{"name": "carol", "status": "failed", "message": reason} for reason in reasons]
    controller.answers(json.dumps({"result": {"users": failed, "changed": False}}))
    people = tmp_path / "people.csv"
    people.write_text("name\ncarol\n")
    told = controller.run("user", "import", str(people)).stdout
    assert "run: gpucluster group add lab" in told
    assert "Run: gpucluster ssh -- sudo sacctmgr add account physics" in told


def test_a_refusal_ends_with_2_and_prints_nothing_that_moves_a_cursor(controller: DirectoryCluster) -> None:
    done = controller.run("user", "show", NASTY)
    assert done.exit_code == 2
    assert r"\x1b[2J\n\u202e" in done.stderr
    assert done.stderr.count("\n") == 1
    status, told = controller.json("user", "remove", "nobody")
    assert (status, told["error"], told["hint"]) == (2, "InputError", "Look: gpucluster user list")


def test_a_strange_full_name_stays_in_its_cell(controller: DirectoryCluster) -> None:
    controller.run("user", "add", "carol", "--full-name", "C\x1b[31marol\nroot")
    assert r"C\x1b[31marol\nroot" in controller.run("user", "list").stdout
    assert "\x1b" not in controller.run("user", "show", "carol").stdout


@pytest.mark.parametrize(
    ("words", "stdin", "sent"),
    [
        (["--password-stdin"], f"{SECRET}\n", {"password": SECRET}),
        (["--password-stdin"], " \r\n", {"password": " "}),
        (["--ssh-key", "-"], f"# mine\n{KEY}\n{OTHER_KEY}\n", {"ssh_keys": [KEY, OTHER_KEY]}),
    ],
)
def test_standard_input_holds_a_password_or_keys(
    controller: DirectoryCluster, words: list[str], stdin: str, sent: dict[str, Any]
) -> None:
    assert controller.run("user", "add", "carol", *words, stdin=stdin).exit_code == 0
    assert controller.asked == [("user.add", {"name": "carol", **sent})]
    assert SECRET not in str(controller.calls[0]["argv"])


@pytest.mark.parametrize(
    ("words", "stdin", "reason"),
    [
        (["--password-stdin", "--ssh-key", "-"], KEY, "one thing only"),
        (["--ssh-key", "-", "--ssh-key", "-"], KEY, "one thing only"),
        (["--password-stdin"], "", "one line"),
        (["--password-stdin"], "one\ntwo\n", "one line"),
        (["--password-stdin"], b"\xff\xfe", "not UTF-8"),
        (["--password-stdin"], "x" * 70_000, "too large"),
        (["--ssh-key", "-"], "", "empty"),
        (["--ssh-key", "-"], "-----BEGIN OPENSSH PRIVATE KEY-----\n", "PRIVATE"),
        (["--ssh-key", "nowhere.pub"], None, "nowhere.pub"),
    ],
)
def test_what_can_not_be_taken_is_refused_before_any_request(
    controller: DirectoryCluster, words: list[str], stdin: str | bytes | None, reason: str
) -> None:
    done = controller.run("user", "add", "carol", *words, stdin=stdin)
    assert done.exit_code == 2
    assert reason in done.stderr
    assert controller.calls == []


def test_no_secret_is_shown_by_debug(controller: DirectoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_TOKEN", "in the environment")
    done = controller.run("user", "add", "carol", "--password-stdin", "--debug", stdin=f"{SECRET}\n")
    assert done.exit_code == 0
    assert controller.asked == [("user.add", {"name": "carol", "password": SECRET})]
    assert "run: ssh -F" in done.stderr
    assert "sudo -n /usr/local/bin/cluster request" in done.stderr
    for secret in (SECRET, "in the environment"):
        assert secret not in done.output


def test_an_edit_of_nothing_is_refused(controller: DirectoryCluster) -> None:
    done = controller.run("user", "edit", "carol")
    assert done.exit_code == 2
    assert "nothing to change" in done.stderr
    assert controller.calls == []


def test_without_questions_a_terminal_is_not_asked_for_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda: SECRET)
    assert settings_of(interactive=True, ssh_key=(), password_stdin=True) == {"password": SECRET}
    with pytest.raises(InputError, match="it is a terminal"):
        settings_of(interactive=False, ssh_key=(), password_stdin=True)
