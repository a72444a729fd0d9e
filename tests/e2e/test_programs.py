"""Programs that others have made, on a cluster of two nodes, by the commands of their page.

    make test-programs

It fetches them from PyPI, 400 MB, and builds a cluster of its own. tests/e2e/test_main_path.py has submitit.

Where GPUCLUSTER_TEST_ACV names a clone of NVIDIA ai-cloud-validation, a second cluster runs its suite for Slurm; where
GPUCLUSTER_TEST_CVS names one of AMD's Cluster Validation Suite, this machine runs its checks of hosts.

What this does not prove: GPUs are emulated, the home is one file system of this machine, and nothing reaches the
internet. dstack and SkyPilot are asked for what they need of Slurm, and run no container and install no runtime.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.site_harness import PATIENCE_TO_BUILD_S, Site, worked_example
from tests.programs import validation
from tests.programs.on_cluster import bring_packages, environment, run_section
from tests.programs.page import section
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2 * PATIENCE_TO_BUILD_S)]

NODES = ("compute-1", "compute-2")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    if os.environ.get("GPUCLUSTER_TEST_PROGRAMS") != "1":
        pytest.skip("it fetches 400 MB and takes minutes: GPUCLUSTER_TEST_PROGRAMS=1, or make test-programs")
    with Site(worked_example("local")) as made:
        made.good("apply")
        yield made


def test_dask(site: Site) -> None:
    bring_packages(site, "dask-jobqueue==0.9.0")
    assert run_section(site, "Dask").splitlines()[-1].split() == list(NODES)
    site.until("the jobs of workers have ended", lambda: not site.as_alice("squeue --noheader --me"))
    assert site.as_alice("ls dask.d/dask-logs/*.err")


def test_snakemake(site: Site) -> None:
    bring_packages(site, "snakemake==9.27.1 snakemake-executor-plugin-slurm==2.8.0")
    run_section(site, "Snakemake")
    assert sorted(site.as_alice("cat snakemake.d/hosts.txt").split()) == list(NODES)
    assert site.as_alice("cat snakemake.d/gpu.txt") == "0"
    assert "invalid option" not in site.as_alice("cat snakemake.d/errors")
    assert site.as_alice("find snakemake.d/.snakemake/slurm_logs -name '*.log' | wc -l") == "2"


def test_ctrl_c_ends_snakemake_and_its_jobs(site: Site) -> None:
    site.as_alice("cat > snakemake.d/Waiting", stdin='rule wait:\n    output: "never"\n    shell: "sleep 86400"\n')
    words = "--snakefile Waiting --executor slurm --default-resources slurm_account=default --jobs 1 never"
    command = f"cd snakemake.d && echo $$ > pid && exec ~/snakemake/bin/snakemake {words}"
    argv = ["ssh", "-F", str(site.folder / ".gpucluster" / "ssh" / "config"), "-i", str(site.key("alice"))]
    running = subprocess.Popen(
        [*argv, "-l", "alice", site.controller, "--", command],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        site.until("its job runs", lambda: "RUNNING" in site.as_alice("squeue --noheader --me --format=%T"))
        site.as_alice("kill -INT $(cat snakemake.d/pid)")
        printed, _ = running.communicate(timeout=PATIENCE_S)
    finally:
        running.kill()
        running.wait()
    assert "Terminating processes on user request" in printed
    site.until("the job has ended", lambda: not site.as_alice("squeue --noheader --me"))
    # By itself it lists the jobs since midnight.
    last = "sacct --noheader --allocations --starttime=now-1day --format=State | tail -n 1"
    site.until("the accounting knows it", lambda: "CANCELLED" in site.as_alice(last))


def test_ray(site: Site) -> None:
    bring_packages(site, "ray==2.60.0")
    run_section(site, "Ray")
    printed = site.as_alice("cat ray.d/ray.out")
    assert " ".join(NODES) in printed.splitlines(), printed[-3000:]


def test_ray_is_gone_after_its_job_was_cancelled(site: Site) -> None:
    job = site.as_alice("cd ray.d && sed -i 's/where.py/-c \"import time; time.sleep(86400)\"/' ray.sbatch && "
                        "sbatch --parsable --output=cancelled.out ray.sbatch")  # fmt: skip
    site.runs(job)
    site.until("Ray runs", lambda: "raylet" in site.root(NODES[0], "ps -u alice -o args || true"))
    site.as_alice(f"scancel {job}")
    for node in NODES:
        site.until(f"{node} has no process of it", lambda node=node: not site.root(node, "pgrep -u alice ray || true"))  # type: ignore[misc]


@pytest.mark.parametrize(("title", "runs"), [("Open MPI", 2), ("Intel MPI", 3)])
def test_mpi(site: Site, title: str, runs: int) -> None:
    if title == "Intel MPI":
        bring_packages(site, "impi-rt==2021.18.1 impi-devel==2021.18.1")
        site.as_alice("mkdir -p intel-mpi.d && cp open-mpi.d/ranks.c intel-mpi.d")
    printed = run_section(site, title)
    ranks = sorted(re.findall(r"rank (\d) of 4 on (\S+)", printed))
    assert ranks == sorted((str(rank), NODES[rank // 2]) for rank in range(4) for _ in range(runs)), printed


_DSTACK = """
import sys
from pathlib import Path
from dstack._internal.core.backends.slurm.client import SlurmClient
address, key = sys.argv[1:]
with SlurmClient(hostname=address, port=22, user="alice", private_key=Path(key).read_text()) as client:
    client.ping()
    print(client.get_partitions())
    print([(node.name, node.gres, node.partitions) for node in client.get_nodes()])
    job = client.submit_batch_script("#!/bin/sh\\n#SBATCH --nodes=2 --output=/dev/null --gres=gpu:1\\nsrun sleep 86400")
    while client.get_job_state(job) != "RUNNING":
        pass
    print([(node.name, node.hostname) for node in client.get_job_nodes(job)], client.get_job_partition(job))
    client.cancel_job(job)
    while client.get_job_state(job) in ("RUNNING", "COMPLETING"):
        pass
    print(client.get_job_state(job))
