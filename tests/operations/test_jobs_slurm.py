"""Jobs of a real Slurm, submitted, watched and cancelled by the program on the controller.

Slurm and the program are real, and the home share is a mounted file system of the container. Each node is the same
machine. Of the operator's side only the conversation is here; its decisions are in tests/operations/test_jobs.py, and
the whole of it is in tests/e2e.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpucluster import process
from gpucluster.errors import InputError, ToolError
from gpucluster.operations.rpc import RemoteConversation
from tests.agent_program import install
from tests.autoscaler.slurm_harness import HOOKS, SlurmHarness, SlurmPool
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slurm, pytest.mark.containers]

AGENT = ("python3", "-I", str(HOOKS / "gpucluster-agent"), "jobs", "serve")
SHARE, USER = "/share", "alice"
OUTPUT = "job-{job}.out"


class Site:
    """A Slurm with two nodes, and a share with the home of a user."""

    def __init__(self, slurm: SlurmHarness) -> None:
        self.slurm = slurm
        install(slurm.folder / "bin")
        for folder in (slurm.folder, slurm.folder / "bin"):
            folder.chmod(0o755)
        slurm.run("sh", "-c", f"mkdir {SHARE} && mount -t tmpfs -o mode=755 share {SHARE}")
        slurm.run("useradd", "--create-home", "--home-dir", f"{SHARE}/{USER}", USER)
        for name in ("a-1", "a-2"):
            slurm.start_slurmd(name)
        self.idle()

    @contextlib.contextmanager
    def session(self) -> Iterator[RemoteConversation]:
        with process.ProcessConversation([*self.slurm.command_prefix, *AGENT], end_s=PATIENCE_S) as talk:
            yield RemoteConversation(talk)

    def submit(self, body: str, *words: str, **more: Any) -> dict[str, Any]:
        text = f"#!/bin/bash\n#SBATCH --output=job-%j.out\n{body}\n"
        with self.session() as talk:
            made: dict[str, Any] = talk.ask(
                "submit",
                **{
                    "user": USER, "share": SHARE, "template": "mpi", "script": "job.sbatch", "words": list(words),
                    "files": {"job.sbatch": {"text": text, "executable": True}, "data": {"text": "beside"}},
                    "record": {"output": OUTPUT, "job": {}}, **more,
                },
            )  # fmt: skip
        return made

    def idle(self) -> None:
        names = self.slurm.names()
        self.slurm.until("the nodes are idle", lambda: all(self.slurm.flags(name) == {"IDLE"} for name in names))

    def state(self, job: str) -> str:
        return self.slurm.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").stdout.strip()

    def sh(self, script: str) -> str:
        return self.slurm.run("sh", "-c", script).stdout.strip()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    pool = SlurmPool("a-", 2, "main", cloud=False)
    with SlurmHarness([pool], extra={"SchedulerParameters": "sched_interval=2"}) as slurm:
        yield Site(slurm)


def test_a_job_is_the_users_own_and_its_output_comes_back(site: Site) -> None:
    made = site.submit(
        'id -un; env | cut -d= -f1 | grep -c SUDO; pwd; cat "$SLURM_SUBMIT_DIR/data"; echo TOKEN=abc', "--nodes=2"
    )
    told: list[Any] = []
    with site.session() as talk:
        seen = talk.ask("wait", told.append, id=made["id"])
        answer = talk.ask("output", id=made["id"])
        kept = talk.ask("result", id=made["id"], result={"status": "pass"})["file"]
    assert (seen["state"], seen["ended"], seen["exit_status"]) == ("COMPLETED", True, 0)
    assert told[-1]["state"] == "COMPLETED"
    assert answer["output"].splitlines() == [USER, "0", made["folder"], "besideTOKEN=[removed]"]
    assert (answer["user"], answer["record"]["template"]) == (USER, "mpi")
    assert site.sh(f"stat -c %U:%a {kept} {made['folder']}").split() == [f"{USER}:600", f"{USER}:700"]
    with site.session() as talk:
        assert talk.ask("output", id=made["id"])["result"] == {"status": "pass"}


def test_jobs_that_have_not_ended_are_listed(site: Site) -> None:
    """Whatever a user calls a job, its line has the other fields at their places."""
    running = site.submit("sleep 600", "--nodes=2", "--job-name=a|b|c d")
    waiting = site.submit("true", "--nodes=2", "--job-name=next")
    try:
        with site.session() as talk:
            talk.ask("wait", id=running["id"], seconds=0)
            site.slurm.until("the first job runs", lambda: site.state(running["id"]) == "RUNNING")

            def listed_jobs() -> dict[str, dict[str, str]]:
                return {each["id"]: each for each in talk.ask("list")["jobs"]}

            site.slurm.until("Slurm has a reason for the second", lambda: listed_jobs()[waiting["id"]]["reason"])
            listed = listed_jobs()
        assert list(listed) == [running["id"], waiting["id"]]
        first, second = listed[running["id"]], listed[waiting["id"]]
        assert (first["name"], first["user"], first["state"], first["nodes"]) == ("a|b|c d", USER, "RUNNING", "a-[1-2]")
        assert (second["name"], second["state"]) == ("next", "PENDING")
        assert second["reason"] in {"Priority", "Resources"}
    finally:
        with site.session() as talk:
            for each in (waiting, running):
                talk.ask("cancel", id=each["id"])
    site.idle()


def test_an_output_is_followed_line_by_line_and_no_secret_is_cut_in_two(site: Site) -> None:
    # It ends its line when it is told.
    made = site.submit('cd "$SLURM_SUBMIT_DIR"; mkfifo go; echo one; printf TOKEN=; cat go; echo abc; printf end')
    with site.session() as talk:
        site.slurm.until("the first line is there", lambda: "one" in talk.ask("read", id=made["id"])["text"])
        first = talk.ask("read", id=made["id"], offset=0)
        assert (first["text"], first["ended"]) == ("one\n", False), "the line that has not ended waits"
        site.sh(f": > {made['folder']}/go")
        talk.ask("wait", id=made["id"])
        second = talk.ask("read", id=made["id"], offset=first["offset"])
        assert (second["text"], second["ended"]) == ("TOKEN=[removed]\nend", True)
        assert talk.ask("read", id=made["id"], offset=second["offset"])["text"] == ""
        for wrong in (-1, "0", True):
            with pytest.raises(InputError, match="not a place in a file"):
                talk.ask("read", id=made["id"], offset=wrong)


def test_who_waits_may_go_and_the_job_goes_on(site: Site) -> None:
    """The connection ends (Ctrl-C, kill -9 of the operator's command), or the program on the controller is killed."""
    made = site.submit("sleep 600")
    for way in ("connection", "program"):
        argv = [*site.slurm.command_prefix, *AGENT]
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps({"operation": "wait", "arguments": {"id": made["id"]}}) + "\n")
        child.stdin.flush()
        assert '"RUNNING"' in "".join(_until_running(child))
        if way == "connection":
            child.stdin.close()
        else:
            inside = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()[0]
            subprocess.run(["kill", f"-{signal.SIGKILL.value}", inside], check=True)
            child.stdin.close()
        child.stdout.close()
        child.wait(timeout=PATIENCE_S)
        assert site.state(made["id"]) == "RUNNING"
    with site.session() as talk:
        seen = talk.ask("wait", id=made["id"], seconds=0)
        assert (seen["state"], seen["ended"]) == ("RUNNING", False)
        talk.ask("cancel", id=made["id"])
        assert talk.ask("wait", id=made["id"])["state"] == "CANCELLED"


