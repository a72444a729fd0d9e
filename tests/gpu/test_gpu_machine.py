"""Jobs with real GPUs below cgroup v2, and what `verify --level full` reports of them; `machine.py` names what is real.

    make test-gpu

It needs Slurm and munge (Debian's and Ubuntu's packages slurmctld, slurmd, slurm-client and munge), a driver of NVIDIA,
and, to measure, an all_reduce_perf of nccl-tests that was built with MPI, on the path or in GPUCLUSTER_ALL_REDUCE_PERF.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from gpucluster import process, shapes
from gpucluster.events import Event
from gpucluster.measuring import results
from gpucluster.measuring.plan import MeasuredPool, Tools
from gpucluster.measuring.survey import Survey
from gpucluster.node_agent.checks.expected import NodeExpectation
from gpucluster.node_agent.checks.model import Finding, Missing, Status
from gpucluster.node_agent.nccl import text_output
from gpucluster.operations.measuring import RemoteSession
from tests.gpu.machine import (
    NCCL_CONF,
    NCCL_SETTINGS,
    SHARED,
    USER,
    Machine,
    bring_agent,
    gpus,
    gpus_of_two_jobs,
    model,
    need_machine,
    node_of,
    uuids,
)
from tests.waiting import PATIENCE_S, wait_for

#: A pool with all GPUs, and two that have half of them each and share a partition.
WHOLE, LEFT, RIGHT, HALVES = "whole", "left", "right", "halves"
AGENT = f"{SHARED}/gpucluster-agent"
MIB = 1 << 20
#: Takes a GPU as long as it runs, with nothing but the driver's library; the GPU's number is its argument.
HOLD = """
import ctypes, signal, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
for status in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), int(sys.argv[1])),
               cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)):
    if status:
        sys.exit(f"CUDA: {status}")
print("held", flush=True)
signal.pause()
"""
#: Computes on the first GPU until it is ended.
BUSY = """
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("busy", flush=True)
while True:
    a @ a
    torch.cuda.synchronize()
