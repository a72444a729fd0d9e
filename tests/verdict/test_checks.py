"""Each fault of a cluster is found, named, and reported with what to do; and nothing else is blamed."""

# ruff: noqa: E501

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from tests.verdict.samples import (
    CLUSTER,
    FULL,
    HEAD,
    KUBERNETES,
    MESH,
    NODES,
    Facts,
    facts,
    host,
    lines,
    scraped,
    verdict,
)

Spoil = Callable[[Facts], Any]


@pytest.mark.parametrize("cluster", [CLUSTER, MESH, KUBERNETES, FULL], ids=["slurm", "mesh", "kubernetes", "all"])
def test_a_sound_cluster_passes(cluster: Any) -> None:
    found = verdict(cluster, facts(cluster))
    assert found.passed, found.problems
    assert {result.status for result in found.results} == {"pass"}
    assert set(found.hosts.values()) == {"pass"}
    assert (found.status, list(found.hosts)) == ("pass", list(cluster.hosts))


def test_only_what_a_cluster_has_is_checked() -> None:
    assert list(lines(MESH, facts(MESH))) == [
        "host_answers", "users_resolve", "users_agree", "cloud_services", "firewall", "known_faults", "mesh"
    ]  # fmt: skip
    of_slurm = {"node_state", "a job runs in pool compute", "accounting"}
    assert set(lines(CLUSTER, facts())) == set(lines(MESH, facts(MESH))) - {"mesh"} | {"home_share"} | of_slurm
    of_kubernetes = {
        "kubernetes_node", "kubernetes_gpus", "kubernetes_control_plane", "kubernetes_certificates",
        "kubernetes_names", "kubernetes_homes", "kubernetes_rdma_resource", "kubernetes_hardware",
    }  # fmt: skip
    # Pods need no ssh between nodes, and Slurm is not asked.
    assert set(lines(KUBERNETES, facts(KUBERNETES))) == set(lines(CLUSTER, facts())) - of_slurm | of_kubernetes


