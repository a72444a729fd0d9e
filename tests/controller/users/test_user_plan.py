"""The users program: which names are allowed, and what is planned for which state. Nothing here touches the system."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.controller.users import config, desired, hosts, ldif, on_host, slurm, values
from gpucluster.controller.users import plan as plans
from gpucluster.controller.users import state as states
from gpucluster.node_agent import errors, programs
from tests.controller.users.harness import CONFIG, ED25519, KEY, SUFFIX

LOCAL = values.LocalAccounts(
    users={"root": 0, "carl": 10004},
    groups={"root": 0, "staff2": 10001},
    logins={"opc2"},
    shells={"/bin/bash", "/bin/zsh"},
)
CLUSTER = config.Config.parse(CONFIG)


class Directory:
    """What is there, from request to request; records are read back as the server would give them."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, list[str]]] = {}
        self.homes: dict[str, int] = {}

    @property
    def state(self) -> Any:
        return states.DirectoryState.read(CLUSTER, self.entries.values())

    def plan(self, **more: Any) -> Any:
        return plans.Plan(CLUSTER, self.state, LOCAL, self.homes, **more)

    def apply(self, plan: Any) -> list[str]:
        for record in plan.records:
            self._apply(record)
        return list(plan.records)

    def _apply(self, record: str) -> None:
        (entry,) = ldif.parse(record.replace("\n-\n", "\n"))
        (dn,), (kind,) = entry.pop("dn"), entry.pop("changetype")
        if kind == "delete":
            del self.entries[dn]
        elif kind == "add":
            assert dn not in self.entries
            assert dn == SUFFIX or dn.split(",", 1)[1] in self.entries
            self.entries[dn] = {"dn": [dn], **entry}
        else:
            for verb in ("add", "delete", "replace"):
                for key in map(str.lower, entry.pop(verb, [])):
                    now = self.entries[dn].pop(key, [])
                    values = entry.get(key, [])
                    kept = {"add": now + values, "delete": [v for v in now if v not in values], "replace": values}[verb]
                    if kept:
                        self.entries[dn][key] = kept

    def want(self, name: str, **more: Any) -> bool:
        plan = self.plan()
        changed = plan.put_user(desired.desired_user({"name": name, **more}, LOCAL, desired.ADD | desired.EDIT))
        self.apply(plan)
        self.homes.setdefault(name, plan.state.users[name].uid)
        return bool(changed)

    def remove(self, name: str) -> None:
        plan = self.plan()
        plan.remove(name)
        self.apply(plan)

    def group(self, name: str, gid: int | None = None) -> int:
        plan = self.plan()
        plan.add_group(name, gid)
        self.apply(plan)
        return int(plan.state.groups[name].gid)

    def uid(self, name: str) -> int:
        return int(self.state.users[name].uid)


@pytest.fixture
def there() -> Directory:
    return Directory()


def test_users_get_the_next_uids_and_nothing_happens_twice(there: Directory) -> None:
    assert there.want("alice", full_name="Алиса Müller", ssh_keys=[KEY])
    assert there.want("bob")
    assert (there.uid("alice"), there.uid("bob")) == (10001, 10002)
    before = there.entries.copy()
    assert not there.want("alice", full_name="Алиса Müller", ssh_keys=[KEY])
    assert there.apply(there.plan()) == []
    assert there.entries == before


def test_who_asks_for_nothing_is_not_privileged(there: Directory) -> None:
    there.want("alice")
    there.want("bob", groups=["privilege"])
    there.want("eve", gid=9876)
    state = there.state
    seen = {name: states.described(state, CLUSTER, state.users[name], {}) for name in state.users}
    assert {name: user["privileged"] for name, user in seen.items()} == {"alice": False, "bob": True, "eve": True}
    assert (seen["bob"]["gid"], seen["bob"]["groups"], seen["eve"]["group"]) == (9999, ["privilege"], "privilege")


def test_a_removed_user_s_uid_is_never_another_user_s(there: Directory) -> None:
    there.want("alice")
    there.want("bob")
    there.remove("bob")
    there.homes.clear()
    there.want("erin")
    assert there.uid("erin") == 10003
    with pytest.raises(errors.Refused, match="belongs to bob"):
        there.want("mallory", uid=10002)
    there.want("bob")
    assert there.uid("bob") == 10002
    there.remove("bob")
    assert there.state.retired_users == {"bob": 10002}