def _until_running(child: subprocess.Popen[str]) -> Iterator[str]:
    assert child.stdout is not None
    for line in child.stdout:
        yield line
        if '"RUNNING"' in line:
            return


def test_slurmctld_may_restart_while_a_client_waits(site: Site) -> None:
    made = site.submit("sleep 600")
    site.slurm.until("it runs", lambda: site.state(made["id"]) == "RUNNING")
    told: list[Any] = []
    with site.session() as talk:

        def on_progress(found: Any) -> None:
            if not told:
                site.slurm.restart_slurmctld(kill=False)
                site.slurm.scancel(made["id"])
            told.append(found)

        assert talk.ask("wait", on_progress, id=made["id"])["state"] == "CANCELLED"
    assert told[0]["state"] == "RUNNING"


def test_why_a_job_waits_is_reported_and_one_that_never_ran_ends(site: Site) -> None:
    site.idle()  # slurmctld was restarted
    with site.session() as talk:
        answer = talk.ask("check", user=USER, share=SHARE, partition="main", nodes=3, requirements=[])
        assert answer["nodes"] == "the partition main has 2 nodes, and the job wants 3"
        none = talk.ask("check", user=USER, share=SHARE, partition="no'such", nodes=1, requirements=[])
        assert none["nodes"] == "Slurm has no partition no'such"
    site.slurm.scontrol("update", "nodename=a-2", "state=drain", "reason=a person's")
    try:
        with site.session() as talk:
            two = talk.ask("check", user=USER, share=SHARE, partition="main", nodes=2, requirements=[])
        assert (two["nodes"], two["delayed"][:24]) == ("", "only 1 of 2 nodes of the")
        made = site.submit("true", "--nodes=2")
        told: list[Any] = []
        with site.session() as talk:

            def on_progress(found: Any) -> None:
                told.append(found)
                if found["reason"] not in ("", "None", "Priority"):
                    site.slurm.scancel(made["id"])

            seen = talk.ask("wait", on_progress, id=made["id"])
        assert (seen["state"], seen["ended"]) == ("CANCELLED", True)
        assert any("Node" in each["reason"] or "Resources" in each["reason"] for each in told), told
        with site.session() as talk:
            assert talk.ask("output", id=made["id"])["output"] == ""
    finally:
        site.slurm.scontrol("update", "nodename=a-2", "state=resume", check=False)


