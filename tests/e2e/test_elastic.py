"""Elastic nodes, for real: an empty pool, jobs that get nodes launched, idle time after which they are removed.

The tests run in the order of this file, on one cluster: each is a chapter of the same story.
"""

from __future__ import annotations

import base64
import json
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpucluster.dashboards import boards
from gpucluster.operations.dashboard import PASSWORD_FILE
from tests.addresses import free_port
from tests.cli.folder_states import Outcome, judge, result_of
from tests.cli.test_other_cluster import READS
from tests.doubles.grafana import release as grafana
from tests.doubles.pyxis import packages as pyxis
from tests.e2e import budget
from tests.e2e.containers_harness import LOOK, MARKER, batch, image, mirror
from tests.e2e.site_harness import (
    ENDLESS,
    PATIENCE_TO_BUILD_S,
    UNCHANGED,
    Site,
    all_pass,
    container_of,
    containers,
    networks,
    read_until,
    rest_of,
    worked_example,
)
from tests.mirror import Mirror
from tests.pages.reading import read
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.e2e, pytest.mark.story, pytest.mark.timeout(2 * PATIENCE_TO_BUILD_S)]

IDLE_TIMEOUT = 15
# An empty pool of BM.GPU4.8, with short waits.
HURRY = "  times: {gang_retry_window: 8, retry_pause: 2, cool_down: 20, cool_down_limit: 20, backoff: 10}"
CLUSTER_YML = (
    worked_example("seed-002-ondemand")
    .replace("idle_timeout: 600", f"idle_timeout: {IDLE_TIMEOUT}")
    .replace("\nautoscaler:\n", f"\nautoscaler:\n{HURRY}\n")
    + f"software: {{mirror: mirror, versions: {{pyxis: {pyxis.VERSION}}}}}\n"
    + "monitoring: {enabled: true, grafana: true, slurm_interval: 10}\n"
)
#: Of the commands that read a cluster, those that this one has no answer for: it has no such job, no Kubernetes, and a
#: provider that is a part of gpucluster.
REFUSED = {
    "job logs", "job report", "job status", "job wait", "kubectl", "kubernetes status", "software lock-provider",
}  # fmt: skip
# It ends when a test writes into its pipe: its nodes are there until then.
JOB = "#!/bin/bash\nsrun bash -c 'echo $SLURMD_NODENAME $SLURM_JOB_GPUS $(hostname)'\ncat gate\n"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(CLUSTER_YML, bakes=True) as made:
        mirror(made, pyxis.VERSION)
        grafana.add(Mirror(made.folder / "mirror"))
        yield made


#: The one job of alice's that runs: earlier ones may be completing.
RUNNING = "$(squeue -h -u alice -t running -o %i)"


def on_controller(site: Site, *command: str) -> str:
    """What a command of the administrator prints, who is not a user of the directory."""
    done = site.ssh(site.controller, " ".join(command))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@contextmanager
def running_job(site: Site, *options: str) -> Iterator[list[str]]:
    """A job to the end of the block, and so nodes that stay until then: idle ones go after some seconds."""
    job = site.as_alice(f"sbatch --parsable {' '.join(options)} -o /dev/null --wrap '{ENDLESS}'")
    try:
        site.runs(job)
        yield site.as_alice(f"scontrol show hostnames $(squeue -h -j {job} -o %N)").split()
    finally:
        site.as_alice(f"scancel {job}")


def only_the_controller_is_left(site: Site) -> None:
    """A node that was just launched boots first, and is idle for a time."""
    site.until("only the controller is left", lambda: len(containers(site.home)) == 1, patience=3 * PATIENCE_S)


def test_apply_builds_a_cluster_without_nodes(site: Site) -> None:
    code, events = site.run("plan", "--detailed-exitcode")
    assert code == 3
    planned = {change["address"].rpartition(".")[0] for change in events[-1]["data"]["changes"]}
    assert {"module.iam[0].oci_identity_dynamic_group", "module.iam[0].oci_identity_policy"} <= planned
    with budget.held(site, "seed-002-ondemand: first apply"):
        result = site.good("apply")
    assert all_pass(result), result["checks"]
    assert "container steps run in pool compute" in {check["name"] for check in result["checks"]}
    assert "the autoscaler is healthy" in {check["name"] for check in result["checks"]}
    assert len(containers(site.home)) == 1


def test_the_second_apply_changes_nothing(site: Site) -> None:
    with budget.held(site, "seed-002-ondemand: nothing to do"):
        result, said = site.good_and_said("apply")
    assert UNCHANGED in said, said
    assert result["changes"] == 0
    assert set(result["changed"].values()) == {0}, result["changed"]


