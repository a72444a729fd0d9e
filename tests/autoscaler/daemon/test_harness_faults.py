"""Scenarios of one pool each: all at the same time, in one harness, each with the faults of its own pool.

Everything begins when the harness is up; each test then waits for its own pool to come to the end that a user wants to
see. The numbers are those of docs/explanation/elastic-nodes-proof.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpucluster.cloud.client import CloudAccess
from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.events import Event, ignore
from gpucluster.lifecycle.host_reports import HostReporting
from gpucluster.lifecycle.replace import ElasticReplacement, OnSlurm
from gpucluster.node_agent.rules.reasons import FAILED_CHECKS
from gpucluster.oci.states import GONE
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.drain import Draining
from tests.autoscaler.cluster_harness import CLUSTER, LAUNCH, TIMES, ClusterHarness, HarnessPool
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.containers, pytest.mark.slurm, pytest.mark.story]

CAPACITY = {"operation": LAUNCH, "message": "Out of host capacity."}
# Half of the time in which the daemon gives a host up. `LATE` is when a host boots after that.
SHORT, LATE = {"ResumeTimeout": "30"}, 31
# How often a launch is tried at most before a gang is rolled back.
TRIES = int(TIMES["gang_retry_window"] / TIMES["retry_pause"]) + 2
POOLS = (
    HarnessPool("p01", 6),
    HarnessPool("p02", 3),
    HarnessPool("p02b", 3),
    HarnessPool("p03", 2),
    HarnessPool("p04x", 2, "p04", facts={"Weight": "10"}),
    HarnessPool("p04y", 2, "p04", facts={"Weight": "20"}, domain=1),
    HarnessPool("p06", 2),
    HarnessPool("p07", 2),
    HarnessPool("p08", 3),
    HarnessPool("p16", 3),
    HarnessPool("p16b", 3),
    HarnessPool("p17", 2, partition_facts=SHORT),
    HarnessPool("p18", 1, partition_facts=SHORT),
    HarnessPool("p19", 2),
    HarnessPool("p21", 2),
    HarnessPool("p22", 1, names=1),
    HarnessPool("p23", 1),
    HarnessPool("p24", 2),
    HarnessPool("p25", 2),
    HarnessPool("p26", 1),
    HarnessPool("p27", 1),
    HarnessPool("p28", 2),
    HarnessPool("p33", 2),
    HarnessPool("p34", 2),
    HarnessPool("p35", 1),
    HarnessPool("p42x", 2),
    HarnessPool("p42y", 2),
    HarnessPool("p48", 1),
    HarnessPool("p51", 2),
)


class Play:
    """The harness, and the jobs by the name of their scenario."""

    def __init__(self, harness: ClusterHarness) -> None:
        self.harness = harness
        self.jobs: dict[str, str] = {}
        self.seen: dict[str, str] = {}

    def ran(self, name: str) -> None:
        """The job of a scenario ends well."""
        self.harness.wait_state(self.jobs[name], "COMPLETED")

    def rounds(self, name: str) -> int:
        """How often Slurm has given nodes to a job: each time the job loses them, it counts a restart."""
        return int(self.harness.slurm_harness.job(self.jobs[name])["Restarts"]) + 1

    def submit(self, name: str, pool: str, nodes: int = 1, *options: str, script: str = "true") -> None:
        self.jobs[name] = self.harness.sbatch(pool, nodes, *options, script=script)

    def holds(self, name: str, pool: str, nodes: int = 1, *options: str) -> None:
        """A job that runs until `open(name)`."""
        self.submit(name, pool, nodes, *options, script=self.harness.gated(name))

    def decided_launches(self, pool: str) -> int:
        """How often the daemon decided to launch: a call may still be on its way when the job is annotated."""
        return sum((one["event"], one.get("pool")) == ("launch", pool) for one in self.harness.events("launch"))

    def waits(self, name: str, *words: str) -> str:
        """The job waits, and what a user sees of it in squeue gives the reason, in these words."""
        job = self.jobs[name]
        self.harness.until(
            f"job {job} waits with {words}",
            lambda: all(word in self.harness.words(job) for word in words) and self.harness.state(job) == "PENDING",
        )
        return self.harness.words(job)


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    with ClusterHarness(
        POOLS, slurm_harness={"resume_timeout": 600, "extra": {"SuspendExcStates": "DRAIN"}}
    ) as harness:
        play = Play(harness)
        faults: dict[str, list[dict[str, Any]]] = {
            "p02": [{**CAPACITY, "display_name": "p02-e2", "times": 1}],
            "p02b": [{**CAPACITY, "display_name": "p02b-e2"}],
            "p03": [{"operation": "BootInstance", "display_name": "p03-e1", "message": "Out of host capacity."}],
            "p04x": [CAPACITY],
            "p06": [{"operation": LAUNCH, "status": 400, "code": "LimitExceeded", "message": "gpu4-count exceeded"}],
            "p07": [{"operation": LAUNCH, "status": 404}],
            "p08": [{"operation": LAUNCH, "lost_response": True, "times": 3}],
            "p16": [{"operation": "BootInstance", "display_name": "p16-e1", "dead": True, "times": 1}],
            "p16b": [{"operation": "BootInstance", "dead": True}],
            "p17": [{"operation": "BootInstance", "dead": True, "times": 2}],
            "p18": [{"operation": "BootInstance", "delay": LATE, "times": 1}],
            "p42y": [CAPACITY],
        }
        for pool, of in faults.items():
            harness.faults(of, pool)
        play.submit("01", "p01", 6)
        for name, nodes in {"02": 3, "02b": 3, "03": 2, "06": 2, "07": 2, "08": 3, "16": 3, "16b": 3, "17": 2}.items():
            play.submit(name, f"p{name}", nodes)
        play.submit("04", "p04", 2)
        play.submit("18", "p18")
        play.submit("42", "p42x", 2, ":", "--partition=p42y", "--nodes=2", "--exclusive")
        for name in ("22", "23", "24", "25", "27", "28", "51"):
            play.holds(name, f"p{name}")
        play.holds("33", "p33", 2)
        play.submit("33b", "p33", 1)
        play.submit("34", "p34", 3)
        share = ("--oversubscribe", "--ntasks-per-node=1", "--cpus-per-task=1")
        for name in ("21", "21b"):
            options = ("--partition=p21", "--nodes=2", *share)
            play.jobs[name] = harness.slurm_harness.sbatch(*options, script="true")
        play.seen["orphan"] = harness.launch("nobody-e1")
        play.seen["stray"] = harness.launch("p26-e3", generation=7)
        harness.slurm_harness.scontrol("update", "nodename=p35-e1", "state=power_up")
        harness.slurm_harness.scontrol("update", "nodename=p48-e1", "state=power_down_force")
        yield play
        harness.faults([])
        for name in harness.pools:
            harness.faults([], name)
        harness.slurm_harness.run("scancel", "--user=root", check=False)
        harness.until("nothing of us is left", lambda: not harness.instances())
        harness.others_untouched()
        assert "InvalidatedRetryToken" not in harness.calls(), "a token was used twice"


def test_scenario_01_all_is_well(play: Play) -> None:
    play.ran("01")
    assert play.harness.calls("p01") == {"200": 6}


def test_scenario_02_one_of_a_gang_has_no_host_for_a_moment(play: Play) -> None:
    play.ran("02")
    assert play.harness.calls("p02") == {"200": 3, "InternalError": 1}
    assert "Restarts=0" in play.harness.slurm_harness.scontrol("show", "job", play.jobs["02"])


def test_scenario_02_one_of_a_gang_has_no_host_for_long(play: Play) -> None:
    play.waits("02b", "no free host", "p02b-e2", "Next try at")
    play.harness.until("nothing of the gang is left", lambda: not play.harness.instances("p02b"))
    play.harness.faults([], "p02b")
    play.ran("02b")
    calls, rounds = play.harness.calls("p02b"), play.rounds("02b")
    assert calls["200"] <= 3 * rounds
    assert calls["InternalError"] <= TRIES * rounds


def test_scenario_03_the_host_is_promised_and_then_not_there(play: Play) -> None:
    play.waits("03", "Out of host capacity", "Next try at")
    play.harness.until("nothing of the gang is left", lambda: not play.harness.instances("p03"))
    play.harness.faults([], "p03")
    play.ran("03")
    assert play.harness.calls("p03").total() <= (TRIES + 1) * play.rounds("03")


def test_scenario_04_another_availability_domain(play: Play) -> None:
    play.ran("04")
    assert all(node.startswith("p04y-e") for node in play.harness.nodes(play.jobs["04"]))
    assert set(play.harness.calls("p04x")) == {"InternalError"}
    assert play.harness.calls("p04y") == {"200": 2}
    play.harness.faults([], "p04x")


def test_scenario_42_a_heterogeneous_job_gets_all_or_nothing(play: Play) -> None:
    harness = play.harness
    play.waits("42", "no free host", "p42y-e", "Next try at")
    harness.until("nothing of it is left", lambda: not harness.instances("p42x") and not harness.instances("p42y"))
    # Not that it runs later: Slurm does not start it again on nodes that were given up (see the page).
    harness.slurm_harness.scancel(play.jobs["42"])
    harness.faults([], "p42y")


def test_scenario_06_a_limit_is_not_asked_again_and_again(play: Play) -> None:
    play.waits("06", "a limit or quota", "LimitExceeded", "gpu4-count exceeded")
    assert play.harness.calls("p06").total() <= 2
    assert play.decided_launches("p06") == 2


def test_scenario_07_what_can_never_be_is_held(play: Play) -> None:
    play.waits("07", "NotAuthorizedOrNotFound", "scontrol release")
    play.harness.until("it is held", lambda: play.harness.why(play.jobs["07"]).startswith("JobHeld"))
    assert play.harness.calls("p07").total() <= 2
    assert "NotAuthorizedOrNotFound" in play.harness.ask_daemon("explain", play.jobs["07"])


def test_scenario_08_the_answer_is_lost(play: Play) -> None:
    play.ran("08")
    calls = play.harness.calls("p08")
    assert calls["lost"] == 3
    assert calls.total() <= 6, "each was found in the listing, or asked for once more with the same token"
    made = [one for one in play.harness.all_instances() if one.freeform_tags.get("pool") == "p08"]
    assert len(made) == 3


def test_scenario_16_a_node_that_never_registers_is_replaced(play: Play) -> None:
    play.ran("16")
    assert play.harness.calls("p16") == {"200": 4}
    consoles = list((play.harness.slurm_harness.state / "console").glob("p16-e1-*.log"))
    assert len(consoles) == 1


def test_scenario_16_a_pool_whose_nodes_never_boot_is_left_alone(play: Play) -> None:
    play.waits("16b", "new nodes don't come into service")
    play.harness.until("nothing is left", lambda: not play.harness.instances("p16b"))
    # Three, and three that replace them.
    assert play.harness.calls("p16b").total() <= 6 * play.rounds("16b")
    play.harness.faults([], "p16b")
    play.ran("16b")


def test_scenario_17_slurms_resume_timeout(play: Play) -> None:
    play.ran("17")
    assert play.harness.calls("p17").total() <= 3 * play.rounds("17")
    assert play.rounds("17") > 1, "Slurm had given it up"


def test_scenario_18_a_node_registers_too_late(play: Play) -> None:
    play.ran("18")
    assert play.harness.calls("p18").total() <= play.rounds("18") + 1


def test_scenario_19_the_job_is_cancelled_while_its_nodes_boot(play: Play) -> None:
    with play.harness.hold_boots("p19"):
        job = play.harness.sbatch("p19", 2)
        play.harness.until("it is launched", lambda: play.harness.calls("p19").total() == 2)
        play.harness.slurm_harness.scancel(job)
    play.harness.none_left("p19")
    assert play.harness.calls("p19") == {"200": 2}


def test_scenario_21_two_jobs_share_nodes_and_hooks_are_called_twice(play: Play) -> None:
    for _ in range(2):
        play.harness.slurm_harness.run("/opt/gpucluster/bin/resume", "p21-e[1-2]")
    play.ran("21")
    play.ran("21b")
    # One call for each instance that was decided. On a busy machine a node may be suspended before the second job needs
    # it, and then comes again: in its next generation.
    launched = [one for one in play.harness.events("launch") if (one["event"], one.get("pool")) == ("launch", "p21")]
    asked = {(one["node"], one["generation"]) for one in launched}
    assert play.harness.calls("p21") == {"200": len(asked)}
    assert {len(instances) for instances in play.harness.instances("p21").values()} <= {1}


def test_scenario_22_a_name_is_used_again_only_when_its_instance_is_gone(play: Play) -> None:
    harness = play.harness

    def ending() -> bool:
        # On a busy machine the half minute of `hold_ends` may be over already: then it is gone.
        return "RUNNING" not in [one[0].lifecycle_state for one in harness.instances("p22").values()]

    with harness.hold_ends("p22"):
        harness.open("22")
        play.ran("22")
        harness.until("its instance ends", ending)
        play.submit("22b", "p22")
        harness.passes()
    play.ran("22b")
    assert harness.calls("p22") == {"200": 2}, "there was no conflict of names"


def test_scenario_23_a_suspend_that_comes_too_late(play: Play) -> None:
    harness, job = play.harness, play.jobs["23"]
    harness.wait_state(job, "RUNNING")
    (node,) = harness.nodes(job)
    harness.slurm_harness.run("/opt/gpucluster/bin/suspend", node)
    harness.until("the daemon has read it", lambda: not list(harness.slurm_harness.spool.glob("*.json")))
    harness.passes()
    assert [one.lifecycle_state for one in harness.instances("p23")[node]] == ["RUNNING"]
    harness.open("23")
    play.ran("23")
    assert harness.slurm_harness.job(job)["Restarts"] == "0"


def test_scenario_24_an_instance_is_terminated_under_a_running_job(play: Play) -> None:
    harness, job = play.harness, play.jobs["24"]
    harness.wait_state(job, "RUNNING")
    (node,) = harness.nodes(job)
    with harness.hold_boots("p24"):
        harness.terminate(harness.instances("p24")[node][0].id)
        harness.until("Slurm runs the job again", lambda: harness.slurm_harness.job(job)["Restarts"] == "1")
        harness.messages_are_sent()
    harness.wait_state(job, "RUNNING")
    harness.open("24")
    play.ran("24")
    assert harness.calls("p24") == {"200": 2}


def test_scenario_25_an_instance_is_stopped_under_a_running_job(play: Play) -> None:
    harness, job = play.harness, play.jobs["25"]
    harness.wait_state(job, "RUNNING")
    (node,) = harness.nodes(job)
    stopped = harness.instances("p25")[node][0].id
    with harness.hold_boots("p25"):
        harness.api.compute.instance_action(stopped, "STOP")
        harness.until("Slurm runs the job again", lambda: harness.slurm_harness.job(job)["Restarts"] == "1")
        harness.messages_are_sent()
    harness.wait_state(job, "RUNNING")
    harness.api.wait(harness.api.compute.get_instance, stopped, "TERMINATED")
    harness.open("25")
    play.ran("25")
    assert harness.calls("p25") == {"200": 2}


def test_scenario_27_two_instances_of_one_node(play: Play) -> None:
    harness, job = play.harness, play.jobs["27"]
    harness.wait_state(job, "RUNNING")
    (node,) = harness.nodes(job)
    first = harness.instances("p27")[node][0].id
    harness.faults([{"operation": "BootInstance", "dead": True}], "p27")
    second = harness.launch(node, generation=9)
    harness.api.wait(harness.api.compute.get_instance, second, "TERMINATED")
    assert [one.id for one in harness.instances("p27")[node]] == [first]
    harness.faults([], "p27")
    harness.open("27")
    play.ran("27")
    assert harness.slurm_harness.job(job)["Restarts"] == "0"


def test_scenario_28_an_operator_drains_a_node(play: Play) -> None:
    harness, job = play.harness, play.jobs["28"]
    harness.wait_state(job, "RUNNING")
    (node,) = harness.nodes(job)
    harness.slurm_harness.scontrol("update", f"nodename={node}", "state=drain", "reason=look at its fans")
    harness.open("28")
    play.ran("28")
    # A node that is idle for a shorter time has been given up.
    play.submit("28b", "p28")
    play.ran("28b")
    (other,) = harness.nodes(play.jobs["28b"])
    assert other != node
    harness.until("the other node is gone", lambda: other not in harness.instances("p28"))
    assert [one.lifecycle_state for one in harness.instances("p28")[node]] == ["RUNNING"]
    assert "DRAIN" in harness.slurm_harness.flags(node)
    harness.slurm_harness.scontrol("update", f"nodename={node}", "state=undrain")
    harness.none_left("p28")


def test_scenario_51_a_node_that_failed_its_checks_is_replaced_when_its_job_has_ended(play: Play) -> None:
    """By what `verify --fix` does after the health service has drained it, with a shell in the place of ssh."""
    harness, job = play.harness, play.jobs["51"]
    harness.wait_state(job, "RUNNING")
    (node,) = harness.nodes(job)
    (before,) = [one.id for one in harness.instances("p51")[node]]
    harness.slurm_harness.scontrol("update", f"nodename={node}", "state=drain", f"reason={FAILED_CHECKS} gpu_count: 7")
    shell = SimpleNamespace(
        ssh_argv=lambda _host, command: [*harness.slurm_harness.command_prefix, "sh", "-c", *command]
    )
    events: list[Event] = []
    draining = Draining(cast(ControllerConnection, shell), events.append)
    access = CloudAccess(harness.api.config, harness.api.endpoint, harness.api.tenancy)
    scheduler = OnSlurm(draining, events.append)
    reporting = cast(HostReporting, SimpleNamespace(report=lambda *_: None))
    elastic = ElasticReplacement(
        scheduler, lambda: ElasticInstances(access, CLUSTER, ignore), reporting=reporting, on_event=events.append
    )
    with ThreadPoolExecutor(1) as worker:
        replaced = worker.submit(elastic.replace, [node], PATIENCE_S)
        harness.until("the job is waited for", lambda: any(f"job {job} " in event.message for event in events))
        assert harness.state(job) == "RUNNING"
        harness.open("51")
        replaced.result()
    play.ran("51")
    live = [one.id for one in harness.instances("p51").get(node, ()) if one.lifecycle_state not in GONE]
    assert before not in live
    # The name is free again: the next job gets another machine under it, and no drain is left.
    play.submit("51b", "p51", 1, f"--nodelist={node}")
    play.ran("51b")
    assert "DRAIN" not in harness.slurm_harness.flags(node)


def test_scenario_33_no_more_nodes_than_allowed(play: Play) -> None:
    harness = play.harness
    harness.wait_state(play.jobs["33"], "RUNNING")
    play.waits("33b", "max_nodes", "Next try at")
    assert len(harness.instances("p33")) == 2
    harness.open("33")
    play.ran("33b")
    assert harness.calls("p33").total() <= 3


def test_scenario_34_a_job_that_is_too_large_is_held_and_nothing_launched(play: Play) -> None:
    play.waits("34", "max_nodes", "scontrol release")
    assert play.harness.calls("p34").total() == 0


def test_scenario_35_an_operator_powers_a_node_up(play: Play) -> None:
    play.harness.until("it is launched", lambda: play.harness.calls("p35") == {"200": 1})
    play.harness.none_left("p35")
    assert play.harness.calls("p35") == {"200": 1}


def test_scenario_48_a_suspend_of_what_was_never_launched(play: Play) -> None:
    play.harness.none_left("p48")
    assert play.harness.calls("p48").total() == 0
    assert not [one for one in play.harness.events("terminate") if one.get("pool") == "p48"]


def test_scenario_26_only_orphans_are_ended(play: Play) -> None:
    harness = play.harness
    for name in ("orphan", "stray"):
        harness.api.wait(harness.api.compute.get_instance, play.seen[name], "TERMINATED")
    harness.others_untouched()


def test_scenario_06_it_is_still_not_asked(play: Play) -> None:
    assert play.decided_launches("p06") == 2
