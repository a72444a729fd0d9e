"""What is paid for a host, and what Slurm counts of it."""

from __future__ import annotations

from gpucluster.handover.billing import billed_machine
from gpucluster.spec import loads
from tests.spec.spec_texts import LOCAL, MINIMAL


def test_a_node_has_what_slurm_counts() -> None:
    spec = loads(MINIMAL)
    machine = billed_machine(spec.pools["compute"])
    assert (machine["shape"], machine["gpus"], machine["devices"], machine["ocpus"]) == ("BM.GPU4.8", 8, 8, 64)
    assert machine["cpus"] == 128
    assert machine["memory_mib"] > 1_000_000


def test_a_preemptible_node_is_sold_as_such_and_the_record_of_others_is_as_before() -> None:
    pool = loads(LOCAL.replace("    max_count: 4", "    max_count: 4\n    preemptible: true")).pools["cpu"]
    assert billed_machine(pool)["preemptible"] is True
    assert "preemptible" not in billed_machine(loads(LOCAL).pools["cpu"])


def test_a_flexible_machine_is_sold_by_its_size_and_a_controller_runs_no_jobs() -> None:
    spec = loads(LOCAL)
    machine = billed_machine(spec.controller)
    assert machine == {
        "shape": spec.controller.shape,
        "gpus": 0,
        "ocpus": spec.controller.ocpus,
        "memory_gb": spec.controller.memory_gb,
    }
