"""What each host has measured of itself: each fault is found, named, and reported with what to do."""

# ruff: noqa: E501

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tests.verdict.samples import (
    CLUSTER,
    FULL,
    HEAD,
    MESH,
    NODES,
    Facts,
    facts,
    lines,
    verdict,
)

Spoil = Callable[[Facts], Any]

#: What is spoiled, which line states this, what of, how it ends, and what it reports.
SPOILED: list[tuple[str, Spoil, str, str, str]] = [
    ("a silent host", lambda f: f.pop("compute-2"), "host_answers", "unknown", "compute-2: it has sent no facts"),
    ("a wrong name", lambda f: f["compute-1"].update(hostname="x"), "host_answers", "fail", "compute-1: has the host name x"),
    ("no mount", lambda f: f["compute-1"]["home_fs"].update(mounted=False), "home_share", "fail", "compute-1: not mounted"),
    ("another share", lambda f: f["compute-2"].update(home_token_seen=False), "home_share", "fail", "compute-2: does not have the file that the controller wrote"),
    ("an unknown user", lambda f: f["compute-2"]["user_ids"].update(alice=""), "users_resolve", "fail", "compute-2: does not know alice"),
    ("two uids", lambda f: f["compute-2"]["user_ids"].update(alice="9:9999"), "users_agree", "fail", "alice has different ids: 10001:9999, 9:9999"),
    ("a wrong group", lambda f: f[HEAD]["user_ids"].update(alice="10001:5"), "users_resolve", "fail", f"{HEAD}: alice is in group 5, not 9999"),
    ("an unknown group", lambda f: f["compute-2"]["group_ids"].update(hpc=""), "directory_groups", "fail", "compute-2: does not know hpc"),
    ("users reach the identity", lambda f: f[HEAD]["cloud_services"].update(nobody=["metadata"]), "cloud_services", "fail", f"{HEAD}: any user reaches the metadata"),
    ("users reach a disk", lambda f: f["compute-1"]["cloud_services"].update(nobody=["boot volume"]), "cloud_services", "fail", "compute-1: any user reaches the boot volume"),
    ("nobody tried", lambda f: f["compute-2"].pop("cloud_services"), "cloud_services", "unknown", "compute-2: not tried"),
    ("closed firewall", lambda f: f["compute-1"].update(firewall={"state": "failed", "words": "no nft"}), "firewall", "fail", "compute-1: no nft"),
    ("a firewall nobody opened", lambda f: f[HEAD].update(firewall={"state": "", "words": ""}), "firewall", "fail", f"{HEAD}: gpucluster-firewall has not run"),
    ("one host does not say it", lambda f: f["compute-1"].pop("firewall"), "firewall", "unknown", "compute-1: the host has not reported it"),
    ("an old agent", lambda f: f["compute-1"].update(versions=None), "known_faults", "unknown", "compute-1: its agent does not say what it runs; gpucluster apply brings one that does"),
    ("versions of another form", lambda f: f["compute-1"].update(versions=[]), "known_faults", "unknown", "compute-1: this is not a list of versions: list indices must be integers or slices, not str"),
    ("a login node without Slurm", lambda f: f["demo-login-1"].update(slurm_error="no route to host"), "login_slurm", "fail", "demo-login-1: no route to host"),
    ("a silent login node", lambda f: f.pop("demo-login-1"), "login_slurm", "unknown", "demo-login-1: it has sent no facts"),
    ("all may log in", lambda f: f[HEAD].update(ssh_groups=[]), "controller_logins", "fail", "its ssh server lets alice in"),
    ("users may log in", lambda f: f[HEAD].update(ssh_groups=["root", "people"]), "controller_logins", "fail", "its ssh server lets alice in"),
    ("its ssh server is silent", lambda f: f[HEAD].update(ssh_groups=None), "controller_logins", "unknown", "the controller's ssh server does not report the users that it accepts"),
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
