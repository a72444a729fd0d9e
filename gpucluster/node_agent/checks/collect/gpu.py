"""GPUs: nvidia-smi, the PCI bus and the device files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucluster.node_agent.checks import refusals
from gpucluster.node_agent.checks.collect.place import MeasuredHost, Refusal, Unmeasured, entries, read_or_none

if TYPE_CHECKING:
    from xml.etree import ElementTree

# Long lists that no judge reads.
_LEFT_OUT = frozenset({"supported_clocks", "processes", "accounted_processes"})
_VENDORS = {"0x10de": "nvidia", "0x1002": "amd"}
# PCI classes of GPUs: display controllers, and processing accelerators (AMD's MI series).
_CLASSES = ("0x03", "0x12")
# Instead of the list, where none of a GPU's links is up.
_ALL_INACTIVE = "all links are inactive"
# Before or behind the XML: "WARNING: infoROM is corrupted at gpu 0000:97:00.0".
_WARNING = "WARNING:"
_GPU_LINE = re.compile(r"GPU (\d+): ")
_STATUS_LINE = re.compile(r"Link (\d+): (<?[\w.]+>?(?: GB/s)?)$")
_ERROR_LINE = re.compile(r"Link (\d+): ([A-Za-z ]+ Errors): (\d+)$")


def nvidia_smi(host: MeasuredHost, seconds: float) -> dict[str, Any]:
    """`nvidia-smi -q -x`: driver, the number of GPUs, and every value of each by its path of element names."""
    status, text = _ask(host, ["-q", "-x"], seconds)
    values = parse_nvidia_smi(text)
    if status == refusals.INFOROM and not values["warnings"]:
        values["warnings"] = ["the infoROM of a GPU is corrupted"]
    return values


def _ask(host: MeasuredHost, words: list[str], seconds: float) -> tuple[int, str]:
    """Status (0 or `INFOROM`) and output of nvidia-smi.

    Raises:
        Refusal: it reports that the driver or a GPU does not work.
        Unmeasured: it did not answer.
    """
    result = host.run(["nvidia-smi", *words], seconds)
    if result.status in (0, refusals.INFOROM):
        return result.status, result.output
    reason = refusals.refusal(result.status, result.output, result.errors)
    if reason:
        raise Refusal(reason)
    raise Unmeasured(f"nvidia-smi ended with status {result.status}: {result.words()}")


def parse_nvidia_smi(text: str) -> dict[str, Any]:
    """The values of an output of `nvidia-smi -q -x`, and the warnings that it prints beside the XML.

    Raises:
        Unmeasured: it is cut off, or something else.
    """
    from xml.etree import ElementTree  # on a host without GPUs it would only cost time

    lines = text.splitlines(keepends=True)
    warnings = [" ".join(line.split()) for line in lines if line.startswith(_WARNING)]
    try:
        xml = "".join(line for line in lines if not line.startswith(_WARNING))
        root = ElementTree.fromstring(xml)  # noqa: S314 - a program of root wrote it
    except ElementTree.ParseError as error:
        raise Unmeasured(f"the output of nvidia-smi is cut off or no XML: {error}") from None
    if root.tag != "nvidia_smi_log":
        raise Unmeasured(f"the output of nvidia-smi is <{root.tag}>")
    return {
        "driver": root.findtext("driver_version", ""),
        "attached": root.findtext("attached_gpus", ""),
        "gpus": [_leaves(gpu) for gpu in root.findall("gpu")],
        "warnings": [warning[len(_WARNING) :].strip() for warning in warnings],
    }


def _leaves(element: ElementTree.Element, before: str = "") -> dict[str, str]:
    leaves: dict[str, str] = {}
    for child in element:
        if child.tag in _LEFT_OUT:
            continue
        if len(child):
            leaves.update(_leaves(child, f"{before}{child.tag}/"))
        else:
            leaves[before + child.tag] = (child.text or "").strip()
    return leaves


def nvlink(host: MeasuredHost, seconds: float) -> dict[str, Any]:
    """By GPU and link: its speed (`nvidia-smi nvlink -s`) and its counts of errors (`-e`)."""
    half = seconds / 2
    return parse_nvlink(_ask(host, ["nvlink", "-s"], half)[1], _ask(host, ["nvlink", "-e"], half)[1])


def parse_nvlink(speeds: str, errors: str) -> dict[str, Any]:
    """The two outputs together.

    Raises:
        Unmeasured: the first has no GPU.
    """
    gpus: dict[str, dict[str, dict[str, str]]] = {}
    for text in (speeds, errors):
        gpu = ""
        for line in map(str.strip, text.splitlines()):
            header, speed, count = _GPU_LINE.match(line), _STATUS_LINE.match(line), _ERROR_LINE.match(line)
            if header:
                gpu = f"GPU {header[1]}"
                gpus.setdefault(gpu, {})
            elif gpu and _ALL_INACTIVE in line.lower():
                gpus[gpu]["all"] = {"speed": "<inactive>"}
            elif gpu and speed:
                gpus[gpu].setdefault(speed[1], {})["speed"] = speed[2]
            elif gpu and count:
                gpus[gpu].setdefault(count[1], {})[count[2].lower()] = count[3]
    if not gpus:
        raise Unmeasured("nvidia-smi nvlink lists no GPU")
    return gpus


def pci_gpus(host: MeasuredHost, _seconds: float) -> list[dict[str, Any]]:
    """GPUs on the PCI bus, and whether each still answers: one that fell off the bus reads as all ones."""
    folder = host.path("/sys/bus/pci/devices")
    if not folder.is_dir():
        raise Unmeasured(f"there is no {folder}")
    gpus = []
    for address in entries(folder):
        device = folder / address
        vendor = _VENDORS.get(read_or_none(device / "vendor") or "")
        if vendor and (read_or_none(device / "class") or "").startswith(_CLASSES):
            gpus.append({"address": address, "vendor": vendor, "lost": _lost(device)})
    return gpus


def _lost(device: Path) -> bool:
    try:
        with open(device / "config", "rb", buffering=0) as file:
            first = file.read(4)
    except OSError as error:
        raise Unmeasured(f"{device}/config can't be read: {error.strerror}") from None
    if len(first) != 4:  # noqa: PLR2004 - vendor and device
        raise Unmeasured(f"{device}/config has {len(first)} bytes")
    return first == b"\xff\xff\xff\xff"


def device_files(host: MeasuredHost, _seconds: float) -> dict[str, bool]:
    """Whether each device file of the shape exists."""
    return {name: host.path(name).exists() for name in host.expected.gpu_device_files}


def fabric_manager(host: MeasuredHost, seconds: float) -> str:
    """The state of nvidia-fabricmanager."""
    unit = "nvidia-fabricmanager.service"
    answer = host.output(["systemctl", "show", "--property=ActiveState", "--value", unit], seconds).strip()
    if not answer:
        raise Unmeasured(f"systemd reports nothing of {unit}")
    return answer
