"""The watcher beside a training on real GPUs in a job of a real Slurm, with planted faults. See `machine.py`.

It needs PyTorch with NCCL 2.24 or later, and two GPUs. The file of the job, which the prolog writes on a node, is
written by the test. With `--hang 30` a fault is named within a minute after it begins; `-rP` shows the seconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from tests.gpu.machine import SHARED, USER, Machine, bring_agent, gpus, need_machine
from tests.waiting import PATIENCE_S, wait_for

POOL = "whole"
JOBS, SEEN, LOG = "/run/gpucluster/jobs", "/run/gpucluster-watch/jobs.json", "/var/log/watch.log"
HANG_S = 30
#: A training of two ranks. Its arguments: the fault of rank 1 or the phase of both, and the step at which it begins.
TRAIN = """
import datetime, os, signal, sys, time
import torch, torch.distributed, torch.multiprocessing

def compute(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass

def rank(number, fault, at):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    torch.cuda.set_device(number)
    hour = datetime.timedelta(hours=1)
    torch.distributed.init_process_group("nccl", rank=number, world_size=2, timeout=hour)
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    gradients = torch.ones(64 << 20, device="cuda")
    step = 0
    while True:
        step += 1
        if step == at and number == 1:
            print("begins", time.monotonic(), flush=True)
            if fault == "never comes":
                signal.pause()
            if fault == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            if fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "another operation":
                torch.distributed.broadcast(gradients, 1)
        if step >= at and fault == "slow" and number == 1:
            compute(0.2)
        if step == at and (fault == "loads data" or (fault == "checkpoint" and number == 0)):
            compute(60)
        for _ in range(4):
            matrix @ matrix
        torch.distributed.all_reduce(gradients)
        torch.cuda.synchronize()
        healthy = fault in ("loads data", "checkpoint", "none")
        if healthy and number == 1 and step > at + (8000 if fault == "none" else 500):
            print("over", flush=True)

if __name__ == "__main__":
    spawn = torch.multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=rank, args=(number, sys.argv[1], int(sys.argv[2]))) for number in (0, 1)]
    for each in ranks:
        each.start()
    print("pids", *(each.pid for each in ranks), flush=True)
    for each in ranks:
        each.join()
"""


class Training(NamedTuple):
    """A job that runs, and the processes of its ranks."""

    id: str
    output: str
    pids: tuple[int, ...]


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    need_machine()
    if len(gpus()) < 2:
        pytest.skip("this machine has one GPU")
    with Machine({POOL: gpus()[:2]}, {}) as made:
        if made.run(sys.executable, "-c", "import torch", check=False).returncode:
            pytest.skip("there is no PyTorch")
        bring_agent(made)
        made.write(f"{SHARED}/train.py", TRAIN)
        yield made


@contextmanager
def watched(machine: Machine, fault: str, at: int = 1500) -> Iterator[Training]:
    """A training with this fault, and a watcher."""
    output = f"/home/{USER}/train.out"
    machine.run("rm", "--force", output, SEEN, LOG)
    words = ("sbatch", "--parsable", f"--output={output}", "--chdir=/", f"--partition={POOL}", "--gpus=2", "--mem=0")
    wrapped = f"exec {sys.executable} -u {SHARED}/train.py '{fault}' {at}"
    job = machine.as_user(*words, f"--wrap={wrapped}").stdout.strip()
    content = {"version": 1, "job_id": job, "user": USER, "gpus": ["0", "1"]}
    machine.write(f"{JOBS}/{job}.json", json.dumps(content))
    machine.run("mkdir", "--parents", SEEN.rpartition("/")[0])
    command = f"exec {SHARED}/gpucluster-agent watch serve --hang {HANG_S} --jobs {JOBS} --file {SEEN} 2> {LOG}"
    watcher = machine.start("sh", "-c", command, user="root")
    try:
        wait_for("it begins", lambda: "begins" in machine.read(output), interval=1, state=lambda: machine.read(output))
        pids = next(line.split()[1:] for line in machine.read(output).splitlines() if line.startswith("pids"))
        yield Training(job, output, tuple(map(int, pids)))
    finally:
        machine.end(watcher)
        machine.run("rm", f"{JOBS}/{job}.json")
        # Rank 1 may be stopped.
        machine.run("scancel", "--full", "--signal=KILL", job, check=False)
        machine.await_idle()


def seen(machine: Machine, training: Training) -> Mapping[str, Any]:
    """What the watcher reports of the job; empty where it has not looked."""
    text = machine.read(SEEN)
    jobs = json.loads(text)["jobs"] if text else []
    return next((job for job in jobs if job["job_id"] == training.id), {})


@pytest.mark.parametrize(
    ("fault", "state", "named"),
    [
        ("never comes", "hung", True),
        ("stopped", "hung", True),
        ("killed", "hung", True),
        ("another operation", "hung", False),
        ("slow", "straggling", True),
    ],
)
def test_a_fault_is_seen_and_its_rank_is_named(machine: Machine, fault: str, state: str, named: bool) -> None:
    with watched(machine, fault) as training:
        (found,) = wait_for(
            f"the job is {state}",
            lambda: [each for each in [seen(machine, training)] if each.get("state") == state],
            patience=2 * PATIENCE_S,
            interval=1,
            state=lambda: (machine.read(LOG), machine.read(SEEN)),
        )
        begun = next(line.split()[1] for line in machine.read(training.output).splitlines() if "begins" in line)
        at = json.loads(machine.read(SEEN))["at"]
        print(f"{fault}: {found['state']} after {at - float(begun):.0f} s: {found['words']} (rank {found['rank']})")
        if named:
            # A process that is stopped may be the one that has RAS; then its rank is not known.
            assert found["rank"] == "1" or f"process {training.pids[1]} " in found["words"], found


@pytest.mark.parametrize("phase", ["none", "loads data", "checkpoint"])
def test_a_healthy_training_is_not_accused(machine: Machine, phase: str) -> None:
    with watched(machine, phase) as training:
        wait_for("it goes on", lambda: "over" in machine.read(training.output), patience=2 * PATIENCE_S, interval=1)
        looked = seen(machine, training)
        wait_for("the watcher looks again", lambda: seen(machine, training) not in ({}, looked) or looked, interval=1)
        said = machine.read(LOG)
        print(f"{phase}: {seen(machine, training)}; {said}")
        assert all(word not in said for word in ("hung", "straggling")), said