JOB, STEPS = "a job runs in pool compute", "container steps run in pool compute"
#: What is spoiled, which line states this, what of, how it ends, and what it reports.
SPOILED: list[tuple[str, Spoil, str, str, str]] = [
    ("a silent host", lambda f: f.pop("compute-2"), "host_answers", "unknown", "compute-2: it has sent no facts"),
    ("a wrong name", lambda f: f["compute-1"].update(hostname="x"), "host_answers", "fail", "compute-1: has the host name x"),
    ("no mount", lambda f: f["compute-1"]["home_fs"].update(mounted=False), "home_share", "fail", "compute-1: not mounted"),
    ("another share", lambda f: f["compute-2"].update(home_token_seen=False), "home_share", "fail", "compute-2: does not have the file that the controller wrote"),
    ("an unknown user", lambda f: f["compute-2"]["user_ids"].update(alice=""), "users_resolve", "fail", "compute-2: does not know alice"),
    ("two uids", lambda f: f["compute-2"]["user_ids"].update(alice="9:9999"), "users_agree", "fail", "alice has different ids: 10001:9999, 9:9999"),
    ("a wrong group", lambda f: f[HEAD]["user_ids"].update(alice="10001:5"), "users_resolve", "fail", f"{HEAD}: alice is in group 5, not 9999"),
    ("users reach the identity", lambda f: f[HEAD]["cloud_services"].update(nobody=["metadata"]), "cloud_services", "fail", f"{HEAD}: any user reaches the metadata"),
    ("users reach a disk", lambda f: f["compute-1"]["cloud_services"].update(nobody=["boot volume"]), "cloud_services", "fail", "compute-1: any user reaches the boot volume"),
    ("nobody tried", lambda f: f["compute-2"].pop("cloud_services"), "cloud_services", "unknown", "compute-2: not tried"),
    ("closed firewall", lambda f: f["compute-1"].update(firewall={"state": "failed", "words": "no nft"}), "firewall", "fail", "compute-1: no nft"),
    ("a firewall nobody opened", lambda f: f[HEAD].update(firewall={"state": "", "words": ""}), "firewall", "fail", f"{HEAD}: gpucluster-firewall has not run"),
    ("one host does not say it", lambda f: f["compute-1"].pop("firewall"), "firewall", "unknown", "compute-1: the host has not reported it"),
    ("an old agent", lambda f: f["compute-1"].update(versions=None), "known_faults", "unknown", "compute-1: its agent does not say what it runs; gpucluster apply brings one that does"),
    ("versions of another form", lambda f: f["compute-1"].update(versions=[]), "known_faults", "unknown", "compute-1: this is not a list of versions: list indices must be integers or slices, not str"),
    ("a node down", lambda f: f[HEAD]["sinfo"][0].update(state="down*"), "node_state", "fail", "compute-1: is down*"),
    ("a node that does not respond", lambda f: f[HEAD]["sinfo"][0].update(state="idle*"), "node_state", "fail", "compute-1: is idle*"),
    ("a node that Slurm does not know", lambda f: f[HEAD]["sinfo"].pop(0), "node_state", "fail", "compute-1: is unknown to Slurm"),
    ("no sinfo", lambda f: f[HEAD].update(sinfo=None, sinfo_error="refused"), "node_state", "unknown", "compute-1: sinfo gave no answer: refused; compute-2: sinfo gave no answer: refused"),
    ("no job", lambda f: f[HEAD].update(srun=[]), JOB, "unknown", "no job was tried"),
    ("a job on one node", lambda f: f[HEAD]["srun"][0].update(nodes=["compute-1"] * 2), JOB, "fail", "it ran on compute-1"),
    ("a job that failed", lambda f: f[HEAD]["srun"][0].update(error="boom"), JOB, "fail", "boom"),
    ("no accounting", lambda f: f[HEAD].update(accounting=False), "accounting", "fail", "slurmdbd does not know the jobs of this check"),
    ("a silent Slurm", lambda f: f[HEAD].update(slurm_version=None), "slurm_advisories", "unknown", "no measurement slurm_version"),
    ("accounting not asked", lambda f: f[HEAD].pop("accounting"), "accounting", "unknown", "sacct was not asked"),
    ("a login node without Slurm", lambda f: f["demo-login-1"].update(slurm_error="no route to host"), "login_slurm", "fail", "demo-login-1: no route to host"),
    ("a silent login node", lambda f: f.pop("demo-login-1"), "login_slurm", "unknown", "demo-login-1: it has sent no facts"),
    ("all may log in", lambda f: f[HEAD].update(ssh_groups=[]), "controller_logins", "fail", "its ssh server lets alice in"),
    ("users may log in", lambda f: f[HEAD].update(ssh_groups=["root", "people"]), "controller_logins", "fail", "its ssh server lets alice in"),
    ("its ssh server is silent", lambda f: f[HEAD].update(ssh_groups=None), "controller_logins", "unknown", "the controller's ssh server does not report the users that it accepts"),
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


def test_a_host_with_known_faults_is_a_warning_and_a_question_is_none() -> None:
    reported = facts(FULL)
    kernel = {"product": "kernel", "version": "6.1.0-18-amd64", "package": "linux"}
    slurm = {"product": "slurm", "version": "25.11.7", "package": ""}
    old = {"product": "containerd", "version": "1.7.28", "package": ""}
    reported["compute-1"]["versions"] = {"system": "debian-12", "installed": [kernel]}
    reported["compute-2"]["versions"] = {"system": "debian-12", "installed": [old, slurm]}
    found = verdict(FULL, reported)
    assert found.passed
    line = lines(FULL, reported)["known_faults"]
    assert line.status == "warn"
    # Slurm's are said once, by slurm_advisories.
    assert line.message.startswith("compute-2: containerd 1.7.28: CVE-2026-53488 and 1 other; containerd 1.7.28: ")
    assert "slurm" not in line.message
    assert "compute-1" not in line.message


def test_a_slurm_of_the_distribution_is_judged_by_its_package() -> None:
    reported = facts(CLUSTER)
    slurm = {"product": "slurm", "version": "22.05.8-4+deb12u2", "package": "slurmd"}
    reported["compute-1"]["versions"] = {"system": "debian-12", "installed": [slurm]}
    assert lines(CLUSTER, reported)["known_faults"].message == "compute-1: slurm 22.05.8-4+deb12u2: CVE-2025-43904"


def test_a_host_is_as_good_as_the_worst_check_of_it_alone() -> None:
    reported = facts(FULL)
    reported["compute-1"]["firewall"] = {"state": "failed", "words": "no nft"}
    reported["compute-2"].pop("cloud_services")
    found = verdict(FULL, reported)
    assert dict(found.hosts) == {HEAD: "pass", "demo-login-1": "pass", "compute-1": "fail", "compute-2": "unknown"}
    assert found.status == "fail"


def test_a_service_that_root_does_not_reach_either_is_told() -> None:
    reported = facts()
    reported["compute-2"]["cloud_services"]["root"] = []
    result = next(r for r in verdict(CLUSTER, reported).results if (r.check, r.subject) == ("cloud_services", NODES[1]))
    assert (result.status, result.message) == (
        "pass",
        "neither metadata nor boot volume; root does not reach the metadata either",
    )


def test_a_member_of_the_privilege_group_is_not_an_intruder() -> None:
    reported = facts(FULL)
    reported[HEAD]["user_groups"] = {"alice": ["people", "privilege"]}
    assert verdict(FULL, reported).passed


def test_a_message_about_many_hosts_names_some_of_them() -> None:
    names = [f"n{number}" for number in range(1, 21)]
    cluster = dataclasses.replace(CLUSTER, hosts=[HEAD, *names], pools={"compute": []})
    reported = {HEAD: facts()[HEAD], **{name: {**host(name), "hostname": "x"} for name in names}}
    line = lines(cluster, reported)["host_answers"]
    assert line.message.startswith("n1: has the host name x; n2: ")
    assert line.message.endswith("n8: has the host name x; and 12 more")


def test_nothing_seen_is_not_a_pass() -> None:
    found = verdict(CLUSTER, {})
    assert not found.passed
    assert {result.status for result in found.results} == {"unknown"}


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


def target(health: str, node: str = "compute-1") -> dict[str, str]:
    return {"job": "own", "node": node, "instance": "10.0.1.2:9500", "health": health, "error": "refused"}


RULE = {"group": "g", "name": "GpuLost", "health": "err", "error": "many-to-many"}


@pytest.mark.parametrize(
    ("told", "status", "words"),
    [
        ({}, "pass", "9 targets up"),
        ({"targets": [target("unknown")]}, "warn", "9 targets up, 1 not scraped yet: own of compute-1"),
        ({"targets": [target("unknown", "compute-e7")]}, "pass", "9 targets up"),
        ({"targets": [target("down")]}, "fail", "own of compute-1: refused"),
        ({"targets": [target("down", "compute-e7")]}, "pass", "9 targets up"),
        ({"targets": [target("down")] * 7}, "fail", "and 2 more targets"),
        ({"rules": [RULE]}, "fail", "rule GpuLost: many-to-many"),
        ({"rules_total": 0}, "fail", "Prometheus has no rules"),
        ({"prometheus": False, "why": "Prometheus does not answer"}, "fail", "Prometheus does not answer"),
    ],
)  # fmt: skip
def test_prometheus_must_reach_every_permanent_host(told: dict[str, Any], status: str, words: str) -> None:
    reported = facts(FULL)
    reported[HEAD]["monitoring"] = {**scraped(), **told}
    line = lines(FULL, reported)["monitoring"]
    assert line.status == status
    assert words in line.message
    assert "monitoring" not in lines(CLUSTER, facts())


@pytest.mark.parametrize(
    ("told", "status", "words"),
    [
        ({"error": "gpucluster-agent is not installed"}, "fail", "gpucluster-agent is not installed"),
        ({}, "unknown", "it gives no reason"),
        (None, "unknown", "Prometheus was not asked"),
    ],
)
def test_what_was_not_measured_of_the_monitoring_is_unknown(told: Any, status: str, words: str) -> None:
    reported = facts(FULL)
    reported[HEAD]["monitoring"] = told
    line = lines(FULL, reported)["monitoring"]
    assert (line.status, line.message) == (status, words)


# --- hardware -----


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"drives": 3}, "fail", "compute-2: 3 of 4 drives"),
        ({"fstype": "ext4"}, "fail", "compute-2: ext4 is mounted at /mnt/localdisk"),
        ({"mounted": False, "words": "not blank: /dev/nvme0n1"}, "fail", "compute-2: not blank: /dev/nvme0n1"),
        ({"mounted": False, "state": ""}, "fail", "compute-2: nothing is mounted at /mnt/localdisk"),
        (None, "unknown", "compute-2: nothing is known about its drives"),
    ],
)
@pytest.mark.parametrize("emulated", [False, True])
def test_a_local_disk_that_is_not_as_promised_is_told(changes: Any, status: str, words: str, emulated: bool) -> None:
    reported = facts(FULL)
    disk = reported["compute-2"]["local_disk"]
    reported["compute-2"]["local_disk"] = None if changes is None else {**disk, **changes}
    line = lines(dataclasses.replace(FULL, hardware_emulated=emulated), reported)["own_drives"]
    assert line.status == status
    assert line.message.startswith(words)


