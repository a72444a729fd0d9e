"""Nodes of Slurm with GPUs of the machine that runs the local cloud (`cloud.local.gpus: real`).

Real: Podman's CDI, the devices in the instances, Slurm with their files, the checks that ask nvidia-smi. The cards are
device files without a driver (tests/cdi.py), and nvidia-smi is a double; so the check of the driver is switched off.
The tests run in the order of this file, on one cluster: each is a chapter of the same story.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster.localcloud.compute import machine_gpus
from tests.cdi import planted
from tests.e2e.site_harness import ENDLESS, NETWORK, PATIENCE_TO_BUILD_S, Site

pytestmark = [pytest.mark.e2e, pytest.mark.story, pytest.mark.timeout(2 * PATIENCE_TO_BUILD_S)]

CONTROLLER, NODE = "cards-controller", "compute-1"
CLUSTER_YML = f"""\
version: 1
name: cards
cloud: {{provider: local, local: {{gpus: real}}}}
{NETWORK}
controller: {{shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32}}
pools:
  compute: {{shape: VM.GPU.A10.2, count: 2}}
  more: {{shape: VM.GPU.A10.1, max_count: 1}}
checks: {{off: [gpu_driver]}}
users:
  people: [{{name: alice, full_name: Alice Example, generate_key: true}}]
"""
# The numbers of the device files: with a gap, and none is 0.
CARDS = (1, 4, 6)
# Which device a job has, by the number that Slurm reports.
LOOK = "readlink /run/gpucluster/mig/gpu0$CUDA_VISIBLE_DEVICES"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    devices: Path = tmp_path_factory.mktemp("cards")
    with planted(devices, CARDS) as kind, Site(CLUSTER_YML) as made:
        made.home.mkdir()
        (made.home / machine_gpus.CONFIG).write_text(json.dumps({"clusters": [], "kind": kind}))
        yield made


def test_more_gpus_than_the_machine_has_are_refused_before_anything_is_made(site: Site) -> None:
    code, events = site.run("apply")
    assert code != 0
    said = json.dumps(events)
    assert "this machine has 3 GPUs, free 3" in said
    assert "pools.compute, pools.more that are yet to be launched need 4" in said


def test_the_cluster_is_built_and_reports_once_that_the_cards_may_be_others(site: Site) -> None:
    site.change("count: 2}", "count: 1}")
    code, events = site.run("apply")
    assert code == 0, events[-8:]
    notes = [event for event in events if event["kind"] == "log" and "may be other cards" in event["message"]]
    assert len(notes) == 1, notes
    assert site.root(NODE, "ls /dev/nvidia*").split() == ["/dev/nvidia1", "/dev/nvidia4"]
    assert site.root(CONTROLLER, "ls /dev/nvidia* 2> /dev/null || true") == ""


def test_what_is_measured_passes_and_what_is_not_known_of_the_card_is_skipped(site: Site) -> None:
    report = json.loads(site.root(NODE, "gpucluster-agent check --profile quick --output json || true"))
    found = {each["check"]: (each["status"], each["message"]) for each in report["findings"]}
    assert found["gpu_count"] == ("pass", "2 of 2 GPUs")
    assert found["gpu_device_files"][0] == "pass"
    for name in ("gpu_model", "gpu_pcie_width", "gpu_nvlink", "gpu_fabric", "gpu_bus", "gpu_ecc", "memory", "clock"):
        assert found[name][0] == "skip", (name, found[name])


def test_jobs_get_one_device_each(site: Site) -> None:
    first = site.as_alice("sbatch --parsable --gres=gpu:1 -p compute -o one.out", f"#!/bin/sh\n{LOOK}\n{ENDLESS}\n")
    site.runs(first)
    assert site.as_alice(f"srun --gres=gpu:1 -p compute sh -c '{LOOK}'") == "/dev/nvidia4"
    site.until("the first job has said its device", lambda: site.as_alice("cat one.out") == "/dev/nvidia1")
    # Both are in use: a job for two waits.
    second = site.as_alice("sbatch --parsable --gres=gpu:2 -p compute", f"#!/bin/sh\n{ENDLESS}\n")
    assert site.state_of(second) == "PENDING"
    site.as_alice(f"scancel {second}")
    site.as_alice(f"scancel {first}")
    site.over(first)
    both = site.as_alice("srun --gres=gpu:2 -p compute sh -c 'echo $CUDA_VISIBLE_DEVICES'")
    assert both == "0,1"


def test_slurmd_makes_the_links_that_a_boot_has_taken(site: Site) -> None:
    site.root(NODE, "rm -r /run/gpucluster/mig && systemctl restart slurmd")
    assert site.root(NODE, "readlink /run/gpucluster/mig/*").split() == ["/dev/nvidia1", "/dev/nvidia4"]


def test_an_elastic_node_gets_the_gpu_that_is_left(site: Site) -> None:
    assert site.as_alice(f"srun --gres=gpu:1 -p more sh -c '{LOOK}'") == "/dev/nvidia6"
    assert machine_gpus.offer(site.home).free == ()
