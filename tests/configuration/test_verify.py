"""The verdict: facts in, checks out."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from gpucluster.configuration.verify import Check, CheckStatus, Expectation, evaluate, passed, problems

EXPECTED = Expectation(
    hosts=["demo-controller", "compute-1", "compute-2"],
    pools={"compute": ["compute-1", "compute-2"]},
    people={"alice": 9999},
    home_mount_path="/mnt/home",
    accounting=True,
)


def _host(name: str) -> dict[str, Any]:
    return {
        "hostname": name,
        "home_fs": {"source": "10.0.1.2:/mnt/home", "fstype": "nfs", "mounted": True},
        "home_token_seen": True,
        "user_ids": {"alice": "10001:9999"},
        "cloud_services": {"nobody": [], "root": ["metadata"]},
        "firewall": {"state": "open", "words": "to 10.0.0.0/16"},
    }


def _facts() -> dict[str, dict[str, Any]]:
    facts = {host: _host(host) for host in EXPECTED.hosts}
    facts["demo-controller"] |= {
        "sinfo": [{"node": f"compute-{n}", "state": "idle", "partition": "compute"} for n in (1, 2)],
        "srun": [
            {"partition": "compute", "ran": True, "nodes": ["compute-1", "compute-2"], "user": "alice", "error": ""}
        ],
        "accounting": True,
    }
    return facts


def test_a_sound_cluster_passes() -> None:
    checks = evaluate(EXPECTED, _facts())
    assert passed(checks), checks
    assert len(checks) == 8


def test_a_service_that_root_does_not_reach_either_is_told() -> None:
    facts = _facts()
    facts["compute-2"]["cloud_services"]["root"] = []
    (check,) = [check for check in evaluate(EXPECTED, facts) if check.name == SERVICES]
    assert check.status == CheckStatus.PASS
    assert check.message.endswith("root does not reach the first on compute-2")


Spoil = Callable[[dict[str, dict[str, Any]]], Any]
HEAD = "demo-controller"
HOME, USERS = "/mnt/home is one file system", "directory users resolve"
SERVICES = "users reach no service of the cloud's own"
FIREWALL = "firewalls are open to the cluster's hosts"
READY, JOB = "pool compute is ready in Slurm", "a two-node job runs in pool compute"
SPOILED: list[tuple[str, Spoil, str, str]] = [
    ("a silent host", lambda f: f.pop("compute-2"), "hosts answer", "fail"),
    ("a wrong name", lambda f: f["compute-1"].update(hostname="x"), "hosts answer", "fail"),
    ("no mount", lambda f: f["compute-1"]["home_fs"].update(mounted=False), HOME, "fail"),
    ("another share", lambda f: f["compute-2"].update(home_token_seen=False), HOME, "fail"),
    ("an unknown user", lambda f: f["compute-2"]["user_ids"].update(alice=None), USERS, "fail"),
    ("two uids", lambda f: f["compute-2"]["user_ids"].update(alice="9:9876"), USERS, "fail"),
    ("a wrong group", lambda f: [h["user_ids"].update(alice="10001:5") for h in f.values()], USERS, "fail"),
    ("users reach the identity", lambda f: f[HEAD]["cloud_services"].update(nobody=["metadata"]), SERVICES, "fail"),
    ("users reach a disk", lambda f: f["compute-1"]["cloud_services"].update(nobody=["boot volume"]), SERVICES, "fail"),
    ("nobody tried", lambda f: f["compute-2"].pop("cloud_services"), SERVICES, "not_run"),
    ("closed firewall", lambda f: f["compute-1"].update(firewall={"state": "failed", "words": ""}), FIREWALL, "fail"),
    ("a firewall nobody opened", lambda f: f[HEAD].update(firewall={"state": "", "words": ""}), FIREWALL, "fail"),
    ("no host says it", lambda f: [h.pop("firewall") for h in f.values()], FIREWALL, "not_run"),
    ("a node down", lambda f: f[HEAD]["sinfo"][0].update(state="down*"), READY, "fail"),
    ("a node that does not respond", lambda f: f[HEAD]["sinfo"][0].update(state="idle*"), READY, "fail"),
    ("no sinfo", lambda f: f[HEAD].pop("sinfo"), READY, "not_run"),
    ("no job", lambda f: f[HEAD].update(srun=[]), JOB, "not_run"),
    ("a job on one node", lambda f: f[HEAD]["srun"][0].update(nodes=["compute-1"] * 2), JOB, "fail"),
    ("a job that failed", lambda f: f[HEAD]["srun"][0].update(error="boom"), JOB, "fail"),
    ("no accounting", lambda f: f[HEAD].update(accounting=False), "accounting answers", "fail"),
    ("accounting not asked", lambda f: f[HEAD].pop("accounting"), "accounting answers", "not_run"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "name", "status"), [row[1:] for row in SPOILED], ids=[row[0] for row in SPOILED])
def test_each_fault_is_found_and_named(spoil: Spoil, name: str, status: str) -> None:
    facts = copy.deepcopy(_facts())
    spoil(facts)
    checks = evaluate(EXPECTED, facts)
    assert not passed(checks)
    assert {check.name: check.status for check in checks}[name] == status


ONE_NODE = dataclasses.replace(EXPECTED, pools={"big": ["big-1"]}, hosts=[HEAD, "big-1"])
# Of a step whose MPI plugin slurmd does not have, when the time is over.
NO_STEP = "srun: job 1 has been allocated resources\n\nSession terminated, killing shell... ...killed."
BROKEN_MPI = "srun: error: Couldn't find the specified plugin name for mpi/pmix looking at all files"


@pytest.mark.parametrize(
    ("run", "state", "people", "status", "words"),
    [
        ({"ran": True, "nodes": ["big-1"], "user": "alice", "error": ""}, "idle", True, "pass", "on big-1 as alice"),
        ({"ran": False, "nodes": [], "error": BROKEN_MPI}, "idle", True, "not_run", "mpi/pmix"),
        ({"ran": True, "nodes": ["big-1"], "error": BROKEN_MPI}, "idle", True, "fail", "mpi/pmix"),
        ({"ran": False, "nodes": [], "error": NO_STEP}, "idle", True, "fail", "see /var/log/slurm/slurmd.log"),
        ({"ran": False, "nodes": [], "error": "Requested nodes are busy"}, "mixed", True, "skip", "other jobs"),
        (None, "idle", True, "not_run", "no job was tried"),
        (None, "idle", False, "skip", "no user"),
    ],
)
def test_a_pool_of_one_node_runs_a_job_too(
    run: dict[str, Any] | None, state: str, people: bool, status: str, words: str
) -> None:
    facts = {name: _host(name) for name in ONE_NODE.hosts}
    facts[HEAD] |= {
        "sinfo": [{"node": "big-1", "state": state, "partition": "big"}],
        "srun": [{"partition": "big", **run}] if run else [],
        "accounting": True,
    }
    expected = ONE_NODE if people else dataclasses.replace(ONE_NODE, people={})
    (check,) = [check for check in evaluate(expected, facts) if check.name == "a job runs in pool big"]
    assert (check.status, words in check.message) == (status, True), check


def test_nothing_seen_is_no_pass() -> None:
    assert not passed(evaluate(EXPECTED, {}))
    assert not passed([])
    assert not passed([Check("x", CheckStatus.NOT_RUN, "")])


ELASTIC = dataclasses.replace(
    EXPECTED, pools={"compute": [], "big": ["big-1"]}, partitions={"big": "gpu"}, autoscaler=True
)


def _elastic_facts(told: Any) -> dict[str, dict[str, Any]]:
    facts = _facts()
    facts[HEAD] |= {"sinfo": [{"node": "big-1", "state": "idle", "partition": "gpu*"}], "autoscaler": told}
    return facts


@pytest.mark.parametrize(
    ("told", "status", "words"),
    [
        ({"healthy": True, "problems": [], "paused": "", "pools": {"compute": {}}}, "pass", "pools compute"),
        ({"healthy": True, "paused": "new firewall", "pools": {}}, "pass", "paused: new firewall"),
        (
            {"healthy": False, "problems": ["the cloud refuses", "Slurm is gone"]},
            "fail",
            "the cloud refuses; Slurm is gone",
        ),
        ({"error": "no word within the time limit"}, "fail", "no word within the time limit"),
        ({"healthy": "yes"}, "fail", "it does not say why"),
        (None, "not_run", "it was not asked"),
    ],
)
def test_the_autoscaler_must_be_healthy_where_a_pool_is_elastic(told: Any, status: str, words: str) -> None:
    checks = {check.name: check for check in evaluate(ELASTIC, _elastic_facts(told))}
    check = checks["the autoscaler is healthy"]
    assert (check.status, check.message) == (status, words)
    assert checks["pool compute is ready in Slurm"].message == "its nodes are launched when jobs need them"
    assert checks["pool big is ready in Slurm"].status == "pass"


def test_without_elastic_pools_nobody_asks_for_an_autoscaler() -> None:
    assert "the autoscaler is healthy" not in {check.name for check in evaluate(EXPECTED, _facts())}


HARDWARE = dataclasses.replace(
    EXPECTED, local_drives={"compute-1": 4, "compute-2": 4}, rdma_addressed=("compute-1", "compute-2")
)
DISKS, RDMA = "each node's own drives are one file system", "RDMA interfaces have addresses"


def _hardware_facts() -> dict[str, dict[str, Any]]:
    facts = _facts()
    for node in ("compute-1", "compute-2"):
        facts[node]["local_disk"] = {
            "path": "/mnt/localdisk", "mounted": True, "fstype": "xfs", "drives": 4, "state": "mounted", "words": ""
        }  # fmt: skip
        facts[node]["rdma_addresses"] = {"state": "addressed", "words": "16 of 16"}
    return facts


def test_drives_and_rdma_interfaces_pass_where_they_are_as_promised() -> None:
    checks = evaluate(HARDWARE, _hardware_facts())
    assert passed(checks), checks
    assert {DISKS, RDMA} <= {check.name for check in checks}
    assert not {DISKS, RDMA} & {check.name for check in evaluate(EXPECTED, _facts())}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"drives": 3}, "compute-2: 3 of 4 drives"),
        ({"fstype": "ext4"}, "compute-2: ext4 is mounted at /mnt/localdisk"),
        (
            {"mounted": False, "state": "failed", "words": "not blank: /dev/nvme0n1"},
            "compute-2: not blank: /dev/nvme0n1",
        ),
        ({"mounted": False, "state": ""}, "compute-2: nothing is mounted at /mnt/localdisk"),
        (None, "compute-2: nothing is known about its drives"),
    ],
)
@pytest.mark.parametrize("emulated", [False, True])
def test_a_local_disk_that_is_not_as_promised_is_told(changes: Any, words: str, emulated: bool) -> None:
    facts = _hardware_facts()
    facts["compute-2"]["local_disk"] = None if changes is None else {**facts["compute-2"]["local_disk"], **changes}
    checks = evaluate(dataclasses.replace(HARDWARE, hardware_emulated=emulated), facts)
    assert [(check.name, check.status) for check in problems(checks)] == [(DISKS, "fail")]
    assert problems(checks)[0].message.startswith(words)


def test_rdma_interfaces_without_addresses_are_told() -> None:
    facts = _hardware_facts()
    facts["compute-1"]["rdma_addresses"] = {"state": "failed", "words": "these are not there: enp12s0f0"}
    facts["compute-2"]["rdma_addresses"] = None
    (fault,) = problems(evaluate(HARDWARE, facts))
    assert fault.message == "compute-1: these are not there: enp12s0f0; compute-2: its user data did not run"


def test_hardware_that_is_not_there_is_excused_only_where_it_is_emulated() -> None:
    facts = _hardware_facts()
    for node in ("compute-1", "compute-2"):
        facts[node]["local_disk"] |= {"mounted": False, "state": "absent", "words": "no drive"}
        facts[node]["rdma_addresses"] = {"state": "absent", "words": "none"}
    emulated = evaluate(dataclasses.replace(HARDWARE, hardware_emulated=True), facts)
    assert passed(emulated)
    assert {check.name: check.status for check in emulated if check.status != "pass"} == {DISKS: "skip", RDMA: "skip"}
    assert {check.name for check in problems(evaluate(HARDWARE, facts))} == {DISKS, RDMA}


CONTAINERS = dataclasses.replace(EXPECTED, containers=True)
STEPS = "container steps run in pool compute"


def _container_facts(seen: list[str], missed: dict[str, str], states: tuple[str, str] = ("idle", "idle")) -> Any:
    facts = _facts()
    facts[HEAD]["container_steps"] = [{"pool": "compute", "seen": seen, "missed": missed}]
    facts[HEAD]["sinfo"] = [
        {"node": f"compute-{number}", "state": state, "partition": "compute"} for number, state in enumerate(states, 1)
    ]
    return facts


@pytest.mark.parametrize(
    ("seen", "missed", "states", "status", "words"),
    [
        (["compute-1", "compute-2"], {}, ("idle", "idle"), "pass", "on 2 of 2 nodes"),
        (["compute-1"], {}, ("idle", "allocated"), "pass", "on 1 of 2 nodes; not tried: compute-2 (allocated)"),
        (
            [],
            {},
            ("allocated", "mixed"),
            "not_run",
            "no node is free; not tried: compute-1 (allocated), compute-2 (mixed)",
        ),
        (
            ["compute-1"],
            {"compute-2": "Plugin initialization failed"},
            ("idle", "idle"),
            "fail",
            "compute-2: Plugin initialization failed; to install what is missing, run: gpucluster apply",
        ),
        (
            [],
            {"compute-1": "execve(): Exec format error", "compute-2": "execve(): Exec format error"},
            ("idle", "idle"),
            "skip",
            "its nodes have another architecture than the controller, whose shell would run in the container",
        ),
    ],
)
def test_a_container_step_must_run_on_every_free_node(
    seen: list[str], missed: dict[str, str], states: tuple[str, str], status: str, words: str
) -> None:
    checks = {check.name: check for check in evaluate(CONTAINERS, _container_facts(seen, missed, states))}
    assert (checks[STEPS].status, checks[STEPS].message) == (status, words)


@pytest.mark.parametrize(
    ("seen", "missed", "states", "status", "words"),
    [
        (["compute-e1"], {}, ("idle", "idle~"), "pass", "on 1 of 1 nodes"),
        (["compute-e1"], {}, ("idle", "allocated"), "pass", "on 1 of 2 nodes; not tried: compute-e2 (allocated)"),
        ([], {}, ("allocated", "idle~"), "skip", "no node is free; not tried: compute-e1 (allocated)"),
        ([], {}, ("idle~", "idle%"), "skip", "its nodes are launched when jobs need them"),
        (
            ["compute-e2"],
            {"compute-e1": "boom"},
            ("idle", "idle"),
            "fail",
            "compute-e1: boom; to replace elastic nodes, run: "
            "scontrol update nodename=compute-e1 state=power_down_asap",
        ),
    ],
)
def test_elastic_nodes_that_are_up_count(
    seen: list[str], missed: dict[str, str], states: tuple[str, str], status: str, words: str
) -> None:
    facts = _container_facts(seen, missed)
    facts[HEAD]["sinfo"] = [
        {"node": f"compute-e{number}", "state": state, "partition": "compute"} for number, state in enumerate(states, 1)
    ]
    elastic = dataclasses.replace(CONTAINERS, pools={"compute": []})
    check = {check.name: check for check in evaluate(elastic, facts)}[STEPS]
    assert (check.status, check.message) == (status, words)


RESUME = "when the reason is gone, run: gpucluster ssh -- sudo scontrol update nodename={} state=resume"


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("drained", "Epilog error", f"compute-1 is drained (Epilog error); {RESUME.format('compute-1')}"),
        ("down", "", f"compute-1 is down; {RESUME.format('compute-1')}"),
        # To resume a node that does not respond is no help.
        ("down*", "Not responding", "compute-1 is down* (Not responding)"),
    ],
)
def test_a_drained_node_has_its_reason_and_the_next_command(state: str, reason: str, words: str) -> None:
    facts = _facts()
    facts[HEAD]["sinfo"][0].update(state=state, reason=reason)
    assert {check.name: check.message for check in evaluate(EXPECTED, facts)}[READY] == words


def test_a_node_that_a_container_step_drained_is_named_with_the_cause() -> None:
    facts = _container_facts(["compute-1"], {"compute-2": "Plugin initialization failed"})
    closed = {"node": "compute-2", "state": "drained", "reason": "Epilog error"}
    facts[HEAD]["container_steps"][0]["closed"] = [closed]
    assert {check.name: check.message for check in evaluate(CONTAINERS, facts)}[STEPS] == (
        "compute-2: Plugin initialization failed; compute-2 is drained (Epilog error); "
        f"to install what is missing, run: gpucluster apply; {RESUME.format('compute-2')}"
    )


def test_container_steps_that_nobody_tried_are_no_pass() -> None:
    assert {check.name: check.status for check in evaluate(CONTAINERS, _facts())}[STEPS] == "not_run"
    nobody = dataclasses.replace(CONTAINERS, people={})
    assert {check.name: check.status for check in evaluate(nobody, _facts())}[STEPS] == "skip"
    elastic = dataclasses.replace(CONTAINERS, pools={"compute": []})
    assert {check.name: check.status for check in evaluate(elastic, _facts())}[STEPS] == "skip"
    assert STEPS not in {check.name for check in evaluate(EXPECTED, _facts())}


def test_skips_alone_are_no_pass() -> None:
    assert not passed([Check("x", CheckStatus.SKIP, "")])


ALONE = dataclasses.replace(EXPECTED, home_mount_path=None, scheduler=False, accounting=False)
MESH = "nodes reach each other by ssh"


def _facts_of_a_mesh() -> dict[str, dict[str, Any]]:
    facts = {host: _host(host) for host in EXPECTED.hosts}
    facts["compute-1"]["mesh"] = {"next": "compute-2", "reached": "compute-2", "error": ""}
    facts["compute-2"]["mesh"] = {"next": "compute-1", "reached": "compute-1", "error": ""}
    return facts


def test_without_a_scheduler_accounts_and_ssh_are_judged_and_nothing_of_slurm() -> None:
    checks = evaluate(ALONE, _facts_of_a_mesh())
    assert passed(checks), checks
    assert [check.name for check in checks] == ["hosts answer", "users have accounts", SERVICES, FIREWALL, MESH]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: f["compute-2"].pop("mesh"), "compute-2 to the next: not tried"),
        (lambda f: f["compute-2"]["mesh"].update(reached="", error="refused"), "compute-2 to compute-1: refused"),
        (lambda f: f["compute-1"]["mesh"].update(reached="compute-1"), "compute-1 to compute-2: not tried"),
    ],
)
def test_a_node_that_does_not_reach_the_next_is_named(spoil: Spoil, words: str) -> None:
    facts = _facts_of_a_mesh()
    spoil(facts)
    check = {check.name: check for check in evaluate(ALONE, facts)}[MESH]
    assert (check.status, check.message) == ("fail", words)


GATED = dataclasses.replace(
    EXPECTED, hosts=[HEAD, "demo-login-1", "compute-1", "compute-2"], login=["demo-login-1"], operators="privilege"
)
SLURM, ACCESS = "login nodes reach Slurm", "only operators log in to the controller"


def _gated() -> dict[str, dict[str, Any]]:
    facts = {**_facts(), "demo-login-1": {**_host("demo-login-1"), "slurm_error": ""}}
    facts[HEAD] |= {"ssh_groups": ["root", "debian", "privilege"], "user_groups": {"alice": ["people"]}}
    return facts


def test_a_cluster_with_login_nodes_passes() -> None:
    checks = evaluate(GATED, _gated())
    assert passed(checks), checks
    assert {SLURM, ACCESS} <= {check.name for check in checks}


@pytest.mark.parametrize(
    ("spoil", "name", "status"),
    [
        (lambda f: f["demo-login-1"].update(slurm_error="no route to host"), SLURM, "fail"),
        (lambda f: f.pop("demo-login-1"), SLURM, "fail"),
        (lambda f: f[HEAD].update(ssh_groups=[]), ACCESS, "fail"),
        (lambda f: f[HEAD].update(ssh_groups=["root", "people"]), ACCESS, "fail"),
        (lambda f: f[HEAD].update(ssh_groups=None), ACCESS, "not_run"),
        (lambda f: f[HEAD].pop("ssh_groups"), ACCESS, "not_run"),
    ],
)
def test_each_fault_of_logins_is_found_and_named(spoil: Spoil, name: str, status: str) -> None:
    facts = copy.deepcopy(_gated())
    spoil(facts)
    assert {check.name: check.status for check in evaluate(GATED, facts)}[name] == status


def test_a_member_of_the_privilege_group_is_no_intruder() -> None:
    facts = _gated()
    facts[HEAD]["user_groups"] = {"alice": ["people", "privilege"]}
    assert passed(evaluate(GATED, facts))
