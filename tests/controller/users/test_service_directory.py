"""The users program and a real slapd, in a container of the base image."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from gpucluster.controller.rules.names import NAME_PATTERN, RESERVED_NAMES
from gpucluster.controller.users import ldif
from tests.controller.users.harness import HOMES, KEY, SUFFIX, Controller
from tests.examples import examples
from tests.spec.spec_texts import public_key
from tests.waiting import wait_for

pytestmark = pytest.mark.containers

HOSTILE = (
    *(
        "",
        "root",
        "slurm",
        "munge",
        "gpucluster",
        "nobody",
        "systemd-network",
        "systemd-x",
        "openldap",
        "sudo",
        "daemon",
    ),
    *(
        "-rf",
        "--help",
        "-",
        ".",
        "..",
        "../../etc",
        "/etc/passwd",
        "a/b",
        "~root",
        "a.b",
        "a b",
        " a",
        "a ",
        "Alice",
        "ALICE",
    ),
    *(
        "a;id",
        "a$(id)",
        "`id`",
        "a|id",
        "a&id",
        "a>x",
        "a<x",
        "a'b",
        'a"b',
        "a\\b",
        "a\\2cb",
        "{a,b}",
        "!1",
        "a*",
        "?",
        "[a]",
    ),
    *(
        "*",
        "*)(uid=*",
        "a)(|(uid=*))",
        "a,ou=groups",
        "a+uid=b",
        "a=b",
        "uid=a",
        "a\nuid: b",
        "a\n",
        "\na",
        "a\r",
        "a\tb",
        "a#b",
    ),
    *(
        "a\n\ndn: cn=evil," + SUFFIX + "\nchangetype: add",
        "a\0",
        "\0",
        "a" * 33,
        "a" * 10_000,
        "é",
        "\u0430lice",
        "al\u0456ce",
    ),
    *(
        "alice\u200b",
        "\u202ealice",
        "\uff41lice",
        "a\ud800",
        "a\U0001f600",
        "a,b",
        "0",
        "10001",
        "9999",
        "\x7f",
        "a:b",
        "::",
        ":<x",
    ),
)
PLAIN = st.from_regex(r"[a-z_][a-z0-9_-]{0,31}", fullmatch=True)


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    with Controller() as started:
        started.request("base_tree")
        yield started


def everything(controller: Controller) -> str:
    return controller.content() + controller.files()


def test_the_base_tree_is_made_once(controller: Controller) -> None:
    assert controller.request("base_tree") == {"changed": False}
    # A restore of a backup has the lock while it asks.
    request = '{"operation": "base_tree", "arguments": {"lock_held": true}}'
    done = controller.run("flock", "/run/gpucluster-directory.lock", "cluster", "request", given=request)
    assert json.loads(done[1])["result"]["changed"] is False
    bind = ("ldapsearch", "-x", "-LLL", "-H", "ldapi://%2Frun%2Fslapd%2Fldapi", "-b", SUFFIX)
    assert controller.run(*bind, check=False)[0] == 48, "nobody is asked without a name"


@given(
    st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40), PLAIN.flatmap(lambda name: st.just(name + "\n"))).filter(
        lambda name: not re.fullmatch(NAME_PATTERN, name) or name in RESERVED_NAMES
    )
)
@examples(200, suppress_health_check=list(HealthCheck))
def _refused(controller: Controller, name: str) -> None:
    for operation, given_ in (
        ("user.add", {"name": name}),
        ("user.add", {"name": "mallory", "groups": [name]}),
        ("user.add", {"name": "mallory", "group": name}),
        ("user.edit", {"name": name, "full_name": "x"}),
        ("user.show", {"name": name}),
        ("user.disable", {"name": name}),
        ("user.remove", {"name": name, "home": "archive"}),
        ("group.add", {"name": name}),
        ("group.remove", {"name": name}),
        ("group.add_member", {"group": name, "user": name}),
        ("converge", {"people": [], "absent": [name]}),
    ):
        status, said = controller.answer(operation, **given_)
        if status == 0:
            # A reserved name may be asked to be absent: it is.
            assert (operation, said["result"]["changed"]) == ("converge", False)
            continue
        assert status == 2, (operation, said)
        assert said["error"]["message"].isprintable()
        assert len(said["error"]["message"]) < 300


def test_hostile_names_change_nothing(controller: Controller) -> None:
    before = everything(controller)
    _refused(controller)
    for name in HOSTILE:
        assert controller.answer("user.add", name=name)[0] == 2, name
        assert controller.answer("group.add", name=name)[0] == 2, name
    rows = controller.request("user.import", users=[{"name": name} for name in HOSTILE])
    assert rows["changed"] is False
    assert {row["status"] for row in rows["users"]} == {"failed"}
    assert everything(controller) == before


@given(
    PLAIN,
    st.text(min_size=1, max_size=60).filter(lambda text: text.isprintable() and any(map(str.isalpha, text))),
    st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=40),
)
@examples(6, suppress_health_check=list(HealthCheck))
def _round_trip(controller: Controller, name: str, full_name: str, password: str) -> None:
    status, said = controller.answer("user.add", name=name, full_name=full_name, password=password)
    if status == 2:
        assert name in RESERVED_NAMES or ":" in full_name or "," in full_name or "full name" in said["error"]["message"]
        return
    assert status == 0, said
    user = controller.request("user.show", name=name)["user"]
    assert (user["name"], user["full_name"], user["home"]) == (name, full_name.strip(), f"{HOMES}/{name}")
    # The same again is nothing new, the password included; another password is another user's.
    assert controller.request("user.add", name=name, full_name=full_name, password=password)["changed"] is False
    assert "already" in controller.refused("user.add", name=name, password=password + "x")
    assert controller.request("user.remove", name=name, home="archive")["kept"] == []


def test_accepted_names_come_back_as_they_were(controller: Controller) -> None:
    _round_trip(controller)
    assert controller.request("user.list") == {"users": []}
    assert controller.run("find", HOMES, "-mindepth", "1", "-maxdepth", "1")[1] == f"{HOMES}/.removed\n"


def test_passwords_are_hashed_and_on_no_command_line(controller: Controller) -> None:
    controller.request("user.add", name="carol", password="very-secret-word")
    content = controller.content()
    assert "very-secret-word" not in content
    entry = next(part for part in content.split("\n\n") if part.startswith("dn: uid=carol,"))
    (stored,) = ldif.parse(entry)[0]["userpassword"]
    assert stored.startswith(("{ARGON2}", "{CRYPT}$6$"))
    controller.request("user.edit", name="carol", password="another-word")
    assert controller.request("user.add", name="carol", password="another-word")["changed"] is False


def test_disable_ends_what_runs_and_enable_forgets_nothing(controller: Controller) -> None:
    user = controller.request("user.add", name="dave", ssh_keys=[KEY], groups=["privilege"])["user"]
    assert user["privileged"] is True
    become = ("setpriv", f"--reuid={user['uid']}", f"--regid={user['gid']}", "--clear-groups")
    stubborn = "trap '' TERM HUP; while :; do sleep 600; done"
    controller.run("sh", "-c", '"$@" >&- 2>&- <&- &', "sh", *become, "sh", "-c", stubborn)
    wait_for("both processes run", lambda: int(controller.run("pgrep", "-cU", str(user["uid"]), check=False)[1]) >= 2)
    said = controller.request("user.disable", name="dave")
    assert said["ended"]["processes"] >= 2
    assert said["unreachable"] == ["gone"]
    # There is no SSSD in this container.
    assert said["unconfirmed"] == dict.fromkeys(("ctl", "node-1"), "SSSD does not run")
    assert controller.run("pgrep", "-l", "-r", "R,S,D,T", "-U", str(user["uid"]), check=False)[0] == 1
    assert controller.run("ls", f"{HOMES}/dave/.ssh")[1].split() == ["authorized_keys.disabled"]
    assert (said["user"]["enabled"], said["user"]["ssh_keys"]) == (False, [KEY])
    people = [
        {
            "name": "dave",
            "full_name": "dave",
            "uid": None,
            "group": "people",
            "groups": ["privilege"],
            "ssh_keys": [KEY],
        }
    ]
    assert controller.request("converge", people=people, absent=[])["changed"] is False
    assert controller.request("user.enable", name="dave")["user"] == user
    assert controller.request("user.enable", name="dave")["changed"] is False
    assert KEY in controller.run("cat", f"{HOMES}/dave/.ssh/authorized_keys")[1]


def test_converge_is_idempotent_and_takes_away(controller: Controller) -> None:
    people = [
        {
            "name": name,
            "full_name": name.title(),
            "uid": uid,
            "group": "people",
            "groups": ["vision"],
            "ssh_keys": [KEY],
        }
        for name, uid in (("erin", None), ("frank", 10500))
    ]
    local = [{**people[0], "groups": ["daemon"]}]
    assert "the system" in controller.refused("converge", people=local)
    before = everything(controller)
    preview = controller.request("converge.preview", people=people)
    assert preview == {"groups": ["vision"], "added": ["erin", "frank"], "changed": []}
    assert everything(controller) == before
    # A group that a description names and that does not exist is made.
    assert controller.request("converge", people=people, absent=["nobody-knows"])["changed"] is True
    before = everything(controller)
    assert controller.request("converge.preview", people=people) == {"groups": [], "added": [], "changed": []}
    other = [{**people[0], "ssh_keys": []}, people[1]]
    assert controller.request("converge.preview", people=other)["changed"] == ["erin"]
    assert everything(controller) == before
    again = controller.request("converge", people=people, absent=["nobody-knows"])
    assert again["changed"] is False
    assert everything(controller) == before
    assert {user["name"] for user in again["users"]} >= {"erin", "frank"}
    said = controller.refused("converge", people=[*people, {"name": "gina", "uid": 10500}])
    assert "10500" in said
    assert everything(controller) == before
    gone = controller.request("converge", people=people[1:], absent=["erin"])
    assert gone["removed"] == ["erin"]
    assert controller.request("converge", people=people[1:], absent=["erin"])["changed"] is False
    assert controller.run("stat", "-c", "%a", f"{HOMES}/erin")[1] == "700\n", "the home stays"
    assert "belongs to erin" in controller.refused(
        "user.add", name="gina", uid=next(u["uid"] for u in again["users"] if u["name"] == "erin")
    )


def test_a_generated_key_stays_whatever_other_machine_has_generated_until_it_is_replaced(
    controller: Controller,
) -> None:
    def generated(number: int, machine: str) -> str:
        return public_key("ssh-ed25519", bytes([number]) * 32, comment=f"kim@demo generated on {machine}")

    def described(key: str) -> list[dict[str, object]]:
        return [{"name": "kim", "ssh_keys": [key], "generated_key": key}]

    first, second = generated(1, "build-1"), generated(2, "build-2")
    assert controller.request("converge", people=described(first))["changed"] is True
    before = everything(controller)
    for people in (described(second), described(first), described(second)):
        assert controller.request("converge.preview", people=people)["changed"] == []
        said = controller.request("converge", people=people)
        assert said["changed"] is False
        assert next(user["ssh_keys"] for user in said["users"] if user["name"] == "kim") == [first]
        assert everything(controller) == before
    # A key that was not generated follows the description, as ever; so does a user's own in its place.
    controller.request("user.edit", name="kim", add_ssh_keys=[KEY])
    controller.request("converge", people=described(second))
    assert controller.request("user.show", name="kim")["user"]["ssh_keys"] == [first]
    done = controller.request("user.edit", name="kim", add_ssh_keys=[KEY], replace_generated_key=second)
    assert done["user"]["ssh_keys"] == [KEY, second]
    assert first not in controller.run("cat", f"{HOMES}/kim/.ssh/authorized_keys")[1]
    controller.request("converge", people=described(first))
    assert controller.request("user.show", name="kim")["user"]["ssh_keys"] == [second]
    assert "does not name its owner" in controller.refused("converge", people=described(" ".join(first.split()[:2])))
    controller.request("converge", people=[{"name": "kim", "ssh_keys": [KEY]}])
    assert controller.request("user.show", name="kim")["user"]["ssh_keys"] == [KEY]
    controller.request("user.remove", name="kim")


def test_an_import_reports_each_and_completes_what_was_interrupted(controller: Controller) -> None:
    users = [
        {"name": "hana", "full_name": "Hana"},
        {"name": "ivan", "groups": ["nope"]},
        {"name": "hana"},
        {"name": "jose", "ssh_keys": [KEY]},
    ]
    passwords = controller.request("user.import", users=[{"name": "hana", "password": "x"}])["users"]
    assert "must not be in a file" in passwords[0]["message"]
    rows = controller.request("user.import", users=users)["users"]
    assert [(row["name"], row["status"]) for row in rows] == [
        ("hana", "added"), ("ivan", "failed"), ("hana", "failed"), ("jose", "added"),
    ]  # fmt: skip
    assert "no group nope" in rows[1]["message"]
    assert "twice" in rows[2]["message"]
    controller.run("rm", "-rf", f"{HOMES}/jose")
    again = controller.request("user.import", users=[users[0], users[3]])
    assert [row["status"] for row in again["users"]] == ["unchanged", "changed"]
    assert controller.run("stat", "-c", "%a", f"{HOMES}/jose/.ssh/authorized_keys")[1] == "600\n"


def as_user(controller: Controller, name: str, script: str, *, check: bool = True) -> tuple[int, str, str]:
    user = controller.request("user.show", name=name)["user"]
    become = ("setpriv", f"--reuid={user['uid']}", f"--regid={user['gid']}", "--clear-groups")
    return controller.run(*become, "sh", "-c", script, check=check)


def test_what_a_user_has_in_their_home_delays_no_other_user(controller: Controller) -> None:
    people = [{"name": name, "ssh_keys": [KEY]} for name in ("mia", "noa", "olga")]
    assert controller.request("converge", people=people)["warnings"] == []
    as_user(controller, "mia", f"rm -r {HOMES}/mia/.ssh && touch {HOMES}/mia/.ssh")
    as_user(controller, "noa", f"cd {HOMES}/noa/.ssh && rm authorized_keys && mkfifo authorized_keys")
    as_user(controller, "olga", f"printf 'caf\\351\\n' >> {HOMES}/olga/.ssh/authorized_keys")
    people = [{**person, "shell": "/bin/sh"} for person in people]
    said = controller.request("converge", people=people)
    assert [warning.split(":")[0] for warning in said["warnings"]] == ["the home of mia", "the home of noa"]
    assert {user["shell"] for user in said["users"] if user["name"] in ("mia", "noa", "olga")} == {"/bin/sh"}
    assert controller.request("converge", people=people)["changed"] is False
    # Nor can any user take the lock.
    lock = "/run/gpucluster-directory.lock"
    assert as_user(controller, "olga", f"flock -n {lock} true", check=False)[0] != 0
    assert controller.run("flock", "-n", lock, "true")[0] == 0
    # Their processes end all the same, and what could not be done is reported.
    closed = "cd $0/mia && rm .ssh && mkdir .ssh && touch .ssh/authorized_keys && chmod 500 .ssh".replace("$0", HOMES)
    as_user(controller, "mia", closed)
    status, said = controller.answer("user.remove", name="mia")
    assert (status, said["done"]["removed"]["entry"], said["done"]["kept"]) == (1, True, [f"{HOMES}/mia"])
    assert "mia is removed, but the home of mia" in said["error"]["message"]
    controller.run("chmod", "700", f"{HOMES}/mia/.ssh")
    assert controller.request("user.remove", name="mia")["removed"]["entry"] is False
    for name in ("noa", "olga"):
        controller.request("user.remove", name=name)


def test_without_the_share_the_rest_is_done_and_the_keys_later(controller: Controller) -> None:
    controller.request("user.add", name="pia", ssh_keys=[KEY], groups=["privilege"])
    key = f"{HOMES}/pia/.ssh/authorized_keys"
    uid = controller.request("user.show", name="pia")["user"]["uid"]
    plans = "mkdir -p /var/spool/cron/crontabs && install -o $0 /dev/null /var/spool/cron/crontabs/pia"
    controller.run("sh", "-c", plans, str(uid))
    controller.run("sed", "-i", "s|/mnt/home|/mnt/elsewhere|", "/etc/gpucluster/directory.json")
    try:
        for operation in ("user.disable", "user.enable", "user.remove"):
            status, said = controller.answer(operation, name="pia")
            assert status == 1
            assert "/mnt/elsewhere is not mounted; the keys in the home are unchanged" in said["error"]["message"]
            assert said["done"]
    finally:
        controller.run("sed", "-i", "s|/mnt/elsewhere|/mnt/home|", "/etc/gpucluster/directory.json")
    assert "run docker ps" in said["done"]["warnings"][0]
    assert controller.run("ls", "/var/spool/cron/crontabs/pia", check=False)[0] != 0
    assert controller.run("test", "-e", key)[0] == 0
    assert controller.request("user.remove", name="pia")["removed"]["keys"] == 1
    assert controller.run("test", "-e", key, check=False)[0] == 1


def test_the_password_of_who_is_disabled_is_worth_nothing(controller: Controller) -> None:
    controller.request("user.add", name="rosa", password="geheim")
    controller.run("sh", "-c", "printf geheim > /run/rosa")
    words = ("ldapwhoami", "-x", "-H", "ldapi://%2Frun%2Fslapd%2Fldapi", "-D", f"uid=rosa,ou=people,{SUFFIX}")
    assert controller.run(*words, "-y", "/run/rosa")[0] == 0
    controller.request("user.disable", name="rosa")
    assert controller.run(*words, "-y", "/run/rosa", check=False)[0] == 49
    controller.request("user.enable", name="rosa")
    assert controller.run(*words, "-y", "/run/rosa")[0] == 0
    controller.request("user.remove", name="rosa")


def test_killed_at_any_moment_the_next_run_completes_it(controller: Controller) -> None:
    request = json.dumps(
        {"operation": "user.import", "arguments": {"users": [{"name": f"k{i}", "shell": "/bin/sh"} for i in range(12)]}}
    )
    for tenths in (1, 3, 5, 8):
        controller.run("timeout", "-s", "KILL", f"{tenths / 10}", "cluster", "request", given=request, check=False)
    status, output, _errors = controller.run("cluster", "request", given=request)
    assert status == 0
    assert {row["status"] for row in json.loads(output)["result"]["users"]} <= {"added", "changed", "unchanged"}
    assert json.loads(controller.run("cluster", "request", given=request)[1])["result"]["changed"] is False
    users = {user["name"]: user["uid"] for user in controller.request("user.list")["users"]}
    assert len(set(users.values())) == len(users)
    assert len([name for name in users if name.startswith("k")]) == 12


def test_what_users_type(controller: Controller) -> None:
    done = controller.run("cluster", "user", "add", "lena", "--full-name", "Lena", "--password-stdin", given="pw\n")
    assert "lena (Lena)" in done[1]
    assert "lena" in controller.run("cluster", "user", "list")[1]
    assert (
        json.loads(controller.run("cluster", "user", "show", "lena", "--output", "json")[1])["user"]["name"] == "lena"
    )
    status, _output, said = controller.run("cluster", "user", "show", "nobody-knows", check=False)
    assert status == 2
    assert "no user nobody-knows" in said
    assert "Traceback" not in said
    controller.run("cluster", "group", "add", "red")
    # Not every host confirms it.
    status, output, said = controller.run("cluster", "group", "add-member", "red", "lena", check=False)
    assert (status, "lena" in output, "gone does not answer" in said) == (8, True, True)
    status, output, said = controller.run("cluster", "user", "remove", "lena", check=False)
    assert (status, "kept: /mnt/home/lena" in output, "not confirmed by ctl: SSSD" in output) == (8, True, True)


def test_a_thousand_users_are_listed_in_a_second(controller: Controller) -> None:
    entries = "".join(
        f"dn: uid=x{n},ou=people,{SUFFIX}\nobjectClass: inetOrgPerson\nobjectClass: posixAccount\n"
        f"uid: x{n}\ncn: X {n}\nsn: {n}\n"
        f"uidNumber: {20000 + n}\ngidNumber: 9999\nhomeDirectory: {HOMES}/x{n}\nloginShell: /bin/bash\n\n"
        for n in range(1000)
    )
    controller.run("ldapadd", "-Q", "-Y", "EXTERNAL", "-H", "ldapi://%2Frun%2Fslapd%2Fldapi", given=entries)
    # Of processors, for other tests run beside this one.
    # The first one on a host compiles its modules.
    script = "cluster user list > /dev/null; TIMEFORMAT='%U %S'; time cluster user list"
    _status, listed, seconds = controller.run("bash", "-c", script)
    assert sum(map(float, seconds.split())) < 1
    assert listed.count("\n") > 1000
