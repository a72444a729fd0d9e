"""The role mig on a booted host, with real systemd: its unit, a GPU that is not divided, and the way back.

nvidia-smi is a double that answers from files, in the words of tests/node_agent/mig/smi.py. It never divides a GPU: the
driver's list of capabilities (/proc/driver/nvidia-caps) can't be planted in a container.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gpucluster.node_agent.mig.apply import MARKER
from gpucluster.node_agent.rules import mig
from tests.ansible.booted import Booted, booted
from tests.ansible.in_container import Played
from tests.ansible.render import GPU_POOL, INVENTORY
from tests.node_agent.checks.measured import NODE
from tests.node_agent.mig.smi import H100, Card, Smi
from tests.waiting import wait_for

pytestmark = pytest.mark.containers

TASKS: list[dict[str, Any]] = [
    {"import_role": {"name": "base", "tasks_from": "gather_facts"}},
    {
        "include_role": {"name": "{{ next_role }}"},
        "loop": "{{ ['mig'] | select('in', roles_with_work) }}",
        "loop_control": {"loop_var": "next_role"},
    },
]
SEVEN = ",".join(f"1g.10gb:{start}" for start in range(7))
UNIT = "gpucluster-mig"
PROLOG = "/usr/local/lib/gpucluster/task-prolog"
# What changes something is asked last: its words are kept for the test.
NVIDIA_SMI = """\
#!/bin/sh
case "$*" in
    "-q -x") cat /srv/smi/query ;;
    -L) cat /srv/smi/names ;;
    "mig -lgi") echo "No GPU instances found: Not Found"; exit 6 ;;
    *) echo "$*" >> /srv/smi/calls; cat /srv/smi/refusal ;;
esac
"""


def apply(
    node: Booted, parts: tuple[str, ...], *options: str, check: bool = True, pool: str = "compute", **more: Any
) -> Played:
    expected = replace(NODE, hardware_emulated=False, gpus=1, gpu_model="h100", mig=parts)
    node.put("/etc/gpucluster/checks.json", json.dumps(expected.to_dict()))
    devices = [{"type": each.type, "files": list(each.links)} for each in mig.devices(parts, "h100")] if parts else []
    pools = [{**GPU_POOL, "name": pool, "mig": devices}]
    hardware = {"slurm_hardware_emulated": False, "slurm_gpus_emulated": False}
    variables = INVENTORY | {"slurm_pools": pools} | hardware | more
    return node.play(TASKS, variables, *options, check=check)


def enabled(node: Booted) -> str:
    return node.sh(f"systemctl is-enabled {UNIT}", check=False).splitlines()[0]


@pytest.fixture(scope="module")
def node() -> Iterator[Booted]:
    with booted() as host:
        host.install_agent()
        whole = Smi(H100, [Card(0, resets=False)])
        host.put("/srv/smi/query", whole.query())
        host.put("/srv/smi/names", whole.names())
        host.put("/srv/smi/refusal", whole(["nvidia-smi", "-i", "0", "-mig", "1"], 1.0).output)
        host.put("/usr/bin/nvidia-smi", NVIDIA_SMI, 0o755)
        yield host


def test_a_gpu_that_is_not_divided_stops_the_node_and_is_whole_again_without_mig(node: Booted) -> None:
    before = apply(node, ())
    assert "mig" not in before.said, "a cluster whole of whole GPUs has no task for it"

    looked = apply(node, (SEVEN,), "--check")
    assert node.sh("cat /srv/smi/calls", check=False).startswith("cat: "), looked.said

    refused = apply(node, (SEVEN,), check=False)
    assert "failed=1" in refused.said, refused.said
    assert "waits for a restart of the host" in refused.said, refused.said[-1500:]
    assert node.sh("cat /srv/smi/calls").split() == ["-i", "0", "-mig", "1"]
    assert enabled(node) == "enabled"
    # At the next boot it is tried again, before Slurm's daemon.
    assert "slurmd.service" in node.sh(f"systemctl show --property=Before {UNIT}")
    tried = node.sh(f"systemctl start {UNIT}", check=False)
    assert "failed" in tried, tried

    def journal() -> str:
        return node.sh(f"journalctl --no-pager --unit {UNIT}")

    # The service has ended before journald has read all that it wrote.
    wait_for("the journal has the reason", lambda: "waits for a restart of the host" in journal(), state=journal)

    # The pool has no instances any more, and the GPU is as it was: nothing is asked of the driver.
    node.sh("truncate --size=0 /srv/smi/calls")
    back = apply(node, ())
    assert back.changed > 0
    assert enabled(node) == "not-found"
    assert node.sh(f"cat /srv/smi/calls; ls {MARKER} /run/gpucluster/mig/names", check=False).count("No such file") == 1
    assert apply(node, ()).changed == 0


def test_with_kubernetes_the_unit_comes_before_kubelet_and_there_is_no_prolog_of_tasks(node: Booted) -> None:
    node.sh(f"rm {PROLOG}")
    kubernetes: dict[str, Any] = {"scheduler": "kubernetes", "slurm_enabled": False}
    # Nodes of other pools have no task for it.
    assert "mig" not in apply(node, (SEVEN,), pool="other", **kubernetes).said
    refused = apply(node, (SEVEN,), check=False, **kubernetes)
    assert "waits for a restart of the host" in refused.said, refused.said[-1500:]
    assert "kubelet.service" in node.sh(f"systemctl show --property=Before {UNIT}")
    assert "No such file" in node.sh(f"ls {PROLOG}", check=False)
    assert enabled(node) == "enabled"
    assert apply(node, (), **kubernetes).changed > 0
    assert enabled(node) == "not-found"
