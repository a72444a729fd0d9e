"""The users of a cluster, for real: who can log in, what a removed user leaves, and how a backup is restored.

The tests run in the order of this file, on one cluster of a controller and a node: each is a chapter of the same story.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.site_harness import ALONE, ENDLESS, NETWORK, PATIENCE_TO_BUILD_S, Site, all_pass, containers
from tests.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.story, pytest.mark.timeout(2 * PATIENCE_TO_BUILD_S)]

CONTROLLER, NODE = "folk-controller", "compute-1"
HOSTS = (CONTROLLER, NODE)
SUFFIX = "dc=folk,dc=local"
CLUSTER_YML = f"""\
version: 1
name: folk
cloud: {{provider: local}}
{NETWORK}\
# Oracle Linux 9 is Debian 12 here, with the traps of its image: the directory, sssd and Slurm of the older system.
controller:
  shape: VM.Standard.E5.Flex
  ocpus: 2
  memory_gb: 16
  image: {{operating_system: Oracle Linux, version: "9"}}
pools:
  compute:
    count: 1
    shape: VM.Standard.E5.Flex
    ocpus: 2
    memory_gb: 16
    image: {{operating_system: Oracle Linux, version: "9"}}
slurm:
  user_limits: {{submitted_jobs: 4}}
  qos: {{urgent: {{priority: 9, preempts: [normal]}}}}
  accounts:
    vision: {{fairshare: 3, qos: [normal, urgent], limits: {{cpu_hours: 1000}}, users: [alice]}}
backup: {{certificate: backup.pem, schedule: "{{day}} 04:00", keep: 2}}
users:
  people:
    - {{name: alice, full_name: Alice Example, generate_key: true}}
"""
#: What squeue answers about a job that is over.
GONE = "slurm_load_jobs error: Invalid job id specified"
#: Everything that would show it: a file that any user may read, on any disk of a host.
PLACES = "/etc /home /mnt /opt /root /run /srv /tmp /usr/local /var"


class Folk(Site):
    """The cluster, and commands on its hosts."""

    def sh(self, command: str, host: str = CONTROLLER, *, stdin: str = "", check: bool = True) -> str:
        """The output of a command that root of a host runs in a shell."""
        done = self.ssh(host, "sudo sh -s", stdin=command if not stdin else f"{command} <<'END'\n{stdin}\nEND\n")
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return (done.stdout if check else done.stdout + done.stderr).strip()

    def person(self, name: str, command: str, host: str = CONTROLLER) -> subprocess.CompletedProcess[str]:
        """A new login of a user, with their own key."""
        return self.ssh(host, command, *ALONE, who=name)

    def typed(self, *words: str, stdin: str) -> dict[str, Any]:
        """The result of a command that reads standard input."""
        argv = [sys.executable, "-m", "gpucluster", "--file", str(self.file), "--output", "json", *words]
        done = subprocess.run(
            argv, env=self.env, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["data"]
        return found

    def lets_in(self, name: str, host: str) -> None:
        self.until(f"{host} lets {name} in", lambda: self.person(name, "true", host).returncode == 0)

    def idle(self) -> None:
        state = f"sinfo --noheader --nodes={NODE} --format=%T"
        self.until("the node is idle", lambda: self.sh(state, check=False) == "idle")


@pytest.fixture(scope="module")
def site() -> Iterator[Folk]:
    # Once a week, and not in these hours: of backups that the timer makes, the tests know nothing.
    with Folk(CLUSTER_YML.replace("{day}", f"{datetime.now(UTC) + timedelta(days=3):%a}")) as made:
        assert isinstance(made, Folk)
        argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=backup"]
        argv += ["-keyout", "backup_key.pem", "-out", "backup.pem"]
        subprocess.run(argv, check=True, capture_output=True, cwd=made.folder)
        yield made


@contextlib.contextmanager
def job(site: Folk, name: str) -> Iterator[str]:
    """A job of a user on the node, to the end of the block: only then it lets them in."""
    submitted = site.person(name, f"sbatch --parsable --output=/dev/null --wrap '{ENDLESS}'")
    number = submitted.stdout.strip()
    assert number.isdigit(), submitted.stderr
    # A controller of Slurm that has just started waits for its nodes.
    site.runs(number)
    try:
        yield number
    finally:
        site.sh(f"scancel {number}")
        site.until(
            "the job is gone", lambda: site.sh(f"squeue --noheader --jobs={number}; true", check=False) in ("", GONE)
        )


def test_every_check_passes(site: Folk) -> None:
    result = site.good("apply")
    assert all_pass(result), result["checks"]


# ---- access to the directory

#: A search without a bind before it, as no program of OpenLDAP would send it.
UNBOUND = f"""\
import socket, ssl
def ber(tag, *parts):
    body = b"".join(parts)
    return bytes([tag, len(body)]) + body
number = lambda tag, value: ber(tag, bytes([value]))
base = b"{SUFFIX}"
search = ber(0x63, ber(4, base), number(10, 2), number(10, 0), number(2, 0), number(2, 5), number(1, 0),
             ber(0x87, b"objectClass"), ber(0x30))
trust = ssl.create_default_context(cafile="/etc/gpucluster/authority.pem")
with trust.wrap_socket(socket.create_connection(("{CONTROLLER}", 636)), server_hostname="{CONTROLLER}") as server:
    server.sendall(ber(0x30, number(2, 1), search))
    answer = server.recv(4096)