"""
#: Takes memory, and touches it; its argument is the number of MiB.
EAT = "import sys; data = bytearray(int(sys.argv[1]) << 20); data[::4096] = b'x' * len(data[::4096]); print('ate')"


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    need_machine()
    found = gpus()
    middle = len(found) // 2
    halves = {LEFT: found[:middle], RIGHT: found[middle:]} if middle else {}
    with Machine({WHOLE: found, **halves}, {LEFT: HALVES, RIGHT: HALVES}) as made:
        bring_agent(made)
        for name, text in {"hold.py": HOLD, "busy.py": BUSY, "eat.py": EAT}.items():
            made.write(f"{SHARED}/{name}", text)
        yield made


@pytest.fixture(scope="module")
def halves(machine: Machine) -> Machine:
    if node_of(LEFT) not in machine.states():
        pytest.skip("this machine has one GPU")
    return machine


# --- what a job may touch -----


def test_a_job_sees_the_gpus_that_it_asked_for_and_no_other(machine: Machine) -> None:
    every = uuids(process.run(["nvidia-smi", "-L"]).stdout)
    none = machine.srun(f"--partition={WHOLE}", "nvidia-smi", "-L", check=False)
    assert uuids(none.stdout) == [], none.stdout
    opened = "import os, sys; os.close(os.open(sys.argv[1], os.O_RDWR))"
    refused = machine.srun(f"--partition={WHOLE}", sys.executable, "-I", "-c", opened, gpus()[0], check=False)
    assert "Operation not permitted" in refused.stderr, refused.stderr
    one = uuids(machine.srun(f"--partition={WHOLE}", "--gpus=1", "nvidia-smi", "-L").stdout)
    assert len(one) == 1
    assert set(one) < set(every) or len(every) == 1
    whole = machine.srun(f"--partition={WHOLE}", f"--gpus={len(every)}", "nvidia-smi", "-L")
    assert sorted(uuids(whole.stdout)) == sorted(every)


def test_each_node_guards_its_own_gpus(halves: Machine) -> None:
    # Only those: slurmd knows no GPU that is not in its part of gres.conf. In a real cluster these are elsewhere.
    script = 'for file in "$@"; do (: <> "$file") 2>/dev/null && echo "$SLURMD_NODENAME $file"; done; true'
    said = halves.srun(
        *(f"--partition={HALVES}", "--nodes=2", "--ntasks-per-node=1", "--mpi=none"),
        *("sh", "-c", script, "sh", *gpus()),
    )
    middle = len(gpus()) // 2
    of_others = {LEFT: gpus()[middle:], RIGHT: gpus()[:middle]}
    assert set(said.stdout.splitlines()) == {
        f"{node_of(pool)} {file}" for pool in of_others for file in of_others[pool]
    }


def test_two_jobs_on_a_node_have_different_gpus(machine: Machine) -> None:
    script = f"nvidia-smi -L; exec {sys.executable} -I {SHARED}/hold.py 0"
    first, second = gpus_of_two_jobs(machine, WHOLE, script, "held")
    assert len(first) == len(second) == 1
    assert first != second


# --- what a job may take, and what it leaves -----


def test_the_limit_of_memory_ends_the_job_that_exceeds_it_and_no_other(machine: Machine) -> None:
    output = f"/home/{USER}/good.out"
    waits = f"{sys.executable} -I {SHARED}/eat.py 300 && while [ ! -e /home/{USER}/go ]; do :; done; echo whole"
    common = (f"--partition={WHOLE}", "--cpus-per-task=1", "--ntasks=1")
    machine.as_user("sbatch", "--quiet", f"--output={output}", "--chdir=/", "--mem=600M", *common, f"--wrap={waits}")
    wait_for("the good job has its memory", lambda: "ate" in machine.read(output), state=machine.logs)
    bad = machine.srun(*common, "--mem=200M", sys.executable, "-I", f"{SHARED}/eat.py", "900", check=False)
    assert bad.returncode != 0
    assert "ate" not in bad.stdout
    assert re.search(r"oom|out of memory", bad.stderr, re.IGNORECASE), bad.stderr
    machine.as_user("touch", f"/home/{USER}/go")
    wait_for("the good job ends well", lambda: "whole" in machine.read(output), state=machine.logs)
    machine.await_idle()


def test_a_process_that_leaves_its_session_ends_with_the_job(machine: Machine) -> None:
    # It would keep its GPU from the next job.
    output = f"/home/{USER}/left.out"
    hold = f"setsid {sys.executable} -I {SHARED}/hold.py 0 > {output} 2>&1 &"
    script = f"{hold} while ! grep -qs held {output}; do :; done"
    machine.srun(f"--partition={WHOLE}", "--gpus=1", "sh", "-c", script)
    machine.await_idle()
    assert machine.run("pgrep", "--full", f"{SHARED}/hold.py", check=False).stdout == ""
    assert process.run(["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]).stdout.strip() == ""


def test_processes_outside_jobs_are_found_and_those_of_jobs_are_not(machine: Machine) -> None:
    _expect(machine)
    output = f"/home/{USER}/job.out"
    script = f"exec {sys.executable} -I {SHARED}/hold.py 0"
    machine.as_user(
        "sbatch", "--quiet", f"--output={output}", "--chdir=/", f"--partition={WHOLE}", "--gpus=1", f"--wrap={script}"
    )
    wait_for("the job holds its GPU", lambda: "held" in machine.read(output), state=machine.logs)
    try:
        assert _check(machine, "epilog", "leftover_processes")["status"] == "pass"
        outside = machine.start(sys.executable, "-I", f"{SHARED}/hold.py", "0")
        try:
            found = wait_for(
                "it is found",
                lambda: (each := _check(machine, "epilog", "leftover_processes"))["status"] != "pass" and each,
            )
            assert "1 process" in found["message"], found
        finally:
            machine.end(outside)
    finally:
        machine.as_user("scancel", "--full", f"--user={USER}", check=False)
        machine.await_idle()


# --- checks of the node -----


def test_the_node_checks_itself(machine: Machine) -> None:
    _expect(machine)
    checks = _report(machine, "boot")
    of_gpus = {name: each for name, each in checks.items() if name.startswith("gpu_")}
    assert of_gpus["gpu_count"]["status"] == "pass", of_gpus["gpu_count"]
    assert {name: each for name, each in of_gpus.items() if each["status"] == "fail"} == {}
    _expect(machine, gpus=len(gpus()) + 1)
    lost = _check(machine, "boot", "gpu_count")
    assert lost["status"] == "fail"
    assert f"{len(gpus())} of {len(gpus()) + 1}" in lost["message"]


def _expect(machine: Machine, **more: Any) -> None:
    shape = _shape()
    expected = NodeExpectation(
        shape=shape.name, hardware_emulated=False, gpus_emulated=False, gpus=len(gpus()), gpu_vendor="nvidia",
        gpu_model=model(), gpu_device_files=tuple(gpus()), gpu_pcie_width=0,
        nvlinks=shape.nvlinks if len(gpus()) > 1 else 0,
        nvlink_gb_per_s=shape.nvlink_gb_per_s if len(gpus()) > 1 else 0, fabric_manager=False, dcgm=False,
        rdma_devices=(), rdma_link_gbps=0, drives=0, memory_mib=0, mounts=(), local_disk="", services=(), mig=(),
        off=(),
    )  # fmt: skip
    machine.write("/etc/gpucluster/checks.json", json.dumps(replace(expected, **more).to_dict()))


def _report(machine: Machine, profile: str) -> Mapping[str, Mapping[str, Any]]:
    said = machine.run(AGENT, "check", "--profile", profile, "--output", "json", check=False)
    return {each["check"]: each for each in json.loads(said.stdout)["findings"]}


def _check(machine: Machine, profile: str, name: str) -> Mapping[str, Any]:
    return _report(machine, profile)[name]


# --- what verify measures -----


def _shape() -> shapes.Shape:
    """A shape with GPUs of this machine's model; the node has as many as the machine."""
    known = [shape for shape in shapes.catalogue().values() if shape.gres_type == model() and shape.nvlinks]
    if not known:
        pytest.skip(f"no shape has GPUs such as those of this machine: {model()}")
    return known[0].model_copy(update={"gpus": len(gpus())})


