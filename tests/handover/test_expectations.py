"""What is expected of hosts: from the spec and shapes.toml to what the host's agent reads."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpucluster import shapes
from gpucluster.handover.expectations import node_expectation
from gpucluster.node_agent.checks import registry
from gpucluster.node_agent.checks.expected import IMEX, NodeExpectation
from gpucluster.spec import ClusterSpec, loads
from tests.spec import unbuilt_shapes


def spec_of(shape: str, **changes: Any) -> ClusterSpec:
    """A cluster on the local cloud with a pool of this shape: its hardware may be emulated or not, as a test states."""
    network = {
        "vcn_cidr": "10.93.0.0/16",
        "public_subnet_cidr": "10.93.0.0/24",
        "private_subnet_cidr": "10.93.1.0/24",
        "ssh_allowed_cidrs": ["127.0.0.0/8"],
    }
    size = {"ocpus": 4, "memory_gb": 64} if shapes.get(shape).flex else {}
    pools = {"compute": {"shape": shape, "count": 2, **size}}
    base = {"version": 1, "name": "demo", "cloud": {"provider": "local"}, "network": network, "pools": pools}
    return loads(yaml.safe_dump({**base, **changes}))


def expected(shape: str, *, emulated: bool = False, **changes: Any) -> NodeExpectation:
    spec = spec_of(shape, **changes)
    return NodeExpectation.from_dict(node_expectation(spec, spec.pools["compute"], hardware_emulated=emulated))


@pytest.mark.parametrize("name", list(shapes.catalogue()))
def test_the_agent_reads_what_is_expected_of_every_shape(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unbuilt_shapes.allow(monkeypatch)
    shape = shapes.get(name)
    found = expected(name)
    assert (found.shape, found.gpus, found.drives) == (name, shape.gpus, shape.nvme_count)
    assert (found.gpu_model, found.gpu_vendor) == ((shape.gres_type, shape.gpu_vendor) if shape.gpus else ("", ""))
    assert len(found.gpu_device_files) == shape.gpus
    assert found.memory_mib == (63488 if shape.flex else shapes.real_memory_mib(shape.memory_mib or 0))
    # Where there are links, it is known how fast they are; a fabric manager is for NVLink.
    assert bool(found.nvlinks) == bool(found.nvlink_gb_per_s)
    assert found.nvlinks or not found.fabric_manager
    assert found.nvlinks == 0 or found.gpu_vendor == "nvidia"


def test_a_node_with_eight_gpus() -> None:
    found = expected("BM.GPU.H200.8")
    assert (found.nvlinks, found.nvlink_gb_per_s, found.fabric_manager) == (18, 25, True)
    assert (found.gpu_pcie_width, found.dcgm, found.hardware_emulated) == (16, True, False)
    assert found.services == ("munge", "slurmd")
    assert found.mounts == ("/mnt/home", "/mnt/localdisk") if found.local_disk else ("/mnt/home",)


@pytest.mark.parametrize(("scheduler", "others"), [("slurm", ("munge", "slurmd")), ("none", ())])
def test_a_node_of_a_rack_runs_imex_and_no_fabric_manager(scheduler: str, others: tuple[str, ...]) -> None:
    fabric = "ocid1.computegpumemoryfabric.oc1.iad.a"
    rack = {"compute": {"shape": "BM.GPU.GB200.4", "count": 2, "memory_fabric_id": fabric}}
    found = expected("BM.GPU.GB200.4", pools=rack, scheduler=scheduler)
    assert (found.services, found.fabric_manager) == ((*others, IMEX), False)
    assert IMEX not in expected("BM.GPU.GB200.4", pools=rack, scheduler=scheduler, emulated=True).services
    assert IMEX not in expected("BM.GPU.H200.8").services


def test_rdma_devices_are_expected_where_the_pool_uses_them() -> None:
    spec = spec_of("BM.GPU.H200.8")
    found = expected("BM.GPU.H200.8")
    assert bool(found.rdma_devices) == spec.pools["compute"].uses_rdma
    assert found.rdma_link_gbps == (400 if found.rdma_devices else 0)


def test_an_instance_with_gpus_of_a_machine_has_links_to_them_and_no_dcgm() -> None:
    real = {"cloud": {"provider": "local", "local": {"gpus": "real"}}}
    found = expected("VM.GPU.A10.2", emulated=True, **real)
    assert (found.hardware_emulated, found.gpus_emulated, found.gpus, found.dcgm) == (True, False, 2, False)
    assert found.gpu_device_files == ("/run/gpucluster/mig/gpu00", "/run/gpucluster/mig/gpu01")
    emulated = expected("VM.GPU.A10.2", emulated=True)
    assert (emulated.gpus_emulated, emulated.gpu_device_files) == (True, ("/dev/nvidia0", "/dev/nvidia1"))


def test_where_hardware_is_emulated_every_check_of_hardware_is_skipped() -> None:
    found = expected("BM.GPU.H200.8", emulated=True)
    assert found.hardware_emulated
    assert found.local_disk == ""
    applied = {check.name for check in registry.CHECKS if not check.applies(found, "compute-1")}
    assert applied == {"root_file_system", "mounts", "services", "failed_units", "leftover_processes"}


def test_the_other_hosts_have_services_and_no_hardware_to_check() -> None:
    spec = spec_of("BM.GPU.H200.8")
    controller = NodeExpectation.from_dict(node_expectation(spec, spec.controller, hardware_emulated=False))
    assert controller.services == ("munge", "slurmctld", "slurmdbd")
    assert (controller.gpus, controller.rdma_devices, controller.drives, controller.memory_mib) == (0, (), 0, 0)
    login = NodeExpectation.from_dict(node_expectation(spec, spec.login, hardware_emulated=False))
    assert login.services == ("munge",)


def test_without_slurm_no_service_of_it_is_expected() -> None:
    assert expected("BM.GPU.H200.8", slurm={"enabled": False}).services == ()


def test_names_of_checks_that_are_off_reach_the_host() -> None:
    spec = spec_of("BM.GPU.H200.8")
    made = node_expectation(spec, spec.pools["compute"], hardware_emulated=False, off=["gpu_xid"])
    assert NodeExpectation.from_dict(made).off == ("gpu_xid",)