def test_dashboards_are_reached_through_ssh_with_a_password(site: Site) -> None:
    # Grafana is a double, which reads the provisioned files. ssh, the controller and Grafana's unit are real.
    password = site.good("dashboard", "--password")["password"]
    process = site.start("dashboard", "--node", "compute-e1")
    try:
        assert process.stdout is not None
        page = json.loads(process.stdout.readline())["data"]
        assert page["service"] == "grafana"
        assert page["url"].endswith(f"/d/{boards.NODE}?var-node=compute-e1")
        address = page["url"].partition("/d/")[0]
        # Nothing of this machine's proxies.
        web = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with pytest.raises(urllib.error.HTTPError, match="401"):
            web.open(f"{address}/api/search", timeout=PATIENCE_S)
        token = base64.b64encode(f"admin:{password}".encode()).decode()
        request = urllib.request.Request(f"{address}/api/search", headers={"Authorization": f"Basic {token}"})
        with web.open(request, timeout=PATIENCE_S) as answer:
            found = {board["uid"] for board in json.load(answer)}
        assert found == {board["uid"] for board in boards.all_dashboards().values()}
    finally:
        process.send_signal(signal.SIGINT)
        rest = rest_of(process)
    assert process.returncode == 0, rest
    assert json.loads(rest.splitlines()[-1])["status"] == "success"
    listening = on_controller(site, "ss", "--listening", "--tcp", "--numeric", "--no-header")
    assert {line.split()[3] for line in listening.splitlines() if line.split()[3].endswith((":3000", ":9090"))} == {
        "127.0.0.1:3000", "127.0.0.1:9090"
    }  # fmt: skip
    (done,) = site.good("rotate", "grafana")["secrets"]
    assert (done["name"], done["new"]) == ("grafana", True)
    assert site.good("dashboard", "--password")["password"] != password
    assert on_controller(site, "sudo", "stat", "--format", "%a-%U", PASSWORD_FILE) == "600-gpucluster-grafana"