"""
_SKYPILOT = """
import sys
from sky.adaptors import slurm
client = slurm.SlurmClient(sys.argv[1], 22, "alice", sys.argv[2])
print([(node.node, node.gres, node.partition) for node in client.info_nodes()])
print(client.get_default_partition(), [each.name for each in client.get_partitions_info()])
"""


def _ask(site: Site, requirement: str, program: str) -> str:
    """What the client of a program on this machine prints about the cluster."""
    config = site.folder / ".gpucluster" / "ssh" / "config"
    told = subprocess.run(["ssh", "-G", "-F", str(config), site.controller], capture_output=True, text=True, check=True)
    address = re.search(r"^hostname (\S+)$", told.stdout, re.MULTILINE)
    assert address
    argv = [str(environment(requirement)), "-c", program, address.group(1), str(site.key("alice"))]
    env = {**os.environ, "HOME": str(site.folder)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=PATIENCE_TO_BUILD_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_what_dstack_asks_of_slurm(site: Site) -> None:
    partitions, nodes, job, last = _ask(site, "dstack[server]==0.22.5", _DSTACK).splitlines()
    assert partitions == "['compute']"
    assert nodes == str([(name, ["gpu:a100:8"], ["compute"]) for name in NODES])
    assert job == f"{[(name, name) for name in NODES]} compute"
    assert last in ("None", "CANCELLED")


def test_what_skypilot_asks_of_slurm(site: Site) -> None:
    nodes, partitions = _ask(site, "skypilot[slurm]==0.14.1", _SKYPILOT).splitlines()[-2:]
    assert nodes == str([(name, "gpu:a100:8", "compute*") for name in NODES])
    assert partitions == "compute ['compute']"


#: A suite for Slurm expects partitions of these names. Each pool has a partition of its name.
def test_amd_cvs_looks_at_hosts(site: Site, tmp_path: Path) -> None:
    """The commands of the page, on this machine. What the kernel is set to is the machine's."""
    if not (named := os.environ.get("GPUCLUSTER_TEST_CVS")):
        pytest.skip("GPUCLUSTER_TEST_CVS names no clone of github.com/ROCm/cvs")
    shutil.copytree(named, tmp_path / "cvs", ignore=shutil.ignore_patterns(".git"))
    found = section("AMD CVS")
    addresses = {
        host["address"] for host in json.loads((site.folder / ".gpucluster" / "hosts.json").read_text())["hosts"]
        if host["name"] in NODES
    }  # fmt: skip
    (key,) = (site.home / "credentials/operators").glob("*_ed25519")
    cluster = {
        "username": "debian",
        "priv_key_file": str(key),
        "head_node_dict": {"mgmt_ip": min(addresses)},
        "node_dict": {address: {"bmc_ip": "NA", "vpc_ip": address} for address in addresses},
    }
    (tmp_path / "cluster.json").write_text(json.dumps(cluster))
    *before, run = "".join(found.commands).splitlines()
    subprocess.run(["sh", "-ec", "\n".join(before)], cwd=tmp_path, check=True, capture_output=True)
    file = tmp_path / "host.json"
    expected = json.loads(file.read_text())
    expected["host"] |= {"os_version": "Debian GNU/Linux", "kernel_version": platform.release()}
    file.write_text(json.dumps(expected))
    done = subprocess.run(["sh", "-ec", run], cwd=tmp_path, check=False, capture_output=True, text=True)
    failed = set(re.findall(r"^FAILED \S+::test_check_(\w+)", done.stdout, re.MULTILINE))
    hardware = {"bios_version", "rocm_version", "online_memory", "pci_accelerators", "gpu_pcie_speed_width",
                "be_nic_pcie_speed_width"}  # fmt: skip
    of_the_machine = {"numa_balancing", "iommu_pt", "pci_realloc"}
    assert failed - of_the_machine == hardware, done.stdout[-3000:]
    assert re.search(r"(\d+) passed", done.stdout)


