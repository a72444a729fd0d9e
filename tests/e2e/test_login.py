"""Login nodes, for real: who gets in where, jobs from there, and a login node that is lost, added and removed.

The tests run in the order of this file, on one cluster of a controller, a login node and a node. Who tries to get in: a
user with a key of their own, a member of the privilege group, the user of the image.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.e2e.site_harness import Site, all_pass, containers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

CONTROLLER, LOGIN, SECOND, NODE = "gate-controller", "gate-login-1", "gate-login-2", "compute-1"
CLUSTER_YML = """\
version: 1
name: gate
cloud: {provider: local}
network:
  vcn_cidr: 10.113.0.0/16
  public_subnet_cidr: 10.113.0.0/24
  private_subnet_cidr: 10.113.1.0/24
  ssh_allowed_cidrs: [127.0.0.0/8]
controller: {shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16}
login: {count: 1, shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16}
pools:
  compute: {count: 1, shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16}
monitoring: {enabled: true}
users:
  people:
    - {name: alice, full_name: Alice Example, generate_key: true}
    - {name: olga, full_name: Olga Example, groups: [privilege], generate_key: true}
"""


class Gate(Site):
    """The cluster, and what its users type."""

    def ssh(self, who: str, host: str, command: str, *options: str) -> subprocess.CompletedProcess[str]:
        """A new login of a user at a host, with their own key; of the image's user without one."""
        ssh = self.folder / ".gpucluster" / "ssh"
        alone = ["-o", "ControlMaster=no", "-o", "ControlPath=none"]
        alone += ["-i", str(ssh / f"{who}_ed25519"), "-l", who] if who else []
        argv = ["ssh", "-F", str(ssh / "config"), *alone, *options, host, "--", command]
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)

    def says(self, who: str, host: str, command: str, *options: str) -> str:
        """What a command of a user writes, which ends well."""
        done = self.ssh(who, host, command, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def refused(self, who: str, host: str) -> bool:
        """Whether the ssh server of a host answers and does not let a user in."""
        done = self.ssh(who, host, "true")
        return done.returncode == 255 and "Permission denied" in done.stderr

    def set_count(self, count: int) -> None:
        text = self.file.read_text()
        before, found, after = text.partition("login: {count: ")
        assert found
        self.file.write_text(f"{before}{found}{count}{after[1:]}")

    def set_monitoring_host(self, host: str) -> None:
        text = self.file.read_text()
        line = next(line for line in text.splitlines() if line.startswith("monitoring:"))
        self.file.write_text(text.replace(line, f"monitoring: {{enabled: true, host: {host}}}"))

    def container(self, name: str) -> str:
        """The container of a host."""
        listed = subprocess.run(
            ["podman", "inspect", "--format", "{{.ID}} {{.Config.Hostname}} {{.Name}}", *containers(self.home)],
            capture_output=True,
            text=True,
            check=True,
        )
        (found,) = [line.split()[0] for line in listed.stdout.splitlines() if f"-{name}-" in line]
        return found


@pytest.fixture(scope="module")
def site() -> Iterator[Gate]:
    with Gate(CLUSTER_YML) as made:
        assert isinstance(made, Gate)
        yield made


def test_a_cluster_with_a_login_node_passes_every_check(site: Gate) -> None:
    result = site.good("apply")
    assert all_pass(result), result["checks"]
    names = {check["name"] for check in result["checks"]}
    assert {"login nodes reach Slurm", "only operators log in to the controller"} <= names
    assert result["login"]["alice"].endswith(f"alice@{LOGIN}")


def test_users_get_in_at_the_login_node_and_not_at_the_controller(site: Gate) -> None:
    assert site.says("alice", LOGIN, "hostname; pwd").split() == [LOGIN, "/mnt/home/alice"]
    assert site.refused("alice", CONTROLLER)
    # From the login node neither: the name is known there, and the controller lets nobody in.
    assert "Permission denied" in site.ssh("alice", LOGIN, f"ssh -o BatchMode=yes {CONTROLLER} true").stderr
    assert site.says("olga", CONTROLLER, "hostname") == CONTROLLER
    assert site.says("", CONTROLLER, "sudo -n hostname") == CONTROLLER
    assert site.ssh("alice", LOGIN, "sudo -n true").returncode != 0


def test_jobs_are_submitted_on_the_login_node(site: Gate) -> None:
    # Each of these needs a way back from the node, or from slurmctld, to the login node.
    assert site.says("alice", LOGIN, "srun hostname") == NODE
    assert NODE in site.says("alice", LOGIN, "srun --pty sh -c 'tty && hostname'", "-tt")
    assert NODE in site.says("alice", LOGIN, "echo hostname | salloc --quiet")
    assert site.says("alice", LOGIN, "sbatch --wait --output=out.txt --wrap hostname >/dev/null && cat out.txt") == NODE
    assert "compute" in site.says("alice", LOGIN, "sinfo --noheader --format=%P")
    assert site.says("", LOGIN, "systemctl is-active slurmd || true") == "inactive"
    # What only the controller has: the accounting, the key of the directory's authority.
    for path in ("/etc/slurm/slurmdbd.conf", "/etc/gpucluster/authority", "/etc/gpucluster/munge.key"):
        assert site.ssh("", LOGIN, f"sudo test -e {path}").returncode == 1


def test_a_lost_login_node_is_replaced_and_another_one_added(site: Gate) -> None:
    subprocess.run(["podman", "rm", "-f", "-t", "0", site.container(LOGIN)], check=True, capture_output=True)
    site.set_count(2)
    site.set_monitoring_host("login-2")
    plan = site.good("plan")
    assert plan["login"]["added"] == [SECOND]
    assert all_pass(site.good("apply"))
    for host in (LOGIN, SECOND):
        assert site.says("alice", host, "srun hostname; cat out.txt").split() == [NODE, NODE]
    # Slurm knows no version of hosts without slurmd.
    known = site.good("slurm", "upgrade", "--plan", "--to", "26.05")["nodes"]
    assert set(known) == {NODE, LOGIN, SECOND}
    assert len(set(known.values())) == 1
    # Every host of the cluster knows them by one name; ssh takes one that answers.
    assert len(site.says("", NODE, "getent ahostsv4 login | grep STREAM").splitlines()) == 2
    subprocess.run(["podman", "stop", "-t", "0", site.container(LOGIN)], check=True, capture_output=True)
    assert site.plain("ssh", "login", "hostname").stdout.strip() == SECOND


def test_prometheus_has_moved_to_the_login_node_and_its_users_do_not_reach_it(site: Gate) -> None:
    state = "systemctl is-active gpucluster-prometheus gpucluster-monitor || true"
    assert site.says("", CONTROLLER, state).split() == ["inactive", "inactive"]
    # Slurm's metrics, and those of a host: of the node, whose exporters answer this host now.
    request = {"slurm": "gpucluster_slurm_up == 1", "node": f'up{{node="{NODE}"}} == 1'}
    queries = json.dumps({"queries": [{"name": name, "expr": expr} for name, expr in request.items()]})
    deadline = time.monotonic() + 60
    while True:
        found = json.loads(site.says("", SECOND, f"echo {shlex.quote(queries)} | gpucluster-agent monitor query"))
        if all(found["results"].get(name) for name in request):
            break
        assert time.monotonic() < deadline, found
        time.sleep(1)
    address = site.says("", SECOND, "getent ahostsv4 $(hostname) | awk 'NR == 1 {print $1}'")
    asks = [f"127.0.0.1:{port}" for port in (9090, 9341)] + [f"{address}:9100"]
    for place in asks:
        ask = f"curl --silent --output /dev/null --max-time 10 http://{place}/metrics"
        assert site.ssh("alice", SECOND, ask).returncode == 7, place
        assert site.ssh("", SECOND, ask).returncode == 0, place
    assert site.says("alice", SECOND, "srun hostname") == NODE


def test_without_login_nodes_users_get_in_at_the_controller_again(site: Gate) -> None:
    site.set_count(0)
    site.set_monitoring_host("controller")
    plan = site.good("plan")
    assert sorted(plan["login"]["removed"]) == [LOGIN, SECOND]
    site.good("apply")
    state = "systemctl is-active gpucluster-prometheus gpucluster-monitor"
    assert site.says("", CONTROLLER, state).split() == ["active", "active"]
    hosts = json.loads((site.folder / ".gpucluster" / "hosts.json").read_text())["hosts"]
    assert [host["name"] for host in hosts] == [CONTROLLER, NODE]
    assert site.says("alice", CONTROLLER, "hostname; srun hostname").split() == [CONTROLLER, NODE]
