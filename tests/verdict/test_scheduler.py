"""Slurm, its jobs and its accounting: each fault is found, named, and reported with what to do."""

# ruff: noqa: E501

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from gpucluster.node_agent.rules.reasons import ROLLED
from tests.verdict.samples import (
    CLUSTER,
    FULL,
    HEAD,
    NODES,
    Facts,
    facts,
    host,
    lines,
    verdict,
)

Spoil = Callable[[Facts], Any]

JOB, STEPS = "a job runs in pool compute", "container steps run in pool compute"
#: What is spoiled, which line states this, what of, how it ends, and what it reports.
SPOILED: list[tuple[str, Spoil, str, str, str]] = [
    ("a node down", lambda f: f[HEAD]["sinfo"][0].update(state="down*"), "node_state", "fail", "compute-1: is down*"),
    ("a node that does not respond", lambda f: f[HEAD]["sinfo"][0].update(state="idle*"), "node_state", "fail", "compute-1: is idle*"),
    ("a node that Slurm does not know", lambda f: f[HEAD]["sinfo"].pop(0), "node_state", "fail", "compute-1: is unknown to Slurm"),
    ("no sinfo", lambda f: f[HEAD].update(sinfo=None, sinfo_error="refused"), "node_state", "unknown", "compute-1: sinfo gave no answer: refused; compute-2: sinfo gave no answer: refused"),
    ("a node below another switch", lambda f: f[HEAD]["switches"][0].update(switch="rdma-compute_lb-s"), "topology", "fail", "compute-1: is below rdma-compute_lb-s, and its host reports rdma-compute_lb-r; compute-2: is below rdma-compute_lb-s, and its host reports rdma-compute_lb-r"),
    ("no switches", lambda f: f[HEAD].update(switches=None), "topology", "unknown", "compute-1: Slurm does not report its switches; compute-2: Slurm does not report its switches"),
    ("no job", lambda f: f[HEAD].update(srun=[]), JOB, "unknown", "no job was tried"),
    ("a job on one node", lambda f: f[HEAD]["srun"][0].update(nodes=["compute-1"] * 2), JOB, "fail", "it ran on compute-1"),
    ("a job that failed", lambda f: f[HEAD]["srun"][0].update(error="boom"), JOB, "fail", "boom"),
    ("no accounting", lambda f: f[HEAD].update(accounting=False), "accounting", "fail", "slurmdbd does not know the jobs of this check"),
    ("a silent Slurm", lambda f: f[HEAD].update(slurm_version=None), "slurm_advisories", "unknown", "no measurement slurm_version"),
    ("accounting not asked", lambda f: f[HEAD].pop("accounting"), "accounting", "unknown", "sacct was not asked"),
    ("a REST API that is not there", lambda f: f[HEAD].update(rest={"error": "refused"}), "rest", "fail", "it does not answer by TLS: refused"),
    ("a REST API without tokens", lambda f: f[HEAD]["rest"].update(status=200), "rest", "fail", "it answers 200 to a request without a token"),
    ("a REST API that was not asked", lambda f: f[HEAD].pop("rest"), "rest", "unknown", "the REST API was not asked"),
    ("container steps that nobody tried", lambda f: f[HEAD].pop("container_steps"), STEPS, "unknown", "none was tried"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "name", "status", "message"), [row[1:] for row in SPOILED], ids=[row[0] for row in SPOILED]
)
def test_each_fault_is_found_and_named(spoil: Spoil, name: str, status: str, message: str) -> None:
    reported = facts(FULL)
    spoil(reported)
    found = verdict(FULL, reported)
    assert not found.passed
    line = lines(FULL, reported)[name]
    assert (line.status, line.message) == (status, message)
    assert line.remedy


@pytest.mark.parametrize("switches", [[], [{"switch": "rdma-compute_unplaced", "nodes": "compute-[1-2]"}]])
def test_a_node_without_its_switch_is_a_warning_and_one_without_a_place_needs_none(
    switches: list[dict[str, str]],
) -> None:
    reported = facts(FULL)
    reported[HEAD]["switches"] = switches
    reported["compute-2"]["rdma_place"]["known"] = False
    assert verdict(FULL, reported).passed
    line = lines(FULL, reported)["topology"]
    assert (line.status, line.message) == ("warn", "compute-1: is not below rdma-compute_lb-r, which its host reports")


def test_a_place_that_a_host_reports_no_more_is_a_warning() -> None:
    reported = facts(FULL)
    reported["compute-1"]["rdma_place"]["known"] = False
    assert verdict(FULL, reported).passed
    line = lines(FULL, reported)["topology"]
    assert (line.status, line.message) == (
        "warn",
        "compute-1: is below rdma-compute_lb-r, and its host reports no place",
    )