def test_a_rebuilt_controller_gives_all_users_their_own_files(there: Directory) -> None:
    there.want("alice")
    there.want("bob")
    fresh = Directory()
    fresh.homes = dict(there.homes)
    for name in ("zoe", "bob", "alice"):
        fresh.want(name)
    assert (fresh.uid("alice"), fresh.uid("bob"), fresh.uid("zoe")) == (10001, 10002, 10003)


def test_uids_that_are_asked_for_or_local_are_passed_over(there: Directory) -> None:
    there.want("erin", uid=10001)
    there.want("hugo", uid=20000)
    plan = there.plan(reserved_uids=frozenset({10003}))
    plan.put_user(desired.desired_user({"name": "alice"}, LOCAL))
    plan.put_user(desired.desired_user({"name": "bob"}, LOCAL))
    assert [plan.state.users[name].uid for name in ("alice", "bob")] == [10002, 10005]


def test_an_entry_of_an_older_version_is_completed(there: Directory) -> None:
    there.want("alice")
    entry = there.entries[f"uid=alice,ou=people,{SUFFIX}"]
    entry["objectclass"] = ["inetOrgPerson", "posixAccount"]
    there.want("alice", ssh_keys=[KEY])
    assert set(entry["objectclass"]) == set(states.CLASSES)
    assert entry["sshpublickey"] == [KEY]


def test_disabled_means_that_no_key_opens_and_nothing_is_forgotten(there: Directory) -> None:
    there.want("alice", ssh_keys=[KEY])
    plan = there.plan()
    assert plan.enable("alice", enabled=False)
    there.apply(plan)
    entry = there.entries[f"uid=alice,ou=people,{SUFFIX}"]
    assert entry["shadowexpire"] == ["1"]
    assert all(value.startswith("#") for value in entry["sshpublickey"])
    assert not there.want("alice", ssh_keys=[KEY]), "a description does not let somebody in again"
    assert there.state.users["alice"].ssh_keys == (KEY,)
    plan = there.plan()
    plan.enable("alice", enabled=True)
    there.apply(plan)
    assert entry["sshpublickey"] == [KEY]
    assert "shadowexpire" not in entry


