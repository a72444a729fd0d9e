"""An image rolls through a pool with jobs: real Terraform and Slurm, containers as nodes, the API of the local cloud.

Oracle Linux 9 is Debian 12 here, of which the local cloud has several builds. What only OCI can show is in
docs/reference/systems.md. The tests run in the order of this file, on one cluster: each is a chapter of the same story.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.site_harness import NETWORK, PATIENCE_TO_BUILD_S, Site, all_pass, kill, read_until, rest_of
from tests.localcloud.api_harness import Api

pytestmark = [pytest.mark.e2e, pytest.mark.story, pytest.mark.timeout(2 * PATIENCE_TO_BUILD_S)]

NAMES = [f"Oracle-Linux-9.7-{build}" for build in ("2026.06.15-0", "2026.04.30-0", "2026.02.28-0")]
OF_SYSTEM = 'operating_system: Oracle Linux, version: "9"'
CLUSTER_YML = f"""\
version: 1
name: roll
cloud: {{provider: local}}
{NETWORK}\
controller: {{shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 8, image: {{{OF_SYSTEM}}}}}
pools:
  compute: {{shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 8, count: 2, image: {{{OF_SYSTEM}}}}}
users:
  people:
    - {{name: alice, full_name: Alice Example, generate_key: true}}
"""
COMPUTE = f"count: 2, image: {{{OF_SYSTEM}"
CONTROLLER = "roll-controller"


class Roll(Site):
    """The cluster, and what the cloud has of it."""

    @property
    def api(self) -> Api:
        return Api(self.home)

    def image(self, number: int) -> str:
        """The OCID of a build, the newest first."""
        return str(self.api.named_image(NAMES[number]).id)

    def instances(self) -> dict[str, Any]:
        listed = self.api.compute.list_instances(self.api.tenancy).data
        return {each.display_name: each for each in listed if each.lifecycle_state == "RUNNING"}

    def boots_from(self) -> dict[str, str]:
        """The image of each node, by the node's name."""
        return {name: each.image_id for name, each in self.instances().items() if name.startswith("compute-")}

    def states(self) -> dict[str, str]:
        lines = self.root(CONTROLLER, "sinfo -h -N -o '%N %T'").splitlines()
        return dict(line.split(" ", 1) for line in lines)


@pytest.fixture(scope="module")
def site() -> Iterator[Roll]:
    with Roll(CLUSTER_YML) as made:
        assert isinstance(made, Roll)
        yield made


def test_apply_refuses_another_image_and_names_the_rollout(site: Roll) -> None:
    assert all_pass(site.good("apply"))
    site.change(COMPUTE, f"{COMPUTE}, name: {NAMES[1]}")
    code, events = site.run("apply")
    assert code == 7, events[-3:]
    assert "gpucluster rollout" in events[-1]["data"]["hint"]


def test_it_rolls_around_a_job_and_goes_on_after_a_kill(site: Roll) -> None:
    """compute-2 is idle and is the canary; compute-1 has a job, which is waited for."""
    before = site.instances()
    gate = "mkfifo gate; sbatch --parsable -w compute-1 -o job.txt --wrap 'cat gate; echo whole'"
    job = site.as_alice(gate)
    site.runs(job)
    run = site.start("rollout")
    read_until(run, f"job {job} of alice on compute-1")
    assert site.boots_from() == {"compute-1": site.image(0), "compute-2": site.image(1)}
    # A node that has not answered a ping of slurmctld in time is marked until the next one.
    expected = {"compute-1": "draining", "compute-2": "idle"}
    site.until("one node is draining, and the other one takes jobs", lambda: site.states() == expected)
    code, events = site.run("rollout")
    assert code == 4, events
    kill(run)
    pending = " ".join(site.good("status", "--timeout", "60")["pending"])
    assert "the rollout of pool compute is not complete: 1 of 2 nodes have the new image" in pending
    # A plan changes no node meanwhile, and reports it.
    code, events = site.run("plan")
    assert [event["data"]["changes"] for event in events[-1:]] == [[]]
    assert "1 of 2 nodes have the new image" in str(events[-1]["data"]["warnings"])

    run = site.start("rollout")
    read_until(run, f"job {job} of alice on compute-1")
    site.as_alice("echo > gate")
    rest = rest_of(run)
    assert run.returncode == 0, rest[-3000:]
    assert all_pass(json.loads(rest.splitlines()[-1])["data"])
    site.accounted(job)
    assert site.as_alice("cat job.txt").split() == ["whole"]
    after = site.instances()
    assert {name: each.id for name, each in after.items()} == {name: each.id for name, each in before.items()}
    assert site.boots_from() == dict.fromkeys(("compute-1", "compute-2"), site.image(1))
    assert site.as_alice("srun -N 2 hostname | sort").split() == ["compute-1", "compute-2"]


def test_afterwards_there_is_nothing_to_do(site: Roll) -> None:
    code, events = site.run("plan", "--detailed-exitcode")
    assert code == 0, events[-1]
    assert site.good("status", "--timeout", "60")["pending"] == []


def test_an_image_with_which_a_node_does_not_come_back_is_taken_back(site: Roll) -> None:
    bad = site.image(2)
    site.api.faults({"operation": "ReplaceBootVolume", "image": bad, "dead": True})
    site.change(NAMES[1], NAMES[2])
    code, events = site.run("rollout", "--max-failures", "1", "--boot-timeout", "20")
    assert code == 1
    assert "it was taken back" in events[-1]["message"], events[-1]
    assert "it did not come back" in events[-1]["message"]
    assert site.boots_from() == dict.fromkeys(("compute-1", "compute-2"), site.image(1))
    idle = dict.fromkeys(("compute-1", "compute-2"), "idle")
    site.until("both nodes take jobs", lambda: site.states() == idle)
    # apply leaves the nodes as they are until cluster.yml names another image.
    site.api.faults()
    site.change(NAMES[2], NAMES[1])
    assert site.good("apply")["changes"] == 0
    assert site.good("status", "--timeout", "60")["pending"] == []
