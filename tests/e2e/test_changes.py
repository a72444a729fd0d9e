"""A private cluster that changes while jobs run: login nodes, container steps, monitoring, and nodes that go and come.

No host has a public address: everything goes through the local cloud's Bastion service. Users log in at a login node.
Enroot and Pyxis are doubles here (tests/doubles), in a mirror that is a folder: what is proven is that they are built,
installed, configured, upgraded and removed, and that Slurm's steps reach them, not what the real ones do. Steps that
come with a job, and those of a baked image, are in test_elastic.py. The tests run in the order of this file, on one
cluster: each is a chapter of the same story.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster import __version__, formats
from gpucluster.node_agent.drift.recorded import FORMAT as APPLIED_FORMAT
from gpucluster.node_agent.drift.recorded import RECORD as APPLIED
from gpucluster.operations.controller import CONFIGURATION_RECORD
from gpucluster.paths import ansible_dir
from tests.doubles.pyxis import packages as pyxis
from tests.e2e.containers_harness import LOOK, MARKER, PLUGIN, batch, image, mirror
from tests.e2e.site_harness import (
    ALONE,
    ENDLESS,
    NET,
    PATIENCE_TO_BUILD_S,
    Site,
    all_pass,
    container_of,
    container_of_instance,
    containers,
    read_until,
    rest_of,
)
from tests.lifecycle.recorded_release import as_of_format_1
from tests.localcloud.api_harness import Api
from tests.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.story, pytest.mark.timeout(3 * PATIENCE_TO_BUILD_S)]

CONTROLLER, LOGIN, SECOND = "gate-controller", "gate-login-1", "gate-login-2"
NEXT = "0.24.1"
RECONFIGURE = ansible_dir() / "roles" / "slurm" / "files" / "gpucluster-reconfigure"
CACHE = "/var/cache/gpucluster/software"
BOTH = LOOK.replace("srun", "srun -N 2 --ntasks-per-node=1 -p compute")
# A job that ends well when a test writes into its pipe: until then the open waits.
GATED = "cat {gate}; echo whole"


def cluster_yml(
    *,
    nodes: str = "count: 2",
    login: int = 1,
    enroot: bool = False,
    plugin: str = pyxis.VERSION,
    monitoring: str = "controller",
    ssh: str = "",
) -> str:
    return f"""\
version: 1
name: gate
cloud: {{provider: local}}
ssh: {{{ssh}}}
network:
  access: bastion
  vcn_cidr: {NET}.0.0/16
  private_subnet_cidr: {NET}.1.0/24
  ssh_allowed_cidrs: [127.0.0.0/8]
controller: {{shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32}}
login: {{count: {login}, shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16}}
pools:
  compute: {{shape: BM.GPU4.8, {nodes}}}
slurm: {{rest: true}}
containers: {{runtimes: [{"enroot" if enroot else ""}]}}
monitoring: {{enabled: true, host: {monitoring}}}
software: {{mirror: mirror, versions: {{pyxis: {plugin}}}}}
users:
  people:
    - {{name: alice, full_name: Alice Example, generate_key: true}}
    - {{name: olga, full_name: Olga Example, groups: [privilege], generate_key: true}}
"""


SMALLER = "count: 1, removed_nodes: [compute-1]"
GROWN = "count: 2, removed_nodes: [compute-1]"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(cluster_yml()) as made:
        made.entry = LOGIN
        mirror(made, pyxis.VERSION, NEXT)
        yield made


def bind_of(site: Site, host: str) -> list[str]:
    """The entry with which a host binds to the directory, and its password."""
    return site.root(host, r"sed -n 's/^ldap_default_\(bind_dn\|authtok\) = //p' /etc/sssd/sssd.conf").split()


def reads_users(site: Site, entry: str, password: str) -> bool:
    """Whether a client with the password of a host still gets users from the directory."""
    bind = f"-x -H ldapi://%2Frun%2Fslapd%2Fldapi -D {entry} -w {password}"
    said = site.root(
        CONTROLLER, f"ldapsearch -LLL {bind} -b {entry.partition('ou=hosts,')[2]} uid=alice uid 2>&1; true"
    )
    assert "uid: alice" in said or "Invalid credentials" in said, said
    return "uid: alice" in said


def says(site: Site, who: str, host: str, command: str, *options: str) -> str:
    """What a command of a new login writes, which ends well."""
    done = site.ssh(host, command, *ALONE, *options, who=who)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def refused(site: Site, who: str, host: str) -> bool:
    """Whether the ssh server of a host answers and does not let a user in."""
    done = site.ssh(host, "true", *ALONE, who=who)
    return done.returncode == 255 and "Permission denied" in done.stderr


def booted(site: Site, *names: str) -> dict[str, str]:
    """When the machine of each host (or of these) was started, and so whether it is still the same."""
    # Users of a host do not see its first process.
    return {host: site.root(host, "cut -d ' ' -f 22 /proc/1/stat; hostname") for host in names or site.host_names}


def states(site: Site) -> dict[str, str]:
    lines = site.root(CONTROLLER, "sinfo -h -N -o '%N %T'").splitlines()
    return {line.split()[0]: line.split()[1] for line in lines}


def becomes(site: Site, node: str, *wanted: str, patience: float = PATIENCE_S) -> None:
    """Wait for a node's state. A node is completing for a moment after the jobs by which a command checked it."""
    site.until(f"{node} is {' or '.join(wanted)}", lambda: states(site)[node] in wanted, patience=patience)