def test_groups(there: Directory) -> None:
    assert [there.group("red"), there.group("blue", 5000), there.group("green")] == [10002, 5000, 10003]
    there.want("alice", groups=["red", "blue"])
    there.want("alice", remove_groups=["red"], add_groups=["green"])
    assert there.state.groups_of("alice") == ["blue", "green"]
    there.want("alice", group="blue")
    assert there.state.groups_of("alice") == ["green"], "the primary group is not a second one"
    for name, word in (
        ("blue", "primary group of alice"),
        ("people", "belongs to the cluster"),
        ("privilege", "belongs"),
    ):
        with pytest.raises(errors.Refused, match=word):
            there.plan().remove_group(name)
    plan = there.plan()
    plan.remove_group("red")
    there.apply(plan)
    with pytest.raises(errors.Refused, match="belongs to group red"):
        there.group("other", 10002)
    assert there.group("other") == 10004
    assert there.group("red") == 10002
    there.remove("alice")
    assert there.state.members_of(there.state.groups["green"]) == []


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"name": "alice", "uid": 10009}, "has uid 10001"),
        ({"name": "dora", "uid": 10001}, "belongs to alice"),
        ({"name": "dora", "uid": 12}, "out of range"),
        ({"name": "dora", "uid": 65534}, "out of range"),
        ({"name": "dora", "uid": 65535}, "out of range"),
        ({"name": "dora", "uid": 61184}, "out of range"),
        ({"name": "dora", "uid": 2**31}, "out of range"),
        ({"name": "dora", "uid": 600_178_688}, "out of range"),
        ({"name": "dora", "uid": 1_879_048_191}, "out of range"),
        ({"name": "dora", "uid": 9000}, "below the first one"),
        ({"name": "dora", "uid": 10**400}, "out of range"),
        ({"name": "dora", "uid": True}, "is not a uid"),
        ({"name": "dora", "uid": "10005"}, "is not a uid"),
        ({"name": "dora", "uid": 10004}, "account of this host"),
        ({"name": "dora", "gid": 4711}, "no group has gid 4711"),
        ({"name": "dora", "gid": 9876, "group": "people"}, "both given"),
        ({"name": "dora", "groups": ["nope"]}, "no group nope"),
        ({"name": "dora", "groups": "people"}, "list of names"),
        ({"name": "dora", "shell": "/bin/rm"}, "not a login shell"),
        ({"name": "dora", "shell": "/bin/bash\n"}, "not a login shell"),
        ({"name": "dora", "password": ""}, "empty"),
        ({"name": "dora", "password": "a\nb"}, "can't be typed"),
        ({"name": "dora", "password": "x" * 201}, "too long"),
        ({"name": "dora", "ssh_keys": ["a\nb"]}, "one line"),
        ({"name": "dora", "ssh_keys": [f'command="id" {KEY}']}, "preceded by options"),
        ({"name": "dora", "ssh_keys": [f"ssh-rsa {ED25519}"]}, "damaged"),
        ({"name": "dora", "ssh_keys": ["-----BEGIN OPENSSH PRIVATE KEY-----"]}, "PRIVATE"),
        ({"name": "dora", "slurm_account": "a b"}, "account of Slurm"),
        ({"name": "dora", "full_name": "a:b"}, "can't be a full name"),
        ({"name": "dora", "full_name": "a\nb"}, "can't be a full name"),
        ({"name": "dora", "full_name": "\u202eevil"}, "can't be a full name"),
        ({"name": "dora", "full_name": "x" * 101}, "101 characters"),
        ({"name": "dora", "full_name": " "}, "not a full name"),
        ({"name": "dora", "home": "/"}, "no argument"),
        ({"full_name": "Dora"}, "name is missing"),
        (["dora"], "not an object"),
        ({"name": "root"}, "belongs to the system"),
        ({"name": "opc2"}, "belongs to the system"),
        ({"name": "systemd-x"}, "belongs to the system"),
        ({"name": "carl"}, "account of this host"),
        ({"name": "bob", "uid": 10011}, "belongs to uid 10050"),
    ],
)
def test_requests_that_are_not_possible_change_nothing(there: Directory, given: Any, word: str) -> None:
    there.want("alice")
    there.homes["bob"] = 10050
    plan = there.plan()
    with pytest.raises(errors.Refused, match=word) as refused:
        plan.put_user(desired.desired_user(given, LOCAL))
    assert refused.value.hint
    assert plan.records == []


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            "Dora",
            "-rf",
            "..",
            ".",
            "a.b",
            "a b",
            "a;b",
            "$(id)",
            "`id`",
            "a|b",
            "a&b",
            "a'b",
            'a"b',
            "a\\b",
            "a/b",
        ),
        *("*", "a)(uid=*", "a,ou=groups", "a+uid=b", "a=b", "a\n", "a\nb", "a\0", "0day", "a" * 33, "a" * 10000),
        *("\u0430lice", "al\u0456ce", "alice\u200b", "\uff41lice", "é", None, 5, ["a"], {"a": 1}),
    ],
)
def test_names_that_are_none(name: Any) -> None:
    for kind in (values.user_name, values.group_name):
        with pytest.raises(errors.Refused) as refused:
            kind(name, LOCAL)
        assert len(refused.value.message) < 200
        assert refused.value.message.isprintable()


@given(st.text())
def test_a_full_name_is_kept_or_refused(text: str) -> None:
    try:
        kept = values.full_name(text)
    except errors.Refused:
        return
    assert kept == text.strip()
    assert not any(unicodedata.category(character) in ("Cc", "Cs") or character in ":," for character in kept)


@given(st.text())
def test_ldif_carries_any_value(value: str) -> None:
    value = value.encode(errors="replace").decode()
    assert ldif.parse(ldif.add("cn=x", [("description", value)])) == [
        {"dn": ["cn=x"], "changetype": ["add"], "description": [value]}
    ]


def test_base_tree_and_description_must_agree(there: Directory) -> None:
    there.want("alice")
    other = config.Config.parse({**CONFIG, "gid": 9998})
    with pytest.raises(errors.Refused, match="has gid 9999"):
        plans.Plan(other, there.state, LOCAL, {})


def test_conflicts_within_one_request() -> None:
    for given_, word in (
        ([{"name": "a"}, {"name": "a"}], "mentioned twice"),
        ([{"name": "a", "uid": 10009}, {"name": "b", "uid": 10009}], "requested for a and for b"),
        ({"name": "a"}, "list"),
    ):
        with pytest.raises(errors.Refused, match=word):
            desired.desired_users(given_, LOCAL)