_POOLS = """\
pools:
  cpu: {shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32, count: 2}
  gpu: {shape: BM.GPU4.8, count: 2}
"""
_OF_THE_SUITE = (
    "attrs boto3 jinja2 kubernetes paramiko pytest<9 pyyaml reframe-hpc urllib3 pydantic typer"  # as its pyproject.toml
)


@pytest.fixture(scope="module")
def validated() -> Iterator[Site]:
    suites = validation.clone()
    text = worked_example("local")
    pools = re.search(r"^pools:.*?(?=^\S)", text, re.DOTALL | re.MULTILINE)
    assert pools
    with Site(text.replace(pools.group(), _POOLS)) as made:
        made.good("apply")
        (home,) = (made.home / "exports").glob("*/*/alice")
        shutil.copytree(suites, home.parent / "suites", ignore=shutil.ignore_patterns(".git"))
        made.as_alice("cp -r /mnt/home/suites ~/ai-cloud-validation")
        yield made


def test_nvidia_ai_cloud_validation_without_gpus(validated: Site) -> None:
    bring_packages(validated, _OF_THE_SUITE)
    run_section(validated, "NVIDIA ai-cloud-validation")
    found = validation.outcomes(validated.as_alice("cat nvidia-ai-cloud-validation.d/report.xml"))
    assert found == dict.fromkeys(
        (
            "SlurmInfoAvailable",
            "SlurmPartition-cpu",
            "SlurmPartition-gpu",
            "SlurmNodeJobExecution-cpu",
            "SlurmSbatchWorkload-cpu",
        ),
        "passed",
    )