def submit(site: Site, node: str, script: str) -> str:
    """A job of alice's that runs on a node."""
    job = site.as_alice(f"sbatch --parsable --time=120 --nodelist={node} --output=%j.txt --wrap '{script}'")
    site.runs(job)
    return job


def gated(site: Site, node: str, gate: str) -> str:
    site.as_alice(f"mkfifo {gate}")
    return submit(site, node, GATED.format(gate=gate))


def release(site: Site, gate: str) -> None:
    site.root(CONTROLLER, f"echo > /mnt/home/alice/{gate}")


def statuses(result: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["status"] for check in result["checks"]}


def test_a_cluster_with_a_login_node_passes_every_check(site: Site) -> None:
    result = site.good("apply")
    assert all_pass(result), result["checks"]
    names = {check["name"] for check in result["checks"]}
    assert {
        "login nodes reach Slurm", "only operators log in to the controller",
        "the REST API refuses requests without a token",
    } <= names  # fmt: skip
    assert result["login"]["alice"].endswith(f"alice@{LOGIN}")
    # What runs Ansible's tasks is not in the scope of the login that has started it, which logind may stop.
    assert "gpucluster-fork" in site.root(CONTROLLER, "cat /proc/$(pgrep -o -x gpucluster-fork)/cgroup")


def test_no_user_gets_in_but_through_a_session(site: Site) -> None:
    outputs = site.good("output")["outputs"]["cluster"]
    assert outputs["controller"]["public_ip"] is None
    assert outputs["public_subnet_id"] is None
    session = json.loads((site.folder / ".gpucluster" / "bastion.json").read_text())
    assert session["bastion_id"] == outputs["bastion_id"]
    gateway = (site.folder / ".gpucluster" / "ssh" / "gateway").read_text()
    assert f"User {session['id']}" in gateway
    # A session that is about to close is replaced by the next command that needs it.
    session["expires_at"] = time.time() + 10
    (site.folder / ".gpucluster" / "bastion.json").write_text(json.dumps(session))
    assert site.plain("ssh", "--", "hostname").stdout.strip() == CONTROLLER
    assert json.loads((site.folder / ".gpucluster" / "bastion.json").read_text())["id"] != session["id"]


def test_users_get_in_at_the_login_node_and_not_at_the_controller(site: Site) -> None:
    """A user with a key of their own, a member of the privilege group, the user of the image."""
    assert says(site, "alice", LOGIN, "hostname; pwd").split() == [LOGIN, "/mnt/home/alice"]
    assert refused(site, "alice", CONTROLLER)
    # From the login node neither: the name is known there, and the controller lets no user in.
    hop = site.ssh(LOGIN, f"ssh -o BatchMode=yes {CONTROLLER} true", *ALONE, who="alice")
    assert "Permission denied" in hop.stderr
    assert says(site, "olga", CONTROLLER, "hostname") == CONTROLLER
    assert says(site, "", CONTROLLER, "sudo -n hostname") == CONTROLLER
    assert site.ssh(LOGIN, "sudo -n true", *ALONE, who="alice").returncode != 0


def test_jobs_are_submitted_on_the_login_node(site: Site) -> None:
    # Each of these needs a way back from the node, or from slurmctld, to the login node.
    assert site.as_alice("srun -w compute-1 hostname") == "compute-1"
    assert "compute-" in says(site, "alice", LOGIN, "srun --pty sh -c 'tty && hostname'", "-tt")
    assert "compute-" in site.as_alice("echo hostname | salloc --quiet")
    wait = "sbatch --wait -w compute-2 --output=kept.txt --wrap hostname > /dev/null && cat kept.txt"
    assert site.as_alice(wait) == "compute-2"
    assert "compute" in site.as_alice("sinfo --noheader --format=%P")
    assert site.ssh(LOGIN, "systemctl is-active slurmd").stdout.strip() == "inactive"
    # What only the controller has: the accounting, the key of the directory's CA.
    for path in ("/etc/slurm/slurmdbd.conf", "/etc/gpucluster/authority", "/etc/gpucluster/munge.key"):
        assert site.ssh(LOGIN, f"sudo test -e {path}").returncode == 1