def test_rdma_interfaces_without_addresses_are_told() -> None:
    reported = facts(FULL)
    reported["compute-1"]["rdma_addresses"] = {"state": "failed", "words": "these are not there: enp12s0f0"}
    reported["compute-2"]["rdma_addresses"] = {"state": "", "words": ""}
    line = lines(FULL, reported)["rdma_addresses"]
    assert line.message == "compute-1: these are not there: enp12s0f0; compute-2: its user data did not run"


def test_hardware_that_is_not_there_is_excused_only_where_it_is_emulated() -> None:
    reported = facts(FULL)
    for node in NODES:
        reported[node]["local_disk"] |= {"mounted": False, "state": "absent", "words": "no drive"}
        reported[node]["rdma_addresses"] = {"state": "absent", "words": "none"}
    emulated = verdict(dataclasses.replace(FULL, hardware_emulated=True), reported)
    assert emulated.passed
    assert {result.check for result in emulated.results if result.status == "skip"} == {"own_drives", "rdma_addresses"}
    assert {result.check for result in verdict(FULL, reported).problems} == {"own_drives", "rdma_addresses"}


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
        ([], {}, ("allocated", "mixed"), "unknown", "no node is free; not tried: compute-1 (allocated), compute-2 (mixed)"),
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


# --- ssh between nodes -----


@pytest.mark.parametrize(
    ("spoil", "status", "words"),
    [
        (lambda f: f["compute-2"].pop("mesh"), "unknown", "compute-2: not tried"),
        (lambda f: f["compute-2"]["mesh"].update(reached="", error="refused"), "fail", "compute-2: to compute-1: refused"),
        (lambda f: f["compute-1"]["mesh"].update(reached="compute-1"), "fail", "compute-1: to compute-2: compute-1 answered"),
    ],
)  # fmt: skip
def test_a_node_that_does_not_reach_the_next_is_named(spoil: Spoil, status: str, words: str) -> None:
    reported = facts(MESH)
    spoil(reported)
    line = lines(MESH, reported)["mesh"]
    assert (line.status, line.message) == (status, words)