def test_each_command_that_reads_works_here_or_reports_why_not(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands that read a cluster, by the list that click's commands are compared with."""
    folder = site.folder / "written"
    folder.mkdir()
    monkeypatch.chdir(folder)
    outcomes = [_served(site) if name == "dashboard" else _read(site, name) for name in READS]
    assert judge(outcomes) == []
    assert {each.command for each in outcomes if each.status != 0} == REFUSED


def _read(site: Site, name: str) -> Outcome:
    words = {**READS, "ssh": ("--", "true")}[name]
    process = site.start(*name.split(), *words)
    output = rest_of(process)
    return Outcome(name, process.returncode, output, result_of(output), "")


def _served(site: Site) -> Outcome:
    """`dashboard` serves until it is ended: its page is read once, by the port that was asked for."""
    port = free_port()
    argv = [sys.executable, "-m", "gpucluster", "--file", str(site.file), "dashboard", "--port", str(port)]
    process = subprocess.Popen(argv, env=site.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = "".join(read_until(process, "Ctrl-C ends it"))
        url = f"http://127.0.0.1:{port}/"
        assert url in said
        web = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with pytest.raises(urllib.error.HTTPError, match="401"):
            web.open(url, timeout=PATIENCE_S)
    finally:
        process.send_signal(signal.SIGINT)
        rest = rest_of(process)
    assert rest.splitlines()[-1] == "the connection is closed"
    with pytest.raises(urllib.error.URLError, match="refused"):
        web.open(url, timeout=PATIENCE_S)
    return Outcome("dashboard", process.returncode, said + rest, {}, "")


def bind_passwords(site: Site) -> dict[str, str]:
    """By host, the password with which it binds to the directory."""
    found = json.loads(on_controller(site, "sudo", "cat", "/var/lib/gpucluster-directory/hosts.json"))["hosts"]
    return {name: entry["password"] for name, entry in found.items()}


def test_a_job_brings_its_nodes_and_the_controller_configures_them(site: Site) -> None:
    site.as_alice("mkfifo gate; cat > job.sh", stdin=JOB)
    job = site.as_alice("sbatch --parsable -N 2 --ntasks-per-node 1 -o out.txt job.sh")
    site.runs(job)
    budget.hold_new_nodes(site, "seed-002-ondemand: elastic node")
    assert len(containers(site.home)) == 3
    status = site.good("status", "--timeout", str(PATIENCE_S))
    # Slurm may still print that it has planned the nodes for this job: "mixed-".
    busy = [row["node"] for row in status["slurm"] if row["state"].rstrip("-") in ("allocated", "mixed")]
    assert len(busy) == 2, status["slurm"]
    # The administrator, from this machine and from the controller, once the node has a certificate of its host key.
    node = busy[0]
    site.until("the node has its certificate", lambda: site.plain("ssh", node, "true").returncode == 0)
    seen = site.plain("ssh", node, "echo $HOSTNAME '$(id -un)'; sudo id -u")
    assert (seen.returncode, seen.stdout.split()) == (0, [node, "$(id", "-un)", "0"]), seen
    assert site.ssh(site.controller, f"ssh {node} hostname").stdout.strip() == node
    # Each binds to the directory by itself, with a password that the join service had made.
    passwords = bind_passwords(site)
    for node in site.as_alice(f"scontrol show hostnames $(squeue -h -j {job} -o %N)").split():
        config = on_node(site, node, "sudo cat /etc/sssd/sssd.conf")
        assert f"ldap_default_bind_dn = cn={node},ou=hosts,dc=" in config
        assert f"ldap_default_authtok = {passwords[node]}" in config
    site.as_alice("echo > gate")
    site.accounted(job)
    ran = site.as_alice("cat out.txt").split("\n")
    assert len(ran) == 2
    for line in ran:
        node, gpus, host = line.split()
        assert node.startswith("compute-e")
        assert host == node
        assert gpus == "0,1,2,3,4,5,6,7"


def scraped(site: Site) -> dict[tuple[str, str], str]:
    """What Prometheus scrapes: the health (up, down, unknown) by the name of the host and the exporter.

    Raises:
        AssertionError: it has not answered in time.
    """
    said = json.loads(on_controller(site, "gpucluster-agent", "monitor", "status"))
    assert said["prometheus"], said["why"]
    return {(each["node"], each["job"]): each["health"] for each in said["targets"]}


def scraped_hosts(site: Site, *health: str) -> set[str]:
    """The hosts of which every exporter has this health."""
    found = scraped(site)
    return {node for node, _job in found} - {
        node for (node, _job), each in found.items() if health and each not in health
    }


def asked(site: Site, queries: dict[str, str]) -> dict[str, list[dict[str, str]]]:
    """The labels of the series that Prometheus has, by the name of the query.

    Raises:
        AssertionError: it has not answered all of them in time.
    """
    request = json.dumps({"queries": [{"name": name, "expr": expr} for name, expr in queries.items()]})
    said = json.loads(on_controller(site, "echo", shlex.quote(request), "|", "gpucluster-agent", "monitor", "query"))
    assert (said["prometheus"], said["errors"]) == (True, {}), said
    return {name: [each["labels"] for each in series] for name, series in said["results"].items()}


def maintenance_reserves_the_node_and_tells_the_owner_of_its_job(site: Site, node: str) -> None:
    """The reader works once a minute; a restart makes it list at once, and the health service follows within 15 s.

    Args:
        node: has a job.
    """

    def announce(*events: dict[str, object]) -> None:
        part = site.home / "maintenance.part"  # the reader may ask at any moment: never for a half of it
        part.write_text(json.dumps(events))
        part.replace(site.home / "maintenance.json")
        on_controller(site, "sudo", "systemctl", "restart", "gpucluster-maintenance")

    def reserved() -> str:
        return on_controller(site, "scontrol", "--oneliner", "show", "reservations")

    def known() -> list[dict[str, Any]]:
        said = json.loads(on_controller(site, "sudo", "gpucluster-agent", "health", "status", "--output", "json"))
        content = said["maintenance"] or {"events": [], "problem": "no pass yet"}
        assert not content["problem"] or content["problem"] == "no pass yet", content
        return [event for event in content["events"] if event["state"] == "SCHEDULED"]

    controller = on_controller(site, "hostname")
    announce(
        {"name": "node", "display_name": node, "in": 900},
        {"name": "head", "display_name": controller, "in": 3600, "action": "STOP"},
    )
    site.until("both are known", lambda: {event["host"] for event in known()} == {node, controller})
    (event,) = [event for event in known() if event["host"] == node]
    assert f"ReservationName={event['reservation']} " in reserved()
    assert f"Nodes={node} " in reserved()
    assert "MAINT" in reserved()
    [job] = list(event["jobs"])
    told = on_controller(site, "sudo", "cat", "/var/lib/gpucluster/health/maintenance.json")
    assert f"maintenance of the host {node}" in json.loads(told)["told"][job]["lines"][0]
    wanted = {"maintenance": "gpucluster_maintenance_reserved == 1"}
    site.until("Prometheus knows it", lambda: asked(site, wanted)["maintenance"])
    announce()
    site.until("it is cancelled", lambda: not known())
    site.until("nothing is reserved", lambda: "gpucluster-maintenance-" not in reserved())


def test_prometheus_scrapes_the_nodes_that_a_job_has_brought(site: Site) -> None:
    controller = on_controller(site, "hostname")
    with running_job(site, "-N 2") as nodes:
        site.until("all hosts answer", lambda: scraped_hosts(site, "up") == {controller, *nodes})
        started = (
            f"scontrol show node {','.join(nodes)} | sed -n 's/.*SlurmdStartTime=\\([^ ]*\\).*/\\1/p' | sort | tail -1"
        )
        listed = "stat -c %Y /var/lib/gpucluster/monitor/targets/targets-node.json"
        took = on_controller(site, f"echo $(( $({listed}) - $(date +%s --date $({started})) ))")
        print(f"{took} s after the last node's slurmd began to start it was a target of Prometheus")
        wanted = {
            "kernel": "node_uname_info", "own": "gpucluster_exporter_info", "slurm": "gpucluster_slurm_up == 1",
            "job": 'gpucluster_slurm_job_info{user="alice"}', "health": "gpucluster_health_written_timestamp_seconds",
            "scaling": "gpucluster_nodes", "recorded": "gpucluster:node_cpu_utilization:ratio",
            "units": 'node_systemd_unit_state{name="slurmctld.service", state="active"} == 1',
        }  # fmt: skip
        found: dict[str, list[dict[str, str]]] = {}

        def each_has_said_something() -> bool:
            found.update(asked(site, wanted))
            # A scrape that comes too late takes the series of its host away, until the next one.
            of_hosts = all({each["node"] for each in found[name]} == {controller, *nodes} for name in ("kernel", "own"))
            return all(found.values()) and of_hosts

        site.until("each has said something", each_has_said_something)
        maintenance_reserves_the_node_and_tells_the_owner_of_its_job(site, nodes[0])
    for name in ("kernel", "own"):
        of = {each["node"]: (each.get("pool", ""), each.get("shape", "")) for each in found[name]}
        assert of == {controller: ("", ""), **dict.fromkeys(nodes, ("compute", "BM.GPU4.8"))}, name
    # Users log in here, and Prometheus knows the jobs of all.
    ask = f"curl --noproxy '*' -s -m {PATIENCE_S:.0f} -o /dev/null -w '%{{http_code}}' http://127.0.0.1:9090/-/ready"
    assert [as_user(site, name, f"{ask} || true") for name in ("alice", "root")] == ["000", "200"]


def test_one_page_shows_the_cluster_without_grafana(site: Site) -> None:
    page = site.folder / "page.html"
    words = ("dashboard", "--static", str(page), "--timeout", str(PATIENCE_S))
    # The accounting hears of the end of a job some seconds later. By itself it shows the jobs since midnight.
    ended = "sudo sacct -a -n -X -S now-1days -o State"
    site.until("the job is in the accounting", lambda: "COMPLETED" in on_controller(site, ended))
    rule = {"nodes": "gpucluster:slurm_nodes:count"}
    site.until("the recording rules have run", lambda: asked(site, rule)["nodes"])
    found = site.good(*words)["overview"]
    assert [source for source in found["sources"] if source["error"]] == []
    assert found["facts"]["state"] == "present"
    # Slurm has a name for each elastic node that there could be.
    nodes = {node["name"]: node for node in found["nodes"]["value"]}
    assert all(node["pool"] == "compute" and node["gpus"] == 8 for node in nodes.values()), nodes
    jobs = [(job["user"], job["nodes"]) for job in found["ended"]["value"] if job["state"] == "COMPLETED"]
    assert jobs == [("alice", 2)]
    assert found["autoscaler"]["value"]["healthy"]
    assert found["health"]["value"]["interval"] > 0
    assert found["verdict"]["value"]["counts"]["pass"] > 0
    # A look for drift and a rotation hold the cluster's lock, and so they are runs.
    first = next(run for run in found["runs"] if run["command"] not in ("drift", "rotate"))
    assert (first["command"], first["status"]) == ("apply", "success")
    history = found["history"]["value"]
    assert history["errors"] == {}
    assert any(series["values"] for series in history["series"]["nodes"])
    assert page.stat().st_mode & 0o777 == 0o600
    text = page.read_text()
    assert read(text).faults == []
    assert all(name in text for name in ("compute", "alice", "BM.GPU4.8"))
    # Written again over its own page, and never over another file.
    assert site.good(*words)["file"] == str(page)
    assert site.run("dashboard", "--static", str(site.file))[0] == 2


IDENTITY = "http://169.254.169.254/opc/v2/identity/key.pem"
ASK = (
    f"curl --noproxy '*' -s -m {PATIENCE_S:.0f} -o /dev/null -w '%{{http_code}}' -H 'Authorization: Bearer Oracle' "
    f"{IDENTITY}"
)


def test_only_root_and_the_autoscaler_get_the_controllers_identity(site: Site) -> None:
    assert site.as_alice(f"{ASK} || true") == "000"
    assert site.as_alice(f"srun -N 2 --ntasks-per-node=1 {ASK} 2> /dev/null || true") == "000000"
    for user in ("root", "gpucluster"):
        assert on_controller(site, f"sudo -u {user} {ASK}") == "200"


# As the autoscaler's user, with the controller's identity: what it has, and what it would do to the controller.
MISUSE = """
/opt/gpucluster/venv/bin/python - 2>&1 <<'END'
from gpucluster.autoscaler.daemon.oci import OciCloud, RequestFailed
from gpucluster.autoscaler.policy import Policy
policy = Policy.load()
cloud = OciCloud(policy)
print(*sorted(each.node for each in cloud.instances()))
for call in (("terminate_instance", "CONTROLLER"), ("list_instances", "CLUSTER")):
    try:
        cloud._ask("core.ComputeClient", *call)
        print(call[0], "is allowed")
    except RequestFailed as refusal:
        print(refusal.status, refusal.code)
END
"""


def test_the_controllers_identity_ends_elastic_nodes_only(site: Site) -> None:
    cluster = site.good("output")["outputs"]["cluster"]
    assert cluster["elastic_compartment_id"] != cluster["compartment_id"]
    script = MISUSE.replace("CONTROLLER", cluster["controller"]["id"]).replace("CLUSTER", cluster["compartment_id"])
    with running_job(site, "-N 2") as nodes:
        assert as_user(site, "gpucluster", script).splitlines() == [
            " ".join(nodes),
            "404 NotAuthorizedOrNotFound",
            "404 NotAuthorizedOrNotFound",
        ]
        assert len(containers(site.home)) == 3


def test_a_container_job_runs_on_nodes_that_the_controller_configured(site: Site) -> None:
    image(site)
    said = [line.split() for line in batch(site, "-N 2")]
    assert [word for word, _node in said] == [MARKER, MARKER]
    assert len({node for _word, node in said}) == 2


def test_commands_in_a_row_wait_for_nodes_that_are_just_completing(site: Site) -> None:
    """Slurm would try an srun at once, and refuse what the pool's size does not allow rather than let it wait."""
    both = LOOK.replace("srun", "srun -N 2 --ntasks-per-node=1")
    said = site.as_alice(f"for _ in 1 2 3; do srun hostname; {both}; done").splitlines()
    assert len(said) == 9
    assert sum(line.startswith(f"{MARKER} compute-e") for line in said) == 6


# Run as the autoscaler's user: each private key that it may read, and then three attempts. Nodes have the user opc.
ATTACK = """
find / -xdev -type f -size -20k -readable ! -path '/proc/*' -exec grep -l 'PRIVATE KEY-----' {} + 2>/dev/null |
    grep -Ev '^/(usr|opt)/' | sed 's/^/key: /'
cat /var/lib/gpucluster-join/ssh/id_ed25519 >/dev/null 2>&1 && echo 'the key of new nodes'
sudo -n true 2>/dev/null && echo sudo
ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null opc@NODE sudo -n id -u 2>/dev/null
"""
# As root: the key of new nodes is one.
OWN = """
ssh -i /var/lib/gpucluster-join/ssh/id_ed25519 -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=no \\
    -o UserKnownHostsFile=/dev/null opc@NODE sudo -n id -u 2>/dev/null
"""
WAKE = "import socket; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', '/run/gpucluster-autoscaler/poke')"


def as_user(site: Site, user: str, script: str) -> str:
    """Run a script as a user of the controller."""
    return on_controller(site, "sudo", "runuser", "-u", user, "--", "sh", "-c", shlex.quote(f"cd /; {script}\ntrue"))


def test_the_autoscalers_user_is_root_on_no_node_and_no_other_user_wakes_the_autoscaler(site: Site) -> None:
    with running_job(site, "-N 1") as (node,):
        assert as_user(site, "gpucluster", ATTACK.replace("NODE", node)) == ""
        assert as_user(site, "root", OWN.replace("NODE", node)) == "0", "the same login works for root's service"
    wake = f"python3 -c {shlex.quote(WAKE)} 2>&1 && echo sent"
    for person in ("alice", on_controller(site, "whoami"), "nobody"):
        assert "PermissionError" in as_user(site, person, wake)
    assert as_user(site, "slurm", wake) == "sent"


# On a node, as root of the controller: its home share is gone, and its own check of it runs, as Slurm runs it.
BREAK = "sudo sh -c 'umount --lazy /mnt/home; /usr/local/lib/gpucluster/health-check'"


def on_node(site: Site, node: str, command: str) -> str:
    """Run a command on an elastic node, by the key with which the controller configures them."""
    login = OWN.strip().partition(" opc@")[0].replace("\\\n", " ")
    return on_controller(site, "sudo", "sh", "-c", shlex.quote(f"{login} opc@{node} {shlex.quote(command)}"))


def test_a_bad_node_is_found_replaced_and_the_cluster_proven_by_one_command(site: Site) -> None:
    # The folder is alice's: in one that all may write to the kernel may refuse root a pipe of hers.
    gate = "/var/tmp/alice/gate"
    job = site.as_alice(f"sbatch --parsable -N 1 -o /dev/null --wrap 'mkdir {gate[:-5]}; mkfifo {gate}; cat {gate}'")
    site.runs(job)
    node = site.as_alice(f"squeue -h -j {job} -o %N")
    # Slurm reports "running" while the node's prolog still checks it.
    site.until("its script waits", lambda: on_node(site, node, f"if [ -p {gate} ]; then echo yes; fi") == "yes")
    before = set(containers(site.home))
    on_node(site, node, BREAK)
    site.until("it is drained", lambda: "drain" in on_controller(site, "sinfo", "-h", "-N", "-n", node, "-o", "%T"))
    assert "check failed: mounts" in on_controller(site, "sinfo", "-h", "-n", node, "-o", "%E")

    repair = site.start("verify", "--fix")
    read_until(repair, f"job {job} of alice on {node}")
    on_node(site, node, f"sudo sh -c 'echo > {gate}'")
    rest = rest_of(repair)
    assert repair.returncode == 0, rest[-3000:]
    assert json.loads(rest.splitlines()[-1])["data"]["repair"]["elastic"] == [node]
    site.accounted(job)
    # Its machine is gone, its name is free, and no drain is left on it.
    site.until("its machine is gone", lambda: before - set(containers(site.home)))
    site.until("the name is free", lambda: on_controller(site, "sinfo", "-h", "-n", node, "-o", "%T") == "idle~")


def test_a_job_larger_than_the_pool_is_refused_at_once(site: Site) -> None:
    with pytest.raises(AssertionError, match=r"[Nn]ode count|[Pp]artition"):
        site.as_alice("sbatch -N 3 --wrap true")


def test_idle_nodes_are_gone_and_explain_shows_why(site: Site) -> None:
    only_the_controller_is_left(site)
    controller = on_controller(site, "hostname")
    site.until("only the controller is scraped", lambda: scraped_hosts(site) == {controller})
    said = site.plain("autoscaler", "explain", "compute-e1")
    assert said.returncode == 0
    assert "terminate" in said.stdout


def test_a_job_that_can_not_have_its_nodes_waits_with_words(site: Site) -> None:
    site.faults({"operation": "LaunchInstance*", "message": "Out of host capacity."})
    try:
        job = site.as_alice("sbatch --parsable -N 2 --wrap hostname")
        words = "admin_comment:300"
        site.until("squeue shows it", lambda: "Out of host capacity" in site.as_alice(f"squeue -h -j {job} -O {words}"))
        said = site.as_alice(f"bash -lc 'squeue -j {job}'")
        assert "Next try at" in said
        assert site.plain("autoscaler", "status").stdout.count("Out of host capacity")
        assert len(containers(site.home)) == 1
        site.as_alice(f"scancel {job}")
    finally:
        site.faults()


def test_a_node_whose_checks_fail_at_boot_takes_no_job_and_is_replaced(site: Site) -> None:
    only_the_controller_is_left(site)
    inventory, kept = "/etc/gpucluster/inventory.yml", "/root/inventory.kept"
    # New nodes shall have a file system that they have not.
    edit = f"cp -p {inventory} {kept} && sed -i 's,^\\( *\\)- /mnt/home$,&\\n\\1- /mnt/nowhere,' {inventory}"
    on_controller(site, "sudo", "sh", "-c", shlex.quote(f"{edit} && grep -c /mnt/nowhere {inventory}"))
    try:
        job = site.as_alice("sbatch --parsable -N 1 --wrap hostname")
        words = "its checks at boot failed: mounts: /mnt/nowhere"
        ledger = "sudo cat /var/lib/gpucluster-autoscaler/status.json"
        site.until("the autoscaler reports why", lambda: words in on_controller(site, ledger), patience=2 * PATIENCE_S)
        assert words in site.plain("autoscaler", "status").stdout
        assert site.as_alice(f"squeue -h -j {job} -o %t") in ("PD", "CF")
        site.as_alice(f"scancel {job}")
    finally:
        on_controller(site, "sudo", "cp", "-p", kept, inventory)
    only_the_controller_is_left(site)


# What the controller answers to a user of a node who asks for an entry in the directory, and to root of it.
REQUEST = """
import socket, sys
asks = socket.socket()
asks.bind(("", int(sys.argv[2])))
asks.connect((sys.argv[1], 6822))
key = " ".join(open("/etc/ssh/ssh_host_ed25519_key.pub").read().split()[:2])
hashed = "{CRYPT}$6$salt$" + "x" * 86
asks.sendall(f"{key}\\ndirectory {hashed}\\n".encode())
asks.shutdown(socket.SHUT_WR)
print(asks.makefile().read())
"""


def is_reached(site: Site, node: str) -> None:
    """Wait until the controller reaches a node: one that has just joined may have no certificate of its host key."""
    site.until(f"{node} is reached", lambda: site.ssh(site.controller, f"ssh {node} true").returncode == 0)


def bind_of(site: Site, node: str) -> tuple[str, str]:
    """The entry with which a node of a baked image binds to the directory, and the password, as root reads them."""
    is_reached(site, node)
    config = on_controller(site, f"ssh {node} sudo cat /etc/sssd/sssd.conf")
    found = dict(line.split(" = ", 1) for line in config.splitlines() if line.startswith("ldap_default"))
    return found["ldap_default_bind_dn"], found["ldap_default_authtok"]


def binds(site: Site, entry: str, password: str) -> bool:
    """Whether the directory accepts a password."""
    command = f"sudo ldapwhoami -x -H ldapi://%2Frun%2Fslapd%2Fldapi -D {entry} -w {password}"
    return site.ssh(site.controller, command).returncode == 0


def test_nodes_of_a_baked_image_need_no_configuration(site: Site) -> None:
    before = set(bind_passwords(site))
    baked = site.good("image", "bake", "compute")
    assert baked["status"] == "success"
    # The image has no entry in the directory, so there is no password in it.
    assert set(bind_passwords(site)) <= before
    images = site.good("image", "list")["images"]
    assert [(image["pool"], image["state"]) for image in images] == [("compute", "AVAILABLE")]
    begun = on_controller(site, "date", "+%s")
    # The script waits until its nodes were counted: idle ones go after some seconds.
    site.as_alice("cat > job.sh", stdin=f"#!/bin/bash\n{LOOK}\ncat gate\n")
    job = site.as_alice("rm -f out.txt; sbatch --parsable -N 2 --ntasks-per-node=1 -o out.txt job.sh")
    site.runs(job)
    ran = f"grep -c '^{MARKER}' out.txt || true"
    site.until("both nodes have run a step in the container", lambda: site.as_alice(ran) == "2")
    budget.hold_new_nodes(site, "seed-002-ondemand: elastic node of a baked image")
    site.as_alice("echo > gate")
    site.over(job)
    requests = on_controller(site, "sudo", "journalctl", "-u", "gpucluster-join", f"--since=@{begun}", "-o", "cat")
    assert "compute-e" not in requests
    # What protects a node is in the image, too.
    assert site.as_alice(f"srun -N 2 --ntasks-per-node=1 {ASK} 2> /dev/null || true") == "000000"


def test_each_node_of_a_baked_image_has_an_entry_that_ends_with_it(site: Site) -> None:
    with running_job(site, "-N 2") as nodes:
        known = bind_passwords(site)
        bound = {node: bind_of(site, node) for node in nodes}
        for node, (entry, password) in bound.items():
            assert entry.startswith(f"cn={node},ou=hosts,dc="), entry
            # The controller has the hash alone.
            assert known[node] == ""
            assert binds(site, entry, password)
        assert len({password for _, password in bound.values()}) == 2
        # Who asks over the network afterwards: a user, and root. Slurm has the node in service.
        asked = f"python3 -c {shlex.quote(REQUEST)} {site.controller}"
        said = site.as_alice(f"srun --jobid={RUNNING} --overlap -N 1 -n 1 -w {nodes[0]} {asked} 4711")
        assert "port 4711" in said
        assert "may belong to any user" in said
        said = on_controller(site, f"ssh {nodes[0]} {shlex.quote(f'sudo {asked} 711')}")
        assert "no directory entry: no node boots at this address now" in said
        assert all(binds(site, *each) for each in bound.values())
    only_the_controller_is_left(site)
    # Another instance with a name of before.
    with running_job(site, "-N 1", "-w", nodes[0]) as (node,):
        assert binds(site, *bind_of(site, node))
        assert not binds(site, *bound[node])


def test_nodes_of_a_baked_image_take_other_secrets_and_later_ones_boot_with_the_munge_key(site: Site) -> None:
    key = "sudo sha256sum /etc/munge/munge.key"
    only_the_controller_is_left(site)
    with running_job(site, "-N 1") as (node,):
        before = on_controller(site, key)
        entry, password = bind_of(site, node)
        for done in site.good("rotate", "munge", "passwords", "ssh-ca", "directory-ca")["secrets"]:
            assert (done["hosts"], done["away"], done["unconfirmed"]) == (2, [], []), done
        assert on_controller(site, f"ssh {node} {key}") == on_controller(site, key) != before
        assert site.as_alice(f"srun --jobid={RUNNING} --overlap -n 1 -w {node} hostname") == node
        assert binds(site, *bind_of(site, node))
        assert not binds(site, entry, password)
    # The image has the ssh CA of its day: nodes that boot from it now are reached nevertheless, see below.
    only_the_controller_is_left(site)
    with running_job(site, "-N 1", "-w", node):
        is_reached(site, node)
        assert on_controller(site, f"ssh {node} {key}") == on_controller(site, key)
        # The image has none, not even that of its day.
        said = on_controller(site, f"ssh {node} sudo journalctl -u gpucluster-munge-key -o cat")
        assert "the munge key is the cluster's now" in said
        # It has the CA of its day, and learns the present one from it: before munge and SSSD ask for anything.
        trusted = "cat /etc/gpucluster/authority.pem"
        assert on_controller(site, f"ssh {node} {trusted}") == on_controller(site, trusted)


def test_a_node_of_a_baked_image_waits_for_the_controller_and_asks_again(site: Site) -> None:
    only_the_controller_is_left(site)
    asked = "gpucluster-ssh-authority.socket"
    on_controller(site, "sudo", "systemctl", "stop", asked)
    try:
        job = site.as_alice(f"sbatch --parsable -N 1 -o /dev/null --wrap '{ENDLESS}'")
        site.until("its node is launched", lambda: len(containers(site.home)) == 2)
        node = site.as_alice(f"squeue -h -j {job} -o %N")
        there = container_of(site, node)

        def said(*command: str) -> str:
            argv = ["podman", "exec", there, *command]
            return subprocess.run(argv, capture_output=True, text=True, check=False).stdout

        journal = ("journalctl", "-u", "gpucluster-host-certificate", "-o", "cat")
        site.until("it reports why it waits", lambda: "no directory entry yet: " in said(*journal))
        site.until("others log in", lambda: said("systemctl", "is-active", "systemd-user-sessions") == "active\n")
        assert said("systemctl", "is-active", "sssd", "slurmd") == "inactive\ninactive\n"
    finally:
        on_controller(site, "sudo", "systemctl", "start", asked)
    site.runs(job)
    site.as_alice(f"scancel {job}")


def test_who_is_disabled_runs_nothing_on_nodes_of_a_baked_image(site: Site) -> None:
    """The controller reaches them: by its key, and by host keys that have certificates."""
    job = site.as_alice(f"sbatch --parsable -N 2 --wrap '{ENDLESS}'")
    site.runs(job)
    # A node that has just joined may have none yet, and the controller knows it by nothing else.
    for node in site.as_alice(f"scontrol show hostnames $(squeue -h -j {job} -o %N)").split():
        scan = f"ssh-keyscan -c $(sinfo -h -N -n {node} -o %o | head -1) 2> /dev/null | grep -c cert || true"
        site.until(f"{node} has a certificate", lambda scan=scan: int(on_controller(site, scan)))  # type: ignore[misc]
    off = site.confirmed("user", "disable", "alice")
    site.good("user", "enable", "alice")
    assert (off[-1]["unreachable"], off[-1]["unconfirmed"]) == ([], {})
    assert sum(each["ended"]["jobs"] for each in off) == 1


def test_nothing_secret_is_open_on_the_controller(site: Site) -> None:
    modes = on_controller(
        site,
        *("sudo", "stat", "-c", "'%a %U %n'", "/etc/gpucluster/inventory.yml"),
        *("/var/lib/gpucluster-autoscaler", "/etc/gpucluster/autoscaler.json"),
    )
    assert [line.split()[:2] for line in modes.splitlines()] == [
        ["600", "root"],
        ["700", "gpucluster"],
        ["640", "root"],
    ]
    for unit in ("gpucluster-autoscaler", "gpucluster-join"):
        assert "PRIVATE KEY" not in on_controller(site, "sudo", "journalctl", "-u", unit, "-o", "cat")


def test_the_controller_is_an_instance_principal_and_has_no_key_of_the_cloud(site: Site) -> None:
    policy = json.loads(on_controller(site, "sudo", "cat", "/etc/gpucluster/autoscaler.json"))
    assert policy["authentication"]["method"] == "instance_principal"
    assert "oci" not in on_controller(site, "ls", "/etc/gpucluster").split()


def test_destroy_takes_elastic_nodes_with_it(site: Site) -> None:
    job = site.as_alice(f"sbatch --parsable -N 1 --wrap '{ENDLESS}'")
    site.runs(job)
    site.good("destroy", "--delete-data")
    assert containers(site.home) == []
    assert networks(site.home) == []
    for left in ("filesystems", "exports", "instances"):
        assert list((site.home / left).iterdir()) == [], left