def test_a_node_that_an_interrupted_rollout_has_drained_is_a_warning() -> None:
    """An apply, or another controller, may come between two runs of a rollout."""
    reported = facts(FULL)
    reported[HEAD]["sinfo"][0].update(state="drained", reason=ROLLED)
    reported[HEAD]["srun"][0].update(ran=False, nodes=[], error="srun: error: Requested nodes are busy")
    assert verdict(FULL, reported).passed
    found = lines(FULL, reported)
    assert found["node_state"].status == "warn"
    assert "gpucluster rollout goes on" in found["node_state"].message
    assert (found[JOB].status, "compute-1" in found[JOB].message) == ("skip", True)
    reported[HEAD]["sinfo"][0].update(state="drained*")
    assert lines(FULL, reported)["node_state"].status == "fail"


@pytest.mark.parametrize(
    ("state", "status", "message"),
    [
        ("planned", "pass", ""),
        ("mixed-", "pass", ""),
        ("maint", "pass", ""),
        ("blocked", "warn", "compute-1: is blocked, which is not known here"),
    ],
)
def test_a_busy_cluster_is_not_a_fault_and_an_unknown_word_is_a_warning(state: str, status: str, message: str) -> None:
    reported = facts(FULL)
    reported[HEAD]["sinfo"][0].update(state=state)
    assert verdict(FULL, reported).passed
    line = lines(FULL, reported)["node_state"]
    assert line.status == status
    assert message in line.message


def test_a_slurm_with_known_vulnerabilities_is_a_warning() -> None:
    reported = facts(FULL)
    reported[HEAD]["slurm_version"] = "25.11.7"
    found = verdict(FULL, reported)
    assert found.passed
    line = lines(FULL, reported)["slurm_advisories"]
    assert line.status == "warn"
    assert "CVE-2026-65107" in line.message


def test_a_slurm_whose_support_has_ended_is_a_warning() -> None:
    reported = facts(FULL)
    reported[HEAD]["slurm_version"] = "25.05.9"
    # No advisory concerns this version.
    for today, status in ((date(2026, 11, 30), "pass"), (date(2026, 12, 1), "warn")):
        assert lines(dataclasses.replace(FULL, today=today), reported)["slurm_advisories"].status == status


def test_a_certificate_of_the_rest_api_that_ends_soon_is_a_warning() -> None:
    reported = facts(FULL)
    ends = datetime.fromtimestamp(reported[HEAD]["rest"]["ends"], UTC).date()
    for days, status in ((14, "pass"), (13, "warn"), (0, "warn")):
        line = lines(dataclasses.replace(FULL, today=ends - timedelta(days=days)), reported)["rest"]
        assert (line.status, str(days) in line.message) == (status, True), line


def test_a_slurm_of_the_distribution_is_judged_by_its_package() -> None:
    reported = facts(CLUSTER)
    slurm = {"product": "slurm", "version": "22.05.8-4+deb12u2", "package": "slurmd"}
    reported["compute-1"]["versions"] = {"system": "debian-12", "installed": [slurm]}
    assert lines(CLUSTER, reported)["known_faults"].message == "compute-1: slurm 22.05.8-4+deb12u2: CVE-2025-43904"


# --- Slurm -----

BIG = dataclasses.replace(CLUSTER, pools={"big": ["big-1"]}, hosts=[HEAD, "big-1"])


# Of a step whose MPI plugin slurmd does not have, when the time is over.
NO_STEP = "srun: job 1 has been allocated resources\n\nSession terminated, killing shell... ...killed."


BROKEN_MPI = "srun: error: Couldn't find the specified plugin name for mpi/pmix looking at all files"


@pytest.mark.parametrize(
    ("run", "state", "people", "status", "words"),
    [
        ({"ran": True, "nodes": ["big-1"], "error": ""}, "idle", True, "pass", "on big-1 as alice"),
        ({"ran": False, "nodes": [], "error": BROKEN_MPI}, "idle", True, "unknown", "mpi/pmix"),
        ({"ran": True, "nodes": ["big-1"], "error": BROKEN_MPI}, "idle", True, "fail", "mpi/pmix"),
        ({"ran": False, "nodes": [], "error": NO_STEP}, "idle", True, "fail", "see /var/log/slurm/slurmd.log"),
        ({"ran": False, "nodes": [], "error": "Requested nodes are busy"}, "mixed", True, "skip", "other jobs"),
        ({"ran": False, "nodes": [], "error": "Requested nodes are busy"}, "mixed-", True, "skip", "other jobs"),
        (None, "idle", True, "unknown", "no job was tried"),
        (None, "idle", False, "skip", "no user"),
    ],
)
def test_a_pool_of_one_node_runs_a_job_too(
    run: dict[str, Any] | None, state: str, people: bool, status: str, words: str
) -> None:
    reported = {name: host(name) for name in BIG.hosts}
    reported[HEAD] |= {
        "sinfo": [{"node": "big-1", "state": state, "partition": "big", "reason": ""}],
        "srun": [{"partition": "big", "user": "alice", **run}] if run else [],
        "jobs_waiting": [],
        "accounting": True,
    }
    expected = BIG if people else dataclasses.replace(BIG, people={})
    line = lines(expected, reported)["a job runs in pool big"]
    assert (line.status, words in line.message) == (status, True), line


