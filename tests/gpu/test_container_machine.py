"""Container steps with real GPUs: Enroot and Pyxis as the role configures them, below cgroup v2 (machine.py).

    make test-gpu

It needs, beside what test_gpu_machine.py needs: Enroot, Pyxis (built for this machine's Slurm, where the role puts it),
squashfs-tools and gcc. The image has nothing of NVIDIA. Where nvidia-container-cli is installed, it brings the driver's
libraries into the container, as on a cluster's node. Elsewhere lines for Enroot's mounts do that, and stand for it:
Enroot's hook of NVIDIA is then not proved.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ansible.plugins.loader import init_plugin_loader

from gpucluster import process
from gpucluster.paths import ansible_dir
from tests.ansible.loading import read
from tests.ansible.render import EMPTY_POOL, GPU_POOL, evaluate, host_facts, render, variables
from tests.gpu.machine import SHARED, USER, Machine, gpus, gpus_of_two_jobs, need_machine, run_module, uuids

POOL = "whole"
IMAGE = f"{SHARED}/gpu.sqsh"
ROLE = ansible_dir() / "roles" / "enroot"
#: Not below /mnt, which is the machine's own.
STORAGE = "/var/lib/gpucluster-containers"
HOOK = "/etc/enroot/hooks.d/98-nvidia.sh"
PLUGIN = Path("/usr/local/lib/slurm/spank_pyxis.so")
_PROGRAMS = ("enroot", "mksquashfs", "unsquashfs", "gcc")
#: Prints the UUID of each GPU that CUDA finds, and whether its memory gives back what was written; then, with an
#: argument, waits until it is ended.
CUDA = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
#define CALL(name, ...) do { \
    int (*call)() = (int (*)())dlsym(driver, #name); \
    int status = call(__VA_ARGS__); \
    if (status) { printf("%s: %d\n", #name, status); return 3; } } while (0)
int main(int count, char **words) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { puts(dlerror()); return 2; }
    int devices = 0;
    CALL(cuInit, 0);
    CALL(cuDeviceGetCount, &devices);
    for (int number = 0; number < devices; number++) {
        int device;
        void *context;
        unsigned long long memory;
        unsigned char id[16];
        unsigned back[4] = {0};
        CALL(cuDeviceGet, &device, number);
        CALL(cuDeviceGetUuid, id, device);
        CALL(cuCtxCreate_v2, &context, 0, device);
        CALL(cuMemAlloc_v2, &memory, (size_t)16);
        CALL(cuMemsetD32_v2, memory, 20261128u, (size_t)4);
        CALL(cuMemcpyDtoH_v2, back, memory, (size_t)16);
        printf("GPU-");
        for (int byte = 0; byte < 16; byte++)
            printf("%s%02x", byte == 4 || byte == 6 || byte == 8 || byte == 10 ? "-" : "", id[byte]);
        puts(back[0] == 20261128u && back[3] == 20261128u ? " computes" : " is wrong");
    }
    fflush(stdout);
    if (count > 1) pause();
    return 0;
}
"""
#: Names each GPU that may be opened.
OPEN = 'for file in /dev/nvidia[0-9]*; do (: <> "$file") 2> /dev/null && echo "$file"; done; true'
#: Makes the image: a shell, a few programs, the one above, and the libraries that these and the driver's need.
MAKE_IMAGE = r"""
set -e
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat > cuda.c
gcc -O1 -w -o cuda cuda.c -ldl
mkdir -p root/bin root/usr/bin root/tmp root/etc
cp -L /bin/sh /bin/cat /bin/true /bin/sleep /bin/ls /bin/id /usr/bin/env root/bin/
cp root/bin/env root/usr/bin/
cp cuda root/bin/
ldd root/bin/* "$@" | grep -o '/[^ ]*\.so[^ ]*' | grep -v -e libcuda -e libnvidia | sort -u |
    while read -r library; do cp -L --parents "$library" root; done
echo inside > root/marker
mksquashfs root "$0" -noappend -quiet -no-progress > /dev/null
chmod 644 "$0"
"""


def need_containers() -> None:
    """Skip the test where this machine can't do it."""
    need_machine()
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    if absent or not PLUGIN.exists():
        pytest.skip(f"not installed: {', '.join([*absent, *([] if PLUGIN.exists() else [str(PLUGIN)])])}")


@cache
def known() -> dict[str, Any]:
    """The role's variables for a node of this machine."""
    pool = {**GPU_POOL, "gpu_vendor": "nvidia", "rdma": False, "nccl": {}}
    inventory = {"slurm_pools": [EMPTY_POOL, pool], "containers_runtimes": ["enroot"], "containers_storage": STORAGE}
    namespaces = {"supported": True, "boot_option": "", "sysctls": {}, "apparmor": ""}
    facts = {**host_facts(), "kernel": os.uname().release, "rdma_classes": [], "user_namespaces": namespaces}
    given = variables(inventory, role="enroot", host="compute-1", facts=facts)
    found = {**given, "group_names": ["compute", "pool_compute"], "ansible_search_path": [str(ROLE)]}
    return {**found, "pyxis_squashfuse": False}