def test_a_program_submits_a_job_with_a_token_until_tokens_end(site: Site) -> None:
    """On a login node, by curl, as the page rest-api.md has it. tests/ansible/test_rest_host.py has what is refused."""
    file = site.folder / "alice.jwt"
    made = site.good("token", "alice", str(file), "--lifespan", "10m")
    assert (made["server"], file.stat().st_mode & 0o777) == (f"https://{CONTROLLER}:6820", 0o600)
    curl = "curl --silent --cacert /etc/gpucluster/authority.pem --header @header --write-out ' %{http_code}'"
    jobs = f"{curl} --output /dev/null {made['server']}/slurm/v0.0.42/jobs/"
    header = "umask 077; sed 's/^/Authorization: Bearer /' > header"
    site.as_alice(header, stdin=file.read_text())
    assert site.as_alice(jobs).strip() == "200"
    job = {"script": "#!/bin/sh\nhostname > rest.txt\n", "environment": ["PATH=/usr/bin:/bin"]}
    text = json.dumps({"job": {**job, "current_working_directory": "/mnt/home/alice"}})
    post = f"{curl} --header 'Content-Type: application/json' --data @- {made['server']}/slurm/v0.0.42/job/submit"
    body, _, code = site.as_alice(post, stdin=text).rpartition(" ")
    assert code == "200", body
    site.until("the job has run", lambda: "compute-" in site.as_alice("cat rest.txt 2> /dev/null || true"))
    number = str(json.loads(body)["job_id"])
    listed = f"sacct --noheader --allocations --jobs={number} --format=jobid"
    site.until("the accounting has the job", lambda: site.as_alice(listed).split() == [number])
    assert site.as_alice("scontrol token lifespan=60").startswith("SLURM_JWT=")

    running = site.as_alice(f"sbatch --parsable --output=/dev/null --wrap '{ENDLESS}'")
    site.runs(running)
    assert site.good("rotate", "jwt")["secrets"][0]["new"]
    assert site.as_alice(jobs).strip() == "401"
    site.good("token", "alice", str(file))
    site.as_alice(header, stdin=file.read_text())
    assert site.as_alice(jobs).strip() == "200"
    assert running in site.as_alice("squeue --noheader --states=running --format=%i").split()
    site.as_alice(f"scancel {running}; rm header rest.txt")


