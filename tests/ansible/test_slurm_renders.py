"""The slurm role's templates for every shape, read by the real Slurm.

One container, one slurmctld, one slurmd for each shape: first the configuration of a real cluster (GPUs with device
files, which are made up here), then that of an emulated one, in which every node has to become idle and to run a job.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster import shapes
from gpucluster.spec.reserved import OWNED_SLURM_KEYS, TUNABLE_SLURM_KEYS
from tests.ansible.slurm_render import ADDRESS, CONTROLLER, SHARED_MACHINE, VERSION, in_container, pool, render

SHAPES = list(shapes.catalogue().values())


def name(shape: shapes.Shape) -> str:
    return shape.name.lower().replace(".", "-")


def node(shape: shapes.Shape) -> str:
    return f"{name(shape)}-1"


#: In their partitions a job has its nodes for itself (`slurm.default_gpus: all`), here every second shape with GPUs.
WHOLE = [shape for shape in SHAPES if shape.gpus][::2]
POOLS = [pool(shape, [node(shape)], name=name(shape)) for shape in SHAPES]


def settings(text: str) -> dict[str, str]:
    """The plain `Key=Value` lines of a slurm.conf."""
    lines = (
        line for line in text.splitlines() if line.strip() and not line.startswith(("#", "NodeName", "PartitionName"))
    )
    return dict(line.partition("=")[::2] for line in lines)


@pytest.mark.parametrize("emulated", [True, False], ids=["emulated", "real"])
def test_every_line_has_a_value(emulated: bool) -> None:
    # Slurm does not start on `Key=`.
    for file, text in render(POOLS, emulated=emulated).items():
        assert [line for line in text.splitlines() if line.rstrip().endswith("=")] == [], file


@pytest.mark.parametrize("emulated", [True, False], ids=["emulated", "real"])
def test_what_the_role_sets_is_known_to_the_spec(emulated: bool) -> None:
    assert set(settings(render(POOLS, emulated=emulated)["slurm.conf"])) <= OWNED_SLURM_KEYS | TUNABLE_SLURM_KEYS
    assert not OWNED_SLURM_KEYS & TUNABLE_SLURM_KEYS


def test_extra_config_goes_over_the_lines_of_the_role() -> None:
    extra = {"MessageTimeout": 60, "SchedulerParameters": "bf_interval=30"}
    found = settings(render(POOLS, emulated=True, extra_config=extra)["slurm.conf"])
    assert (found["MessageTimeout"], found["SchedulerParameters"]) == ("60", "nohold_on_prolog_fail,bf_interval=30")


def test_a_rack_gives_each_job_a_channel_and_other_clusters_have_no_such_line() -> None:
    racks = [each for each, shape in zip(POOLS, SHAPES, strict=True) if shape.memory_fabric]
    others = [each for each in POOLS if each not in racks]
    assert settings(render(racks, emulated=False)["slurm.conf"])["SwitchType"] == "switch/nvidia_imex"
    assert "SwitchType" not in settings(render(others, emulated=False)["slurm.conf"])


@pytest.fixture(scope="module")
def slurm() -> dict[str, Any]:
    """What the real Slurm reported."""
    here: dict[str, Any] = {
        "extra_config": SHARED_MACHINE,
        "directories": {"spool": "/var/lib/slurm/slurmd/%n"},
        "checks": False,
    }
    nodes = [node(shape) for shape in SHAPES]
    with_gpus = [shape for shape in SHAPES if shape.gpus]
    plan = {
        "controller": ADDRESS,
        "hosts": {CONTROLLER: ADDRESS} | {node: f"192.0.2.{number}" for number, node in enumerate(nodes, start=2)},
        "nodes": nodes,
        "with_gpus": [node(shape) for shape in with_gpus],
        "devices": sorted({file for shape in with_gpus for file in shape.gpu_device_files}),
        "emulated_files": [f"/var/lib/gpucluster/emulated-gpus/gpu{number}" for number in range(8)],
        "real": render(POOLS, emulated=False, **here),
        "emulated": render(POOLS, emulated=True, whole_nodes={name(shape) for shape in WHOLE}, **here),
        "jobs": {node(shape): [f"--partition={name(shape)}", *asks(shape)] for shape in SHAPES},
    }
    return in_container(plan)


def asks(shape: shapes.Shape) -> list[str]:
    """What the job on such a node asks for, to get all of it."""
    if shape in WHOLE:
        return []
    return [f"--gpus-per-node={shape.gpus}"] if shape.gpus else ["--exclusive"]


@pytest.mark.slurm
@pytest.mark.containers
def test_the_version_is_the_one_that_the_templates_were_told(slurm: dict[str, Any]) -> None:
    assert slurm["version"] == VERSION


@pytest.mark.slurm
@pytest.mark.containers
@pytest.mark.parametrize("which", ["real", "emulated"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_slurmctld_sees_the_hardware(slurm: dict[str, Any], shape: shapes.Shape, which: str) -> None:
    found = slurm[which][node(shape)]
    wanted = shapes.slurm_node(shape, 4, 32)
    for key in ("Sockets", "CoresPerSocket", "ThreadsPerCore", "RealMemory"):
        assert found[key] == str(wanted[key]), key
    assert found["Gres"] == (wanted["Gres"] or "(null)")
    assert found["Partitions"] == name(shape)
    processors = 1
    for key in ("Sockets", "CoresPerSocket", "ThreadsPerCore"):
        processors *= int(found[key])
    assert found["CPUTot"] == str(processors)


@pytest.mark.slurm
@pytest.mark.containers
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.gpus], ids=lambda shape: shape.name)
def test_slurmd_finds_each_gpu_by_its_device_file(slurm: dict[str, Any], shape: shapes.Shape) -> None:
    (line,) = [line for line in slurm["gres"][node(shape)].splitlines() if "Gres Name=gpu" in line]
    assert f"Type={shape.gres_type} Count={shape.gpus} " in line
    assert f" File={','.join(shape.gpu_device_files)} " in line
    assert "HAS_FILE,HAS_TYPE" in line


@pytest.mark.slurm
@pytest.mark.containers
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_node_registers_is_idle_and_runs_a_job(slurm: dict[str, Any], shape: shapes.Shape) -> None:
    found = slurm["emulated"][node(shape)]
    assert (found["State"], found["Version"]) == ("IDLE", VERSION)
    host, processors, *gpus = slurm["jobs"][node(shape)].split()
    assert host == node(shape)
    assert int(processors) == int(found["CPUTot"]) if shape in WHOLE else int(processors) <= int(found["CPUTot"])
    assert gpus == ([str(shape.gpus)] if shape.gpus else [])
