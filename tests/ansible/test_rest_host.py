"""Slurm's REST API on a booted host: the role's tasks, the real slurmctld, slurmdbd, slurmrestd and nginx with the
sandboxes of their units, the agent's tokens and its rotation, and a client of PyPI that others have made.

What this does not prove: another release of Slurm, Oracle Linux (SELinux decides where nginx may connect to), and the
rules of a cloud's network. slurmd is not here: no job begins. Accounts of the host stand for users of the directory.
"""

from __future__ import annotations

import base64
import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpucluster.artifacts import agent_archive
from gpucluster.paths import cache_dir
from tests.ansible import render as role
from tests.ansible.booted import Booted, booted
from tests.ansible.in_container import Played
from tests.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.containers, pytest.mark.slurm, pytest.mark.xdist_group("rest")]

CONTROLLER = "demo-controller"
#: Of the loopback device: the host's own in a network of the cluster, and one that is in none.
ADDRESS, FOREIGN = "192.0.2.1", "198.51.100.1"
URL = f"https://{CONTROLLER}:6820"
CLIENT, VERSION = "slurmrestapi", "25.11.4.0"
VARIABLES: dict[str, Any] = {
    **role.INVENTORY,
    "gpucluster_hosts": [{"name": CONTROLLER, "address": ADDRESS}],
    "slurm_rest": True,
    "base_trusted_networks": ["192.0.2.0/24"],
    "slurm_version": "24.11.5",
    "slurm_start_seconds": int(PATIENCE_S),
}
KEY = "/etc/gpucluster/jwt.key"
FOLDER = "/etc/gpucluster/rest"
TASKS: list[dict[str, Any]] = [
    {"import_role": {"name": "base", "tasks_from": "gather_facts"}},
    {"include_role": {"name": "slurm", "tasks_from": "rest"}, "when": "slurm_rest"},
    {"include_role": {"name": "slurm", "tasks_from": "rest_absent"}, "when": "not slurm_rest"},
]
#: The lines of the role's files that need no node, and let daemons find each other on the loopback device.
SLURM_CONF = f"""
ClusterName=demo
SlurmctldHost={CONTROLLER}({ADDRESS})
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmctldPidFile=/run/slurmctld/slurmctld.pid
ProctrackType=proctrack/linuxproc
MessageTimeout=100
UnkillableStepTimeout=600
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStorageEnforce=associations
PrivateData=jobs,usage,users
NodeName=compute-1 CPUs=1
PartitionName=main Nodes=ALL Default=YES
"""
SLURMDBD_CONF = """
AuthType=auth/munge
DbdHost=localhost
SlurmUser=slurm
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurmdbd/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
"""
PREPARE = f"""
set -e
# Slurm listens only on a host that has another address than those of 127.0.0.0/8.
ip address add {ADDRESS} dev lo; ip address add {FOREIGN} dev lo
printf '127.0.0.1 localhost\n{ADDRESS} {CONTROLLER} compute-1\n' > /etc/hosts
hostname {CONTROLLER}
useradd --uid 10001 alice; useradd --uid 10002 bob
useradd --system --no-create-home slurmrestd; useradd --system --no-create-home gpucluster-rest
install -d -o slurm -g slurm -m 700 /var/lib/slurm/slurmctld
install -d -o slurm -g slurm /var/log/slurm /run/slurmctld /run/slurmdbd
install -d /etc/gpucluster
head -c 64 /dev/urandom | install -o slurm -g slurm -m 400 /dev/stdin {KEY}
chown slurm:slurm /etc/slurm/slurmdbd.conf; chmod 600 /etc/slurm/slurmdbd.conf
head -c 1024 /dev/urandom | install -o munge -g munge -m 400 /dev/stdin /etc/munge/munge.key
systemctl enable --quiet slurmdbd slurmctld
systemctl start munge mariadb
mariadb -e "create database slurm_acct_db; create user slurm@localhost identified via unix_socket;
            grant all on slurm_acct_db.* to slurm@localhost"
systemctl start slurmdbd
"""
# slurmctld reads all of it when it starts. Of what came later slurmdbd would tell it once.
REGISTER = """
set -e
sacctmgr --immediate add cluster demo > /dev/null
sacctmgr --immediate add account lab > /dev/null
for user in alice bob; do
    sacctmgr --immediate add user $user account=lab > /dev/null
done
systemctl start slurmctld
"""