print("entries", answer.count(b"dn"), "code", answer[answer.index(bytes([10, 1])) + 2])
"""


def host_dn(host: str) -> str:
    """The entry with which a host binds."""
    return f"cn={host},ou=hosts,{SUFFIX}"


def bind_password(site: Folk, host: str) -> str:
    return site.sh("sed -n 's/^ldap_default_authtok = //p' /etc/sssd/sssd.conf", host)


def ldap(site: Folk, words: str, *, host: str = NODE, trust: str = "/etc/gpucluster/authority.pem") -> str:
    where = f"LDAPTLS_CACERT={trust} ldapsearch -LLL -o ldif-wrap=no -o nettimeout={PATIENCE_S:.0f}"
    return site.sh(f"{where} {words}", host, check=False)


def test_no_client_is_served_without_a_name(site: Folk) -> None:
    assert "anonymous bind disallowed" in ldap(site, f"-x -H ldaps://{CONTROLLER} -b {SUFFIX}")
    # 53 is unwillingToPerform.
    assert site.sh("python3 -", NODE, stdin=UNBOUND) == "entries 0 code 53"


def test_nothing_is_in_the_clear_and_no_other_ca_is_believed(site: Folk) -> None:
    assert "Can't contact" in ldap(site, f"-x -H ldap://{CONTROLLER} -b {SUFFIX}")
    assert ":389 " not in site.sh("ss --listening --tcp --numeric")
    bind = f"-x -D {host_dn(NODE)} -w wrong -H ldaps://{CONTROLLER} -b {SUFFIX}"
    assert "Can't contact" in ldap(site, bind, trust="/etc/ssl/certs/ca-certificates.crt")
    # With the right one it is the password that is wrong.
    assert "Invalid credentials" in ldap(site, bind)


def test_a_user_is_added_with_a_password_that_no_other_user_can_read(site: Folk) -> None:
    key = site.key("bob").with_name("bob_ed25519.pub")
    added = site.typed("user", "add", "bob", "--ssh-key", str(key), "--password-stdin", stdin="correct horse 7\n")
    assert added["user"]["privileged"] is False
    entry = f"uid=bob,ou=people,{SUFFIX}"
    root = "ldapsearch -Q -Y EXTERNAL -H ldapi://%2Frun%2Fslapd%2Fldapi -LLL -o ldif-wrap=no"
    # The start alone: Debian's slapd keeps the string's NUL, and a byte of memory after it that may be no text.
    kept = site.sh(f"{root} -b {entry} userPassword | sed -n 's/^userPassword:: //p' | base64 -d | head -c 40")
    assert kept.startswith("{ARGON2}$argon2"), kept[:12]
    lookup = ldap(
        site,
        f"-x -D {host_dn(NODE)} -w {bind_password(site, NODE)} -H ldaps://{CONTROLLER} -b {SUFFIX}",
        host=CONTROLLER,
    )
    assert f"dn: {entry}" in lookup
    assert "sshPublicKey: ssh-ed25519" in lookup
    # The entry with the rules about passwords names the attribute, as a value.
    assert not re.search(r"^userPassword", lookup, re.MULTILINE)
    own = ldap(site, f"-x -D {entry} -w 'correct horse 7' -H ldaps://{CONTROLLER} -b {SUFFIX}; true")
    assert "dn:" not in own
    own = ldap(site, f"-x -D {entry} -w 'correct horse 7' -H ldaps://{CONTROLLER} -b {entry}")
    assert f"dn: {entry}" in own
    assert "userPassword" not in own


#: Who has this key is the host for the cloud.
IDENTITY = "http://169.254.169.254/opc/v2/identity/key.pem"
ASK = f"curl --noproxy '*' -s -m {PATIENCE_S:.0f} -o /dev/null -w '%{{http_code}}' -H 'Authorization: Bearer Oracle'"
ASK += f" {IDENTITY}"


def test_a_user_does_not_become_the_controller(site: Folk) -> None:
    """From the controller, from a job on a node, and through a forwarded port, which sshd opens as the user."""
    for host in HOSTS:
        assert site.sh(ASK, host) == "200"
    assert site.person("alice", ASK).stdout == "000"
    assert site.person("alice", f"srun {ASK}").stdout == "000"
    argv = ["ssh", "-F", str(site.folder / ".gpucluster" / "ssh" / "config"), *ALONE, "-i", str(site.key("alice"))]
    argv += ["-o", f"ConnectTimeout={PATIENCE_S / 2:.0f}", "-l", "alice", "-W", "169.254.169.254:80", CONTROLLER]
    asked = "GET /opc/v2/identity/key.pem HTTP/1.0\r\nHost: 169.254.169.254\r\nAuthorization: Bearer Oracle\r\n\r\n"
    done = subprocess.run(argv, input=asked, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "PRIVATE KEY" not in done.stdout
    assert "forwarding failed" in done.stderr, done.stderr

    # With the rules gone, verify reports it.
    site.sh("nft delete table inet gpucluster", NODE)
    assert site.person("alice", f"srun {ASK}").stdout == "200"
    code, events = site.run("verify")
    assert code == 1
    checks = {event["name"]: event for event in events if event["kind"] == "check"}
    check = checks["users reach no service of the cloud's own"]
    assert check["status"] == "fail"
    assert f"{NODE}: any user reaches the metadata" in check["message"]
    site.sh("systemctl restart gpucluster-metadata", NODE)
    assert site.person("alice", f"srun {ASK}").stdout == "000"


def test_a_new_password_of_their_own_is_hashed_as_strongly(site: Folk) -> None:
    entry = f"uid=bob,ou=people,{SUFFIX}"
    change = f"-x -D {entry} -w 'correct horse 7' -s 'another horse 8' -H ldaps://{CONTROLLER}"
    site.sh(f"LDAPTLS_CACERT=/etc/gpucluster/authority.pem ldappasswd {change}", NODE)
    root = "ldapsearch -Q -Y EXTERNAL -H ldapi://%2Frun%2Fslapd%2Fldapi -LLL -o ldif-wrap=no"
    # The start alone: Debian's slapd keeps the string's NUL, and a byte of memory after it that may be no text.
    kept = site.sh(f"{root} -b {entry} userPassword | sed -n 's/^userPassword:: //p' | base64 -d | head -c 40")
    assert kept.startswith("{ARGON2}$argon2"), kept[:12]
    assert "dn:" in ldap(site, f"-x -D {entry} -w 'another horse 8' -H ldaps://{CONTROLLER} -b {entry}")


def test_wrong_passwords_lock_the_password_of_a_user_and_never_the_hosts(site: Folk) -> None:
    entry, host = f"uid=bob,ou=people,{SUFFIX}", host_dn(NODE)
    right = f"-D {entry} -w 'another horse 8'"
    who = "ldapwhoami -x -H ldapi://%2Frun%2Fslapd%2Fldapi"

    def tried(words: str, times: int = 1) -> str:
        return site.sh(f"for _ in $(seq {times}); do {who} {words}; done", check=False)

    assert tried(f"-D {entry} -w wrong", 4).count("Invalid credentials") == 4
    assert tried(right) == f"dn:{entry}"
    tried(f"-D {entry} -w wrong", 5)
    assert "Invalid credentials" in tried(right)
    assert site.good("user", "enable", "bob")["changed"] is True
    assert tried(right) == f"dn:{entry}"
    tried(f"-D {host} -w wrong", 7)
    assert tried(f"-D {host} -w {bind_password(site, NODE)}") == f"dn:{host}"


# ---- users among each other


def test_without_a_job_only_operators_log_in_to_a_node(site: Folk) -> None:
    site.lets_in("bob", CONTROLLER)
    assert site.person("bob", "true", NODE).returncode != 0
    with job(site, "bob"):
        site.lets_in("bob", NODE)
        # systemd would put the session beside the job.
        assert "user.slice" not in site.person("bob", "cat /proc/self/cgroup", NODE).stdout
        # The job of one lets no other user in.
        assert site.person("alice", "true", NODE).returncode != 0
    assert site.person("bob", "true", NODE).returncode != 0


def test_users_see_neither_jobs_nor_processes_of_others(site: Folk) -> None:
    look = "squeue --noheader --format=%u; sacct --allusers --noheader --allocations --format=user; ps -e -o user="
    with job(site, "bob") as number:
        seen = site.person("alice", look).stdout.split()
        assert set(seen) == {"alice"}, seen
        assert site.person("alice", f"scontrol show job {number}").returncode != 0
        assert set(site.person("alice", "srun ps -e -o user=").stdout.split()) == {"alice"}
        site.confirmed("group", "add-member", "privilege", "alice")
        site.until("an operator sees all", lambda: {"bob", "root"} <= set(site.person("alice", look).stdout.split()))
        # An operator needs no job.
        site.lets_in("alice", NODE)
        site.confirmed("group", "remove-member", "privilege", "alice")
        site.until("alice sees her own", lambda: set(site.person("alice", look).stdout.split()) == {"alice"})
        # What sssd remembers is believed for a second, on each host.
        site.until("the node lets alice in no more", lambda: site.person("alice", "true", NODE).returncode != 0)


def test_one_user_does_not_take_the_whole_cluster(site: Folk) -> None:
    partition = site.sh("scontrol --oneliner show partition compute")
    assert " DefaultTime=1-00:00:00 " in partition
    assert " MaxTime=7-00:00:00 " in partition
    done = site.person("alice", "for _ in 1 2 3 4 5; do sbatch --hold --wrap true; done; scancel --user=alice")
    assert (done.stdout.count("Submitted"), "limit" in done.stderr) == (4, True), done.stderr


# ---- from a node to the controller

ATTACK = """\
mkdir -p /mnt/home/alice/attack && cd /mnt/home/alice/attack
printf '#!/bin/sh\\nid > /mnt/home/alice/attack/ran; id > /var/tmp/ran\\n' > script
chmod -R 777 . && chmod 755 /mnt/home/alice
for script in $PWD/script /usr/bin/touch; do
    sacctmgr --immediate archive dump Directory=/var/tmp Events PurgeEventAfter=1hours Script=$script
