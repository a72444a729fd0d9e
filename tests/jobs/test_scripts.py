"""Scripts as Slurm runs them, with a double of its commands: values arrive, ranks learn who they are, what is missing
is reported."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpucluster import shapes
from gpucluster.jobs import choose, outputs, registry
from gpucluster.jobs.model import EXIT_REQUIREMENT, Rendered
from gpucluster.jobs.render import render
from tests.agent_program import install
from tests.jobs.slurm_steps import program, run
from tests.node_agent.nccl.outputs import TUNED, output

pytestmark = pytest.mark.slow


def rendered(
    name: str, launcher: str, given: dict[str, str] | None = None, *, shape: str = "", gpus: int | None = None
) -> Rendered:
    template = registry.template(name)
    job = choose.describe(
        template, registry.launcher(template, launcher), given or {},
        nodes=2, shape=shapes.get(shape) if shape else None, gpus=gpus,
    )  # fmt: skip
    return render(job)


#: A training that only prints what it was told.
TOLD = (
    "#!/bin/bash\n"
    "case $1 in -c) exit 0 ;; esac\n"
    'printf "%s\\n" "$RANK/$WORLD_SIZE local $LOCAL_RANK at $MASTER_ADDR:$MASTER_PORT"\n'
    'printf "%s\\0" "$@" > "$DOUBLE/training"\n'
)


@pytest.mark.parametrize(
    ("launcher", "local"), [("srun", ["0", "1", "0", "1"]), ("pyxis", ["0", "1", "0", "1"]), ("mpirun", list("0123"))]
)
def test_each_rank_learns_who_it_is_and_how_to_find_the_first(tmp_path: Path, launcher: str, local: list[str]) -> None:
    program(tmp_path, "python3", TOLD)
    image = {"image": "registry.example#org/torch:2"} if launcher == "pyxis" else {}
    ran = run(rendered("pytorch_ddp", launcher, {"ranks_per_node": "2", "synthetic": "10", **image}), tmp_path)
    assert ran.status == 0, ran.err
    told = [line for line in ran.out.splitlines() if "local" in line]
    assert told == [f"{rank}/4 local {local[rank]} at gpu-2:20007" for rank in range(4)]


def test_torchrun_is_told_its_node_and_the_first(tmp_path: Path) -> None:
    program(
        tmp_path, "python3", '#!/bin/bash\n[[ $2 == *torch.distributed* ]] || exit 0\nprintf "%s " "${@:3}"; echo\n'
    )
    ran = run(rendered("pytorch_ddp", "torchrun", {"ranks_per_node": "2", "synthetic": "10"}), tmp_path)
    assert ran.status == 0, ran.err
    told = [line.split() for line in ran.out.splitlines() if "--node_rank" in line]
    assert [words[:5] for words in told] == [
        [f"--node_rank={node}", "--nnodes=2", "--nproc_per_node=2", "--master_addr=gpu-2", "--master_port=20007"]
        for node in (0, 1)
    ]
    assert told[0][5] == f"{tmp_path}/train.py"


def test_mpirun_gets_the_nodes_in_order_and_the_environment(tmp_path: Path) -> None:
    program(tmp_path, "python3", TOLD)
    ran = run(rendered("pytorch_ddp", "mpirun", {"ranks_per_node": "2", "synthetic": "10"}), tmp_path)
    words = ran.calls["mpirun"][-1]
    assert words[:8] == ["-np", "4", "--host", "gpu-2:2,gpu-10:2", "--map-by", "ppr:2:node", "--bind-to", "none"]
    assert words[8:12] == ["-x", "MASTER_ADDR", "-x", "MASTER_PORT"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(min_size=1), st.text())
@pytest.mark.parametrize("launcher", ["srun", "pyxis"])
def test_values_arrive_unchanged(launcher: str, data: str, mounts: str) -> None:
    template = registry.template("pytorch_ddp")
    by = registry.launcher(template, launcher)
    try:
        for text in (data, mounts):
            registry.launcher(template, "pyxis").options[-1].parse(text)
    except Exception:
        return
    more = {"image": "a#b", "mounts": mounts} if launcher == "pyxis" else {}
    job = choose.describe(template, by, {"data": "/x" + data, **more}, nodes=2, shape=None)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        made = render(job)
        script = made.files[made.script].text
        # What is needed is another test: such a file is not there.
        script = script.replace("need '", "true '").replace('need "', 'true "')
        program(place, "python3", TOLD)
        (place / "train.py").touch()
        ran = run(Rendered(job, made.script, {**made.files, made.script: type(made.files[made.script])(script)},
                           made.submit, made.output, made.requirements), place)  # fmt: skip
        assert ran.status == 0, ran.err
        told = (place / "bin" / "training").read_bytes().decode().split("\0")
        assert f"--data=/x{data}" in told
        header = outputs.header(ran.out)
        assert header is not None
        assert header["values"]["data"] == f"/x{data}"
        assert choose.from_dict(header) == job
        if launcher == "pyxis" and mounts:
            words = ran.calls["srun"][-1]
            expected = f"{place}:{place},/x{data}:/x{data}:ro,{mounts}"
            assert f"--container-mounts={expected}" in words


def test_the_first_line_of_an_output_states_what_it_is_of_and_how_many_nodes_there_were(tmp_path: Path) -> None:
    program(tmp_path, "python3", TOLD)
    made = rendered("pytorch_ddp", "srun", {"synthetic": "10"})
    ran = run(made, tmp_path, nodes=("a", "b", "c"))
    header = outputs.header(ran.out)
    assert header is not None
    # sbatch --nodes=3 was given.
    assert header["nodes"] == 3
    assert json.dumps({**made.job.to_dict(), "nodes": 3}, sort_keys=True) == json.dumps(dict(header), sort_keys=True)


@pytest.mark.parametrize(
    ("template", "launcher", "given", "said"),
    [
        (
            "pytorch_ddp",
            "srun",
            {"data": "/no such/cifar"},
            "/no such/cifar can't be read. Bring it to the share with",
        ),
        ("pytorch_ddp", "srun", {}, "no data set is named. Bring it to the share with"),
        ("pytorch_ddp", "pyxis", {"synthetic": "1"}, "no container image is named. Import one"),
        ("pytorch_ddp", "pyxis", {"synthetic": "1", "image": "/no/image"}, "container image /no/image can't be read"),
        ("pytorch_ddp", "srun", {"synthetic": "1", "checkpoint": "/no/such/x"}, "/no/such can't be written"),
        ("mpi_allreduce", "srun", {}, "the program mpicc is not there. Install it"),
        ("nccl_tests", "srun", {}, "there are fewer GPUs than 64. Take a partition"),
    ],
)
def test_what_is_missing_ends_the_job_with_66_and_how_to_get_it(
    tmp_path: Path, template: str, launcher: str, given: dict[str, str], said: str
) -> None:
    program(tmp_path, "python3", TOLD)
    made = rendered(template, launcher, given, gpus=64 if template == "nccl_tests" else None)
    if template == "mpi_allreduce":
        text = made.files[made.script].text.replace("command -v mpicc", "command -v no-such-mpicc")
        made = Rendered(made.job, made.script, {**made.files, made.script: type(made.files[made.script])(text)},
                        made.submit, made.output, made.requirements)  # fmt: skip
    ran = run(made, tmp_path)
    assert ran.status == EXIT_REQUIREMENT, ran.err
    assert f"{template}: " in ran.err
    assert said in ran.err


def test_a_script_without_its_payload_reports_it(tmp_path: Path) -> None:
    made = rendered("pytorch_ddp", "srun", {"synthetic": "1"})
    program(tmp_path, "python3", TOLD)
    alone = Rendered(
        made.job, made.script, {made.script: made.files[made.script]}, made.submit, made.output, made.requirements
    )
    ran = run(alone, tmp_path)
    assert ran.status == EXIT_REQUIREMENT
    assert "train.py is not in the folder of the job" in ran.err


def test_a_step_that_cannot_start_is_not_taken_for_something_missing(tmp_path: Path) -> None:
    program(tmp_path, "python3", "#!/bin/bash\nexit 9\n")
    made = rendered("mpi_allreduce", "mpirun")
    program(tmp_path, "mpirun", "#!/bin/bash\necho no slots >&2\nexit 9\n")
    ran = run(made, tmp_path)
    assert ran.status == 9
    assert "could not be started on each node" in ran.err


@pytest.mark.parametrize(("ranks", "status"), [(16, 0), (1, 2)])
def test_the_job_of_nccl_tests_ends_as_its_result_was(tmp_path: Path, ranks: int, status: int) -> None:
    text = tmp_path / "printed"
    text.write_text("".join(output(TUNED, ranks=ranks)))
    made = rendered("nccl_tests", "pyxis", {"image": "registry.example#org/image:1"}, shape="BM.GPU4.8")
    (tmp_path / "bin").mkdir()
    install(tmp_path / "bin")
    for name in ("has_gpus", "has_rdma"):
        script = made.files[made.script].text.replace(f" {name} 8\n", " true\n").replace(f" {name} ''\n", " true\n")
        made = Rendered(made.job, made.script, {**made.files, made.script: type(made.files[made.script])(script)},
                        made.submit, made.output, made.requirements)  # fmt: skip
    program(tmp_path, "all_reduce_perf", f'#!/bin/bash\n[ "$SLURM_PROCID" != 0 ] || cat {text}\n')
    ran = run(made, tmp_path)
    assert ran.status == status, ran.out + ran.err
    assert ("1 ranks name their GPU" in ran.out) == bool(status)
    step = ran.calls["srun"][-1]
    assert {"--ntasks=16", "--ntasks-per-node=8", "--mpi=pmix", "--container-image=registry.example#org/image:1"} <= {
        *step
    }
    assert step[-10:] == ["-b", "10G", "-e", "10G", "-f", "2", "-n", "20", "-g", "1"]


def test_nodes_that_are_not_named_end_the_job(tmp_path: Path) -> None:
    ran = run(rendered("mpi_allreduce", "srun"), tmp_path, nodes=())
    assert ran.status == 1
    assert "does not list the nodes of gpu-[2,10]" in ran.err
    assert ran.calls["srun"] == []


#: A double of PyTorch: what its torchrun does with the store and the ranks, for builds of three kinds.
TORCH = {
    "torch/__init__.py": "",
    "torch/distributed/__init__.py": """