def test_secrets_change_under_a_running_job(site: Site) -> None:
    """The munge key, then the passwords for the directory, the ssh host keys and both CAs. A node is off meanwhile,
    and the switch of the munge key is killed at its worst moment: when slurmctld has just stopped.
    """
    key, switch = "sha256sum /etc/munge/munge.key | cut -d ' ' -f 1", "gpucluster-munge-switch"
    before, stopped = site.root(CONTROLLER, key), "compute-2"
    job = site.as_alice("mkfifo end; sbatch --parsable -w compute-1 --wrap 'srun sh -c \"exit $(cat end)\"'")
    site.runs(job)
    # Of a node that is off, Slurm believes for some time that it is there; of one without sshd, always.
    saved = json.loads((site.folder / ".gpucluster" / "hosts.json").read_text())["hosts"]
    (instance,) = [host["booted"] for host in saved if host["name"] == stopped]
    sshd = ["podman", "exec", container_of_instance(site, instance), "systemctl", "stop", "ssh.service"]
    subprocess.run(sshd, check=True, capture_output=True)
    code, events = site.run("rotate", "munge")
    assert code == 1, "Slurm has it in service"
    assert f"nothing was switched: {stopped}: " in events[-1]["message"]
    assert site.good("rotate")["secrets"][0]["state"] == "prepared"

    compute = Api(site.home, engine="podman").compute
    compute.instance_action(instance, "STOP")
    wait_for(f"{stopped} is off", lambda: compute.get_instance(instance).data.lifecycle_state == "STOPPED")
    site.root(CONTROLLER, f"scontrol update nodename={stopped} state=down reason=off")
    # slurmctld stops once in a switch that goes on.
    folder = "/run/systemd/system/slurmctld.service.d"
    killing = f"[Service]\\nExecStopPost=+-/usr/bin/systemctl kill --signal=KILL {switch}\\n"
    site.root(CONTROLLER, f"mkdir -p {folder}; printf '{killing}' > {folder}/kill.conf; systemctl daemon-reload")
    (done,) = site.good("rotate", "munge")["secrets"]
    site.root(CONTROLLER, f"rm {folder}/kill.conf; systemctl daemon-reload")
    assert (done["hosts"], done["away"], done["unconfirmed"]) == (3, [stopped], [])
    # The journal has it some time later.
    written = f"journalctl --no-pager --unit {switch}"
    site.until("the switch was killed", lambda: "code=killed" in site.root(CONTROLLER, written))
    after = site.root(CONTROLLER, key)
    assert {site.root(host, key) for host in (LOGIN, "compute-1")} == {after} != {before}
    assert site.good("rotate")["secrets"][0]["state"] == "complete"

    bind = "sed -n 's/^ldap_default_authtok = //p' /etc/sssd/sssd.conf | sha256sum"
    known = {host: site.root(host, bind) for host in (CONTROLLER, LOGIN, "compute-1")}
    known_hosts = site.folder / ".gpucluster" / "ssh" / "known_hosts"
    before_keys = known_hosts.read_text().splitlines()
    trusted = "cat /etc/gpucluster/authority.pem"
    former_authority = site.root(CONTROLLER, trusted)
    for done in site.good("rotate", "passwords", "host-keys", "ssh-ca", "directory-ca")["secrets"]:
        assert (done["hosts"], done["away"], done["unconfirmed"]) == (3, [stopped], []), done
    for host, former in known.items():
        assert site.root(host, bind) != former
    # Nothing but an answer of the directory: SSSD has forgotten what it knew.
    forget = "systemctl stop sssd; rm -f /var/lib/sss/db/*.ldb /var/lib/sss/mc/*; systemctl start sssd"
    site.root(LOGIN, forget)
    site.knows(LOGIN, "alice")
    authority = site.root(CONTROLLER, trusted)
    assert {site.root(host, trusted) for host in (LOGIN, "compute-1")} == {authority} != {former_authority}
    assert authority.count("BEGIN") == 1
    # Its server was started again, and listens some time afterwards.
    curl = f"curl -sS -o /dev/null --cacert /etc/gpucluster/authority.pem https://{CONTROLLER}:6820/openapi/v3"
    site.until("the REST API answers with the next CA", lambda: site.as_alice(curl) == "")

    # Shared connections live on, and a new one finds what this machine has learned. So does a user between hosts.
    now = known_hosts.read_text().splitlines()
    assert len(now) == len({line.split()[0] for line in now}), "one key of each"
    assert len(set(now) - set(before_keys)) == 4, "the CA, and the keys of all but the node that is off"
    assert site.ssh("compute-1", "hostname", *ALONE).stdout.strip() == "compute-1"
    hop = site.ssh(LOGIN, "ssh -o BatchMode=yes compute-1 hostname", *ALONE, who="alice")
    assert hop.stdout.strip() == "compute-1", hop.stderr
    recorded = site.good("output")["outputs"]["identity"]
    assert all(f"{ocid} {key}" in now for ocid, key in recorded["host_keys"].items())
    assert recorded["certificates"]["ssh"].strip() == site.root(CONTROLLER, "cat /etc/gpucluster/authority/ssh_ca.pub")
    assert recorded["certificates"]["directory"].strip() == authority
    believed = "grep -c ^@cert-authority /etc/ssh/ssh_known_hosts"
    assert {site.root(host, believed) for host in (CONTROLLER, LOGIN, "compute-1")} == {"1"}

    assert site.state_of(job) == "RUNNING"
    site.root("compute-1", "echo 7 > /mnt/home/alice/end")
    site.until(
        "the job has its own exit status in the accounting",
        lambda: site.as_alice(f"sacct -X -n -P -j {job} -o State,ExitCode") == "FAILED|7:0",
    )
    # It wakes with yesterday's key, and with yesterday's CA, by which nothing of the controller proves itself any more.
    compute.instance_action(instance, "START")
    becomes(site, stopped, "idle", patience=3 * PATIENCE_S)
    assert site.root(stopped, key) == after
    assert site.root(stopped, trusted) == authority
    site.root(stopped, forget)
    site.knows(stopped, "alice")
    assert site.as_alice(f"srun -w {stopped} hostname") == stopped
    former = site.root(stopped, bind)
    (done,) = site.good("rotate", "passwords")["secrets"]
    assert (done["new"], done["hosts"], done["away"]) == (False, 1, [])
    assert site.root(stopped, bind) != former
    assert {each["state"] for each in site.good("rotate")["secrets"]} == {"complete"}