def test_associations_of_many_are_made_together() -> None:
    accounting = config.Accounting("demo", "everybody")
    have = {
        "kept": [slurm.Association("everybody", True)],
        "moved": [slurm.Association("everybody", True)],
        "away": [slurm.Association("ml", True, "20")],
        "back": [slurm.Association("ml", True, "0")],
        "limited": [slurm.Association("ml", True, "0")],
        "stopped": [slurm.Association("ml", True, "0")],
    }
    want = {
        "kept": slurm.DesiredAssociation(None, True),
        "moved": slurm.DesiredAssociation("ml", True),
        "away": slurm.DesiredAssociation(None, False),
        "back": slurm.DesiredAssociation(None, True),
        "limited": slurm.DesiredAssociation(None, True, {"ml": "20", "other": "5"}),
        # An administrator's own limit is nobody else's matter.
        "stopped": slurm.DesiredAssociation(None, None),
        **{f"new{number}": slurm.DesiredAssociation(None, True) for number in range(250)},
    }
    steps = slurm.plan(have, want, accounting)
    assert [step[:2] for step in steps[:3]] == [("add", "user")] * 3, "two for the many, one for who moves"
    assert ("add", "user", "name=moved", "cluster=demo", "account=ml") in steps
    assert ("modify", "user", "where", "name=moved", "cluster=demo", "set", "defaultaccount=ml") in steps
    assert ("modify", "user", "where", "name=away", "cluster=demo", "set", "maxsubmitjobs=0") in steps
    for name, limit in (("back", "-1"), ("limited", "20")):
        words = (
            "modify",
            "user",
            "where",
            f"name={name}",
            "cluster=demo",
            "account=ml",
            "set",
            f"maxsubmitjobs={limit}",
        )
        assert words in steps
    assert steps[-1] == ("delete", "user", "where", "name=moved", "cluster=demo", "account=everybody")
    assert len(steps) == 8
    assert not any(name in word for step in steps for word in step for name in ("kept", "stopped"))


def test_elastic_nodes_are_asked_while_they_are_there() -> None:
    configured = config.HostLogins({"n-1": "opc", "e[1-3]": "ubuntu"}, None)
    permanent, elastic = hosts.HostLogin("opc", "n-1"), hosts.HostLogin("ubuntu", "10.0.1.7")
    found = hosts.remote(configured, {"e[1-3]": {"e2": "10.0.1.7"}}.__getitem__)
    assert found == ({"n-1": permanent, "e2": elastic}, [])

    def silent(nodes: str) -> dict[str, str]:
        raise errors.Failed(f"nobody knows {nodes}")

    assert hosts.remote(configured, silent) == ({"n-1": permanent}, ["e[1-3]"]), "they are named, not left out"