def libraries() -> list[str]:
    """The driver's files that a program needs, where the linker finds them."""
    listed = subprocess.run(["ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    named = re.findall(
        r"^\s+(lib(?:cuda|nvidia-(?:ml|ptxjitcompiler|gpucomp))\.so\S*) .*x86-64.* => (\S+)$", listed, re.M
    )
    return [path for name, path in named if name.endswith(".so.1") or "gpucomp" in name]


def configure(machine: Machine) -> None:
    """What the role writes on a node, by the role's own module, and Slurm's line for the plugin."""
    init_plugin_loader()
    *_, task = (each for each in read(ROLE / "tasks" / "present.yml") if "gpucluster_service" in each)
    files = evaluate(task["gpucluster_service"]["files"], {**known(), **task["vars"]})
    driver_comes_by_hook = shutil.which("nvidia-container-cli") is not None
    if not driver_comes_by_hook:
        files += [
            {"path": HOOK, "copy_of": HOOK, "mode": "0644"},
            {"path": "/etc/enroot/mounts.d/90-driver.fstab", "content": mounts()},
            {"path": "/etc/enroot/environ.d/90-driver.env", "content": f"LD_LIBRARY_PATH={folders()}\n"},
        ]
    run_module(machine, "gpucluster_service", {"files": files})
    machine.write(
        "/etc/slurm/plugstack.conf",
        render("slurm", "plugstack.conf", {**known(), "os_slurm": {"config": "/etc/slurm"}}),
    )
    image_environment = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    for name, value in image_environment.items() if driver_comes_by_hook else ():
        machine.write(f"/etc/enroot/environ.d/90-{name}.env", f"{name}={value}\n")
    machine.run("sh", "-c", MAKE_IMAGE, IMAGE, *libraries(), given=CUDA)


def mounts() -> str:
    """Lines for Enroot: the driver's libraries of the machine, in each container."""
    return "".join(f"{path} {path} none x-create=file,bind,ro,nosuid,nodev\n" for path in libraries())


def folders() -> str:
    """Where these are, as the linker's path."""
    return ":".join(sorted({str(Path(path).parent) for path in libraries()}))


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    need_containers()
    with Machine({POOL: gpus()}, {}, configure) as made:
        # What Slurm's prolog does before each job: machine.py leaves prologs out.
        uid = made.run("id", "-u", USER).stdout.strip()
        gid = made.run("id", "-g", USER).stdout.strip()
        prolog = str(evaluate("{{ container_prolog }}", known()))
        made.run("env", f"SLURM_JOB_UID={uid}", f"SLURM_JOB_GID={gid}", prolog)
        yield made


def srun(machine: Machine, *words: str, gpus: int = 0, check: bool = True) -> process.Completed:
    """Run a job with some GPUs to its end."""
    return machine.srun(f"--partition={POOL}", *([f"--gpus={gpus}"] if gpus else []), *words, check=check)


def inside(*words: str) -> list[str]:
    """The words of a step in a container."""
    return [f"--container-image={IMAGE}", *words]


def test_a_step_runs_inside_of_the_image(machine: Machine) -> None:
    assert srun(machine, *inside("cat", "/marker")).stdout == "inside\n"


def test_a_container_without_gpus_of_its_job_can_use_none(machine: Machine) -> None:
    done = srun(machine, *inside("cuda"), check=False)
    assert done.returncode != 0
    assert "cuInit: 100" in done.stdout, done.stdout + done.stderr  # CUDA_ERROR_NO_DEVICE
    opened = srun(machine, *inside("sh", "-c", OPEN), check=False)
    assert opened.stdout == "", opened.stdout + opened.stderr


def test_a_container_computes_on_the_gpu_of_its_job_and_sees_no_other(machine: Machine) -> None:
    outside = srun(machine, "nvidia-smi", "-L", gpus=1).stdout
    found = srun(machine, *inside("sh", "-c", f"cuda; {OPEN}"), gpus=1).stdout.splitlines()
    assert len(found) == 2, found
    assert found[0] == f"{uuids(outside)[0]} computes"
    assert found[1] in gpus()
    every = srun(machine, *inside("cuda"), gpus=len(gpus())).stdout
    assert every.count(" computes") == len(set(uuids(every))) == len(gpus())


def test_containers_of_two_jobs_have_different_gpus(machine: Machine) -> None:
    first, second = gpus_of_two_jobs(machine, POOL, " ".join(("srun", *inside("cuda", "wait"))), "computes")
    assert len(first) == len(second) == 1
    assert first != second


def test_a_container_leaves_nothing_on_the_node(machine: Machine) -> None:
    srun(machine, *inside("true"), gpus=1)
    machine.await_idle()
    left = machine.run("find", f"{STORAGE}/enroot/data", "-mindepth", "2", "-maxdepth", "2").stdout
    assert left == ""
