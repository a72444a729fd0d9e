"""RDMA devices: what /sys/class/infiniband has, and how far the counters have grown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpucluster.node_agent import rdma_files
from gpucluster.node_agent.checks.collect import samples
from gpucluster.node_agent.checks.collect.place import MeasuredHost, Unmeasured, entries, read_or_none
from gpucluster.node_agent.checks.judges.rdma import LIMITS

#: How long samples count, and how far apart they are at least, in seconds.
WINDOW_S = 3600.0
SPACING_S = 60.0
_FILE = "rdma.json"
# Every RDMA device of the shapes has one port.
_PORT = "ports/1"


def _folder(host: MeasuredHost) -> Path:
    return host.path("/sys/class/infiniband")


def rdma(host: MeasuredHost, _seconds: float) -> dict[str, dict[str, str | None]]:
    """By device: state, physical state and rate of its port, width of its PCIe link."""
    folder = _folder(host)
    if not host.path("/sys/class").is_dir():
        raise Unmeasured("there is no /sys/class")
    return {
        name: {
            **{what: read_or_none(folder / name / _PORT / what) for what in ("state", "phys_state", "rate")},
            "pcie_width": read_or_none(folder / name / "device" / "current_link_width"),
            "pcie_max_width": read_or_none(folder / name / "device" / "max_link_width"),
        }
        for name in entries(folder)
    }


def rdma_errors(host: MeasuredHost, _seconds: float) -> dict[str, dict[str, Any]]:
    """By device, how far each counter of LIMITS has grown: since the oldest sample of the last hour, or since the boot.

    `seconds` is None where there is no window: the counters were set back since, or the device is new. Then the window
    starts now.
    """
    boot, now = host.boot_id(), host.monotonic()
    counters = {name: _counters(_folder(host) / name / _PORT) for name in entries(_folder(host))}
    file = host.state / _FILE
    before = _usable(samples.load(file), boot, now)
    new = [name for name in counters if before and _set_back(name, counters[name], before)]
    windows = {name: _window(name, counters[name], [] if name in new else before, now) for name in counters}
    for name in new:
        windows[name]["seconds"] = None
    if new or not before or now - before[-1]["at"] >= SPACING_S:
        kept = [
            {**each, "counters": {name: values for name, values in each["counters"].items() if name not in new}}
            for each in before
        ]
        samples.keep(file, [*kept, {"boot": boot, "at": now, "counters": counters}])
    return windows


def _set_back(name: str, now: dict[str, int | None], before: list[dict[str, Any]]) -> bool:
    """Whether a counter is smaller than it was, or the device is new."""
    earlier = [each["counters"][name] for each in before if name in each["counters"]]
    return not earlier or any(
        value is not None and isinstance(values.get(counter), int) and value < values[counter]
        for values in earlier
        for counter, value in now.items()
    )


def _window(name: str, now: dict[str, int | None], before: list[dict[str, Any]], at: float) -> dict[str, Any]:
    first = next((each for each in before if name in each["counters"]), None)
    start = first["counters"][name] if first else {}
    grown = {
        counter: None if value is None or (first and start.get(counter) is None) else value - (start.get(counter) or 0)
        for counter, value in now.items()
    }
    return {"seconds": round(at - (first["at"] if first else 0.0), 3), "since_boot": first is None, "grown": grown}


def _counters(port: Path) -> dict[str, int | None]:
    counters: dict[str, int | None] = {}
    for name in LIMITS:
        values = (rdma_files.number(f"{port}/{folder}/{name}") for folder in rdma_files.FOLDERS)
        counters[name] = next((value for value in values if value is not None), None)
    return counters


def _usable(kept: Any, boot: str, now: float) -> list[dict[str, Any]]:
    """The samples of this boot that are young enough, oldest first. A file of another form has none."""
    if not isinstance(kept, list):
        return []
    good = [
        each
        for each in kept
        if isinstance(each, dict)
        and each.get("boot") == boot
        and isinstance(each.get("at"), (int, float))
        and now - WINDOW_S <= each["at"] <= now
        and isinstance(each.get("counters"), dict)
        and all(isinstance(values, dict) for values in each["counters"].values())
    ]
    return sorted(good, key=lambda each: float(each["at"]))