@pytest.mark.parametrize(
    ("states", "waiting", "status", "words"),
    [
        (["idle", "allocated"], ["compute"], "skip", "1 job waits, 1 of 2 nodes free"),
        # A job that is larger than what is free has its turn first.
        (["idle", "idle"], ["compute", "compute"], "skip", "2 jobs wait, 2 of 2 nodes free"),
        (["allocated", "mixed"], [], "skip", "0 jobs wait, 0 of 2"),
        # Nothing of others is in the way: why did it not start?
        (["idle", "idle"], [], "unknown", "Requested nodes are busy"),
        (["idle", "idle"], ["other"], "unknown", "Requested nodes are busy"),
        (["idle", "down*"], ["compute"], "unknown", "Requested nodes are busy"),
        (["drained", "allocated"], ["compute"], "unknown", "Requested nodes are busy"),
    ],
)
def test_a_pool_that_others_use_is_not_measured_and_no_fault(
    states: list[str], waiting: list[str], status: str, words: str
) -> None:
    reported = facts()
    error = "srun: job 12 queued and waiting for resources\nsrun: error: Unable to allocate resources: Requested nodes are busy"
    reported[HEAD]["srun"][0] |= {"ran": False, "nodes": [], "error": error}
    reported[HEAD]["jobs_waiting"] = waiting
    for row, state in zip(reported[HEAD]["sinfo"], states, strict=True):
        row["state"] = state
    line = lines(CLUSTER, reported)["a job runs in pool compute"]
    assert (line.status, words in line.message) == (status, True), line


RESUME = "when the reason is gone, run: gpucluster ssh -- sudo scontrol update nodename={} state=resume"


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("drained", "Epilog error", f"is drained (Epilog error); {RESUME.format('compute-1')}"),
        ("down", "", f"is down; {RESUME.format('compute-1')}"),
        # To resume a node that does not respond does not help.
        ("down*", "Not responding", "is down* (Not responding)"),
    ],
)
def test_a_drained_node_has_its_reason_and_the_next_command(state: str, reason: str, words: str) -> None:
    reported = facts()
    reported[HEAD]["sinfo"][0].update(state=state, reason=reason)
    assert lines(CLUSTER, reported)["node_state"].message == f"compute-1: {words}"


def test_a_pool_may_be_in_a_partition_of_another_name() -> None:
    cluster = dataclasses.replace(CLUSTER, partitions={"compute": "gpu"})
    reported = facts()
    for row in reported[HEAD]["sinfo"]:
        row["partition"] = "gpu*"
    assert lines(cluster, reported)["node_state"].status == "pass"
    assert lines(CLUSTER, reported)["node_state"].status == "fail"


@pytest.mark.parametrize(
    ("told", "status", "words"),
    [
        ({"healthy": True, "problems": [], "paused": "", "pools": {"compute": {}}}, "pass", "pools compute"),
        ({"healthy": True, "paused": "new firewall", "pools": {}}, "pass", "paused: new firewall"),
        ({"healthy": False, "problems": ["the cloud refuses", "Slurm is gone"]}, "fail", "the cloud refuses; Slurm is gone"),
        ({"error": "no word within the time limit"}, "fail", "no word within the time limit"),
        ({"healthy": "yes"}, "fail", "it gives no reason"),
        ({}, "unknown", "it gives no reason"),
        (None, "unknown", "it was not asked"),
    ],
)  # fmt: skip
def test_the_autoscaler_must_be_healthy_where_a_pool_is_elastic(told: Any, status: str, words: str) -> None:
    reported = facts(FULL)
    reported[HEAD]["autoscaler"] = told
    line = lines(FULL, reported)["autoscaler"]
    assert (line.status, line.message) == (status, words)
    assert "autoscaler" not in lines(CLUSTER, facts())


# --- container steps -----