@pytest.fixture(scope="module")
def program(machine: Machine) -> str:
    """Where all_reduce_perf lies."""
    if len(gpus()) < 2:
        pytest.skip("this machine has one GPU, which exchanges nothing")
    found = os.environ.get("GPUCLUSTER_ALL_REDUCE_PERF") or shutil.which("all_reduce_perf")
    if not found:
        pytest.skip("there is no all_reduce_perf: name it in GPUCLUSTER_ALL_REDUCE_PERF")
    return found


class Verify:
    """Measures the node with all GPUs, as `gpucluster verify --level full` does."""

    def __init__(self, machine: Machine, program: str) -> None:
        self._machine, self._program = machine, program
        self.events: list[Event] = []

    def __call__(self, *, record: bool = False) -> Finding:
        pool = MeasuredPool(WHOLE, WHOLE, _shape(), rdma=False, nodes=1)
        argv = [*self._machine.command_prefix, AGENT, "measure", "serve"]
        with process.ProcessConversation(argv, end_s=PATIENCE_S) as talk:
            session = RemoteSession(talk, self.events.append)
            session.begin(USER, start_s=PATIENCE_S)

            def run(_what: str, jobs: Sequence[Mapping[str, Any]]) -> Mapping[str, results.JobAnswer | Missing]:
                answers = session.run(jobs)
                print(*(each.output for each in answers.values() if isinstance(each, results.JobAnswer)))
                return answers

            tools = Tools(program=self._program)
            survey = Survey(pool, [node_of(WHOLE)], tools, session.nodes(), session.baseline(), run)
            survey.measure()
            if record:
                session.record(survey.entries("now"))
        (found,) = [each for each in survey.findings() if each.check == "nccl_node"]
        return found

    @contextmanager
    def with_settings(self, text: str) -> Iterator[None]:
        """NCCL's settings of all users of the machine, as an administrator may have left them."""
        self._machine.write(NCCL_CONF, NCCL_SETTINGS + text)
        try:
            yield
        finally:
            self._machine.write(NCCL_CONF, NCCL_SETTINGS)


@pytest.fixture(scope="module")
def verify(machine: Machine, program: str) -> Verify:
    return Verify(machine, program)


def busbw(found: Finding) -> float:
    return float(found.evidence["nccl_default"]["busbw"])


def test_verify_finds_what_the_tool_itself_finds(machine: Machine, verify: Verify, program: str) -> None:
    found = verify(record=True)
    assert found.status is Status.PASS, found.message
    # A single process starts no daemons of Open MPI then.
    alone = ("env", "OMPI_MCA_ess_singleton_isolated=1")
    raw = machine.as_user(*alone, program, "-b", "8G", "-e", "8G", "-c", "1", "-g", str(len(gpus())))
    (row,) = [row for row in text_output.parse(raw.stdout.splitlines()).rows if row.size == 8 << 30]
    print(f"verify {busbw(found):.1f} GB/s, all_reduce_perf alone {row}")
    assert busbw(found) == pytest.approx(
        max(half.bus.value for half in (row.out_of_place, row.in_place) if half), rel=0.02
    )


@pytest.mark.parametrize(
    ("settings", "named"),
    [("NCCL_P2P_DISABLE=1\n", "NCCL_P2P_DISABLE"), ("NCCL_MAX_NCHANNELS=1\n", "NCCL_MAX_NCHANNELS")],
    ids=["no direct copies", "one channel"],
)
def test_settings_that_make_it_slow_are_named(verify: Verify, settings: str, named: str) -> None:
    with verify.with_settings(settings):
        found = verify()
    print(found.message)
    assert found.status is Status.FAIL, found.message
    assert named in found.message


def test_a_gpu_that_another_program_uses_fails(machine: Machine, verify: Verify) -> None:
    if machine.run(sys.executable, "-c", "import torch", check=False).returncode:
        pytest.skip("there is no PyTorch, whose program keeps the GPU busy")
    busy = machine.start("sh", "-c", f"exec {sys.executable} {SHARED}/busy.py > /home/{USER}/busy.out 2>&1")
    try:
        wait_for("the GPU is busy", lambda: "busy" in machine.read(f"/home/{USER}/busy.out"))
        found = verify()
    finally:
        machine.end(busy)
    print(found.message)
    assert found.status is Status.FAIL, found.message
    assert f"another program uses a GPU: {node_of(WHOLE)}:" in found.message
    assert "python" in found.message