done
runuser --user=slurm -- strigger --set --up --program=$PWD/script
srun --nodelist=$(hostname) true && touch ran
scontrol shutdown
sacctmgr shutdown
"""


def test_accounts_and_qos_of_the_file_hold(site: Folk) -> None:
    """A job of a QOS takes the node from another one, which waits again; a user without the account has neither."""
    config = site.sh("scontrol show config | tr -d ' '")
    for line in ("AccountingStorageEnforce=associations,limits,qos,safe", "PriorityType=priority/multifactor"):
        assert line in config
    assert "PreemptType=preempt/qos" in config
    submit = "sbatch --parsable --output=/dev/null --exclusive --time=5 --account=vision"
    site.idle()
    waits = site.person("alice", f"{submit} --wrap '{ENDLESS}'").stdout.strip()
    site.runs(waits)
    urgent = site.person("alice", f"{submit} --qos=urgent --wrap '{ENDLESS}'").stdout.strip()
    try:
        site.runs(urgent)
        state = site.sh(f"scontrol --oneliner show job {waits}")
        assert "JobState=PENDING" in state, state
        assert "Restarts=1 " in state, state
    finally:
        site.sh(f"scancel {waits} {urgent}")
        site.idle()


def test_what_it_has_cost_is_seconds_of_instances_times_their_price(site: Folk) -> None:
    """The sum of all rows is that of the recorded hosts; the job of before has a part of the node."""
    # By itself it is that of this month, which may have begun while the cluster stood.
    since = ("--since", f"{datetime.now(UTC) - timedelta(days=2):%Y-%m-%d}")
    found = site.good("cost", "--by", "account", *since)
    hosts = json.loads(site.sh("cat /var/lib/gpucluster-directory/billed-hosts.json"))
    assert {host["pool"] for host in hosts} == {"controller", "compute"}
    until = datetime.fromisoformat(found["until"]).timestamp()
    # Oracle's list of the package: a core 0.03, a GB 0.002 an hour.
    expected = sum((until - host["began"]) / 3600 * (2 * 0.03 + 16 * 0.002) for host in hosts)
    assert found["total"]["total"] == pytest.approx(expected, rel=0.02)
    rows = {row["key"]: row for row in found["rows"]}
    assert rows["vision"]["job"] > 0
    assert rows["vision"]["total"] == rows["vision"]["job"]
    assert rows["-"]["service"] > rows["-"]["idle"] * 0.5 > 0
    assert (found["unpriced"], found["uncovered"]) == ({}, {})
    window = (*since, "--until", found["until"])
    sums = [site.good("cost", "--by", by, *window)["total"]["total"] for by in ("day", "pool")]
    assert sums == pytest.approx([expected, expected], rel=0.01)


def test_root_of_a_node_runs_nothing_on_the_controller_and_ends_nothing(site: Folk) -> None:
    site.sh("sh -s", NODE, stdin=ATTACK, check=False)
    site.until("slurmctld answers", lambda: "UP" in site.sh("scontrol ping", check=False))
    site.until("slurmdbd answers", lambda: "bob" in site.sh("sacctmgr --noheader list users format=user", check=False))
    site.idle()
    assert site.sh("ls /mnt/home/alice/attack") == "script"
    assert site.sh("ls -d /var/tmp/ran", check=False) != "/var/tmp/ran"
    site.sh("rm -r /mnt/home/alice/attack; chmod 700 /mnt/home/alice")
    for daemon in ("slurmctld", "slurmdbd", "munge", "slapd"):
        pid = site.sh(f"systemctl show --property=MainPID --value {daemon}")
        inside = f"nsenter --target {pid} --mount"
        assert site.sh(f"{inside} ls /mnt/home /home /root", check=False).split() == [
            "/home:",
            "/mnt/home:",
            "/root:",
        ]
        assert "denied" in site.sh(f"{inside} sh -c 'cp /bin/true /tmp/x && /tmp/x'", check=False)


# ---- what a node reports about itself

#: Messages to the health service that root of a node can make up, and one of a user. Prints an answer for each.
LIES = f"""\
import json, socket, subprocess
def report(host, status="fail"):
    finding = {{"check": "root_file_system", "subject": host, "status": status, "message": "made up", "evidence": {{}}}}
    return json.dumps({{"host": host, "profile": "quick", "started": 1.0, "duration_s": 0.1, "boot_id": "x",
                       "findings": [finding]}})
