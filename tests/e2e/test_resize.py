"""A cluster without a public address: its cluster network is resized by changing the file, while a job runs on the node
that goes. Everything goes through the local cloud's Bastion service.

The tests run in the order of this file, on one cluster: each is a chapter of the same story.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from gpucluster.spec import loads
from tests.e2e.site_harness import Site, containers, read_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

CLUSTER_YML = """\
version: 1
name: resize
cloud:
  provider: local
network:
  access: bastion
  vcn_cidr: 10.97.0.0/16
  private_subnet_cidr: 10.97.1.0/24
  ssh_allowed_cidrs: [127.0.0.0/8]
controller:
  shape: VM.Standard.E5.Flex
  ocpus: 4
  memory_gb: 32
pools:
  compute:
    shape: BM.GPU4.8
    count: 3
users:
  people:
    - name: alice
      generate_key: true
"""
# A job that ends well as soon as its file is there.
GATED = "until [ -e {gate} ]; do sleep 1; done; echo whole"
SMALLER = CLUSTER_YML.replace("count: 3", "count: 2\n    removed_nodes: [compute-1]")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(CLUSTER_YML) as made:
        made.good("apply")
        yield made


def booted(site: Site) -> dict[str, str]:
    """When each node's machine was started, and so whether it is still the same."""
    argv = [sys.executable, "-m", "gpucluster", "-f", str(site.file), "ssh"]
    found = {}
    for host in site.good("status")["hosts"]:
        done = subprocess.run(
            # Users of a host do not see its first process.
            [*argv, host["name"], "--", "sudo cut -d ' ' -f 22 /proc/1/stat && hostname"],
            env=site.env,
            capture_output=True,
            text=True,
            check=True,
        )
        found[host["name"]] = done.stdout
    return found


def states(site: Site) -> dict[str, str]:
    return {row["node"]: row["state"] for row in site.good("status")["slurm"]}


def until(holds: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def becomes(site: Site, node: str, *wanted: str) -> None:
    """Wait for a node's state. A node is completing for a moment after the jobs by which a command checked it."""
    until(lambda: states(site)[node] in wanted)


def submit(site: Site, node: str, script: str) -> str:
    job = site.as_alice(f"sbatch --parsable --time=30 --nodelist={node} --output=%j.txt --wrap '{script}'")
    until(lambda: site.as_alice(f"squeue --noheader --jobs={job} --format=%T") == "RUNNING")
    return job


def test_a_job_on_the_node_that_goes_stops_a_run_that_may_not_wait(site: Site) -> None:
    before = booted(site)
    job = submit(site, "compute-1", "sleep 600")
    site.file.write_text(SMALLER)
    code, events = site.run("apply", "--drain-timeout", "2")
    assert code == 1
    assert f"job {job} of alice on compute-1" in events[-1]["message"]
    assert states(site)["compute-1"] == "draining"
    assert booted(site) == before

    # It is in the file again and takes jobs again; the job on it was not disturbed.
    site.file.write_text(CLUSTER_YML)
    assert site.good("apply")["changes"] == 0
    becomes(site, "compute-1", "allocated", "mixed")
    assert site.as_alice(f"squeue --noheader --jobs={job} --format=%T") == "RUNNING"
    assert booted(site) == before
    site.as_alice(f"scancel {job}")


def test_the_named_node_goes_when_its_job_has_ended_and_the_others_are_untouched(site: Site) -> None:
    before = booted(site)
    last = submit(site, "compute-1", GATED.format(gate="last"))
    other = submit(site, "compute-2", GATED.format(gate="other"))
    site.file.write_text(SMALLER)
    run = site.start("apply")
    read_until(run, f"job {last} of alice on compute-1", 240)
    site.as_alice("touch last")
    rest, _ = run.communicate(timeout=600)
    assert run.returncode == 0, rest[-3000:]
    assert site.as_alice(f"cat {last}.txt") == "whole"
    assert states(site).keys() == {"compute-2", "compute-3"}
    left = booted(site)
    assert left == {name: said for name, said in before.items() if name != "compute-1"}
    assert len(containers(site.home)) == 3
    # Slurm's new configuration has ended nobody's job.
    assert site.as_alice(f"squeue --noheader --jobs={other} --format=%T") == "RUNNING"
    site.as_alice("touch other")
    site.accounted(other)
    assert site.as_alice(f"cat {other}.txt") == "whole"


def test_it_grows_again_by_the_next_number(site: Site) -> None:
    before = booted(site)
    site.file.write_text(SMALLER.replace("count: 2", "count: 3"))
    site.good("apply")
    assert set(states(site)) == {"compute-2", "compute-3", "compute-4"}
    after = booted(site)
    assert {name: after[name] for name in before} == before
    assert site.as_alice("srun --nodelist=compute-4 hostname") == "compute-4"
    code, _ = site.run("plan", "--detailed-exitcode")
    assert code == 0


def test_a_named_node_gets_another_machine_and_keeps_its_name(site: Site) -> None:
    before = booted(site)
    name = max(states(site))
    site.good("replace", name)
    after = booted(site)
    assert set(after) == set(before)
    assert {each for each in before if after[each] != before[each]} == {name}
    assert site.as_alice(f"srun --nodelist={name} hostname") == name


def test_a_bad_node_is_found_replaced_and_proven_again_by_one_command(site: Site) -> None:
    before = booted(site)
    bad = min(states(site))
    mount = loads(CLUSTER_YML).storage.home.mount_path
    assert site.plain("ssh", bad, "--", f"sudo umount --lazy {mount}").returncode == 0

    # Permanent nodes are drained, and recreated only where that was said.
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


def test_nobody_gets_in_but_through_a_session(site: Site) -> None:
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
    assert site.plain("ssh", "--", "hostname").stdout.strip() == "resize-controller"
    assert json.loads((site.folder / ".gpucluster" / "bastion.json").read_text())["id"] != session["id"]