def test_a_job_on_the_node_that_goes_stops_a_run_that_may_not_wait(site: Site) -> None:
    before = booted(site)
    job = submit(site, "compute-1", ENDLESS)
    site.write(cluster_yml(nodes=SMALLER))
    code, events = site.run("apply", "--drain-timeout", "2")
    assert code == 1
    assert f"job {job} of alice on compute-1" in events[-1]["message"]
    # A node that has not answered a ping of slurmctld in time is marked until the next one.
    becomes(site, "compute-1", "draining")
    assert booted(site) == before

    # It is in the file again and takes jobs again; the job on it was not disturbed, though all hosts got Enroot: the
    # plugin's epilog runs for jobs that began before it, too, and if it failed, their nodes would be drained.
    site.write(cluster_yml(enroot=True))
    result = site.good("apply")
    assert result["changes"] == 0
    assert statuses(result)["container steps run in pool compute"] in ("pass", "skip")
    becomes(site, "compute-1", "allocated", "mixed")
    assert site.state_of(job) == "RUNNING"
    assert booted(site) == before

    # One that does not answer is ended, and the job runs on. The next one has as long to answer, on a busy machine.
    stop = "systemctl kill --signal=STOP slurmctld"
    blocked = site.ssh(CONTROLLER, f"sudo sh -c '{stop}; PATIENCE=45 sh -c \"$(cat)\"'", stdin=RECONFIGURE.read_text())
    assert (blocked.returncode, "starting another" in blocked.stderr) == (0, True), blocked.stderr
    becomes(site, "compute-1", "allocated", "mixed")
    assert site.state_of(job) == "RUNNING"
    site.as_alice(f"scancel {job}")
    for node in ("compute-1", "compute-2"):
        becomes(site, node, "idle")


def test_a_user_runs_a_step_in_a_container_on_two_nodes(site: Site) -> None:
    image(site)
    assert sorted(site.as_alice(BOTH).splitlines()) == [f"{MARKER} compute-1", f"{MARKER} compute-2"]


def test_a_batch_job_starts_steps_from_a_node(site: Site) -> None:
    assert batch(site, "-N 2", "-p compute") == [f"{MARKER} compute-1", f"{MARKER} compute-2"]


def test_an_image_is_imported_once_for_all_nodes(site: Site) -> None:
    """By a job of alice's, from a web server, which is all that the double of Enroot wants of a registry."""
    site.as_alice(
        "mkdir -p registry && tar -C root -cf registry/box_1.tar . && cd registry && "
        "{ setsid python3 -m http.server 8099 > /dev/null 2>&1 < /dev/null & }"
    )
    site.until("her web server answers", lambda: site.ssh(LOGIN, "curl -so /dev/null localhost:8099").returncode == 0)
    uri = f"docker://{LOGIN}:8099#box:1"
    made = site.good("image", "import", uri)
    assert (made["changed"], made["image"]["name"], made["image"]["user"]) == (True, "box+1", "alice")
    path = made["image"]["path"]
    assert site.root(CONTROLLER, f"stat -c %U:%a '{path}'") == "root:644"
    look = BOTH.replace("$HOME/box.sqsh", path)
    assert sorted(site.as_alice(look).splitlines()) == [f"{MARKER} compute-1", f"{MARKER} compute-2"]
    assert not site.good("image", "import", uri)["changed"]
    code, events = site.run("image", "import", f"docker://{LOGIN}:8099#nothing:1")
    assert (code, "404" in events[-1]["data"]["what"]) == (1, True)
    site.good("image", "remove", "box+1")
    assert site.good("image", "list")["container_images"] == []


def test_a_named_node_gets_another_machine_and_keeps_its_name(site: Site) -> None:
    before = booted(site)
    first, second = (bind_of(site, node) for node in ("compute-1", "compute-2"))
    assert (reads_users(site, *first), reads_users(site, *second)) == (True, True)
    result = site.good("replace", "compute-2", "--report", "does not answer")
    assert all_pass(result), result["checks"]
    [evidence] = (site.folder / ".gpucluster" / "host-reports").glob("compute-2-*.json")
    assert json.loads(evidence.read_text())["fault"] == "an operator reports: does not answer"
    assert statuses(result)["container steps run in pool compute"] == "pass"
    after = booted(site)
    assert set(after) == set(before)
    assert {each for each in before if after[each] != before[each]} == {"compute-2"}
    # Who has kept what the lost machine had reads the directory no more; the other host has what it had.
    assert (reads_users(site, *first), reads_users(site, *second)) == (True, False)
    assert reads_users(site, *bind_of(site, "compute-2"))
    assert bind_of(site, "compute-1") == first
    assert sorted(site.as_alice(BOTH).splitlines()) == [f"{MARKER} compute-1", f"{MARKER} compute-2"]


def key_lines(site: Site, host: str, key: Path) -> list[str]:
    """The lines of both accounts of a host that have a key of operators, as a number for each file."""
    word = key.with_name(f"{key.name}.pub").read_text().split()[1]
    files = "/home/debian/.ssh/authorized_keys /root/.ssh/authorized_keys"
    return site.root(host, f"grep -hc {word} {files} || true").split()


