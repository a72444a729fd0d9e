"""What the judges of GPUs report of planted faults, in real outputs where there are some."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucluster.node_agent.checks.collect.gpu import parse_nvidia_smi
from gpucluster.node_agent.checks.collect.place import Unmeasured
from gpucluster.node_agent.checks.model import Status
from tests.node_agent.checks.judges.results import FAIL, PASS, SKIP, UNKNOWN, WARN
from tests.node_agent.checks.measured import NODE, XML, healthy, judged, planted


def one_gpu(tag: str, now: str, then: str, gpu: int = 3) -> dict[str, Any]:
    """The measurement of an output in which one element of one GPU has another text."""
    parts = XML.split(f"<{tag}>{now}</{tag}>")
    assert len(parts) % 8 == 1, tag
    each = (len(parts) - 1) // 8
    text = parts[0]
    for index, part in enumerate(parts[1:]):
        text += f"<{tag}>{then if index // each == gpu else now}</{tag}>{part}"
    return {**healthy(), "nvidia_smi": parse_nvidia_smi(text)}


_REASON = "clocks_event_reason_"


@pytest.mark.parametrize(
    ("check", "tag", "now", "then", "status"),
    [
        ("gpu_ecc", "sram_uncorrectable_parity", "0", "1", FAIL),
        ("gpu_ecc", "dram_uncorrectable", "0", "2", FAIL),
        ("gpu_ecc", "dram_correctable", "0", "700", PASS),
        ("gpu_ecc", "current_ecc", "Enabled", "Disabled", WARN),
        ("gpu_repair", "gpu_recovery_action", "None", "Reset", FAIL),
        ("gpu_repair", "gpu_recovery_action", "None", "Drain and Reset", FAIL),
        ("gpu_repair", "unrepairable_memory", "No", "Yes", FAIL),
        ("gpu_repair", "sram_threshold_exceeded", "No", "Yes", FAIL),
        ("gpu_repair", "channel_repair_pending", "No", "Yes", WARN),
        ("gpu_row_remap", "remapped_row_pending", "No", "Yes", FAIL),
        ("gpu_row_remap", "remapped_row_failure", "No", "Yes", FAIL),
        ("gpu_row_remap", "remapped_row_unc", "0", "513", FAIL),
        ("gpu_row_remap", "remapped_row_unc", "0", "4", PASS),
        ("gpu_pcie_width", "current_link_width", "16x", "8x", FAIL),
        ("gpu_pcie_speed", "current_link_gen", "5", "1", FAIL),
        ("gpu_clocks", f"{_REASON}hw_slowdown", "Not Active", "Active", FAIL),
        ("gpu_clocks", f"{_REASON}hw_thermal_slowdown", "Not Active", "Active", FAIL),
        ("gpu_clocks", f"{_REASON}hw_power_brake_slowdown", "Not Active", "Active", FAIL),
        ("gpu_clocks", f"{_REASON}sw_thermal_slowdown", "Not Active", "Active", WARN),
        ("gpu_clocks", f"{_REASON}sw_power_cap", "Not Active", "Active", PASS),
        ("gpu_clocks", f"{_REASON}gpu_idle", "Active", "Not Active", PASS),
        ("gpu_persistence", "persistence_mode", "Enabled", "Disabled", WARN),
        ("gpu_fabric", "state", "Completed", "In Progress", WARN),
        ("gpu_fabric", "state", "Completed", "Not Started", FAIL),
        ("gpu_fabric", "status", "Success", "Unknown Failure", FAIL),
        ("gpu_model", "product_name", "NVIDIA H200", "NVIDIA H100 80GB HBM3", FAIL),
    ],
)
def test_a_value_of_one_gpu(check: str, tag: str, now: str, then: str, status: Status) -> None:
    found = judged(check, one_gpu(tag, now, then))
    assert found.status is status, found
    if status in (WARN, FAIL):
        assert "GPU 3" in found.message


def test_a_gpu_that_rests_may_have_a_slow_link() -> None:
    measurements = one_gpu("current_link_gen", "5", "1")
    measurements["nvidia_smi"]["gpus"][3]["performance_state"] = "P8"
    assert judged("gpu_pcie_speed", measurements).status is PASS  # of the others
    for gpu in measurements["nvidia_smi"]["gpus"]:
        gpu.update(performance_state="P8")
        gpu["pci/pci_gpu_link_info/pcie_gen/current_link_gen"] = "1"
    assert judged("gpu_pcie_speed", measurements).status is SKIP


@pytest.mark.parametrize(
    ("product", "model", "status"),
    [
        ("NVIDIA A10", "a10", PASS),
        ("NVIDIA A100-SXM4-80GB", "a10", FAIL),
        ("NVIDIA A100-SXM4-80GB", "a100", PASS),
        ("Tesla V100-SXM2-16GB", "v100", PASS),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000", PASS),
        ("NVIDIA GB200", "b200", FAIL),
    ],
)
def test_the_model_is_a_whole_word(product: str, model: str, status: Status) -> None:
    measurements = healthy()
    for gpu in measurements["nvidia_smi"]["gpus"]:
        gpu["product_name"] = product
    assert judged("gpu_model", measurements, replace(NODE, gpu_model=model)).status is status


def test_links_of_a_gpu_that_is_divided_are_not_judged() -> None:
    measurements = healthy()
    measurements["nvlink"]["GPU 2"] = {"all": {"speed": "<inactive>"}}
    assert judged("gpu_nvlink", measurements).status is FAIL
    measurements["nvidia_smi"]["gpus"][2]["mig_mode/current_mig"] = "Enabled"
    assert judged("gpu_nvlink", measurements).status is PASS
    del measurements["nvidia_smi"]["gpus"][2]["mig_mode/current_mig"]
    assert judged("gpu_nvlink", measurements).status is FAIL


def test_fewer_gpus_and_a_list_that_contradicts_its_head() -> None:
    measurements = healthy()
    del measurements["nvidia_smi"]["gpus"][7]
    assert judged("gpu_count", measurements).status is UNKNOWN
    measurements["nvidia_smi"]["attached"] = "7"
    found = judged("gpu_count", measurements)
    assert (found.status, found.message) == (FAIL, "7 of 8 GPUs")


@pytest.mark.parametrize("size", [0.2, 0.5, 0.9, 0.999])
def test_an_output_that_is_cut_off_is_not_a_measurement(size: float) -> None:
    with pytest.raises(Unmeasured, match="cut off"):
        parse_nvidia_smi(XML[: int(len(XML) * size)])


def test_a_gpu_before_ampere_retires_pages() -> None:
    measurements = healthy()
    for gpu in measurements["nvidia_smi"]["gpus"]:
        gpu["product_architecture"] = "Volta"
        gpu["retired_pages/pending_retirement"] = "No"
        for kind in ("multiple_single_bit_retirement", "double_bit_retirement"):
            gpu[f"retired_pages/{kind}/retired_count"] = "0"
    assert judged("gpu_retired_pages", measurements).status is PASS
    assert judged("gpu_row_remap", measurements).status is SKIP
    measurements["nvidia_smi"]["gpus"][2]["retired_pages/pending_retirement"] = "Yes"
    assert judged("gpu_retired_pages", measurements).status is FAIL
    del measurements["nvidia_smi"]["gpus"][2]["retired_pages/pending_retirement"]
    assert judged("gpu_retired_pages", measurements).status is UNKNOWN


@pytest.mark.parametrize(
    ("names", "status"),
    [({"sram_uncorrectable": "0"}, PASS), ({"sram_uncorrectable": "3"}, FAIL), ({"double_bit/total": "1"}, FAIL)],
)
def test_counters_of_older_drivers(names: dict[str, str], status: Status) -> None:
    measurements = healthy()
    gpu = measurements["nvidia_smi"]["gpus"][3]
    for name in [name for name in gpu if name.startswith("ecc_errors/volatile/sram_unc")]:
        del gpu[name]
    gpu.update({f"ecc_errors/volatile/{name}": value for name, value in names.items()})
    assert judged("gpu_ecc", measurements).status is status


def test_older_drivers_report_less_and_have_other_names() -> None:
    measurements = healthy()
    measurements["nvidia_smi"]["driver"] = "535.183.01"
    for gpu in measurements["nvidia_smi"]["gpus"]:
        del gpu["gpu_recovery_action"]
        for name in [name for name in gpu if name.startswith("clocks_event_reasons/")]:
            old = name.replace("clocks_event_reasons/", "clocks_throttle_reasons/")
            gpu[old.replace("clocks_event_reason_", "clocks_throttle_reason_")] = gpu.pop(name)
    assert judged("gpu_repair", measurements).status is SKIP
    assert judged("gpu_clocks", measurements).status is PASS


@pytest.mark.parametrize("name", ["reset_required", "drain_and_reset_recommended"])
def test_older_drivers_ask_for_a_reset_by_another_name(name: str) -> None:
    measurements = healthy()
    measurements["nvidia_smi"]["driver"] = "535.54.03"
    for gpu in measurements["nvidia_smi"]["gpus"]:
        del gpu["gpu_recovery_action"]
        gpu["gpu_reset_status/reset_required"] = gpu["gpu_reset_status/drain_and_reset_recommended"] = "No"
    assert judged("gpu_repair", measurements).status is PASS
    measurements["nvidia_smi"]["gpus"][5][f"gpu_reset_status/{name}"] = "Yes"
    found = judged("gpu_repair", measurements)
    assert found.status is FAIL
    assert name.replace("_", " ") in found.message


def test_older_drivers_that_do_not_report_it_hide_no_warning() -> None:
    measurements = healthy()
    measurements["nvidia_smi"]["driver"] = "470.57.02"
    measurements["nvidia_smi"]["warnings"] = ["infoROM is corrupted at gpu 0000:97:00.0"]
    found = judged("gpu_repair", measurements)
    assert (found.status, found.message) == (WARN, "infoROM is corrupted at gpu 0000:97:00.0")
    for gpu in measurements["nvidia_smi"]["gpus"]:
        gpu["gpu_reset_status/reset_required"] = "No"  # and nothing of draining
    assert judged("gpu_repair", measurements).status is WARN


def test_a_gpu_that_is_divided_does_not_tell_its_rows() -> None:
    """As nvidia-smi prints an A100 with MIG: `<remapped_rows>N/A</remapped_rows>`."""
    measurements = healthy()
    for gpu in measurements["nvidia_smi"]["gpus"]:
        for name in [name for name in gpu if name.startswith("remapped_rows/")]:
            del gpu[name]
        gpu["remapped_rows"] = "N/A"
    assert judged("gpu_row_remap", measurements).status is UNKNOWN
    for gpu in measurements["nvidia_smi"]["gpus"]:
        gpu["mig_mode/current_mig"] = "Enabled"
    assert judged("gpu_row_remap", measurements).status is SKIP


def test_what_is_bad_counts_more_than_what_is_not_known() -> None:
    measurements = one_gpu("remapped_row_pending", "No", "Yes")
    del measurements["nvidia_smi"]["gpus"][5]["remapped_rows/remapped_row_failure"]
    found = judged("gpu_row_remap", measurements)
    assert found.status is FAIL
    assert any("GPU 5" in line for line in found.evidence["messages"])


@pytest.mark.parametrize(
    ("check", "path", "value", "status"),
    [
        ("gpu_bus", ("pci_gpus", 5, "lost"), True, FAIL),
        ("gpu_bus", ("pci_gpus",), healthy()["pci_gpus"][:7], FAIL),
        ("gpu_device_files", ("gpu_device_files", "/dev/nvidia6"), False, FAIL),
        ("gpu_nvlink", ("nvlink", "GPU 2", "9", "speed"), "<inactive>", FAIL),
        ("gpu_nvlink", ("nvlink", "GPU 2", "9", "speed"), "12.5 GB/s", FAIL),
        ("gpu_nvlink_errors", ("nvlink", "GPU 2", "9", "recovery errors"), "3", WARN),
        ("gpu_nvlink_errors", ("nvlink", "GPU 2", "9", "replay errors"), "3", PASS),
        ("fabric_manager", ("fabric_manager",), "failed", FAIL),
    ],
)
def test_planted_faults(check: str, path: tuple[Any, ...], value: Any, status: Status) -> None:
    found = judged(check, planted(*path, value=value))
    assert found.status is status, found


@pytest.mark.parametrize("check", ["gpu_count", "gpu_ecc", "gpu_xid", "dcgm_short"])
def test_gpus_whose_tools_are_not_read_are_skipped(check: str) -> None:
    amd = replace(NODE, gpu_vendor="amd")
    assert (judged(check, healthy(), amd).status, judged("gpu_bus", healthy(), amd).status) == (SKIP, FAIL)
