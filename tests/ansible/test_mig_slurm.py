"""Divided GPUs (MIG) in the real Slurm: the role's files, and jobs that get instances.

Not proven here: that NVIDIA's driver makes these instances, and that a control group keeps a job from the instances of
others. Both need a GPU that may be divided.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpucluster import shapes
from gpucluster.mig import catalogue
from gpucluster.node_agent.gpu_numbers import Numbers
from gpucluster.node_agent.record import node
from gpucluster.node_agent.rules import mig
from tests.ansible import render as role
from tests.ansible.slurm_render import ADDRESS, CONTROLLER, PATIENT, pool, render
from tests.containers import base_image, of_this_run

NODE = "compute-1"
SHAPE = shapes.get("BM.GPU.H100.8")
H100 = catalogue()[SHAPE.mig_gpu]
#: Two GPUs in seven, one in a large and three small instances, the other five whole.
PARTS = (
    *(mig.text(H100.place({"1g.10gb": 7})) for _ in range(2)),
    mig.text(H100.place({"3g.40gb": 1, "1g.10gb": 3})),
    *("" for _ in range(5)),
)
DEVICES = mig.devices(PARTS, "h100")
#: A prolog in place of the role's, which asks the controller: it prints the GPUs that Slurm names.
PROLOG = "/usr/local/lib/gpucluster/test-prolog"
UUIDS = {device.number: f"{'MIG' if device.instance else 'GPU'}-{device.number:04d}" for device in DEVICES}


def targets() -> dict[str, str]:
    """The links of the node as `mig apply` makes them: the capabilities of an instance, and its GPU."""
    found: dict[str, str] = {}
    for device in DEVICES:
        card = f"/dev/nvidia{device.gpu}"
        files = [f"/dev/nvidia-caps/nvidia-cap{2 * device.number + each}" for each in (3, 4)] if device.instance else []
        found |= dict(zip(device.links, [*files, card], strict=True))
    return found


def divided() -> dict[str, Any]:
    found = pool(SHAPE, [NODE], name="compute")
    return {
        **found,
        "node": {**found["node"], "Gres": mig.gres(DEVICES)},
        "gpus": len(DEVICES),
        "mig": [{"type": device.type, "files": list(device.links)} for device in DEVICES],
    }


def files(version: str = "24.11.5") -> dict[str, str]:
    # The machine that runs the tests has fewer processors than the shape, and can't bind to them.
    here = {
        "SlurmdParameters": "config_overrides", "TaskPlugin": "task/none", "MpiDefault": "none", "Prolog": PROLOG,
        **PATIENT,
    }  # fmt: skip
    return render(
        [divided()], emulated=False, extra_config=here, checks=False, version=version,
        directories={"spool": "/var/lib/slurm/slurmd/%n"},
    )  # fmt: skip


def test_gres_conf_has_a_line_for_each_instance() -> None:
    lines = [line for line in files()["gres.conf"].splitlines() if line.startswith("NodeName=")]
    assert len(lines) == len(DEVICES) == 7 + 7 + 4 + 5
    assert lines[0] == (
        f"NodeName={NODE} Name=gpu Type=1g.10gb "
        "MultipleFiles=/run/gpucluster/mig/gpu00,/run/gpucluster/mig/compute00,/run/gpucluster/mig/card00"
    )
    assert lines[-1] == f"NodeName={NODE} Name=gpu Type=h100 File=/run/gpucluster/mig/gpu22"


def test_an_emulated_node_has_the_types_without_the_files() -> None:
    text = render([divided()], emulated=True)
    lines = [line for line in text["gres.conf"].splitlines() if line.startswith("NodeName=")]
    assert lines[0].endswith("Type=1g.10gb File=/var/lib/gpucluster/emulated-gpus/gpu0")
    assert len(lines) == len(DEVICES)
    assert "TaskProlog" not in text["slurm.conf"]


def test_a_cluster_without_divided_gpus_runs_no_prolog_of_tasks() -> None:
    assert "TaskProlog" not in render([pool(SHAPE, [NODE])], emulated=False)["slurm.conf"]
    assert "TaskProlog=/usr/local/lib/gpucluster/task-prolog" in files()["slurm.conf"]


@pytest.fixture(scope="module")
def slurm() -> dict[str, Any]:
    """What the real Slurm reported."""
    from gpucluster.localcloud.podman.host import settings as host
    from tests.ansible.mig_in_container import SAYS

    inner = f"srun --ntasks=2 --gpus-per-task=1g.10gb:1 sh -c '{SAYS}'"
    plan = {
        "controller": ADDRESS,
        "hosts": {CONTROLLER: ADDRESS, NODE: "192.0.2.2"},
        "nodes": [NODE],
        "config": files(),
        "files": sorted(set(targets().values())),
        "links": targets(),
        "texts": {
            "/usr/local/lib/gpucluster/task-prolog": role.render(
                "mig", "task-prolog.sh", role.variables({}, role="mig")
            ),
            PROLOG: '#!/bin/sh\necho "$SLURM_JOB_ID|$SLURM_JOB_GPUS" >> /run/gpucluster-test/prolog.out\n',
            mig.FOLDER + "/names": "".join(f"{number} {uuid}\n" for number, uuid in UUIDS.items()),
        },
        "jobs": {
            "two": [["--gres=gpu:1g.10gb:2"], SAYS],
            "large": [["--gres=gpu:3g.40gb:1"], SAYS],
            "whole": [["--gres=gpu:h100:2"], SAYS],
            "step": [
                ["--gres=gpu:1g.10gb:3"],
                f"srun --gres=gpu:1g.10gb:2 sh -c '{SAYS}'; srun --gres=none sh -c '{SAYS}'",
            ],
            "tasks": [["--ntasks=2", "--gres=gpu:1g.10gb:2"], inner],
            "nested": [
                ["--gres=gpu:1g.10gb:3"],
                "srun --gres=gpu:1g.10gb:1 sbatch --wait --gres=gpu:3g.40gb:1 "
                f"--output=/run/gpucluster-test/inner.out --wrap='{SAYS}'; cat /run/gpucluster-test/inner.out",
            ],
            "none": [[], SAYS],
        },
        "fills": ["--gres=gpu:1g.10gb:16"],
        "waits": ["--gres=gpu:1g.10gb:2"],
        "refused": ["--gres=gpu:1g.10gb:18"],
    }
    here = Path(__file__).parents[1]
    seen = [
        f"--volume={here / name}:/opt/gpucluster-test/tests/{name}:ro"
        for name in ("waiting.py", "ansible/slurm_in_container.py", "ansible/mig_in_container.py")
    ]
    argv = [
        *("podman", "--runtime", host().runtime, "run", "--rm", "--interactive", "--network=none"),
        *(f"--hostname={CONTROLLER}", of_this_run(), *host().run_options(), *seen),
        *("--env=PYTHONPATH=/opt/gpucluster-test", "--env=GPUCLUSTER_TEST_PATIENCE", "--entrypoint=python3"),
        *(base_image(), "-m", "tests.ansible.mig_in_container"),
    ]
    done = subprocess.run(argv, input=json.dumps(plan), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-9000:]
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def of(*numbers: int) -> str:
    return ",".join(UUIDS[number] for number in numbers)


@pytest.mark.slurm
@pytest.mark.containers
def test_slurmd_takes_each_instance_with_its_three_files(slurm: dict[str, Any]) -> None:
    lines = [line for line in slurm["gres"].splitlines() if "Gres Name=gpu" in line]
    assert len(lines) == len(DEVICES)
    for device, line in zip(DEVICES, lines, strict=True):
        assert f"Type={device.type} Count=1 Index={device.number} " in line, line
        assert f" File={','.join(device.links)} " in line, line


@pytest.mark.slurm
@pytest.mark.containers
def test_the_node_registers_with_its_types(slurm: dict[str, Any]) -> None:
    assert slurm["node"]["State"] == "IDLE"
    assert slurm["node"]["Gres"] == "gpu:1g.10gb:17,gpu:3g.40gb:1,gpu:h100:5"


@pytest.mark.slurm
@pytest.mark.containers
@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("two", [f"2|0,1||{of(0, 1)}"]),
        ("large", [f"1|17||{of(17)}"]),
        ("whole", [f"2|18,19||{of(18, 19)}"]),
        # A step has fewer than its job, and one that asks for none sees none.
        ("step", [f"2|0,1,2|0,1|{of(0, 1)}", "|0,1,2||"]),
        # Each task has its own.
        ("tasks", [f"2|0,1|0|{of(0)}", f"2|0,1|1|{of(1)}"]),
        ("none", ["|||"]),
    ],
)
def test_a_job_finds_its_instances_and_no_others(slurm: dict[str, Any], job: str, said: list[str]) -> None:
    assert sorted(slurm[job]) == sorted(said)


def instance_of(device: mig.MigDevice) -> str:
    """What a number must mean: the driver's numbers of instances are those of their capabilities here."""
    return str(device.number) if device.instance else ""