def test_an_apply_of_what_stands_changes_nothing_on_any_host(site: Site) -> None:
    result = site.good("apply")
    assert result["changes"] == 0
    assert set(result["changed"].values()) == {0}, result["changed"]


def test_a_node_without_the_plugin_runs_nothing_and_verify_names_it(site: Site) -> None:
    site.root("compute-2", f"mv {PLUGIN} /root/")
    try:
        code, events = site.run("verify")
        assert code == 1
        checks = {event["name"]: event for event in events if event["kind"] == "check"}
        check = checks["container steps run in pool compute"]
        assert check["status"] == "fail", check["message"]
        assert "compute-2: " in check["message"]
        assert "compute-1: " not in check["message"]
        # After the job Slurm asked the plugin there to clean up behind it.
        said = "sinfo -h -n compute-2 -o '%T %E'"
        site.until("compute-2 is drained", lambda: site.root(CONTROLLER, said) == "drained Epilog error")
    finally:
        site.root("compute-2", f"mv /root/{PLUGIN.rpartition('/')[2]} {PLUGIN}")
    site.root(CONTROLLER, "scontrol update nodename=compute-2 state=resume")
    becomes(site, "compute-2", "idle")


def as_release_0_1_0_leaves_it(site: Site) -> None:
    """Let the folder, the state and the records on hosts be those of the first release, which had other formats."""
    root = site.folder / ".gpucluster"
    (root / "release.json").unlink()
    state = root / "terraform.tfstate"
    state.write_text(json.dumps(as_of_format_1(json.loads(state.read_text()))))
    first = {"gpucluster": formats.RELEASE_OF_FORMAT_1, "content": "of that release"}
    edit(site, CONTROLLER, CONFIGURATION_RECORD, first, "fields", "inputs")
    for host in (CONTROLLER, "compute-2"):
        edit(site, host, str(APPLIED), {"format": 1})


def edit(site: Site, host: str, file: str, values: dict[str, Any], *left_out: str) -> None:
    """Change values of a file of JSON on a host."""
    text = json.loads(site.root(host, f"cat {file}"))
    kept = {name: value for name, value in {**text, **values}.items() if name not in left_out}
    site.root(host, f"cat > {file} << 'END'\n{json.dumps(kept)}\nEND")


def test_one_apply_changes_nodes_login_nodes_monitoring_and_the_plugin(site: Site) -> None:
    """The named node goes when its job has ended, and the job of another node goes on; a lost login node is replaced
    and another one added; Prometheus moves there; and the plugin's next version comes to every host. The apply before
    was one of the first release."""
    before = booted(site, CONTROLLER, "compute-2")
    leaves, stays, lost = (bind_of(site, host) for host in ("compute-1", "compute-2", LOGIN))
    last = gated(site, "compute-1", "last")
    other = gated(site, "compute-2", "other")
    subprocess.run(["podman", "rm", "-f", "-v", "-t", "0", container_of(site, LOGIN)], check=True, capture_output=True)
    first, second = site.home / "credentials/operators/gate_ed25519", site.key("operator")
    # Another operator begins.
    both = f"public_key_file: {first}.pub, public_keys: [{second.with_suffix('.pub').read_text().strip()}]"
    site.write(cluster_yml(nodes=SMALLER, login=2, enroot=True, plugin=NEXT, monitoring="login-2", ssh=both))
    plan = site.good("plan")
    assert plan["login"]["added"] == [SECOND]
    # The job of the node that goes is named, and none of the node that stays.
    assert [(job["id"], job["user"], job["nodes"]) for job in plan["jobs"]] == [(last, "alice", ["compute-1"])]
    effects = {field["path"]: field["effect"] for field in plan["fields"]}
    assert (effects["pools.compute.count"], effects["login.count"]) == ("drains", "live")
    assert effects["monitoring.host"] == "live"
    as_release_0_1_0_leaves_it(site)
    run = site.start("apply")
    read_until(run, f"job {last} of alice on compute-1")
    release(site, "last")
    rest = rest_of(run)
    assert run.returncode == 0, rest[-3000:]
    assert statuses(json.loads(rest.splitlines()[-1])["data"])["container steps run in pool compute"] in (
        "pass",
        "skip",
    )
    assert site.as_alice(f"cat {last}.txt").split() == ["whole"]
    assert states(site).keys() == {"compute-2"}
    assert booted(site, *before) == before
    outputs = site.good("output")["outputs"]
    assert (outputs["identity"]["release"], outputs["cluster"]["contract_version"]) == (
        __version__,
        formats.CLUSTER_FORMAT,
    )
    stored = json.loads((site.folder / ".gpucluster" / "release.json").read_text())
    assert stored == {"format": formats.CLUSTER_FORMAT, "release": __version__}
    assert json.loads(site.root(CONTROLLER, f"cat {CONFIGURATION_RECORD}"))["gpucluster"] == __version__
    assert json.loads(site.root("compute-2", f"cat {APPLIED}"))["format"] == APPLIED_FORMAT
    # Hosts that stand, and one that was launched with both.
    assert [key_lines(site, host, second)[0] for host in (CONTROLLER, "compute-2", SECOND)] == ["1", "1", "2"]
    assert [key_lines(site, host, first)[0] for host in (CONTROLLER, "compute-2", SECOND)] == ["2", "2", "2"]
    assert [reads_users(site, *each) for each in (leaves, lost, stays)] == [False, False, True]
    assert (sorted(site.host_names), len(containers(site.home))) == (
        sorted((CONTROLLER, LOGIN, SECOND, "compute-2")),
        4,
    )
    # Slurm's new configuration has ended no user's job.
    assert site.state_of(other) == "RUNNING"
    release(site, "other")
    site.accounted(other)
    assert site.as_alice(f"cat {other}.txt").split() == ["whole"]