def sealed(text, *who):
    return subprocess.run([*who, "munge"], input=text, capture_output=True, text=True, check=True).stdout.encode()
def send(data):
    with socket.create_connection(("{CONTROLLER}", 6823), timeout={PATIENCE_S}) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return connection.makefile().read().strip() or "closed"
        except OSError:  # closed before all was sent
            return "closed"
good = sealed(report("{NODE}", "pass"))
for name, data in {{
    "user": sealed(report("{NODE}"), "runuser", "-u", "daemon", "--"), "controller": sealed(report("{CONTROLLER}")),
    "other": sealed(report("compute-2")), "garbage": b"MUNGE:garbage:", "long": b"x" * 1000000,
    "no report": sealed("[]"), "good": good, "again": good,
}}.items():
    print(name, "=", send(data))
"""


def test_a_node_reports_about_itself_alone(site: Folk) -> None:
    said = dict(line.split(" = ") for line in site.sh("python3 -", NODE, stdin=LIES).splitlines())
    assert json.loads(said.pop("good")) == {"drained": False, "reason": ""}
    assert "only root reports" in said["user"]
    assert "reports about" in said["controller"]
    assert "reports about" in said["other"]
    assert "eplay" in said["again"]
    assert all("error" in answer or answer == "closed" for answer in said.values()), said
    known = json.loads(site.sh("gpucluster-agent health status --output json"))
    assert [row["node"] for row in known["nodes"]] == [NODE]
    site.idle()


#: A node's own look at itself. A report that the health service does not take within some seconds is lost.
CHECK = "/usr/local/lib/gpucluster/health-check"


def reason(site: Folk) -> str:
    """Why the node is drained; empty if it is not."""
    state, _, text = site.sh(f"sinfo --noheader --nodes={NODE} '--format=%T %E'").partition(" ")
    return text if state.startswith("drain") else ""


def reason_after_a_check(site: Folk) -> str:
    """The same, after the node has looked at itself."""
    site.sh(CHECK, NODE)
    return reason(site)


def test_a_node_whose_check_fails_is_drained_until_it_is_repaired(site: Folk) -> None:
    site.sh("umount --lazy /mnt/home", NODE)
    failed = "gpucluster: check failed: mounts:"
    try:
        site.until("the node is drained", lambda: reason_after_a_check(site).startswith(failed))
    except AssertionError as error:
        agent = "gpucluster-agent"
        here = site.sh(
            f"journalctl --no-pager -n 20 -t gpucluster-health; {agent} check --profile periodic; true", NODE
        )
        there = site.sh("gpucluster-agent health status; journalctl --no-pager -n 20 -u gpucluster-health")
        raise AssertionError(f"{error}: {here} {there}") from None
    status = json.loads(site.sh("gpucluster-agent health status --output json"))
    assert [each["check"] for each in status["nodes"][0]["failing"] if each["drains"]] == ["mounts"]
    assert site.sh("cat /var/lib/gpucluster/health/metrics.prom")
    site.sh("mount /mnt/home", NODE)
    site.until("the node takes jobs again", lambda: not reason_after_a_check(site))
    # An operator's drain is theirs, also when a check fails meanwhile and passes again.
    site.sh(f"scontrol update nodename={NODE} state=drain reason='loud fan'")
    site.sh(f"umount --lazy /mnt/home && {CHECK}; mount /mnt/home && {CHECK}", NODE)
    assert reason(site) == "loud fan"
    site.sh(f"scontrol update nodename={NODE} state=resume")


# ---- who can log in


def test_a_key_of_the_directory_lets_in_where_the_home_has_none(site: Folk) -> None:
    site.sh("mv /mnt/home/bob/.ssh/authorized_keys /mnt/home/bob/.ssh/elsewhere")
    site.lets_in("bob", CONTROLLER)
    with job(site, "bob"):
        for host in HOSTS:
            site.lets_in("bob", host)
            assert site.person("bob", "id -gn", host).stdout.strip() == "people"
    site.sh("mv /mnt/home/bob/.ssh/elsewhere /mnt/home/bob/.ssh/authorized_keys")
    assert site.person("bob", "srun hostname").stdout.strip() == NODE
    # The key of another user is refused.
    site.key("mallory").replace(site.key("mallory").with_name("carol_ed25519"))
    assert site.person("carol", "true").returncode != 0


# ---- from host to host


def test_users_go_on_to_nodes_without_a_key_of_their_own(site: Folk) -> None:
    """With no private key in the home, and no agent: the host that they come from authenticates them."""
    on = "ssh -o BatchMode=yes -o StrictHostKeyChecking=yes"
    assert site.person("alice", "ls -A .ssh").stdout.split() in ([], ["authorized_keys"])
    hop = f"{on} {NODE} '{on} {NODE} \"hostname; id -un\"'"
    site.lets_in("alice", CONTROLLER)
    with job(site, "alice"):
        # Slurm calls a job running before its node has begun with it.
        site.lets_in("alice", NODE)
        assert site.person("alice", hop).stdout.split() == [NODE, "alice"]


#: Root of a node has alice's rights there, and whatever lies in her home. Her keys, and one that is put there now.
TAKEN = """\
cat > /tmp/taken <<'EOF'
cd && mkdir -p .ssh && test -e .ssh/evil || ssh-keygen -q -t ed25519 -N "" -f .ssh/evil
for file in authorized_keys authorized_keys2; do
    cat .ssh/evil.pub >> .ssh/$file; chmod 600 .ssh/$file
