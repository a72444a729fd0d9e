"""Accounts and QOS of cluster.yml with a real slurmdbd, MariaDB and slurmctld, beside the users program.

What this does not prove: other releases of Slurm than Debian 13's 24.11, and nodes: no job runs here, jobs wait.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("tomllib", reason="cluster.yml is read on the operator's machine, which has Python 3.11")

from gpucluster.handover.slurm_accounts import accounting
from gpucluster.spec import loads
from tests.controller.users.harness import ACCOUNT, KEY, Controller
from tests.spec.spec_texts import MINIMAL
from tests.waiting import wait_for

pytestmark = [pytest.mark.containers, pytest.mark.slurm]

FULL = """
slurm:
  qos:
    urgent:
      {description: Before all others, priority: 100, preempts: [normal, low], preempt_mode: cancel,
       limits: {gpus: 16, jobs: 5, gpu_hours: 100, job_hours: 36}, user_limits: {gpus: 8, submitted_jobs: 3}}
    low: {}
  accounts:
    vision:
      {description: Vision team, parent: science, fairshare: 30, qos: [normal, urgent], users: [alice, bob],
       limits: {jobs: 50, submitted_jobs: 2, cpus: 640, gpus: 64, nodes: 8,
                cpu_hours: 10, gpu_hours: 5000, job_hours: 6}}
    science: {fairshare: 70}
"""
LESS = """
slurm:
  qos: {low: {}}
  accounts:
    vision: {description: Vision team, qos: [], limits: {gpus: 32}}
    science: {fairshare: 70}