def test_the_next_version_of_the_plugin_is_on_every_host(site: Site) -> None:
    for host in (CONTROLLER, LOGIN, SECOND, "compute-2"):
        assert site.root(host, f"grep -c 'pyxis double {NEXT}' {PLUGIN}") == "1"
    assert site.as_alice(LOOK).split() == [MARKER, "compute-2"]


def test_both_login_nodes_let_users_in_and_have_one_name(site: Site) -> None:
    for host in (LOGIN, SECOND):
        assert says(site, "alice", host, "srun hostname; cat kept.txt").split() == ["compute-2", "compute-2"]
    # Slurm knows no version of hosts without slurmd.
    known = site.good("slurm", "upgrade", "--plan", "--to", "26.05")["nodes"]
    assert set(known) == {"compute-2", LOGIN, SECOND}
    assert len(set(known.values())) == 1
    # Every host of the cluster knows them by one name; ssh takes one that answers.
    assert len(site.root("compute-2", "getent ahostsv4 login | grep STREAM").splitlines()) == 2
    subprocess.run(["podman", "stop", "-t", "0", container_of(site, LOGIN)], check=True, capture_output=True)
    # One that does not answer within seconds is passed over as well.
    site.until("ssh takes the other one", lambda: site.plain("ssh", "login", "hostname").stdout.strip() == SECOND)


def test_prometheus_has_moved_to_the_login_node_and_its_users_do_not_reach_it(site: Site) -> None:
    state = "systemctl is-active gpucluster-prometheus gpucluster-monitor || true"
    assert site.root(CONTROLLER, state).split() == ["inactive", "inactive"]
    # Slurm's metrics, and those of a host: of the node, whose exporters answer this host now.
    request = {"slurm": "gpucluster_slurm_up == 1", "node": 'up{node="compute-2"} == 1'}
    queries = json.dumps({"queries": [{"name": name, "expr": expr} for name, expr in request.items()]})
    ask = f"echo {shlex.quote(queries)} | gpucluster-agent monitor query"

    def answered() -> bool:
        found = json.loads(says(site, "", SECOND, ask))["results"]
        return all(found.get(name) for name in request)

    site.until("Prometheus has metrics of Slurm and of the node", answered)
    address = site.root(SECOND, "getent ahostsv4 $(hostname) | awk 'NR == 1 {print $1}'")
    for place in (*(f"127.0.0.1:{port}" for port in (9090, 9341)), f"{address}:9100"):
        ask = f"curl --silent --output /dev/null --max-time {PATIENCE_S:.0f} http://{place}/metrics"
        assert site.ssh(SECOND, ask, who="alice").returncode == 7, place
        assert site.ssh(SECOND, ask).returncode == 0, place
    assert says(site, "alice", SECOND, "srun hostname") == "compute-2"


