"""Parses what nccl-tests writes with `-J FILE` (since 2.17.3; schema version 3).

`okay` is a string ("true", "false", "unchecked"), `nwrong` may be null, and with several GPUs in one process only the
first has a line among the devices. A run without errors has one error, of no characters. The file also holds the whole
environment of the process: nothing of it is kept but the settings of NCCL.
"""

from __future__ import annotations

import json
from statistics import median
from typing import Any

from gpucluster.node_agent.nccl.measurement import Half, Measurement, Number, RankDevice, Row


class NotJson(ValueError):
    """The text is something else, or it was cut off."""


def parse(text: str) -> Measurement:
    """The measurement of a JSON file.

    Raises:
        NotJson: it can't be read to its end, or has no results.
    """
    try:
        content = json.loads(text, parse_float=_float, parse_int=int)
        return _measurement(content)
    except (ValueError, RecursionError) as error:
        raise NotJson(f"not a complete JSON output of nccl-tests: {error}") from None
    except (AttributeError, KeyError, TypeError) as error:
        raise NotJson(f"not a JSON output of nccl-tests: {type(error).__name__}: {error}") from None


def _measurement(content: dict[str, Any]) -> Measurement:
    config = content.get("config") or {}
    rows = [
        Row(
            1, int(row["size"]), str(row.get("redop") or ""), int(row.get("root", -1)), half, _half(row.get("in_place"))
        )
        for row in content["results"]
        for half in [_half(row.get("out_of_place"))]
        if half is not None
    ]
    devices = [
        RankDevice(
            int(each["rank"]),
            int(each.get("group", 0)),
            str(each.get("hostname", "")),
            str(each.get("device_info", "")),
        )
        for each in config.get("devices") or ()
    ]
    okay = (content.get("out_of_bounds") or {}).get("okay")
    settings = dict(word.split("=", 1) for word in content.get("env") or () if word.startswith("NCCL_") and "=" in word)
    ended = 1 if content.get("end_time") else 0
    per_line = max(int(config.get("ngpus") or 1) * int(config.get("nthreads") or 1), 1)
    errors = [str(each)[:200] for each in content.get("errors") or () if each]
    return Measurement(
        _operation(content.get("args")), rows, 1, True, ended, {"true": True, "false": False}.get(str(okay).lower()),
        devices, per_line, frozenset(), settings, errors, times=_times(content["results"]),
    )  # fmt: skip


def _times(results: list[dict[str, Any]]) -> tuple[float, ...]:
    """Of the largest message, the median iteration of each process (-I 1, with several processes)."""
    largest = max(results, key=lambda row: int(row["size"]), default={})
    timing = largest.get("out_of_place_per_iter") or {}
    skipped = int(timing.get("skipped_iterations") or 0)
    processes = [times[skipped:] for times in timing.get("per_process_max_times_us") or ()]
    return tuple(median(map(float, times)) for times in processes if times)


def _operation(args: Any) -> str | None:
    words = args.split() if isinstance(args, str) else [str(word) for word in args or ()]
    program = words[0].rpartition("/")[2] if words else ""
    return program[: -len("_perf")] if program.endswith("_perf") else None


def _half(result: Any) -> Half | None:
    if not result or result.get("bus_bw") is None or result.get("alg_bw") is None:
        return None
    wrong = result.get("nwrong")
    return Half(
        _number(result["alg_bw"]), _number(result["bus_bw"]), None if wrong is None else int(_number(wrong).value)
    )


class _Exact(float):
    """A float that knows how many digits stood behind the point."""

    step: float


def _float(text: str) -> _Exact:
    digits, _e, exponent = text.lower().partition("e")
    made = _Exact(text)
    made.step = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return made


def _number(value: Any) -> Number:
    # Whole numbers come from values that were printed with two digits behind the point elsewhere.
    return Number(float(value), getattr(value, "step", 0.01))