#: Sends the requests of a file, each by a connection of its own.
REQUESTS = """
import http.client, json, ssl, sys
name, authority = sys.argv[1:]
found = []
for each in json.load(open("/root/requests.json")):
    context = ssl.create_default_context(cafile=authority)
    source = (each["source"], 0) if each["source"] else None
    connection = http.client.HTTPSConnection(name, 6820, context=context, source_address=source)
    headers = dict(line.split(": ", 1) for line in each["headers"])
    connection.request(each["method"], each["path"], each["body"] or None, headers)
    answer = connection.getresponse()
    found.append([answer.status, answer.read().decode()])
    connection.close()
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Wanted:
    """A request."""

    path: str
    headers: Sequence[str] = ()
    method: str = "GET"
    body: str = ""
    source: str = ""


def _auth_lines() -> str:
    """The lines with which the role lets the daemons take tokens."""
    known = role.variables(VARIABLES, role="slurm", facts=role.host_facts())
    text = "".join(role.render("slurm", name, known) for name in ("slurm.conf",))
    return "".join(f"{line}\n" for line in text.splitlines() if line.startswith("AuthAlt"))


@pytest.fixture(scope="module")
def node() -> Iterator[Booted]:
    with booted() as host:
        host.put("/usr/local/bin/gpucluster-agent", agent_archive.of_controller(), 0o755)
        lines = _auth_lines()
        assert lines.count("\n") == 2
        host.put("/etc/slurm/slurm.conf", SLURM_CONF + lines)
        host.put("/etc/slurm/cgroup.conf", "CgroupPlugin=disabled\n")
        # max_token_lifespan is slurmctld's alone.
        host.put("/etc/slurm/slurmdbd.conf", SLURMDBD_CONF + lines.partition(",max_token")[0] + "\n")
        unit = "[Service]\nUser=slurm\nGroup=slurm\nPIDFile=\nRuntimeDirectory={0}\n"
        for daemon in ("slurmctld", "slurmdbd"):
            host.put(f"/etc/systemd/system/{daemon}.service.d/gpucluster.conf", unit.format(daemon))
        host.put("/root/requests.py", REQUESTS)
        host.sh("systemctl daemon-reload")
        host.sh(PREPARE)
        wait_for("slurmdbd listens", lambda: ":6819" in host.sh("ss --listening --tcp --numeric"), interval=0.1)
        host.sh(REGISTER)
        # It loads its plugins after it has told systemd that it is ready.
        wait_for("slurmctld answers", lambda: "is UP" in host.sh("scontrol ping", check=False), interval=0.1)
        apply(host)
        await_daemons(host, token(host))
        yield host


def apply(node: Booted, **changes: Any) -> Played:
    played = node.play(TASKS, VARIABLES | changes, name=CONTROLLER)
    if changes.get("slurm_rest", True):
        # The unit counts as started before its program listens.
        listening = "ss --listening --tcp --numeric --no-header 'sport = 6820'"
        wait_for("nginx listens", lambda: node.sh(listening), interval=0.1)
    return played


def await_daemons(node: Booted, secret: str) -> None:
    """Wait until slurmctld and slurmdbd answer by the API: each of its daemons listens some time after its start."""
    wanted = [Wanted(path, (bearer(secret),)) for path in ("/slurm/v0.0.42/jobs/", "/slurmdb/v0.0.42/jobs/")]
    answers: list[tuple[int, str]] = []

    def answered() -> bool:
        answers[:] = requests(node, *wanted)
        return {code for code, _body in answers} == {200}

    wait_for("slurmctld and slurmdbd answer", answered, interval=0.1, state=lambda: answers)


def token(node: Booted, user: str = "alice", seconds: int = 600) -> str:
    """A token by the agent, as the operator's machine asks for it."""
    answer = ask(node, "rest-token", {"operation": "token", "arguments": {"user": user, "seconds": seconds}})
    return str(answer["result"]["token"])


def ask(node: Booted, program: str, request: dict[str, Any]) -> dict[str, Any]:
    text = base64.b64encode(json.dumps(request).encode()).decode()
    said = node.sh(f"echo {text} | base64 -d | gpucluster-agent {program} 2> /root/said", check=False)
    answer: dict[str, Any] = json.loads(said.splitlines()[-1])
    return answer


def agent_python(node: Booted, text: str) -> str:
    """Run a text with the modules of the agent that is installed, as root."""
    node.put("/root/text.py", text)
    return node.sh("PYTHONPATH=/usr/local/bin/gpucluster-agent /usr/local/lib/gpucluster/python /root/text.py")


