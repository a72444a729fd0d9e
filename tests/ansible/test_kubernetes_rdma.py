"""How the kernel keeps RDMA devices apart, as the role writes it on a host without modules of the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpucluster.paths import ansible_dir
from tests.ansible.in_container import Host, host

pytestmark = pytest.mark.containers

ROLE = ansible_dir() / "roles" / "kubernetes"
FILE = "/etc/modprobe.d/gpucluster-rdma.conf"


@pytest.fixture(scope="module")
def node() -> Iterator[Host]:
    with host() as found:
        yield found


def play(node: Host, rdma: str, *, pool: bool) -> int:
    """How many tasks have changed something, with `kubernetes.rdma` and for a node of a pool with RDMA or without."""
    variables: dict[str, Any] = {
        "kubernetes_rdma": rdma,
        "kubernetes_moves_rdma": yaml.safe_load((ROLE / "vars" / "main.yml").read_text())["kubernetes_moves_rdma"],
        "own_pool": {"rdma": pool},
    }
    tasks = [{"ansible.builtin.include_tasks": str(ROLE / "tasks" / "rdma.yml")}]
    return node.play(tasks, variables).changed


def test_devices_are_kept_apart_where_they_move_into_pods_and_nowhere_else(node: Host) -> None:
    node.run("rm", "-rf", "/etc/modprobe.d")
    assert play(node, "device", pool=False) == 0
    assert not node.exists(FILE)
    assert play(node, "device", pool=True) == 1
    assert node.read(FILE).splitlines()[1:] == ["options ib_core netns_mode=0"]
    assert play(node, "device", pool=True) == 0
    assert play(node, "host", pool=True) == 1
    assert not node.exists(FILE)
