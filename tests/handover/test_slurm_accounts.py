"""Accounts and QOS by the names of sacctmgr, and what of slurm.conf they need."""

from __future__ import annotations

import pytest

from gpucluster.handover.slurm_accounts import accounting
from gpucluster.spec import loads
from tests.spec.spec_texts import MINIMAL

FLAGS = ("fair_share", "priorities", "preempts", "safe")


def test_a_cluster_without_accounts_needs_nothing() -> None:
    assert accounting(loads(MINIMAL)) == {"qos": {}, "accounts": {}, "members": {}, **dict.fromkeys(FLAGS, False)}


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("accounts: {a: {fairshare: 2}}", "fair_share"),
        ("qos: {a: {priority: 2}}", "priorities"),
        ("qos: {a: {preempts: [normal]}}", "preempts"),
        ("accounts: {a: {limits: {gpu_hours: 1}}}", "safe"),
        ("qos: {a: {limits: {cpu_hours: 1}}}", "safe"),
        ("accounts: {a: {limits: {gpus: 1, job_hours: 4}}}", ""),
    ],
)
def test_slurm_conf_changes_only_where_it_has_to(text: str, flag: str) -> None:
    said = accounting(loads(f"{MINIMAL}slurm: {{{text}}}\n"))
    assert [name for name in FLAGS if said[name]] == ([flag] if flag else [])


def test_settings_are_written_as_sacctmgr_prints_them() -> None:
    limits = "limits: {gpus: 4, gpu_hours: 2, job_hours: 25}"
    said = accounting(
        loads(f"{MINIMAL}slurm: {{accounts: {{a: {{description: The A, qos: [b], {limits}}}}}, qos: {{b: {{}}}}}}\n")
    )
    assert said["accounts"]["a"] == {
        "parent": "root",
        "settings": {
            "Description": "the a",
            "GrpTRES.gres/gpu": "4",
            "GrpTRESMins.gres/gpu": "120",
            "MaxWall": "1-01:00:00",
            "QOS": "b",
            "DefaultQOS": "b",
        },
    }
    assert said["qos"]["b"]["settings"] == {"Priority": "0", "PreemptMode": "requeue"}