"""


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    with Controller(slurm=True) as started:
        yield started


def apply(controller: Controller, text: str, what: str = "apply") -> Mapping[str, Any]:
    wanted = {**accounting(loads(MINIMAL + text)), "cluster": "demo", "default_account": ACCOUNT}
    members = json.dumps(wanted["members"])
    script = "import json,sys;p='/etc/gpucluster/directory.json';c=json.load(open(p));"
    script += f"c['slurm']['members']={members};open(p,'w').write(json.dumps(c))"
    controller.run("python3", "-c", script)
    status, out, err = controller.run("gpucluster-agent", "accounts", what, given=json.dumps(wanted), check=False)
    assert status == 0, err
    answer = json.loads(out)
    assert isinstance(answer, dict)
    return answer


def show(controller: Controller, *words: str) -> list[str]:
    return controller.run("sacctmgr", "--noheader", "--parsable2", "show", *words)[1].splitlines()


def submit(controller: Controller, user: str, *options: str) -> str:
    script = ("sbatch", "--chdir=/", "--output=/dev/null", *options, "--wrap=true")
    status, out, err = controller.run("runuser", "-u", user, "--", *script, check=False)
    return out if status == 0 else err


def admin(controller: Controller, *words: str) -> None:
    controller.run("sacctmgr", "--immediate", *words)


def associations(controller: Controller, *columns: str) -> dict[str, list[str]]:
    rows = [
        row.split("|") for row in show(controller, "associations", "wopl", f"format=account,user,{','.join(columns)}")
    ]
    return {f"{row[0]}/{row[1]}".rstrip("/"): row[2:] for row in rows}


def test_accounts_are_made_hold_and_are_taken_back(controller: Controller) -> None:
    for name in ("alice", "carol"):
        controller.request("user.add", name=name, ssh_keys=[KEY])
    # What an administrator has made, before and besides.
    admin(controller, "add", "account", "lab", "cluster=demo")
    admin(controller, "modify", "account", "lab", "set", "GrpJobs=7")
    assert apply(controller, "", "plan") == {"changed": False, "commands": [], "kept": []}
    assert apply(controller, FULL, "plan")["changed"] is True
    assert "vision" not in associations(controller, "fairshare")

    assert apply(controller, FULL)["changed"] is True
    assert apply(controller, FULL) == {"changed": False, "commands": [], "kept": []}
    limits = associations(
        controller, "parentname", "share", "grpjobs", "grpsubmit", "grptres", "grptresmins", "maxwall"
    )
    assert limits["vision"] == [
        "science", "30", "50", "2", "cpu=640,gres/gpu=64,node=8", "cpu=600,gres/gpu=300000", "06:00:00",
    ]  # fmt: skip
    assert limits["science"] == ["root", "70", "", "", "", "", ""]
    assert limits["lab"][2] == "7"
    columns = "priority,preempt,preemptmode,grptres,grpjobs,grptresmins,maxwall,maxtrespu,maxsubmitpu"
    assert show(controller, "qos", "urgent", f"format={columns}") == [
        "100|low,normal|cancel|gres/gpu=16|5|gres/gpu=6000|1-12:00:00|gres/gpu=8|3"
    ]

    # The users program gives users the accounts of the file, those that it makes later, too.
    assert controller.request("converge", people=[{"name": "alice"}])["changed"] is True
    assert controller.request("converge", people=[{"name": "alice"}])["changed"] is False
    controller.request("user.add", name="bob")
    mine = associations(controller, "maxsubmitjobs")
    assert {"vision/alice", f"{ACCOUNT}/alice", "vision/bob", f"{ACCOUNT}/carol"} <= mine.keys()
    assert "vision/carol" not in mine
    assert "Submitted" in submit(controller, "alice", "--account=vision", "--qos=urgent")
    assert "Submitted" in submit(controller, "alice", "--account=vision")
    assert "AssocGrpSubmitJobsLimit" in submit(controller, "bob", "--account=vision")
    assert "Invalid qos" in submit(controller, "alice", "--qos=urgent")
    assert "Invalid account" in submit(controller, "carol", "--account=vision")
    # To disable and enable a user is about all of their accounts; another account of their own keeps those of the file.
    controller.request("user.disable", name="bob")
    assert {row[0] for name, row in associations(controller, "maxsubmitjobs").items() if "/bob" in name} == {"0"}
    controller.request("user.enable", name="bob")
    controller.request("user.edit", name="bob", slurm_account="lab")
    mine = associations(controller, "maxsubmitjobs")
    assert {name: row for name, row in mine.items() if "/bob" in name} == {"lab/bob": [""], "vision/bob": [""]}


def test_what_leaves_the_file_goes_when_nothing_uses_it(controller: Controller) -> None:
    # Set by hand, besides what the file has.
    admin(controller, "modify", "account", "vision", "set", "MaxJobs=9")
    said = apply(controller, LESS)
    assert sorted(said["kept"]) == [
        "QOS urgent has left cluster.yml and stays: there are jobs that have not ended",
        "user alice of account vision has left cluster.yml and stays: there are jobs that have not ended",
    ]
    limits = associations(controller, "parentname", "share", "grpjobs", "grptres", "grptresmins", "maxwall", "maxjobs")
    assert limits["vision"] == ["root", "1", "", "gres/gpu=32", "", "", "9"]
    assert "vision/bob" not in limits
    assert apply(controller, LESS)["changed"] is False

    controller.run("scancel", "--user=alice")
    # slurmctld tells the accounting later, which keeps what has jobs that are not over.
    ended = "SELECT COUNT(*) FROM demo_job_table WHERE time_end"
    words = ("mariadb", "slurm_acct_db", "--batch", "--skip-column-names", f"--execute={ended}")
    wait_for("the accounting has the end of both jobs", lambda: controller.run(*words)[1] == "2\n")
    said = apply(controller, "")
    assert said["kept"] == []
    left = associations(controller, "share")
    assert not {"vision", "science", "vision/alice"} & left.keys()
    assert {"lab", "lab/bob", ACCOUNT, f"{ACCOUNT}/alice"} <= left.keys()
    assert show(controller, "qos", "format=name") == ["normal"]
    assert apply(controller, "") == {"changed": False, "commands": [], "kept": []}
    assert controller.run("test", "-e", "/var/lib/gpucluster-directory/slurm-accounts.json", check=False)[0] == 1


def test_an_account_with_users_stays_and_is_said(controller: Controller) -> None:
    apply(controller, LESS)
    controller.request("user.edit", name="carol", slurm_account="science")
    said = apply(controller, "")
    (line,) = said["kept"]
    assert line.startswith("account science has left cluster.yml and stays: it has users: carol.")
    assert apply(controller, "")["kept"] == [line]
    controller.request("user.edit", name="carol", slurm_account=ACCOUNT)
    assert apply(controller, "")["kept"] == []
    assert "science" not in associations(controller, "share")