import os
class TCPStore:
    def __init__(self, address, port, size, master, timeout=None, wait_for_workers=True, multi_tenant=False, **more):
        if more and os.environ["BUILD"] == "1.13":
            raise TypeError("incompatible constructor arguments")
        if more.get("use_libuv", True) and os.environ["BUILD"] == "without libuv":
            raise RuntimeError("use_libuv was requested but PyTorch was build without libuv support")
        self.told = (address, port, more.get("use_libuv"))
""",
    "torch/distributed/run.py": """
import os
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
def main():
    made = StaticTCPRendezvous()
    print(made.store().told, made.use_agent_store, os.environ.get("USE_LIBUV"))
""",
    "torch/distributed/elastic/__init__.py": "",
    "torch/distributed/elastic/multiprocessing/__init__.py": """
class Std:
    @staticmethod
    def from_str(text):
        return Std()
""",
    "torch/distributed/elastic/rendezvous/__init__.py": "",
    "torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py": """
from torch.distributed import TCPStore
class StaticTCPRendezvous:
    @property
    def use_agent_store(self):
        return True
    def store(self):
        return TCPStore("gpu-2", 20007, 2, True, None, multi_tenant=True)
""",
}


@pytest.mark.parametrize(
    ("build", "said"),
    [
        ("1.13", "('gpu-2', 20007, None) True None"),
        ("with libuv", "('gpu-2', 20007, None) True None"),
        ("without libuv", "('gpu-2', 10007, False) False 0"),
    ],
)
def test_torchrun_does_without_libuv_where_there_is_none(tmp_path: Path, build: str, said: str) -> None:
    """Real builds were tried by hand: 1.13 of Debian 12, and 2.6 of Debian 13, which has none."""
    for name, text in TORCH.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    job = rendered("pytorch_ddp", "torchrun", {"synthetic": "10"})
    script = job.files[job.script].text
    program_text = script.partition("torchrun='\n")[2].partition("\n'\n")[0]
    done = subprocess.run(
        [sys.executable, "-c", program_text], env={"PYTHONPATH": str(tmp_path), "BUILD": build},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == said, done.stderr