def test_it_grows_by_the_next_number_and_login_nodes_and_enroot_go(site: Site) -> None:
    before = booted(site, CONTROLLER, "compute-2")
    site.entry = ""
    # The first operator leaves: this machine works with the key of the second one.
    first, second = site.home / "credentials/operators/gate_ed25519", site.key("operator")
    ssh = f"public_key_file: {second}.pub"
    site.write(cluster_yml(nodes=GROWN, login=0, ssh=ssh))
    file = str(site.folder / "grow.plan")
    plan = site.good("plan", "--out", file, "--markdown", str(site.folder / "grow.md"))
    assert sorted(plan["login"]["removed"]) == [LOGIN, SECOND]
    assert "| `pools.compute.count` | `1` | `2` | **live** |" in (site.folder / "grow.md").read_text()
    assert plan["price"]["after"] != plan["price"]["before"]
    # The plan was of another file: nothing is changed.
    site.write(cluster_yml(nodes=GROWN.replace("2", "3", 1), login=0, ssh=ssh))
    code, events = site.run("apply", file)
    assert (code, events[-1]["data"]["error"]) == (9, "MovedError")
    assert "cluster.yml: pools.compute.count: 2 -> 3" in events[-1]["message"]
    site.write(cluster_yml(nodes=GROWN, login=0, ssh=ssh))
    result = site.good("apply", file)
    assert site.host_names == [CONTROLLER, "compute-2", "compute-3"]
    assert booted(site, *before) == before
    for host in site.host_names:
        assert key_lines(site, host, first) == ["0", "0"], host
        assert site.ssh(host, "hostname", *ALONE).stdout.strip() == host
    # What was made is not made again: the state has moved.
    code, events = site.run("apply", file)
    assert code == 9
    assert "  state: serial " in events[-1]["message"]
    # Later plans know how long such a change takes.
    assert site.good("runs")["runs"][0]["status"] == "refused"
    assert next(run["work"] for run in site.good("runs")["runs"] if run["work"]) == {"kind": "hosts", "hosts": 3}
    assert set(states(site)) == {"compute-2", "compute-3"}
    assert set(site.as_alice("srun -N 2 hostname").split()) == {"compute-2", "compute-3"}
    # Users get in at the controller again, and Prometheus is there again.
    assert says(site, "alice", CONTROLLER, "hostname; srun -w compute-3 hostname").split() == [CONTROLLER, "compute-3"]
    state = "systemctl is-active gpucluster-prometheus gpucluster-monitor"
    assert site.root(CONTROLLER, state).split() == ["active", "active"]
    assert not [name for name in statuses(result) if "container" in name]
    # What a role would look for in the next run is gone as well: it would change nothing.
    left = (
        f"{PLUGIN} /usr/bin/enroot /usr/local/bin/enroot /usr/local/sbin/gpucluster-image /etc/gpucluster/runtimes/* "
        f"{CACHE}/*"
    )
    for host in site.host_names:
        assert site.root(host, f"ls -d {left} 2> /dev/null | wc -l") == "0"
    code, _ = site.run("plan", "--detailed-exitcode")
    assert code == 0


def test_a_bad_node_is_found_replaced_and_proven_again_by_one_command(site: Site) -> None:
    before = booted(site)
    bad = "compute-2"
    site.root(bad, "umount --lazy /mnt/home")

    # Permanent nodes are drained, and recreated only where that was requested.
    code, events = site.run("verify", "--fix")
    assert code == 1
    assert f"gpucluster replace {bad}" in events[-1]["message"]
    becomes(site, bad, "drained")
    assert booted(site) == before

    result = site.good("verify", "--fix", "--replace-nodes")
    assert result["repair"]["permanent"] == [bad]
    after = booted(site)
    assert {each for each in before if after[each] != before[each]} == {bad}
    becomes(site, bad, "idle")
    assert site.as_alice(f"srun --nodelist={bad} hostname") == bad


def test_a_bad_physical_host_is_reported_and_checked_in_full_when_it_comes_back(site: Site) -> None:
    bad = "compute-2"

    def physical() -> str:
        return site.root(bad, "curl -sH 'Authorization: Bearer Oracle' http://169.254.169.254/opc/v2/host/id")

    def resume() -> None:
        site.root(CONTROLLER, f"scontrol update nodename={bad} state=resume")
        becomes(site, bad, "idle")

    host = physical()
    reason = "gpucluster: check failed: gpu_ecc: 3 errors on GPU 4"
    site.root(CONTROLLER, f"scontrol update nodename={bad} state=drain reason={shlex.quote(reason)}")
    code, events = site.run("replace", bad)
    assert code == 1, "the check is skipped on emulated hardware, so the health service does not let the node in"
    # No administrator has made the namespace in this tenancy.
    assert any("TagNamespace ComputeInstanceHostActions does not exists" in str(each.get("message")) for each in events)
    evidence = sorted((site.folder / ".gpucluster" / "host-reports").glob(f"{bad}-*.json"))
    assert json.loads(evidence[-1].read_text())["physical_host"] == host
    assert physical() != host
    resume()

    # No check has drained it now. A cluster network launches before it terminates, so a third host is free: that one.
    site.faults({"shape": "BM.GPU4.8", "hosts": 3})
    try:
        _, said = site.good_and_said("replace", bad)
    finally:
        site.faults()
    assert physical() == host
    assert any(f"the physical host that node {bad} had" in each for each in said)
    assert not any("reported to Oracle" in each for each in said)
    assert sorted(evidence[0].parent.iterdir()) == evidence
    becomes(site, bad, "idle")
    # Its checks have passed there, which any machine knows now.
    assert not any("physical host" in each for each in site.good_and_said("apply")[1])