def test_what_slurm_refuses_leaves_nothing(site: Site) -> None:
    before = site.sh(f"ls {SHARE}/{USER}/gpucluster-jobs")
    with pytest.raises(ToolError, match=r"Slurm does not take the job: .*Invalid partition"):
        site.submit("true", "--partition=none")
    for change in (
        {"user": "nobody there"},
        {"user": "root"},
        {"words": ["script"]},
        {"share": "/elsewhere"},
        {"script": "x"},
    ):
        with pytest.raises(InputError):
            site.submit("true", **change)
    assert site.sh(f"ls {SHARE}/{USER}/gpucluster-jobs") == before


def test_jobs_of_others_and_numbers_that_are_none_are_refused(site: Site) -> None:
    other = site.slurm.sbatch("--job-name=UserId=root(0) JobState='x'", script="true")
    own = site.sh(f"runuser -u {USER} -- sbatch --parsable --chdir=/tmp --output=/dev/null --wrap true")
    with site.session() as talk:
        for job, said in (
            (other, "no user|root has no jobs"),
            (own, "was not submitted by"),
            ("999999", "does not know"),
        ):
            with pytest.raises(InputError, match=said):
                talk.ask("output", id=job)
        for job in ("", "1;reboot", "0", "-1", "1_2"):
            with pytest.raises(InputError, match="not a job id"):
                talk.ask("wait", id=job)


def test_two_submissions_at_once_are_two_jobs(site: Site) -> None:
    with ThreadPoolExecutor(2) as at_once:
        made = list(at_once.map(site.submit, ["true", "true"]))
    assert len({each["id"] for each in made}) == len({each["folder"] for each in made}) == 2
    with site.session() as talk:
        assert {talk.ask("wait", id=each["id"])["state"] for each in made} == {"COMPLETED"}
