"""The container toolkit on a booted host with a made-up GPU: installed, upgraded, and gone with the last runtime.

Doubles: the packages, whose program writes its own version where the real one describes GPUs.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.booted import Booted, booted
from tests.ansible.in_container import Played
from tests.ansible.test_nvidia import OPEN, tree
from tests.ansible.test_nvidia_host import GPU, ROOT, TASKS, VARIABLES
from tests.mirror import Mirror, Server

pytestmark = pytest.mark.containers

PACKAGES = ("libnvidia-container1", "libnvidia-container-tools", "nvidia-container-toolkit-base")
ABSENT = [*TASKS, {"import_role": {"name": "nvidia", "tasks_from": "absent"}}]


def toolkit(mirror: Mirror, version: str) -> dict[str, Any]:
    """A release as an archive of packages; returns its entry in the inventory."""
    program = f"#!/bin/sh\nmkdir -p /run/cdi\necho {version} > /run/cdi/nvidia.yaml\n"
    files = {"/usr/bin/nvidia-ctk": program, "/usr/bin/nvidia-container-runtime": "#!/bin/sh\n"}
    made = [mirror.deb(name, f"{version}-1", {f"/usr/share/doubles/{name}": version}) for name in PACKAGES]
    made.append(mirror.deb("nvidia-container-toolkit", f"{version}-1", files))
    name = f"nvidia-container-toolkit_{version}_deb_amd64.tar.gz"
    mirror.tar(name, {file.name: file.read_bytes() for file in made})
    return {
        "component": "nvidia-container-toolkit",
        "version": version,
        "file": name,
        "sha256": mirror.sha256(name),
        "format": "deb",
        "architecture": os.uname().machine,
    }


class Gpu:
    """A node with one GPU, and the mirror."""

    def __init__(self, node: Booted, mirror: Mirror, server: Server, folder: Path) -> None:
        self.node, self.server = node, server
        self.releases = {version: toolkit(mirror, version) for version in ("1.17.0", "1.18.0")}
        source = tree(folder / "host", GPU, driver=OPEN)
        node.sh(f"mkdir -p {ROOT}")
        subprocess.run(["podman", "cp", f"{source}/.", f"{node.name}:{ROOT}"], check=True, capture_output=True)

    def apply(
        self, tasks: list[dict[str, Any]], runtimes: list[str], version: str, *, scheduler: str = "slurm"
    ) -> Played:
        variables = VARIABLES | {
            "scheduler": scheduler,
            "containers_runtimes": runtimes,
            "software_server": self.server.url,
            "software_files": [self.releases[version]],
        }
        return self.node.play(tasks, variables, f"--extra-vars=nvidia_root={ROOT}")


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpu]:
    mirror = Mirror(tmp_path_factory.mktemp("mirror"))
    with mirror.serve() as server, booted() as node:
        yield Gpu(node, mirror, server, tmp_path_factory.mktemp("gpu"))


def test_gpus_are_described_again_after_an_upgrade_and_no_more_without_runtimes(gpu: Gpu) -> None:
    node = gpu.node
    # Every pod of a node of Kubernetes starts by a program of the toolkit, whatever users have: it stays.
    gpu.apply(ABSENT, [], "1.17.0", scheduler="kubernetes")
    assert node.read("/run/cdi/nvidia.yaml") == "1.17.0\n"
    assert node.exists("/usr/bin/nvidia-container-runtime")
    gpu.apply(TASKS, ["docker"], "1.18.0")
    assert node.read("/run/cdi/nvidia.yaml") == "1.18.0\n"
    # The whole second run, including the tasks that remove the toolkit.
    again = gpu.apply(ABSENT, ["docker"], "1.18.0")
    assert again.changed == 0, again.said

    assert gpu.apply(ABSENT, [], "1.18.0").changed == 3
    for path in ("/usr/bin/nvidia-ctk", "/run/cdi/nvidia.yaml", "/etc/systemd/system/gpucluster-cdi.service"):
        assert not node.exists(path), path
    assert node.sh("find /var/cache/gpucluster/software -name 'nvidia*'").strip() == ""
    assert gpu.apply(ABSENT, [], "1.18.0").changed == 0