def short_token(node: Booted) -> str:
    """A token that has ended: the agent makes none that ends so soon."""
    made = node.sh("scontrol token username=alice lifespan=1").strip().partition("=")[2]
    payload = made.split(".")[1]
    ends = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"]
    wait_for("the token has ended", lambda: int(node.sh("date +%s")) > ends + 1, interval=0.1)
    return made


def requests(node: Booted, *wanted: Wanted) -> list[tuple[int, str]]:
    """The status and the body of each, of one program on the host; it checks the certificate and the name in it."""
    node.put("/root/requests.json", json.dumps([vars(each) for each in wanted]), 0o600)
    said = node.sh(f"/usr/local/lib/gpucluster/python /root/requests.py {CONTROLLER} {FOLDER}/ca.pem")
    return [(code, body) for code, body in json.loads(said)]


def get(node: Booted, path: str, *headers: str) -> tuple[int, str]:
    (answer,) = requests(node, Wanted(path, headers))
    return answer


def bearer(secret: str) -> str:
    return f"Authorization: Bearer {secret}"


@pytest.fixture(scope="module")
def client() -> Path:
    """The folder with the client of PyPI; what it needs is among what we need ourselves."""
    place = cache_dir() / "tests" / f"{CLIENT}-{VERSION}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / CLIENT / "__init__.py").exists():
            argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            argv += ["--only-binary=:all:", f"--target={place}", f"{CLIENT}=={VERSION}"]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode != 0:
                pytest.skip(f"no package index has {CLIENT}: {done.stderr.strip()[-300:]}")
    return place