done
for key in none $(ls .ssh/* | grep -v -e pub -e authorized); do
    ssh -o BatchMode=yes -i $key alice@{host} echo in
done
EOF
su alice -c 'sh /tmp/taken'
"""


def test_root_of_a_node_gets_into_no_other_host_with_what_lies_there(site: Folk) -> None:
    said = site.sh(TAKEN.format(host=CONTROLLER), NODE, check=False)
    assert "Permission denied" in said
    assert "in" not in said.split()
    # As operators of other nodes: no host authenticates the image's login user and root.
    login = site.sh("logname 2> /dev/null || stat -c %U ~ubuntu ~opc ~debian 2> /dev/null | head -1", NODE)
    for user in (login, "root"):
        told = site.sh(f"su {user} -c 'ssh -o BatchMode=yes {NODE} echo in'", NODE, check=False)
        assert "Permission denied" in told, told
    site.sh("rm -f /mnt/home/alice/.ssh/evil* /mnt/home/alice/.ssh/authorized_keys2", check=False)


def test_hosts_are_known_by_the_cluster_s_own_ca(site: Folk) -> None:
    """With nothing else than the CA's key in known_hosts, as for a node that was launched a moment ago."""
    only = "grep cert-authority /etc/ssh/ssh_known_hosts > /tmp/only"
    known = "-o GlobalKnownHostsFile=/tmp/only -o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes"
    site.sh(only)

    def reached() -> bool:
        return site.person("alice", f"ssh -o BatchMode=yes {known} {NODE} hostname").stdout.strip() == NODE

    with job(site, "alice"):
        site.until("the node is known by its certificate", reached)
    # A certificate holds for the names of its host, and for no other.
    other = site.person("alice", f"ssh -o BatchMode=yes {known} -o HostKeyAlias={CONTROLLER} {NODE} hostname")
    assert "verification failed" in other.stderr
    # A user without root's rights gets none, on no host.
    talk = f"import socket; s = socket.create_connection(('{CONTROLLER}', 6822))"
    talk += "; s.sendall(open('/etc/ssh/ssh_host_ed25519_key.pub', 'rb').read()); s.shutdown(1); print(s.recv(4096))"
    told = site.sh(f'su alice -c "python3 -c \\"{talk}\\""', NODE)
    assert "may belong to any user" in told
    assert "cert" not in told


def test_a_job_knows_of_a_new_group_as_soon_as_a_login_does(site: Folk) -> None:
    """Slurm hands groups to jobs, and remembers them: by itself for ten minutes."""
    assert "lab" not in site.person("bob", "srun id -Gn").stdout.split()
    site.good("group", "add", "lab")
    site.confirmed("group", "add-member", "lab", "bob")
    site.until("a job has the group", lambda: "lab" in site.person("bob", "srun id -Gn").stdout.split())
    site.confirmed("group", "remove-member", "lab", "bob")
    site.until("a job has the group no more", lambda: "lab" not in site.person("bob", "srun id -Gn").stdout.split())
    site.confirmed("group", "remove", "lab")


def has_none(site: Folk, who: str, host: str) -> None:
    """A host has no process of a user; one that was killed is counted until its parent knows of it."""
    site.until(f"{host} has no process of {who}", lambda: site.sh(f"pgrep --euid {who} --count; true", host) == "0")


def test_who_is_disabled_gets_in_nowhere_and_runs_nothing(site: Folk) -> None:
    site.person("bob", "sbatch --wrap 'sleep 86400'; setsid sleep 86400 > /dev/null 2>&1 &")
    for host in HOSTS:
        site.lets_in("bob", host)
    site.person("bob", "setsid sleep 86400 > /dev/null 2>&1 &", NODE)
    results = site.confirmed("user", "disable", "bob")
    assert (results[-1]["unreachable"], results[-1]["unconfirmed"]) == ([], {})
    assert sum(each["ended"]["jobs"] for each in results) == 1
    assert sum(each["ended"]["processes"] for each in results) >= 2
    for host in HOSTS:
        # What sssd remembers is believed for a second. A node refuses bob already because he has no job.
        site.until(f"{host} lets bob in no more", lambda host=host: site.person("bob", "true", host).returncode != 0)  # type: ignore[misc]
        refused = "su bob -c id 2>&1 | grep expired; true"
        site.until(f"{host} knows of it", lambda host=host, refused=refused: site.sh(refused, host))  # type: ignore[misc]
        has_none(site, "bob", host)
        # `verify` names units that have failed.
        assert site.sh("systemctl list-units --failed --plain --no-legend 'user@*'", host) == ""
    site.good("user", "enable", "bob")
    site.lets_in("bob", CONTROLLER)
    with job(site, "bob"):
        site.lets_in("bob", NODE)
    assert site.person("bob", "srun hostname").stdout.strip() == NODE


def test_of_who_is_removed_nothing_is_left_but_files(site: Folk) -> None:
    uid = site.sh("id -u bob")
    site.person("bob", "touch kept; sbatch --wrap 'sleep 86400'; setsid sleep 86400 > /dev/null 2>&1 &")
    site.lets_in("bob", NODE)
    site.person("bob", "setsid sleep 86400 > /dev/null 2>&1 &", NODE)
    gone = site.confirmed("user", "remove", "bob")[-1]
    assert gone["unreachable"] == []
    assert gone["kept"] == ["/mnt/home/bob"]
    for host in HOSTS:
        has_none(site, uid, host)
        for ask in ("getent passwd bob", "runuser --user=nobody -- sss_ssh_authorizedkeys bob 2> /dev/null"):
            site.until(f"{host} has no bob", lambda host=host, ask=ask: site.sh(f"{ask}; true", host) == "")  # type: ignore[misc]
        assert site.person("bob", "true", host).returncode != 0
    assert site.sh("sacctmgr --noheader --parsable2 list associations user=bob") == ""
    # His job was cancelled, and its node may still clean up.
    none = ("", f"squeue: error: Invalid user: {uid}")
    site.until("he has no job", lambda: site.sh(f"squeue --noheader --user={uid}; true", check=False) in none)
    assert site.sh("stat -c %u /mnt/home/bob/kept") == uid


def test_nothing_secret_can_be_read_by_others(site: Folk) -> None:
    for host in HOSTS:
        password = bind_password(site, host)
        assert len(password) >= 32
        nothing_has(site, password)


def nothing_has(site: Folk, password: str) -> None:
    for host in HOSTS:
        # As a user without any right, and in what the services printed.
        look = f"runuser --user=nobody -- grep -r --files-with-matches --no-messages --fixed-strings -e '{password}'"
        assert site.sh(f"{look} {PLACES}; true", host) == ""
        assert site.sh(f"journalctl --quiet --grep '{password}' || true", host) == ""
        assert site.sh("stat -c '%a %U' /etc/sssd/sssd.conf", host) in ("600 root", "640 root")
    for file in (site.folder / ".gpucluster").rglob("*"):
        assert not file.is_file() or password not in file.read_text(errors="replace"), file


# ---- restoring a backup


def users(site: Folk) -> list[dict[str, Any]]:
    """The users of the directory, as the controller has them."""
    request = '{"operation": "user.list"}'
    # slapd that has just started does not listen yet.
    found: list[dict[str, Any]] = wait_for(
        "the directory answers", lambda: json.loads(site.sh("cluster request", stdin=request))["result"],
        interval=0.5, ignore=(AssertionError, KeyError),
    )["users"]  # fmt: skip
    return found


def state_of(site: Folk) -> tuple[str, list[str], list[str]]:
    people = sorted((user["name"], user["uid"]) for user in users(site))
    jobs = site.sh("sacct --allusers --allocations --noheader --parsable2 --format=jobid,user --starttime=now-1day")
    associations = site.sh("sacctmgr --noheader --parsable2 list associations format=cluster,account,user")
    # sacct lists jobs that began in the same second in any order.
    return str(people), sorted(jobs.splitlines()), sorted(associations.splitlines())


@pytest.fixture(scope="module")
def backup(site: Folk) -> Path:
    return site.folder / "kept.tar.gz"


def test_a_backup_is_private_and_never_written_over(site: Folk, backup: Path) -> None:
    key = site.key("dora").with_name("dora_ed25519.pub")
    site.good("user", "add", "dora", "--ssh-key", str(key))
    made = site.good("backup", str(backup))
    assert (made["people"], made["groups"]) == (2, 2)
    assert made["accounting_jobs"] >= 3
    assert backup.stat().st_mode & 0o777 == 0o600
    before = backup.read_bytes()
    code, events = site.run("backup", str(backup))
    assert (code, backup.read_bytes()) == (2, before), events
    assert [file.name for file in site.folder.iterdir() if "kept" in file.name] == [backup.name]


def test_the_controller_makes_encrypted_backups_of_its_own(site: Folk) -> None:
    """As its timer starts it, in the sandbox of the service. The oldest of those that are there goes."""
    assert site.sh("systemctl is-active gpucluster-backup.timer") == "active"
    folder = "/mnt/home/.gpucluster-backups/folk"
    assert site.good("backup", "--list")["backups"] == []
    oldest, old = (f"{folder}/folk-2020010{day}T000000Z.tar.gz.cms" for day in (1, 2))
    site.sh(f"install -d -m 755 {folder} && umask 077 && touch {oldest} {old}")
    site.sh("systemctl start gpucluster-backup.service")
    site.sh(f"test ! -e {oldest} && test -e {old}")
    assert site.sh(f"stat -c '%a %U' {folder}") == "700 root"
    assert site.sh(f"stat -c '%a %U' {folder}/*").splitlines() == ["600 root"] * 2
    found = site.good("backup", "--list")["backups"]
    assert [each["name"] for each in found] == sorted(site.sh(f"ls {folder}").split(), reverse=True)
    file = site.folder / "own.cms"
    brought = site.good("backup", "--fetch", "latest", str(file))
    assert (brought["name"], brought["bytes"]) == (found[0]["name"], file.stat().st_size)
    assert b"dora" not in file.read_bytes()
    plain = file.with_name("own.tar.gz")
    argv = ["openssl", "cms", "-decrypt", "-binary", "-inform", "DER", "-in", str(file), "-out", str(plain)]
    subprocess.run([*argv, "-inkey", str(site.folder / "backup_key.pem")], check=True)
    with tarfile.open(plain) as archive:
        content = archive.extractfile("manifest.json")
        assert content
        manifest = json.loads(content.read())
    assert (manifest["cluster"], manifest["counts"]["people"]) == ("folk", 2)
    assert manifest["counts"]["accounting_jobs"] >= 3
    code, events = site.run("restore", str(file))
    assert (code, "the backup is encrypted" in events[-1]["message"]) == (2, True), events
    code, events = site.run("restore", str(file), "--key", str(site.folder / "backup.pem"))
    assert (code, "openssl can't use the key" in events[-1]["message"]) == (2, True), events
    for left in (file, plain):
        left.unlink()


def damaged(backup: Path, name: str, change: Callable[[bytes], bytes], *, signed: bool = False) -> Path:
    """A copy of a backup with one of its files changed.

    Args:
        signed: the manifest knows of the change: anyone who makes a whole backup of their own can do that.
    """
    folder = backup.with_suffix(".d")
    copy = backup.with_name("damaged.tar.gz")
    with tarfile.open(backup) as archive:
        archive.extractall(folder)  # we made it; Debian 12's Python 3.11.2 has no `filter`
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    if signed:
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["sha256"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        (folder / "manifest.json").write_text(json.dumps(manifest))
    with tarfile.open(copy, "w:gz") as archive:
        for member in ("manifest.json", "directory.ldif", "accounting.sql"):
            archive.add(folder / member, member)
    return copy


def refusal(site: Folk, file: Path) -> tuple[int, str]:
    """Exit status and message of the program on the controller that restores a file."""
    site.sh("base64 -d > /root/refused.tar.gz", stdin=base64.encodebytes(file.read_bytes()).decode())
    done = site.ssh(CONTROLLER, "sudo sh -s", stdin="gpucluster-backup restore < /root/refused.tar.gz")
    return done.returncode, json.loads(done.stderr.splitlines()[-1])["error"]["message"]


#: A table whose name ends the statement that would move it, and begins another.
HOSTILE = b"CREATE TABLE `x`` TO slurm_acct_db.x; CREATE DATABASE hostile; -- x` (a INT);\n"


def test_a_damaged_backup_changes_nothing(site: Folk, backup: Path) -> None:
    pids = "systemctl show --property=MainPID slapd slurmdbd slurmctld"
    before = (state_of(site), site.sh(pids))
    # All damaged copies have one name: each is tried before the next is made.
    for words, change in (
        ("not a backup", None),
        ("was damaged", ("directory.ldif", b"dora", b"dori")),
        ("of the cluster other", ("manifest.json", b'"cluster": "folk"', b'"cluster": "other"')),
    ):
        file = site.file
        if change:
            name, old, new = change
            file = damaged(backup, name, lambda text, old=old, new=new: text.replace(old, new))  # type: ignore[misc]
        code, message = refusal(site, file)
        assert (code, words in message) == (2, True), message
    code, events = site.run("restore", str(damaged(backup, "directory.ldif", lambda text: text + b"\n")))
    assert (code, "was damaged" in events[-1]["message"]) == (2, True), events
    part = backup.with_name("part.tar.gz")
    part.write_bytes(backup.read_bytes()[: backup.stat().st_size // 2])
    assert refusal(site, part)[0] == 2
    # Whose SQL means to work as the database's administrator, or as a user of the system.
    for sql, wanted in ((HOSTILE, (2, "does not belong")), (b"\\! touch /var/tmp/hostile\n", (1, "ERROR"))):
        forged = damaged(backup, "accounting.sql", lambda text, sql=sql: sql + text, signed=True)  # type: ignore[misc]
        code, message = refusal(site, forged)
        assert (code, wanted[1] in message) == (wanted[0], True), message
    site.sh("test ! -e /var/tmp/hostile")
    assert "hostile" not in site.sh("mariadb --batch --execute='SHOW DATABASES'")
    assert (state_of(site), site.sh(pids)) == before


def test_a_restore_brings_back_what_was_lost(site: Folk, backup: Path) -> None:
    before = state_of(site)
    uid = site.good("user", "add", "eve")["user"]["uid"]
    site.confirmed("user", "remove", "dora")
    site.sh("rm -rf /mnt/home/dora /mnt/home/eve")
    site.sh("systemctl stop slurmctld slurmdbd; mariadb --execute='DROP DATABASE slurm_acct_db'")
    done = site.good("restore", str(backup))
    assert done["people"] == 2
    assert (done["returned"], done["dropped"], done["unfinished"]) == (["dora"], ["eve"], [])
    after = state_of(site)
    assert (after[0], after[2]) == (before[0], before[2])
    assert set(before[1]) <= set(after[1])
    site.lets_in("dora", CONTROLLER)
    with job(site, "dora"):
        site.lets_in("dora", NODE)
    assert site.person("dora", "srun hostname").stdout.strip() == NODE
    assert site.sh("stat -c '%a %U' /mnt/home/dora") == "700 dora"
    # Files of hers may be anywhere.
    assert site.good("user", "add", "finn")["user"]["uid"] != uid


def test_a_running_job_is_in_the_way(site: Folk, backup: Path) -> None:
    with job(site, "dora"):
        code, events = site.run("restore", str(backup))
        assert code == 2, events
        assert "jobs run" in events[-1]["message"]


def test_a_restore_that_is_killed_leaves_a_directory_that_works(site: Folk, backup: Path) -> None:
    site.sh("cat > /root/kept.tar.gz.b64", stdin=base64.encodebytes(backup.read_bytes()).decode())
    site.sh("base64 -d /root/kept.tar.gz.b64 > /root/kept.tar.gz")
    # Finn is in the present directory and accounting, and in none of the backup.
    moments = {
        "the new directory is built": "test -e /var/lib/ldap/gpucluster.restore",
        "the daemons are stopped": "! systemctl --quiet is-active slapd",
        "one of the two is exchanged": "test -e /var/lib/ldap/gpucluster.before",
    }
    for happened in moments.values():
        killed = f"until {happened} || ! kill -0 $!; do :; done; kill -KILL $!"
        site.sh(f"gpucluster-backup restore --force < /root/kept.tar.gz & {killed}; wait", check=False)
        # As the next apply does it.
        site.sh("systemctl start slapd slurmdbd slurmctld")
        site.until(
            "slurmdbd answers", lambda: "folk" in site.sh("sacctmgr --noheader list cluster", check=False).split()
        )
        people = str(users(site))
        assert "dora" in people
        assert ("finn" in people) == any("finn" in line for line in state_of(site)[2])
    # The moment between two names, which no clock meets.
    site.sh(
        "systemctl stop slapd; cd /var/lib/ldap; mv gpucluster gpucluster.before; install -d -o openldap gpucluster"
    )
    site.sh("systemctl start slapd")
    assert "dora" in str(users(site))
    # That of another cluster, whose lookup has another password, when the present directory does not exist any more.
    site.sh("systemctl stop slapd; rm -rf /var/lib/ldap/gpucluster/*")
    other = damaged(backup, "manifest.json", lambda text: text.replace(b'"cluster": "folk"', b'"cluster": "other"'))
    done = site.good("restore", "--force", str(damaged(other, "directory.ldif", another_password, signed=True)))
    assert (done["people"], done["unfinished"]) == (2, [])
    assert site.sh(f"stat -c '%a %U' {done['kept_aside']}") == "700 root"
    assert site.sh("stat -c '%a %U' /var/lib/gpucluster/backup/*.tar.gz | sort -u") == "600 root"
    site.lets_in("dora", CONTROLLER)
    with job(site, "dora"):
        site.lets_in("dora", NODE)
    assert site.sh("ls /var/lib/ldap; mariadb --batch -N -e 'SHOW DATABASES'").count("gpucluster") == 1
    again = site.good("apply")
    assert set(again["changed"].values()) == {0}, again["changed"]


def another_password(text: bytes) -> bytes:
    """A directory in which the hosts have the password `other`."""
    pattern = rb"(dn: cn=[^,\n]+,ou=hosts,(?:.+\n)*?userPassword:: ).*"
    changed, times = re.subn(pattern, rb"\1" + base64.b64encode(b"other"), text)
    assert times == len(HOSTS)
    return changed


# ---- the end


def test_the_administrator_gets_in_without_the_lookup(site: Folk) -> None:
    for service, host in (("sssd", NODE), ("slapd", CONTROLLER)):
        site.sh(f"systemctl stop {service}", host)
        done = site.ssh(NODE, "sudo -n id -u", *ALONE)
        assert done.stdout.strip() == "0", done.stderr
        site.sh(f"systemctl start {service}", host)


def test_destroy_leaves_nothing(site: Folk) -> None:
    site.good("destroy", "--delete-data")
    assert containers(site.home) == []
