"""What the slurm role writes for elastic pools: by version, and with the real Slurm from the request to the node's end.

The real one is the version of the base image. The lines for other versions are compared with what their documentation
states; they were not started here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import gpucluster
from gpucluster import shapes
from gpucluster.spec.reserved import OWNED_SLURM_KEYS, TUNABLE_SLURM_KEYS
from tests.ansible.render import ELASTIC, host_facts, render_slurm
from tests.ansible.slurm_render import ADDRESS, CONTROLLER, SHARED_MACHINE, VERSION, in_container, pool, render
from tests.ansible.test_templates import lines, settings

pytestmark = pytest.mark.slow

HOOKS = (Path(gpucluster.__file__).parent / "autoscaler" / "daemon" / "hooks.py").read_text()
POWER = {"resume_timeout": 1800, "suspend_timeout": 120, "max_powered_nodes": 7}
OLDEST, NEWEST = "22.05.8", "25.11.1"
EVERY_VERSION = (OLDEST, "23.02.7", "23.11.10", "24.05.3", VERSION, "25.05.4", NEWEST)


def config(version: str = VERSION, **differs: Any) -> Mapping[str, str]:
    return settings(render_slurm(ELASTIC | differs, facts=host_facts(slurm=version))["slurm.conf"])


@cache
def config_of(version: str) -> Mapping[str, str]:
    """The same, once for all tests of a version: Ansible takes its time."""
    return config(version)


def words(version: str, key: str) -> set[str]:
    found = config_of(version).get(key, "")
    return set(found.split(",")) if found else set()


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_every_line_has_a_value_and_an_owner(version: str) -> None:
    found = config_of(version)
    assert "" not in found.values()
    assert set(found) <= OWNED_SLURM_KEYS | TUNABLE_SLURM_KEYS


@pytest.mark.parametrize(
    ("key", "word", "since", "until"),
    [
        ("SlurmctldParameters", "idle_on_node_suspend", OLDEST, ""),
        ("SlurmctldParameters", "power_save_interval=5", OLDEST, ""),
        ("SlurmctldParameters", "cloud_reg_addrs", OLDEST, "23.11"),
        ("SlurmctldParameters", "max_powered_nodes=7", "24.05", ""),
        ("PrivateData", "cloud", OLDEST, "23.02"),
        ("ReconfigFlags", "KeepPowerSaveSettings", "23.02", ""),
        ("SuspendExcStates", "DRAIN", "23.02", ""),
        ("TreeWidth", "65533", OLDEST, "23.11"),
        ("SchedulerParameters", "sbatch_wait_nodes", OLDEST, ""),
        ("SchedulerParameters", "defer", OLDEST, ""),
        ("SchedulerParameters", "sched_interval=15", OLDEST, ""),
        ("SchedulerParameters", "requeue_on_resume_failure", "25.05", ""),
    ],
)
def test_each_version_gets_what_it_knows(key: str, word: str, since: str, until: str) -> None:
    def number(version: str) -> tuple[int, ...]:
        return tuple(map(int, version.split(".")[:2]))

    for version in EVERY_VERSION:
        known = number(version) >= number(since) and not (until and number(version) >= number(until))
        assert (word in words(version, key)) is known, version


def test_without_elastic_pools_nothing_speaks_of_power() -> None:
    found = render_slurm()
    keys = settings(found["slurm.conf"])
    assert not [
        key for key in keys if re.match("Resume[^T]|Suspend|Power|Reconfig|Topology|BatchStart|Enforce|AuthInfo", key)
    ]
    # Of a reboot: Slurm's own default of a minute is too short for every host.
    assert (keys["RebootProgram"], keys["ResumeTimeout"]) == ("/usr/sbin/reboot", "1800")
    assert keys["SlurmctldParameters"] == "enable_configless,disable_triggers"
    assert not re.search("CLOUD|Feature|Weight|MaxNodes|SuspendTime", found["slurm.conf"])
    assert lines(found["topology.conf"]) == []


def test_elastic_nodes_are_declared_ahead_behind_the_static_ones() -> None:
    found = lines(render_slurm(ELASTIC)["slurm.conf"])
    nodes = {line.split()[0]: line for line in found if line.startswith("NodeName=")}
    assert "State=CLOUD" not in nodes["NodeName=compute-1,compute-2"]
    assert "Weight" not in nodes["NodeName=compute-1,compute-2"]
    weights = [
        int(re.findall(r"Weight=(\d+)", nodes[f"NodeName={names}"])[0])
        for names in ("compute-e[1-6]", "second-e[1-6]", "elastic-e[1-4]")
    ]
    assert weights == sorted(set(weights))
    assert weights[0] > 1
    for name in ("compute-e[1-6]", "second-e[1-6]"):
        assert " Gres=gpu:a100:8 " in nodes[f"NodeName={name}"]
        assert nodes[f"NodeName={name}"].endswith(" State=CLOUD")
    gres = render_slurm(ELASTIC)["gres.conf"]
    assert "NodeName=compute-1,compute-2,compute-e[1-6] Name=gpu" in gres
    assert "NodeName=second-e[1-6] Name=gpu" in gres


def test_pools_share_a_partition_with_its_own_times() -> None:
    found = [line for line in lines(render_slurm(ELASTIC)["slurm.conf"]) if line.startswith("PartitionName=")]
    first, second = found
    assert first.startswith("PartitionName=compute Nodes=compute-1,compute-2,compute-e[1-6],second-e[1-6] Default=YES ")
    assert first.endswith(" MaxNodes=4 SuspendTime=600")
    assert second.endswith(" MaxNodes=1 SuspendTime=60")


def test_a_pool_with_less_decides_the_shares_of_its_partition() -> None:
    poor = ELASTIC["slurm_pools"][1]
    poor = poor | {"node": poor["node"] | {"RealMemory": 1000000, "CoresPerSocket": 16}}
    pools = [ELASTIC["slurm_pools"][0], poor, ELASTIC["slurm_pools"][2]]
    text = render_slurm(ELASTIC | {"slurm_pools": pools})["slurm.conf"]
    assert "DefMemPerCPU=15625 DefCpuPerGPU=8" in text


def test_static_nodes_are_never_suspended() -> None:
    assert config()["SuspendExcNodes"] == "compute-1,compute-2"
    without = [pool | {"nodes": []} for pool in ELASTIC["slurm_pools"]]
    assert "SuspendExcNodes" not in config(slurm_pools=without)


def test_words_of_the_user_come_beside_ours() -> None:
    extra = {"SchedulerParameters": "bf_interval=30", "PrivateData": ["jobs", "partitions"], "ReconfigFlags": None}
    found = config(OLDEST, slurm_extra_config=extra)
    assert found["SchedulerParameters"].startswith("sbatch_wait_nodes,")
    assert found["SchedulerParameters"].endswith(",bf_interval=30")
    assert found["PrivateData"] == "cloud,events,jobs,usage,users,partitions"


def test_no_switch_is_above_two_pools_with_rdma() -> None:
    found = lines(render_slurm(ELASTIC)["topology.conf"])
    assert found == [
        "SwitchName=rdma-compute Nodes=compute-1,compute-2,compute-e[1-6]",
        "SwitchName=rdma-second Nodes=second-e[1-6]",
        "SwitchName=plain-elastic Nodes=elastic-e[1-4]",
    ]
    assert config()["TopologyPlugin"] == "topology/tree"


def test_pools_with_a_partition_each_need_no_topology() -> None:
    apart = [pool | {"partition": pool["name"]} for pool in ELASTIC["slurm_pools"]]
    partitions = [
        {
            "name": pool["name"],
            "pools": [pool["name"]],
            "default": not number,
            "whole_nodes": False,
            "max_nodes": 2,
            "idle_timeout": 9,
        }
        for number, pool in enumerate(apart)
    ]
    found = render_slurm(ELASTIC | {"slurm_pools": apart, "slurm_partitions": partitions})
    assert "TopologyPlugin" not in settings(found["slurm.conf"])
    assert lines(found["topology.conf"]) == []


# --- the real one -----

GPU = shapes.get("BM.GPU4.8")
STATIC = "alpha-1"
POOLS = [
    pool(GPU, [STATIC], name="alpha", elastic_nodes="alpha-e[1-2]", partition="gpu"),
    pool(GPU, [], name="beta", elastic_nodes="beta-e[1-4]", partition="gpu"),
    pool(shapes.get("VM.Standard.E5.Flex"), [], name="plain", elastic_nodes="plain-e[1-2]"),
]
JOB = [
    *("--nodes=2", "--exclusive", "--output=/run/gpucluster-test/%j.out", "--error=/run/gpucluster-test/%j-errors.log"),
    "--wrap=srun hostname && flock --shared /run/gpucluster-test/gate true",
]


@pytest.fixture(scope="module")
def slurm() -> dict[str, Any]:
    """What the real Slurm did: two-node jobs in a partition with two RDMA pools, of three and of four nodes."""
    names = [
        STATIC,
        *(f"{name}-e{n}" for name, last in (("alpha", 2), ("beta", 4), ("plain", 2)) for n in range(1, last + 1)),
    ]
    return in_container(
        {
            "controller": ADDRESS,
            "hosts": {CONTROLLER: ADDRESS} | {name: f"192.0.2.{number}" for number, name in enumerate(names, start=2)},
            "nodes": names,
            "devices": [],
            "emulated_files": [f"/var/lib/gpucluster/emulated-gpus/gpu{number}" for number in range(8)],
            "hooks": HOOKS,
            "static": [STATIC],
            "submit": [JOB, JOB, JOB],
            "too_large": ["--nodes=5", "--wrap=true"],
            "files": render(
                POOLS,
                emulated=True,
                extra_config=SHARED_MACHINE,
                idle_timeout=5,
                power=POWER | {"suspend_timeout": 5},
                checks=False,
            ),
        }
    )


def pool_of(node: str) -> str:
    return node.partition("-")[0]


@pytest.mark.slurm
@pytest.mark.containers
def test_nodes_that_are_not_there_are_powered_down(slurm: dict[str, Any]) -> None:
    assert slurm["version"] == VERSION
    states = {name: facts["State"] for name, facts in slurm["before"].items()}
    assert {state for name, state in states.items() if name != STATIC} == {"IDLE+CLOUD+POWERED_DOWN"}
    assert "SwitchName=rdma-beta" in slurm["topology"]


@pytest.mark.slurm
@pytest.mark.containers
def test_no_job_spans_two_pools_with_rdma(slurm: dict[str, Any]) -> None:
    # The fourth job would need one node of each pool: it gets none.
    assert len(slurm["jobs"]) == 3
    assert [len(nodes) for nodes in slurm["jobs"].values()] == [2, 2, 2]
    assert all(len({pool_of(node) for node in nodes}) == 1 for nodes in slurm["jobs"].values())
    assert {pool_of(node) for nodes in slurm["jobs"].values() for node in nodes} == {"alpha", "beta"}


@pytest.mark.slurm
@pytest.mark.containers
def test_a_job_that_can_never_fit_is_refused(slurm: dict[str, Any]) -> None:
    status, said = slurm["refused"]
    assert status != 0
    assert "node" in said.lower()


@pytest.mark.slurm
@pytest.mark.containers
def test_the_hook_is_told_which_nodes_are_for_which_job(slurm: dict[str, Any]) -> None:
    told = {str(job["job_id"]) for record in slurm["resume"] for job in record["resume"]["jobs"]}
    assert told == set(slurm["jobs"])


@pytest.mark.slurm
@pytest.mark.containers
def test_nodes_on_their_way_survive_reconfigure_and_a_restart(slurm: dict[str, Any]) -> None:
    assert slurm["kept"]
    for name, states in slurm["kept"].items():
        assert all("POWERING_UP" in state for state in states), (name, states)


@pytest.mark.slurm
@pytest.mark.containers
def test_the_nodes_join_run_and_go(slurm: dict[str, Any]) -> None:
    assert {job: sorted(nodes) for job, nodes in slurm["ran"].items()} == {
        job: sorted(nodes) for job, nodes in slurm["jobs"].items()
    }
    launched = {node for nodes in slurm["jobs"].values() for node in nodes} - {STATIC}
    assert {slurm["after"][node]["InstanceId"] for node in launched} == {
        f"ocid1.instance.test..{node}" for node in launched
    }
    assert launched <= set(slurm["suspended"])
    assert STATIC not in slurm["suspended"]


@pytest.mark.slurm
@pytest.mark.containers
def test_nodes_fetch_the_whole_configuration(slurm: dict[str, Any]) -> None:
    assert {"slurm.conf", "gres.conf", "cgroup.conf", "mpi.conf", "topology.conf"} <= set(slurm["cached"])


@pytest.mark.slurm
@pytest.mark.containers
def test_a_shell_s_squeue_reports_when_and_why(slurm: dict[str, Any]) -> None:
    head, line = slurm["squeue"].splitlines()
    assert head.split()[:2] == ["JOBID", "PARTITION"]
    assert "START_TIME" in head
    assert line.rstrip().endswith("gpucluster: no capacity, next try at 15:42")
    # Columns that a user has chosen stay.
    assert len(slurm["own_format"]) == len(slurm["format_option"]) == 1


def test_hosts_with_two_versions_of_pmix_have_the_mpi_plugin_of_slurm_itself() -> None:
    # A step of srun on Debian 12 never began on Debian 13: "unable to resolve MPI plugin offset from plugin_id".
    for systems, plugin in ((["Debian-13"], "pmix"), ([], "pmix"), (["Debian-12", "Debian-13"], "pmi2")):
        assert settings(render_slurm({"slurm_systems": systems})["slurm.conf"])["MpiDefault"] == plugin
    # The facts of a host count as well: an image that is named by its OCID has a system that cluster.yml does not name.
    other = host_facts() | {"system": "Debian-12"}
    assert settings(render_slurm({"slurm_systems": ["Debian-13"]}, facts=other)["slurm.conf"])["MpiDefault"] == "pmi2"
