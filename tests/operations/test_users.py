"""The operator's side of users: what is asked of the controller, how its answers are read, and the command line.

The controller is `directory_double.py`. What the real program does is tested in tests/ansible.
"""

from __future__ import annotations

import json
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpucluster.cli import cli
from gpucluster.cli.user_options import settings_of
from gpucluster.cluster import Cluster
from gpucluster.controller.users import desired, values
from gpucluster.errors import InputError, PartlyDone, ProcessError, ToolError, UnconfirmedError
from gpucluster.events import Event
from gpucluster.spec import load
from tests.spec.spec_texts import APART_FROM_THE_DEMO, KEY, LOCAL, public_key
from tests.workspace.known_hosts import save_controller

OTHER_KEY = public_key("ssh-ed25519", bytes(range(1, 33)), comment="carol@desk")
SECRET = "correct horse; $(rm -rf /) 'battery'"
NASTY = "x'; reboot #\x1b[2J\n\u202e"


class DirectoryCluster:
    """The double, and the cluster that it is the controller of."""

    def __init__(self, folder: Path, file: Path) -> None:
        self.folder, self.file = folder, file
        self.events: list[Event] = []
        self.cluster = Cluster(load(file), on_event=self.events.append)

    @property
    def calls(self) -> list[dict[str, Any]]:
        written = self.folder / "calls.jsonl"
        return [json.loads(line) for line in written.read_text().splitlines()] if written.exists() else []

    @property
    def asked(self) -> list[tuple[str, dict[str, Any]]]:
        requests = [json.loads(call["stdin"]) for call in self.calls]
        return [(request["operation"], request["arguments"]) for request in requests]

    def answers(self, stdout: str, stderr: str = "", status: int = 0) -> None:
        answer = {"stdout": stdout, "stderr": stderr, "status": status}
        (self.folder / "answer.json").write_text(json.dumps(answer))

    def run(self, *words: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(cli, [*words, "--file", str(self.file)], input=stdin)

    def json(self, *words: str, stdin: str | None = None) -> tuple[int, dict[str, Any]]:
        done = self.run(*words, "--output", "json", stdin=stdin)
        return done.exit_code, json.loads(done.stdout.splitlines()[-1])["data"]

    def warnings(self) -> list[str]:
        return [event.message for event in self.events if event.status == "warning"]


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryCluster:
    programs = tmp_path / "bin"
    programs.mkdir()
    source = (Path(__file__).parent / "directory_double.py").read_text()
    ssh = programs / "ssh"
    ssh.write_text(f"#!{sys.executable} -S\n{source}")
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    file = tmp_path / "cluster.yml"
    file.write_text(LOCAL)
    monkeypatch.setenv("GPUCLUSTER_HOME", str(tmp_path / "home"))
    save_controller(tmp_path, "controller")
    assert shutil.which("ssh") == str(ssh)
    return DirectoryCluster(programs, file)


# --- the library -----


def test_a_life_in_the_directory(controller: DirectoryCluster) -> None:
    users, groups = controller.cluster.users, controller.cluster.groups
    made = users.add("carol", full_name="Carol Example", ssh_keys=[KEY])
    assert made.changed
    assert made.user.ssh_keys == (KEY,)
    assert not made.user.privileged
    assert users.show("carol") == made.user
    assert users.edit("carol", add_groups=["privilege"]).user.privileged
    assert not users.edit("carol", add_groups=["privilege"]).changed
    assert [group.members for group in groups.list()] == [("carol",)]
    assert groups.add_member("lab", "carol").group.members == ("carol",)
    assert groups.remove_member("lab", "carol").group.members == ()
    off = users.disable("carol")
    assert (off.user.enabled, off.ended.jobs, off.unreachable, off.unconfirmed) == (False, 1, (), {})
    assert users.enable("carol").user.enabled
    gone = users.remove("carol", home="archive")
    assert gone.removed.entry
    assert gone.archive == "/mnt/home/.archive/carol.tar.gz"
    assert users.list() == ()
    assert controller.warnings() == []


def test_only_given_options_are_sent_and_nothing_is_on_the_command_line(controller: DirectoryCluster) -> None:
    controller.cluster.users.add("dave", password=SECRET)
    (call,) = controller.calls
    assert call["argv"][-3:] == ["controller", "--", "sudo -n /usr/local/bin/cluster request"]
    assert SECRET not in str(call["argv"])
    assert controller.asked == [("user.add", {"name": "dave", "password": SECRET})]


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(name=st.text(st.characters(exclude_categories=()), min_size=1) | st.just("a" * 10_000) | st.just(NASTY))
def test_a_hostile_name_is_data(controller: DirectoryCluster, name: str) -> None:
    before = len(controller.calls)
    with pytest.raises(InputError) as refused:
        controller.cluster.users.remove(name)
    call = controller.calls[before]
    assert json.loads(call["stdin"])["arguments"]["name"] == name
    assert call["stdin"].isascii()
    assert call["argv"][-1] == "sudo -n /usr/local/bin/cluster request"
    assert refused.value.what.isprintable()


@pytest.mark.parametrize(
    ("stdout", "stderr", "status", "kind", "says"),
    [
        ("", "sudo: /usr/local/bin/cluster: command not found", 1, ToolError, "gpucluster apply"),
        ("", "ssh: connect to host 10.0.0.2 port 22: Connection refused", 255, ProcessError, "can't be reached"),
        ("", "sudo: a password is required", 1, ProcessError, "a password is required"),
        ("", "", 137, ProcessError, "status 137"),
        ("[]", "", 0, ToolError, "another version"),
        ('{"result": {"users": [{"name": "x"}]}}', "", 0, ToolError, "another version"),
        ('{"error": "no"}', "", 1, ToolError, "another version"),
        ('{"error": {"message": "slapd is down"}}', "", 1, ToolError, "slapd is down"),
        ('{"error": {"message": "no\\u001b[2J\\nway", "hint": "a\\rb"}}', "", 2, InputError, r"no\x1b[2J\nway. a\rb"),
    ],
)
def test_a_bad_answer_is_an_error_with_a_way_on(
    controller: DirectoryCluster, stdout: str, stderr: str, status: int, kind: type[Exception], says: str
) -> None:
    controller.answers(stdout, stderr, status)
    with pytest.raises(kind) as raised:
        controller.cluster.users.list()
    assert type(raised.value) is kind
    assert says in str(raised.value)


def test_the_real_program_takes_what_is_sent(controller: DirectoryCluster) -> None:
    local = values.LocalAccounts(users={}, groups={}, logins=set(), shells={"/bin/sh"})
    every: dict[str, Any] = {"full_name": "C. Example", "groups": ["lab"], "ssh_keys": [KEY], "password": SECRET}
    every |= {"shell": "/bin/sh", "slurm_account": "research"}
    users = controller.cluster.users
    users.add("carol", uid=10500, gid=9876, **every)
    users.edit("carol", group="people", **every)
    users.edit("carol", add_groups=["a"], remove_groups=["b"], add_ssh_keys=[OTHER_KEY])
    for (operation, asked), allowed in zip(controller.asked, (desired.ADD, desired.EDIT, desired.EDIT), strict=True):
        user = desired.desired_user(asked, local, allowed)
        assert user.name == "carol", operation
        for key in asked.keys() - {"gid"}:
            assert json.loads(json.dumps(getattr(user, key))) == asked[key]
    with pytest.raises(Exception, match="can not be the name"):
        desired.desired_user({"name": NASTY}, local)


def test_a_generated_key_is_shown_and_replaced_where_its_private_half_is(controller: DirectoryCluster) -> None:
    there = public_key("ssh-ed25519", bytes(32), comment="bob@demo generated on build-3")
    controller.cluster.users.add("bob", ssh_keys=[there, KEY])
    shown = controller.run("user", "key", "bob")
    assert "generated on another machine (build-3): .gpucluster/ssh/bob_ed25519 there" in shown.stdout, shown.output
    assert "gpucluster user key bob --replace" in shown.stdout
    assert not controller.cluster.generated_keys.private_key("bob").exists()
    # What is refused changes nothing here.
    controller.answers('{"error": {"message": "the directory is full", "hint": ""}}', status=1)
    assert controller.run("user", "key", "bob", "--replace").exit_code == 1
    assert not controller.cluster.generated_keys.private_key("bob").exists()
    (controller.folder / "answer.json").unlink()
    status, said = controller.json("user", "key", "bob", "--replace")
    private = controller.cluster.generated_keys.private_key("bob")
    assert (status, said["replaced"], said["private"]) == (0, True, str(private))
    assert controller.cluster.users.show("bob").ssh_keys == (KEY, said["public"])
    assert "PRIVATE KEY" in private.read_text()
    assert said["public"] == private.with_name("bob_ed25519.pub").read_text().strip()
    local = values.LocalAccounts(users={}, groups={}, logins=set(), shells=set())
    *_, sent = [asked for _, asked in controller.asked if "replace_generated_key" in asked]
    assert desired.desired_user(sent, local, desired.EDIT).replace_generated_key == said["public"]
    assert f"logs in with the private key {private}" in controller.run("user", "key", "bob").stdout
    refused = controller.run("user", "key", "alice", "--replace")
    assert (refused.exit_code, "gpucluster user edit alice --ssh-key FILE" in refused.output) == (2, True)


def test_two_answers_to_one_question_are_refused_without_a_call(controller: DirectoryCluster) -> None:
    with pytest.raises(InputError, match="gid and group"):
        controller.cluster.users.add("dave", gid=9876, group="privilege")
    with pytest.raises(InputError, match="ssh_keys and add_ssh_keys"):
        controller.cluster.users.edit("dave", ssh_keys=[KEY], add_ssh_keys=[KEY])
    assert controller.calls == []


def test_a_change_of_a_user_in_the_file_is_warned_about(controller: DirectoryCluster) -> None:
    users = controller.cluster.users
    users.add("alice")
    assert controller.warnings() == []
    users.edit("alice", shell="/bin/sh")
    users.edit("alice", shell="/bin/sh")
    controller.cluster.groups.add_member("privilege", "alice")
    assert len(controller.warnings()) == 2
    users.edit("alice", password=SECRET)  # which the file can't hold
    assert len(controller.warnings()) == 2
    users.remove("alice")
    *others, last = controller.warnings()
    assert all("uses what is written there" in text for text in others)
    assert "alice is in" in last
    assert "adds them again" in last


def test_nothing_applied_and_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yml"
    file.write_text(APART_FROM_THE_DEMO)
    with pytest.raises(ToolError, match="gpucluster apply"):
        Cluster(load(file)).users.list()
    without = APART_FROM_THE_DEMO[: APART_FROM_THE_DEMO.index("slurm:")].replace(
        "- name: bob", "- name: bob\n      uid: 10002"
    )
    without = without.replace("    max_count: 4\n", "    count: 1\n") + "slurm: {enabled: false}\n"
    file.write_text(without)
    with pytest.raises(InputError, match=r"users\.people"):
        Cluster(load(file)).users.list()


# --- files of many users -----


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


# --- the command line -----


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
    ("words", "stdin", "says"),
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
    controller: DirectoryCluster, words: list[str], stdin: str | bytes | None, says: str
) -> None:
    done = controller.run("user", "add", "carol", *words, stdin=stdin)
    assert done.exit_code == 2
    assert says in done.stderr
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
