"""What is not measured makes a check unknown, and what a tool refuses makes it fail.

Each measurement of each check is taken away, and each value of nvidia-smi's output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gpucluster.node_agent.checks import registry
from gpucluster.node_agent.checks.expected import IMEX
from gpucluster.node_agent.checks.model import Check, Missing, RefusedMeasurement, Status
from tests.node_agent.checks.measured import EMULATED, GIVEN, NODE, healthy, judged, planted

CASES = [(check.name, name) for check in registry.CHECKS for name in check.needs]
OF_GPUS = [check for check in registry.CHECKS if check.needs == ("nvidia_smi",)]


def test_a_healthy_node_has_no_problem() -> None:
    found = {check.name: judged(check.name, healthy()) for check in registry.CHECKS}
    bad = {name: each for name, each in found.items() if each.status not in (Status.PASS, Status.SKIP)}
    assert bad == {}
    # Hopper remaps rows.
    assert [name for name, each in found.items() if each.status is Status.SKIP] == ["gpu_retired_pages"]


@pytest.mark.parametrize(("check", "name"), CASES, ids=[f"{check}-{name}" for check, name in CASES])
def test_without_a_measurement_nothing_is_known(check: str, name: str) -> None:
    for value in (None, Missing("the tool is missing")):
        found = judged(check, {**healthy(), name: value})
        assert found.status is Status.UNKNOWN, found
        assert found.message in (f"no measurement {name}", "the tool is missing")
    without = {key: value for key, value in healthy().items() if key != name}
    assert judged(check, without).status is Status.UNKNOWN


@pytest.mark.parametrize(("check", "name"), CASES, ids=[f"{check}-{name}" for check, name in CASES])
def test_what_a_tool_refuses_is_a_fault(check: str, name: str) -> None:
    found = judged(check, {**healthy(), name: RefusedMeasurement("the driver is not loaded")})
    assert (found.status, found.message) == (Status.FAIL, "the driver is not loaded")


@pytest.mark.parametrize(("check", "name"), CASES, ids=[f"{check}-{name}" for check, name in CASES])
@pytest.mark.parametrize("nonsense", ["", "?", 17, [17], {"a": 1}, [{"a": 1}]], ids=str)
def test_a_measurement_of_another_form_blames_no_node(check: str, name: str, nonsense: Any) -> None:
    found = judged(check, {**healthy(), name: nonsense})
    if check == "failed_units" or (check == "memory" and nonsense == 17):
        return  # this is the form of the measurement
    if check in ("drives", "rdma_devices") and nonsense == {"a": 1}:
        return  # a host with one other device
    assert found.status is Status.UNKNOWN, found


class _Read(dict):  # type: ignore[type-arg]
    """The values of a GPU; notes which ones are asked for."""

    def __init__(self, values: dict[str, str], asked: set[str]) -> None:
        super().__init__(values)
        self.asked = asked

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def read_by(check: Check[Any]) -> set[str]:
    measurements, asked = healthy(), set[str]()
    gpus = measurements["nvidia_smi"]["gpus"]
    measurements["nvidia_smi"]["gpus"] = [_Read(gpu, asked) for gpu in gpus]
    judged(check.name, measurements)
    return asked


def leaves() -> Iterator[tuple[str, str]]:
    for check in OF_GPUS:
        yield from ((check.name, path) for path in sorted(read_by(check)))


LEAVES = list(leaves())


def test_the_judges_read_something() -> None:
    assert {check for check, _path in LEAVES} == {check.name for check in OF_GPUS} - {"gpu_count"}


@pytest.mark.parametrize(("check", "path"), LEAVES, ids=[f"{check}-{path.split('/')[-1]}" for check, path in LEAVES])
def test_each_value_of_a_gpu_is_needed(check: str, path: str) -> None:
    for value in (None, "", "N/A", "[N/A]", "Unknown Error", "ERR!", "what is this"):
        measurements = healthy()
        gpu = measurements["nvidia_smi"]["gpus"][3]
        if value is None:
            del gpu[path]
        else:
            gpu[path] = value
        found = judged(check, measurements)
        if value == "what is this" and path.endswith(
            ("product_name", "product_architecture", "performance_state", "state", "status", "gpu_recovery_action")
        ):
            continue  # words, of which a driver may have new ones
        assert found.status is Status.UNKNOWN, (value, found)
        assert "GPU 3" in found.message


@pytest.mark.parametrize("words", ["GPU is lost", "GPU requires reset"])
@pytest.mark.parametrize("check", [check.name for check in OF_GPUS if check.name != "gpu_retired_pages"])
def test_a_gpu_of_which_nvidia_smi_reports_that_it_does_not_work_is_a_fault(check: str, words: str) -> None:
    measurements = healthy()
    gpus = measurements["nvidia_smi"]["gpus"]
    gpus[3] = dict.fromkeys(gpus[3], words)
    found = judged(check, measurements)
    assert (found.status, found.message) == (Status.FAIL, f"GPU 3: {words}")


@pytest.mark.parametrize("key", ["driver", "attached"])
@pytest.mark.parametrize("value", ["", "N/A"])
def test_a_head_without_values_is_unknown(key: str, value: str) -> None:
    check = "gpu_repair" if key == "driver" else "gpu_count"
    assert judged(check, planted("nvidia_smi", key, value=value)).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("check", "path", "value"),
    [
        ("clock", ("clock", "offset_s"), "?"),
        ("dcgm_short", ("dcgm_short", "test_categories"), []),
        ("dcgm_short", ("dcgm_short", "test_categories", 0, "tests"), []),
        ("dcgm_short", ("dcgm_short", "test_categories", 0, "tests", 0, "results", 5, "status"), None),
        ("dcgm_long", ("dcgm_long", "test_categories", 0, "tests", 0, "results", 5), {}),
        ("drives", ("drives", "nvme4"), ""),
        ("gpu_nvlink", ("nvlink", "GPU 4", "7", "speed"), None),
        ("gpu_nvlink", ("nvlink", "GPU 4"), {}),
        ("gpu_nvlink", ("nvlink",), {}),
        ("gpu_nvlink_errors", ("nvlink", "GPU 4"), {}),
        ("gpu_nvlink_errors", ("nvlink", "GPU 4", "7"), {"speed": "26.562 GB/s"}),
        ("gpu_xid", ("kernel_log", "whole"), False),
        ("mounts", ("mounts",), {"/home": {"mounted": True, "fault": ""}}),
        ("mounts", ("mounts", "/home", "fault"), "stat gave no answer within 2 s"),
        ("rdma_errors", ("rdma_errors", "mlx5_4"), {}),
        ("rdma_errors", ("rdma_errors", "mlx5_4", "seconds"), None),
        *[("rdma_errors", ("rdma_errors", "mlx5_4", "grown", name), None) for name in ("link_downed", "symbol_error")],
        *[(f"rdma_{check}", ("rdma", "mlx5_4", key), None)
          for check, key in (("links", "state"), ("links", "phys_state"), ("speed", "rate"), ("pcie", "pcie_width"))],
        ("rdma_links", ("rdma", "mlx5_4"), {}),
        ("services", ("services",), {"munge": "active"}),
    ],
)  # fmt: skip
def test_a_part_that_is_missing_is_unknown(check: str, path: tuple[Any, ...], value: Any) -> None:
    found = judged(check, planted(*path, value=value))
    assert found.status is Status.UNKNOWN, found


def test_links_of_fewer_gpus_are_no_proof() -> None:
    measurements = healthy()
    del measurements["nvlink"]["GPU 7"]
    assert judged("gpu_nvlink", measurements).status is Status.UNKNOWN
    measurements["nvlink"]["GPU 0"]["3"]["speed"] = "<inactive>"
    assert judged("gpu_nvlink", measurements).status is Status.FAIL, "what is known to be bad counts more"


def test_emulated_hardware_is_never_passed() -> None:
    hardware = {check.name for check in registry.CHECKS if check.name.startswith(("gpu_", "rdma_", "dcgm_"))}
    hardware |= {"fabric_manager", "drives", "memory", "local_disk", "clock", "clock_jump", "kernel_settings"}
    for name in hardware:
        found = judged(name, healthy(), EMULATED)
        assert (found.status, found.message) == (Status.SKIP, "the hardware of this host is emulated"), name
    others = {check.name for check in registry.CHECKS} - hardware
    assert others == {"root_file_system", "mounts", "services", "failed_units", "leftover_processes"}


def test_of_a_machine_s_own_gpus_what_is_measured_is_judged_and_what_the_shape_reports_is_not() -> None:
    emulated = {
        "rdma_devices",
        "rdma_links",
        "rdma_speed",
        "rdma_pcie",
        "rdma_errors",
        "drives",
        "memory",
        "local_disk",
    }
    for name in (*emulated, "clock", "clock_jump"):
        assert judged(name, healthy(), GIVEN).status is Status.SKIP, name
    for name in ("gpu_model", "gpu_pcie_width", "gpu_nvlink", "gpu_nvlink_errors", "gpu_fabric", "fabric_manager"):
        found = judged(name, healthy(), GIVEN)
        assert (found.status, "may be other cards" in found.message) == (Status.SKIP, True), name
    assert judged("dcgm_short", healthy(), GIVEN).message == "DCGM is not on hosts of the local cloud"
    assert "the PCI bus of this host has all GPUs" in judged("gpu_bus", healthy(), GIVEN).message
    judged_ones = {"gpu_count", "gpu_driver", "gpu_device_files", "gpu_ecc", "gpu_repair", "gpu_row_remap", "gpu_xid"}
    for name in judged_ones:
        assert judged(name, healthy(), GIVEN).status is Status.PASS, name
    measurements = healthy()
    measurements["nvidia_smi"]["gpus"].pop()
    measurements["nvidia_smi"]["attached"] = "7"
    assert judged("gpu_count", measurements, GIVEN).status is Status.FAIL


def test_the_gpus_of_a_rack_join_a_fabric_without_a_manager_on_the_host() -> None:
    rack = replace(NODE, fabric_manager=False, services=(*NODE.services, IMEX))
    assert judged("gpu_fabric", healthy(), rack).status is Status.PASS
    assert judged("fabric_manager", healthy(), rack).status is Status.SKIP
    assert judged("gpu_fabric", healthy(), replace(rack, services=())).status is Status.SKIP


def test_a_card_of_a_workstation_that_has_no_ecc_is_neither_a_fault_nor_a_pass() -> None:
    measurements = healthy()
    for gpu in measurements["nvidia_smi"]["gpus"]:
        for name in [name for name in gpu if name.startswith(("ecc_errors/", "remapped_rows/"))]:
            del gpu[name]
        gpu |= {"ecc_mode/current_ecc": "N/A", "ecc_errors": "N/A", "remapped_rows": "N/A"}
    for name in ("gpu_ecc", "gpu_row_remap"):
        assert judged(name, measurements, GIVEN).status is Status.SKIP, name
        assert judged(name, measurements).status is Status.UNKNOWN, "a node of OCI has it"
    # What is an error and no missing property stays unknown.
    measurements["nvidia_smi"]["gpus"][3]["ecc_mode/current_ecc"] = "ERR!"
    assert judged("gpu_ecc", measurements, GIVEN).status is Status.UNKNOWN


def test_driver_and_kernel_log_are_those_of_the_machine() -> None:
    measurements = healthy()
    measurements["driver"] = {"loaded": "580.95.05", "library": "580.95.05", "on_disk": ""}
    assert judged("gpu_driver", measurements, GIVEN).status is Status.PASS
    assert judged("gpu_driver", measurements).status is Status.WARN
    measurements["driver"]["library"] = "575.1.1"
    assert judged("gpu_driver", measurements, GIVEN).status is Status.FAIL
    measurements["kernel_log"]["whole"] = False
    assert judged("gpu_xid", measurements, GIVEN).status is Status.SKIP
    assert judged("gpu_xid", measurements).status is Status.UNKNOWN
    event = {
        "xid": 79,
        "pci": "0000:01:00",
        "text": "GPU has fallen off the bus",
        "fatal": False,
        "count": 1,
        "age_s": 60,
    }
    measurements["kernel_log"]["xids"] = [event]
    assert judged("gpu_xid", measurements, GIVEN).status is Status.FAIL


def test_every_measurement_of_the_registry_is_made_and_needed() -> None:
    assert {name for _check, name in CASES} == set(registry.MEASUREMENTS) == set(healthy())
    assert len({check.name for check in registry.CHECKS}) == len(registry.CHECKS)
    assert all(check.profiles and check.remedy and check.title for check in registry.CHECKS)
    assert NODE.off == ()


def test_a_reboot_comes_first_where_it_may_fix_what_was_found() -> None:
    fixable = registry.reboots()
    assert fixable <= registry.drains()
    assert {"gpu_driver", "gpu_xid", "gpu_ecc", "gpu_row_remap", "gpu_nvlink", "gpu_count", "rdma_links"} <= fixable
    # Disks, shares and memory modules are the same after a reboot.
    assert not fixable & {"drives", "memory", "mounts", "root_file_system", "local_disk", "dcgm_long", "rdma_errors"}