@pytest.mark.slurm
@pytest.mark.containers
@pytest.mark.parametrize(("job", "wanted"), [("two", [0, 1]), ("large", [17]), ("whole", [18, 19]), ("none", [])])
def test_what_the_prolog_hears_means_the_gpus_that_the_job_has(
    slurm: dict[str, Any], job: str, wanted: list[int], tmp_path: Path
) -> None:
    """The numbers of the prolog go into the job's file, from which the exporter and the watcher know its GPUs."""
    links = tmp_path / "links"
    links.mkdir()
    for name, target in targets().items():
        (links / Path(name).name).symlink_to(target)
    (links / "names").write_text("".join(f"{number} {uuid}\n" for number, uuid in UUIDS.items()))
    caps = tmp_path / "proc/driver/nvidia-caps"
    caps.mkdir(parents=True)
    (caps / "mig-minors").write_text(
        "".join(f"gpu{each.gpu}/gi{each.number}/access {2 * each.number + 3}\n" for each in DEVICES if each.instance)
    )
    heard = node.gpus({"SLURM_JOB_GPUS": slurm["prolog"][job]})
    numbers = Numbers(str(tmp_path / "proc"), str(links))
    found = [numbers.meaning(name) for name in heard]
    devices = [DEVICES[number] for number in wanted]
    assert [(gpu.number, gpu.instance) for gpu in found] == [(str(each.gpu), instance_of(each)) for each in devices]
    assert [gpu.uuid for gpu in found if gpu.instance] == [UUIDS[each.number] for each in devices if each.instance]


@pytest.mark.slurm
@pytest.mark.containers
def test_a_script_that_a_step_submitted_has_its_own_instance(slurm: dict[str, Any]) -> None:
    """It inherits the numbers of that step (SLURM_STEP_GPUS=0): here they are not its own."""
    assert slurm["nested"][-1] == f"1|17|0|{of(17)}"


@pytest.mark.slurm
@pytest.mark.containers
def test_jobs_get_no_more_instances_than_there_are(slurm: dict[str, Any]) -> None:
    assert slurm["waits"] == "Resources"
    assert "GresUsed=gpu:1g.10gb:16(IDX:0-15),gpu:3g.40gb:0" in slurm["used"]
    status, words = slurm["refused"]
    assert status != 0
    assert "Requested node configuration is not available" in words
