"""The verdict: facts in, checks out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from gpucluster.verify import Check, Expectation, judge, passed

EXPECTED = Expectation(
    hosts=["demo-controller", "compute-1", "compute-2"],
    pools={"compute": ["compute-1", "compute-2"]},
    people=["alice"],
    home_mount_path="/mnt/home",
    users_gid=9876,
    accounting=True,
)


def _host(name: str) -> dict[str, Any]:
    return {
        "hostname": name,
        "home_fs": {"source": "10.0.1.2:/mnt/home", "fstype": "nfs", "mounted": True},
        "home_token_seen": True,
        "user_ids": {"alice": "10001:9876"},
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
    checks = judge(EXPECTED, _facts())
    assert passed(checks), checks
    assert len(checks) == 6


Spoil = Callable[[dict[str, dict[str, Any]]], Any]
HEAD = "demo-controller"
HOME, USERS = "/mnt/home is one file system", "directory users resolve"
READY, JOB = "pool compute is ready in Slurm", "a two-node job runs in pool compute"
SPOILED: list[tuple[str, Spoil, str, str]] = [
    ("a silent host", lambda f: f.pop("compute-2"), "hosts answer", "fail"),
    ("a wrong name", lambda f: f["compute-1"].update(hostname="x"), "hosts answer", "fail"),
    ("no mount", lambda f: f["compute-1"]["home_fs"].update(mounted=False), HOME, "fail"),
    ("another share", lambda f: f["compute-2"].update(home_token_seen=False), HOME, "fail"),
    ("an unknown user", lambda f: f["compute-2"]["user_ids"].update(alice=None), USERS, "fail"),
    ("two uids", lambda f: f["compute-2"]["user_ids"].update(alice="9:9876"), USERS, "fail"),
    ("a wrong group", lambda f: [h["user_ids"].update(alice="10001:5") for h in f.values()], USERS, "fail"),
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
    checks = judge(EXPECTED, facts)
    assert not passed(checks)
    assert {check.name: check.status for check in checks}[name] == status


def test_nothing_seen_is_no_pass() -> None:
    assert not passed(judge(EXPECTED, {}))
    assert not passed([])
    assert not passed([Check("x", "not_run", "")])
