"""The role imex on a booted host, with real systemd: the list of the rack's hosts, and the service that reads it.

nvidia-imex is a double: a program that waits, with a unit as NVIDIA's package has. It does not prove that the real one
takes the file, nor that GPUs reach each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.ansible.booted import Booted, booted
from tests.ansible.in_container import Played
from tests.ansible.render import GPU_POOL, INVENTORY

pytestmark = pytest.mark.containers

TASKS: list[dict[str, Any]] = [
    {"import_role": {"name": "base", "tasks_from": "gather_facts"}},
    {
        "include_role": {"name": "{{ next_role }}"},
        "loop": "{{ ['imex'] | select('in', roles_with_work) }}",
        "loop_control": {"loop_var": "next_role"},
    },
]
FILE = "/etc/nvidia-imex/nodes_config.cfg"
UNIT = """\
[Service]
ExecStart=/usr/bin/nvidia-imex
[Install]
WantedBy=multi-user.target
"""


def apply(node: Booted, *, rack: bool = True, check: bool = True, **more: Any) -> Played:
    pools = [{**GPU_POOL, "memory_fabric": rack}]
    return node.play(TASKS, INVENTORY | {"slurm_pools": pools} | more, check=check)


def started(node: Booted) -> str:
    return node.sh("systemctl show --property=ExecMainStartTimestampMonotonic --property=ActiveState nvidia-imex")


@pytest.fixture(scope="module")
def node() -> Iterator[Booted]:
    with booted() as host:
        host.install_agent()
        yield host


def test_the_service_runs_with_the_addresses_of_the_rack(node: Booted) -> None:
    assert "imex" not in apply(node, rack=False).said, "a pool that is not a rack has no task for it"
    assert "imex" not in apply(node, slurm_hardware_emulated=True).said

    refused = apply(node, check=False)
    assert "has no nvidia-imex" in refused.said
    assert "failed=1" in refused.said

    node.put("/usr/bin/nvidia-imex", "#!/bin/sh\nexec sleep infinity\n", 0o755)
    node.put("/etc/systemd/system/nvidia-imex.service", UNIT)
    node.sh("systemctl daemon-reload")
    apply(node)
    assert node.sh(f"cat {FILE}").split() == ["10.0.1.2", "10.0.1.3"]
    before = started(node)
    assert "ActiveState=active" in before
    assert node.sh("systemctl is-enabled nvidia-imex").strip() == "enabled"
    assert apply(node).changed == 0
    assert started(node) == before

    # A node that was replaced has another address.
    hosts = [
        {**each, "address": each["address"].replace("10.0.1.3", "10.0.1.9")} for each in INVENTORY["gpucluster_hosts"]
    ]
    apply(node, gpucluster_hosts=hosts)
    assert node.sh(f"cat {FILE}").split() == ["10.0.1.2", "10.0.1.9"]
    assert started(node) != before