def test_elastic_nodes_are_reached_by_the_address_that_slurm_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "e1 mix 10.0.1.6\ne1 mix 10.0.1.6\ne2 idle~ e2\ne3 mix# e3\ne4 down* 10.0.1.9\n"
    asked: dict[str, list[str]] = {}

    def call(argv: list[str], *_: Any, **__: Any) -> Any:
        assert {"sinfo", "--Node", "--nodes=e[1-4]", "--format=%N %t %o"} <= set(argv)
        return subprocess.CompletedProcess(argv, 0, listed, "")

    def ask(argv: list[str], *_: Any, **__: Any) -> programs.ProgramAnswer:
        if argv[0] != "ssh":
            return programs.ProgramAnswer(0, b'{"ended": 1, "wrong": []}\n', b"", "")
        address = argv[argv.index("--") + 1]
        asked[address] = argv
        wrong = ["SSSD does not run"] if address == "n-1" else []
        answer = f"a banner\n{json.dumps({'ended': 2, 'wrong': wrong})}\n"
        return programs.ProgramAnswer(255 if address == "10.0.1.9" else 0, answer.encode(), b"", "")

    monkeypatch.setattr(programs, "call", call)
    monkeypatch.setattr(programs, "ask", ask)
    configured = config.HostLogins({"n-1": "opc", "e[1-4]": "ubuntu"}, None)
    report = hosts.confirm(configured, [{"name": "alice"}])
    assert report == hosts.HostsReport(1 + 2 + 2, ("e4",), {"n-1": "SSSD does not run"}), "a report has names"
    assert sorted(asked) == ["10.0.1.6", "10.0.1.9", "n-1"]
    # The address of an elastic node is soon another's: its key is that of its name, which is kept nowhere.
    words = asked["10.0.1.6"]
    assert {"-oHostKeyAlias=e1", "-oStrictHostKeyChecking=yes", "-oUserKnownHostsFile=/dev/null"} <= set(words)
    assert words[words.index("-l") + 1] == "ubuntu"


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "2 0",
        "[]",
        '{"ended": true, "wrong": []}',
        '{"ended": 1}',
        '{"ended": 1, "wrong": "no"}',
        "[" * 5000,
        "1" * 20000,
    ],
)
def test_what_is_no_answer_confirms_nothing(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr(programs, "ask", lambda *_, **__: programs.ProgramAnswer(0, answer.encode(), b"", ""))
    here = socket.gethostname().split(".")[0]
    report = hosts.confirm(config.HostLogins())
    assert report.unreachable == (here,)
    with pytest.raises(errors.Unconfirmed) as raised:
        report.require({"name": "lab"}, "lab is removed, but")
    assert (raised.value.status, raised.value.partial_result) == (8, {"name": "lab"})
    assert f"not every host confirms it: {here} does not answer" in raised.value.message


def test_a_host_that_prints_without_end_is_one_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = 'import sys\nwhile True: sys.stdout.write("x" * 65536)\n'
    monkeypatch.setattr(hosts, "_program", lambda: endless)
    assert hosts.confirm(config.HostLogins()).unreachable == (socket.gethostname().split(".")[0],)


def test_jobs_that_come_while_others_are_ended_end_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, cancelled = [["1", "2"], ["2", "3"], []], []

    def call(argv: list[str], **_: Any) -> Any:
        if argv[0] == "scancel":
            cancelled.append([word for word in argv[1:] if not word.startswith("-")])
            return subprocess.CompletedProcess(argv, 0, "", "")
        lines = "".join(f"10001 {job} RUNNING\n" for job in queue.pop(0))
        return subprocess.CompletedProcess(argv, 0, lines + "10002 9 RUNNING\n", "")

    monkeypatch.setattr(programs, "call", call)
    monkeypatch.setattr(slurm, "_JOBS_POLL_SECONDS", 0)
    assert slurm.SlurmAccounting(config.Accounting("demo", "everybody")).end_jobs(10001) == 3
    assert cancelled == [["1", "2"], ["3"]]


def test_a_job_that_is_over_on_a_node_that_does_not_answer_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    states, cancelled = {"1": "RUNNING", "2": "PENDING", "3": "COMPLETING"}, []

    def call(argv: list[str], **_: Any) -> Any:
        if argv[0] == "scancel":
            cancelled.append(argv[2:])
            states.update(dict.fromkeys(argv[2:], "COMPLETING"))
            return subprocess.CompletedProcess(argv, 0, "", "")
        return subprocess.CompletedProcess(
            argv, 0, "".join(f"10001 {job} {state}\n" for job, state in states.items()), ""
        )

    monkeypatch.setattr(programs, "call", call)
    monkeypatch.setattr(slurm, "_JOBS_POLL_SECONDS", 0)
    jobs = slurm.SlurmAccounting(config.Accounting("demo", "everybody"))
    # The third may be one that was put back into the queue: it is cancelled, and not counted.
    assert (jobs.end_jobs(10001), cancelled) == (2, [["1", "2", "3"]])
    assert jobs.end_jobs(10001) == 0, "what is over is counted again"

    # One that goes on running is waited for, as long as there is patience.
    monkeypatch.setattr(slurm, "_JOBS_END_SECONDS", 0.01)
    states["4"] = "SUSPENDED"
    monkeypatch.setattr(jobs, "_cancel", lambda _jobs: None)
    with pytest.raises(errors.Failed, match="1 jobs do not end: 4"):
        jobs.end_jobs(10001)


def test_what_cron_and_at_would_start_goes_with_its_owner(tmp_path: Path) -> None:
    crontabs = tmp_path / "crontabs"
    crontabs.mkdir()
    mine, other = crontabs / "alice", crontabs / "bob"
    for file in (mine, other):
        file.write_text("* * * * * date\n")
    os.chown(mine, os.geteuid(), -1)
    on_host.delete_scheduled(os.geteuid() + 1, (str(tmp_path / "nowhere"), str(tmp_path), str(crontabs)))
    assert mine.exists()
    on_host.delete_scheduled(os.geteuid(), (str(tmp_path / "nowhere"), str(tmp_path), str(crontabs)))
    assert list(tmp_path.rglob("*")) == [crontabs]


def test_a_limit_of_slurm_is_noted_beside_what_others_have_written(there: Directory) -> None:
    there.want("alice")
    entry = there.entries[f"uid=alice,ou=people,{SUFFIX}"]
    entry["description"] = ["by hand"]
    for limits in ({"ml": "20"}, {}):
        plan = there.plan()
        plan.note_limits("alice", limits)
        there.apply(plan)
        assert there.state.users["alice"].limits == limits
        assert "by hand" in entry["description"]
    assert entry["description"] == ["by hand"]


def test_no_user_gets_a_number_of_the_system(there: Directory) -> None:
    plan = there.plan()
    plan.state.next_uid = 61183
    for name in ("alice", "bob"):
        plan.put_user(desired.desired_user({"name": name}, LOCAL))
    assert [plan.state.users[name].uid for name in ("alice", "bob")] == [61183, 65536]
