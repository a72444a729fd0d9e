"""The operator's side of users: what is asked of the controller, how its answers are read, and the command line.

The controller is `directory_double.py`. What the real program does is tested in tests/ansible.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpucluster.cluster import Cluster
from gpucluster.controller.users import desired, values
from gpucluster.errors import InputError, ProcessError, ToolError
from gpucluster.spec import load
from tests.operations.directory_cluster import DirectoryCluster, directory_cluster
from tests.spec.spec_texts import APART_FROM_THE_DEMO, KEY, public_key

OTHER_KEY = public_key("ssh-ed25519", bytes(range(1, 33)), comment="carol@desk")
SECRET = "correct horse; $(rm -rf /) 'battery'"
NASTY = "x'; reboot #\x1b[2J\n\u202e"


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryCluster:
    return directory_cluster(tmp_path, monkeypatch)


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