@pytest.mark.parametrize("version", ["v0041", "v0042"])
def test_a_client_of_others_lists_submits_and_cancels(node: Booted, client: Path, version: str, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text(node.read("/etc/gpucluster/authority.pem"))
    script = Path(__file__).with_name("rest_client.py")
    done = subprocess.run(
        # In the network of the host, whose names this machine does not know.
        ["nsenter", f"--target={node.pid}", "--net", sys.executable, "-P", script, "https://localhost:6820",
         authority, version],
        input=token(node), env={"PYTHONPATH": str(client), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    assert (seen["before"], seen["after"]) == (["PENDING"], ["CANCELLED"])
    # slurmctld tells slurmdbd of it later.
    accounted = f"sacct --noheader --parsable2 --allocations --jobs={seen['job']} --format=user"
    wait_for("the job is in the accounting", lambda: node.sh(accounted).strip(), interval=0.1)
    assert node.sh(accounted).split() == ["alice"]


def test_the_api_describes_itself_in_several_versions(node: Booted) -> None:
    code, body = get(node, "/openapi/v3", bearer(token(node)))
    paths = json.loads(body)["paths"]
    assert code == 200
    assert {path.split("/")[1] for path in paths} <= {"slurm", "slurmdb", "openapi", "openapi.json", "openapi.yaml"}
    assert {path.split("/")[2] for path in paths if path.startswith("/slurm/")} == {"v0.0.40", "v0.0.41", "v0.0.42"}
    # By this the front asks whether a token is valid.
    assert "/slurm/v0.0.42/licenses/" in paths


def test_only_a_good_token_is_answered(node: Booted) -> None:
    good = token(node)
    accepted = {
        "the token": (bearer(good),),
        "with the name of its user": (f"X-SLURM-USER-TOKEN: {good}", "X-SLURM-USER-NAME: alice"),
    }
    refused = {
        "none": (),
        "another user": (f"X-SLURM-USER-TOKEN: {good}", "X-SLURM-USER-NAME: bob"),
        "root": (f"X-SLURM-USER-TOKEN: {good}", "X-SLURM-USER-NAME: root"),
        "no token": ("X-SLURM-USER-NAME: root",),
        "two": (f"X-SLURM-USER-TOKEN: {good}", bearer(good)),
        "not a token": (bearer("x"),),
        "a changed one": (bearer(good[:-4] + ("AAAA" if good[-4:] != "AAAA" else "BBBB")),),
        "expired": (bearer(short_token(node)),),
    }
    paths = ("/slurm/v0.0.42/jobs/", "/slurm/v0.0.42/ping/", "/slurmdb/v0.0.42/jobs/", "/openapi/v3")
    rows = [(path, what, headers) for path in paths for what, headers in {**accepted, **refused}.items()]
    answers = requests(node, *(Wanted(path, headers) for path, _what, headers in rows))
    seen = {(path, what): code for (path, what, _), (code, _body) in zip(rows, answers, strict=True)}
    assert seen == {(path, what): 200 if what in accepted else 401 for path, what, _ in rows}


def test_a_user_sees_and_cancels_no_job_of_another(node: Booted) -> None:
    job = {"script": "#!/bin/sh\n", "environment": ["A=b"], "current_working_directory": "/tmp"}
    alice, bob = bearer(token(node)), bearer(token(node, "bob"))
    sent = Wanted(
        "/slurm/v0.0.42/job/submit", (alice, "Content-Type: application/json"), "POST", json.dumps({"job": job})
    )
    ((code, body),) = requests(node, sent)
    number = json.loads(body)["job_id"]
    assert code == 200
    listed, cancelled = requests(
        node, Wanted("/slurm/v0.0.42/jobs/", (bob,)), Wanted(f"/slurm/v0.0.42/job/{number}", (bob,), "DELETE")
    )
    assert json.loads(listed[1])["jobs"] == []
    # slurmrestd's own status is 200 all the same: what counts is in the body.
    assert [each["error"]["message"] for each in json.loads(cancelled[1])["status"]] == ["Access/permission denied"]
    assert node.sh("squeue --noheader --format='%i %u'").split() == [str(number), "alice"]
    requests(node, Wanted(f"/slurm/v0.0.42/job/{number}", (alice,), "DELETE"))
    assert node.sh("squeue --noheader") == ""


def test_nothing_else_listens_and_only_tls_is_spoken(node: Booted) -> None:
    listening = node.sh("ss --listening --tcp --numeric --processes --no-header")
    restd = [line for line in listening.splitlines() if "slurmrestd" in line]
    front = {line.split()[3] for line in listening.splitlines() if "nginx" in line}
    assert (restd, front) == ([], {"0.0.0.0:6820"})
    assert "400" in node.sh(
        "curl --silent --output /dev/null --write-out '%{http_code}' http://localhost:6820/openapi/v3"
    )
    refused = "curl --silent --cacert {} --tls-max 1.1 {}/openapi/v3; echo $?"
    assert node.sh(refused.format(f"{FOLDER}/ca.pem", URL)).split()[-1] != "0"
    # The socket is for the front alone.
    assert "Permission denied" in node.sh("ls /run/slurmrestd/", user="alice", check=False)
    assert node.sh("stat -c '%U %a' /run/slurmrestd").split() == ["slurmrestd", "750"]
    assert node.sh("ps -C slurmrestd -o user=").split() == ["slurmrestd"]
    assert set(node.sh("ps -C nginx -o user:20=").split()) == {"gpucluster-rest"}
    assert node.sh(f"stat -c '%U %a' {KEY} {FOLDER}/server.key").split() == ["slurm", "400", "root", "640"]


def test_a_host_of_another_network_is_refused(node: Booted) -> None:
    good = bearer(token(node))
    path = "/slurm/v0.0.42/jobs/"
    answers = requests(node, *(Wanted(path, (good,), source=address) for address in (ADDRESS, FOREIGN)))
    assert [code for code, _body in answers] == [200, 403]


def test_no_log_has_a_token(node: Booted) -> None:
    secret = token(node)
    assert get(node, "/slurm/v0.0.42/jobs/", bearer(secret))[0] == 200
    assert get(node, "/slurm/v0.0.42/jobs/", f"X-SLURM-USER-TOKEN: {secret}", "X-SLURM-USER-NAME: bob")[0] == 401
    node.sh("journalctl --sync")
    node.put("/root/secret", secret, 0o600)
    assert "GET /slurm/v0.0.42/jobs/" in node.sh("journalctl --identifier=gpucluster_rest --output=cat")
    found = node.sh(
        "journalctl --output=export | grep -caF -f /root/secret; grep -rlF -f /root/secret /var/log/slurm", check=False
    )
    assert found.split() == ["0"]


@pytest.mark.parametrize(
    ("user", "seconds", "why"),
    [
        ("root", 600, "account of the system"),
        # Debian's uid of it is 64030.
        ("slurm", 600, "account of the system"),
        ("carol", 600, "has no user 'carol'"),
        ("../x", 600, "has no user"),
        ("alice", 8 * 86400, "7 days at most"),
        ("alice", 0, "60 s at least"),
    ],
)
def test_the_agent_refuses_a_token(node: Booted, user: str, seconds: int, why: str) -> None:
    answer = ask(node, "rest-token", {"operation": "token", "arguments": {"user": user, "seconds": seconds}})
    assert why in answer["error"]["message"]


def test_users_make_tokens_of_their_own_for_a_week_at_most(node: Booted) -> None:
    said = node.sh("scontrol token lifespan=604800", user="alice")
    assert get(node, "/slurm/v0.0.42/jobs/", bearer(said.strip().partition("=")[2]))[0] == 200
    assert "time limit is invalid" in node.sh("scontrol token lifespan=604801", user="alice", check=False)
    assert "time limit is invalid" in node.sh("scontrol token lifespan=infinite", user="alice", check=False)
    assert "Invalid user id" in node.sh("scontrol token username=bob", user="alice", check=False)


def test_a_second_run_changes_nothing_and_verify_is_told_what_it_needs(node: Booted) -> None:
    assert apply(node).changed == 0
    ask = "import json; from gpucluster.controller.facts.rest import rest; print(json.dumps([rest(6820), rest(6821)]))"
    answers: list[dict[str, Any]] = []

    def in_time() -> bool:
        answers[:] = json.loads(agent_python(node, ask))
        return "status" in answers[0]

    wait_for("the answer comes within the limit of the question", in_time, state=lambda: answers)
    here, nowhere = answers
    assert here["status"] == 401
    assert 824 <= (here["ends"] - int(node.sh("date +%s"))) // 86400 <= 825
    assert "refused" in nowhere["error"]


def test_where_slurm_does_not_answer_the_front_states_it(node: Booted) -> None:
    good = token(node)
    node.sh("systemctl stop slurmrestd")
    try:
        assert get(node, "/slurmdb/v0.0.42/jobs/", bearer(good))[0] == 503
    finally:
        node.sh("systemctl start slurmrestd")
    await_daemons(node, good)


def test_after_a_rotation_no_token_is_valid_and_an_interrupted_one_is_shown(node: Booted) -> None:
    before, key = token(node), node.sh(f"sha256sum {KEY}")
    state = "import json; from gpucluster.controller import rest_key; print(json.dumps(rest_key.state()))"
    # Killed when the key is another one, and the daemons do not know it.
    begin = "from gpucluster.controller import rest_key as it; it.write_file(it.BEGUN, '{}'); it.replace()"
    agent_python(node, begin)
    assert json.loads(agent_python(node, state))[0]["state"] == "prepared"
    assert get(node, "/slurm/v0.0.42/jobs/", bearer(before))[0] == 200
    agent_python(node, "from gpucluster.controller import rest_key; rest_key.rotate(print)")
    assert json.loads(agent_python(node, state))[0]["state"] == "complete"
    assert node.sh(f"sha256sum {KEY}") != key
    assert node.sh(f"stat -c '%U %a %s' {KEY}").split() == ["slurm", "400", "64"]
    paths, after = ("/slurm/v0.0.42/jobs/", "/slurmdb/v0.0.42/jobs/", "/openapi/v3"), token(node)
    await_daemons(node, after)
    answers = requests(node, *(Wanted(path, (bearer(each),)) for each in (before, after) for path in paths))
    assert [code for code, _body in answers] == [401] * 3 + [200] * 3


def test_one_s_own_certificate_is_shown(node: Booted, tmp_path: Path) -> None:
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    made += ["-subj", "/CN=rest.example.org", "-addext", f"subjectAltName=DNS:{CONTROLLER}"]
    own, key = tmp_path / "own.pem", tmp_path / "own.key"
    subprocess.run([*made, "-keyout", key, "-out", own], check=True, capture_output=True)
    files = {"slurm_rest_certificate": own.read_text().strip(), "slurm_rest_key_file": str(key)}
    done = apply(node, **files)
    assert "PRIVATE KEY" not in done.said
    assert node.sh(f"stat -c '%U %G %a' {FOLDER}/own.key").split() == ["root", "gpucluster-rest", "640"]
    assert (
        node.sh(f"curl --silent --output /dev/null --cacert {FOLDER}/own.pem {URL}/openapi/v3; echo $?").strip() == "0"
    )
    assert (
        node.sh(f"curl --silent --output /dev/null --cacert {FOLDER}/ca.pem {URL}/openapi/v3; echo $?").strip() != "0"
    )
    apply(node)
    assert get(node, "/openapi/v3")[0] == 401


def test_without_it_nothing_is_left(node: Booted) -> None:
    apply(node, slurm_rest=False)
    assert node.sh(f"ls -d {FOLDER} {KEY} /etc/systemd/system/gpucluster-rest.service 2> /dev/null; true") == ""
    listening = node.sh("ss --listening --tcp --numeric --no-header")
    assert ":6820" not in listening
    assert "inactive" in node.sh("systemctl is-active slurmrestd gpucluster-rest", check=False)
