"""The kernel's settings for GPUs, by the role base: on nodes that have some, not on a machine that lends its own."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster import shapes
from tests.ansible.loading import read
from tests.ansible.render import CONTROLLER, GPU_POOL, evaluate, host_facts, variables

FILE = "/etc/sysctl.d/90-gpucluster-gpus.conf"


@pytest.mark.parametrize(
    ("shape", "changes", "wanted"),
    [
        ("BM.GPU4.8", {}, True),
        ("BM.GPU.MI300X.8", {}, True),
        ("BM.GPU4.8", {"slurm_hardware_emulated": True}, False),
        # GPUs of the machine that runs the instance, whose kernel they share.
        ("BM.GPU4.8", {"slurm_hardware_emulated": True, "slurm_gpus_emulated": False}, False),
        ("BM.HPC2.36", {}, False),
    ],
)
def test_only_nodes_with_gpus_of_their_own_are_set(shape: str, changes: dict[str, Any], wanted: bool) -> None:
    facts = shapes.get(shape)
    pool = {**GPU_POOL, "shape": shape, "gpu_vendor": facts.gpu_vendor if facts.gpus else None}
    task = next(task for task in read("roles/base/tasks/configure.yml") if "base_gpu_files" in task.get("vars", {}))
    for host, expected in (("compute-1", wanted), (CONTROLLER, False)):
        seen = {**host_facts(), "time_service": ""}
        given = variables({"slurm_pools": [pool], **changes}, role="base", host=host, facts=seen)
        given["group_names"] = [] if host == CONTROLLER else ["compute", "pool_compute"]
        # Files of templates are of no interest here.
        known = {name: [] if name.endswith("_files") else value for name, value in task["vars"].items()}
        given |= {**known, "base_gpu_files": task["vars"]["base_gpu_files"], "agent_files": [], "checks_files": []}
        files, units = (evaluate(task["gpucluster_service"][key], given) for key in ("files", "units"))
        assert [each["content"] for each in files if each["path"] == FILE] == [
            "-kernel.numa_balancing = 0\n"
        ] * expected
        assert ("systemd-sysctl" in [unit["name"] for unit in units]) == expected