def _after_steps(seen: list[str], missed: dict[str, str], states: dict[str, str], closed: Any = ()) -> Facts:
    reported = facts(FULL)
    tried = {"pool": "compute", "seen": seen, "missed": missed, "closed": list(closed)}
    reported[HEAD]["container_steps"] = [tried] if seen or missed else []
    reported[HEAD]["sinfo"] = [
        {"node": node, "state": state, "partition": "compute", "reason": ""} for node, state in states.items()
    ]
    return reported


OTHER_ARCHITECTURE = dict.fromkeys(NODES, "execve(): Exec format error")


@pytest.mark.parametrize(
    ("seen", "missed", "states", "status", "words"),
    [
        (["compute-1", "compute-2"], {}, ("idle", "idle"), "pass", "on 2 of 2 nodes"),
        (["compute-1"], {}, ("idle", "allocated"), "pass", "on 1 of 2 nodes; not tried: compute-2 (allocated)"),
        # Jobs of users have what takes jobs; what takes none is the fault of another check.
        ([], {}, ("allocated", "mixed-"), "skip", "no node is free; not tried: compute-1 (allocated), compute-2 (mixed-)"),
        # A step was tried where a larger job comes first, and did not start.
        ([], {}, ("planned", "mixed"), "skip", "no node is free; not tried: compute-1 (planned), compute-2 (mixed)"),
        ([], {}, ("allocated", "drained"), "skip", "no node is free; not tried: compute-1 (allocated), compute-2 (drained)"),
        ([], {}, ("idle", "allocated"), "unknown", "no node is free; not tried: compute-1 (idle), compute-2 (allocated)"),
        ([], {}, ("down*", "drained"), "unknown", "no node is free; not tried: compute-1 (down*), compute-2 (drained)"),
        (["compute-1"], {"compute-2": "Plugin initialization failed"}, ("idle", "idle"), "fail", "compute-2: Plugin initialization failed"),
        ([], OTHER_ARCHITECTURE, ("idle", "idle"), "skip", "its nodes have another architecture than the controller, whose shell would run in the container"),
    ],
)  # fmt: skip
def test_a_container_step_must_run_on_every_free_node(
    seen: list[str], missed: dict[str, str], states: tuple[str, str], status: str, words: str
) -> None:
    line = lines(FULL, _after_steps(seen, missed, dict(zip(NODES, states, strict=True))))[STEPS]
    assert (line.status, line.message) == (status, words)


@pytest.mark.parametrize(
    ("seen", "missed", "states", "status", "words"),
    [
        (["compute-e1"], {}, ("idle", "idle~"), "pass", "on 1 of 1 nodes"),
        (["compute-e1"], {}, ("idle", "allocated"), "pass", "on 1 of 2 nodes; not tried: compute-e2 (allocated)"),
        ([], {}, ("allocated", "idle~"), "skip", "no node is free; not tried: compute-e1 (allocated)"),
        ([], {}, ("idle~", "idle%"), "skip", "its nodes are launched when jobs need them"),
        (["compute-e2"], {"compute-e1": "boom"}, ("idle", "idle"), "fail",
         "compute-e1: boom; to replace elastic nodes, run: scontrol update nodename=compute-e1 state=power_down_asap"),
    ],
)  # fmt: skip
def test_elastic_nodes_that_are_up_count(
    seen: list[str], missed: dict[str, str], states: tuple[str, str], status: str, words: str
) -> None:
    elastic = dataclasses.replace(FULL, pools={"compute": []})
    reported = _after_steps(seen, missed, dict(zip(("compute-e1", "compute-e2"), states, strict=True)))
    line = lines(elastic, reported)[STEPS]
    assert (line.status, line.message) == (status, words)
    assert JOB not in lines(elastic, reported)


def test_a_node_that_a_container_step_drained_is_named_with_the_cause() -> None:
    closed = {"node": "compute-2", "state": "drained", "reason": "Epilog error"}
    missed = {"compute-2": "Plugin initialization failed"}
    reported = _after_steps(["compute-1"], missed, {"compute-1": "idle", "compute-2": "drained"}, [closed])
    line = lines(FULL, reported)[STEPS]
    assert line.message == (
        "compute-2: Plugin initialization failed; compute-2 is drained (Epilog error); " + RESUME.format("compute-2")
    )
    assert line.remedy.endswith("run: gpucluster apply")


def test_without_users_no_step_is_missed() -> None:
    nobody = dataclasses.replace(FULL, people={})
    reported = facts(FULL)
    reported[HEAD] |= {"srun": [], "container_steps": None}
    found = lines(nobody, reported)
    assert (found[STEPS].status, found[JOB].status, found["users_resolve"].status) == ("skip", "skip", "skip")
    assert verdict(nobody, reported).passed
