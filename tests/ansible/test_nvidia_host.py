"""The role nvidia on a host with made-up GPUs, and small packages under the names of the real ones, from a repository.

What this does not prove: that a real driver loads, that fabric manager, persistence daemon and DCGM run, and anything
about dnf. How GPUs are found was tried on a machine with a real one (H200, open modules 580).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster import process
from tests.ansible.in_container import Host, Played, host
from tests.ansible.render import GPU_POOL, INVENTORY
from tests.ansible.test_nvidia import CLOSED, OPEN, tree
from tests.mirror import Mirror

pytestmark = pytest.mark.containers

TASKS: list[dict[str, Any]] = [
    {"import_role": {"name": "base", "tasks_from": "gather_facts"}},
    {"import_role": {"name": "nvidia"}},
]
ROOT = "/srv/host"
GPU = {"0000:0f:00.0": ("0x10de", "0x030200")}
SWITCHES = {"0000:c4:00.0": ("0x10de", "0x068000")}
LOADED = {"nvidia-open-580=580.95.05-1", "datacenter-gpu-manager-4-core=1:4.6.0"}
VARIABLES = INVENTORY | {
    "slurm_pools": [GPU_POOL | {"shape": "BM.GPU4.8"}],
    "containers_runtimes": [],
    "software_files": [],
    "software_server": "",
    "nvidia_driver": "keep",
    "nvidia_driver_branch": "580",
    "nvidia_replace_driver": False,
    "nvidia_dcgm": False,
}


class Gpus:
    """A node whose /sys and /proc a test creates, and whose only repository has doubles."""

    def __init__(self, node: Host, folder: Path) -> None:
        self.node, self.folder = node, folder
        repository = Mirror(folder / "repository")
        for name, versions in {
            "nvidia-open-550": ["550.90.07-1"],
            "nvidia-open-580": ["580.95.05-1"],
            "nvidia-fabricmanager-580": ["580.95.05-1", "580.99.01-1"],
            "datacenter-gpu-manager-4-core": ["1:4.6.0"],
        }.items():
            for version in versions:
                module = {f"{ROOT}/lib/modules/{os.uname().release}/updates/dkms/nvidia.ko.xz": ""}
                files = module if name.startswith("nvidia-open") else {}
                repository.deb(name, version, {f"/usr/share/doubles/{name}": version} | files)
        packages = [self._entry(file) for file in sorted(repository.folder.glob("*.deb"))]
        (repository.folder / "Packages").write_text("\n".join(packages))
        self._copy(repository.folder, "/srv/repository")
        node.run("sh", "-c", "rm -rf /etc/apt/sources.list.d/* && echo 'deb [trusted=yes] file:/srv/repository ./'"
                 " > /etc/apt/sources.list")  # fmt: skip

    def _entry(self, file: Path) -> str:
        control = process.run(["dpkg-deb", "--field", str(file)]).stdout
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        return f"{control}Filename: ./{file.name}\nSize: {file.stat().st_size}\nSHA256: {digest}\n"

    def _copy(self, folder: Path, target: str) -> None:
        archive = subprocess.run(["tar", "-C", str(folder), "-c", "."], check=True, capture_output=True).stdout
        (self.folder / "copy.tar").write_bytes(archive)
        inside = f"/proc/{self.node.pid}/root{target}"
        subprocess.run(["mkdir", "-p", inside], check=True)
        subprocess.run(["tar", "-C", inside, "-xf", str(self.folder / "copy.tar")], check=True)

    def machine(self, name: str, devices: dict[str, tuple[str, str]], **more: Any) -> None:
        self.node.run("rm", "-rf", ROOT)
        self._copy(tree(self.folder / name, devices, **more), ROOT)

    def apply(self, *options: str, check: bool = True, **changes: Any) -> Played:
        # Overrides a variable of the role that is not a setting of a cluster.
        return self.node.play(TASKS, VARIABLES | changes, f"--extra-vars=nvidia_root={ROOT}", *options, check=check)

    def installed(self) -> set[str]:
        said = self.node.run("dpkg-query", "-W", "-f", "${Package}=${Version} ${db:Status-Status}\\n")
        ours = (line for line in said.splitlines() if line.startswith(("nvidia", "datacenter")))
        return {line.split()[0] for line in ours if line.endswith(" installed")}

    def held(self) -> set[str]:
        return set(self.node.run("apt-mark", "showhold").split())


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpus]:
    with host() as node:
        yield Gpus(node, tmp_path_factory.mktemp("gpus"))


def test_a_host_without_a_gpu_is_left_alone_and_it_is_reported(gpus: Gpus) -> None:
    played = gpus.node.play(TASKS, VARIABLES | {"slurm_hardware_emulated": True, "nvidia_driver": "install"})
    assert played.changed == 0
    assert "no NVIDIA GPU on this host" in played.said
    assert gpus.installed() == set()


def test_a_gpu_without_a_driver_fails_unless_one_may_be_installed(gpus: Gpus) -> None:
    gpus.machine("bare", GPU)
    played = gpus.apply(check=False)
    assert "1 NVIDIA GPU and no driver: choose an image that has one" in played.said
    assert gpus.installed() == set()
    # The driver, and that its packages are held.
    assert gpus.apply("--check", nvidia_driver="install").changed == 2
    assert gpus.installed() == set()
    played = gpus.apply(nvidia_driver="install", nvidia_dcgm=True, monitoring_enabled=True)
    assert played.changed == 2
    assert gpus.installed() == LOADED
    assert gpus.held() == {"nvidia-open-580"}
    # What a repository lacks of the optional packages keeps none of the others away.
    assert "no repository has datacenter-gpu-manager-exporter: skipped" in played.said


def test_a_driver_without_a_module_for_this_kernel_is_a_failure_with_words(gpus: Gpus) -> None:
    gpus.machine("unloaded", GPU)  # packages are there, and what they had built is not
    played = gpus.apply(nvidia_driver="install", check=False)
    assert f"has no module for the running kernel {os.uname().release}: reboot" in played.said


def test_the_fabric_manager_gets_the_drivers_version_and_no_newer_one(gpus: Gpus) -> None:
    gpus.machine("switches", GPU | SWITCHES, driver=OPEN)
    assert gpus.apply(nvidia_driver="install", nvidia_dcgm=True).changed == 2
    assert gpus.installed() == LOADED | {"nvidia-fabricmanager-580=580.95.05-1"}
    assert gpus.held() == {"nvidia-open-580", "nvidia-fabricmanager-580"}
    gpus.node.run("apt-get", "-y", "dist-upgrade")
    assert "nvidia-fabricmanager-580=580.95.05-1" in gpus.installed()
    assert gpus.apply(nvidia_driver="install", nvidia_dcgm=True).changed == 0
    gpus.machine("odd", GPU | SWITCHES, driver=OPEN.replace("580.95.05", "580.11.22"))
    played = gpus.apply(check=False)
    assert "must have exactly the driver's version 580.11.22" in played.said
    assert "580.99.01-1, 580.95.05-1" in played.said


def test_another_driver_is_replaced_only_on_the_word(gpus: Gpus) -> None:
    remove = "apt-get remove -y --allow-change-held-packages 'nvidia-*' 'datacenter-*'"
    gpus.node.run("sh", "-c", f"{remove} && apt-get install -y nvidia-open-550")
    gpus.machine("older", GPU, driver=CLOSED)
    played = gpus.apply(nvidia_driver="install")
    assert played.changed == 1
    assert gpus.held() == {"nvidia-open-550"}
    assert "driver 550.90.07 of the image stays although branch 580 is requested" in played.said
    played = gpus.apply(nvidia_driver="install", nvidia_replace_driver=True)
    assert "reboot this host" in played.said
    assert gpus.installed() == {"nvidia-open-580=580.95.05-1"}
    assert gpus.held() == {"nvidia-open-580"}


def test_what_no_repository_has_is_left_out_where_it_is_not_needed(gpus: Gpus) -> None:
    gpus.machine("kept", GPU, driver=OPEN)
    gpus.node.run("sh", "-c", "sed -i 's/datacenter-gpu-manager/other/' /srv/repository/Packages && apt-get update")
    played = gpus.apply(nvidia_dcgm=True)
    assert played.changed == 0
    assert "no repository has datacenter-gpu-manager-4-core: skipped" in played.said
