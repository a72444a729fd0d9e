"""Whether a bandwidth is good. Results vary by some percent, so what is near the limit is measured again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from gpucluster.fabric.model import FabricMeasurement, Results
from gpucluster.fabric.rounds import Part
from gpucluster.text import some

#: Shares of the healthy bandwidth. Below the lower one something is wrong, whatever the noise; above the upper one
#: nothing is; between them the median of three decides. Faults that are known cost a fifth of the bandwidth or more.
SURELY_BAD, LIMIT, SURELY_GOOD = 0.84, 0.9, 0.94
_REPEATS = 2
#: The most names in a message.
_NAMED = 4


@dataclass(frozen=True)
class Scale:
    """What healthy nodes reach, in GB/s: with all devices, and with one."""

    whole: float
    rail: float

    def share(self, measurement: FabricMeasurement, result: float | None) -> float | None:
        """The share of the healthy bandwidth; None without a result."""
        return None if result is None else result / (self.whole if measurement.rail is None else self.rail)


def typical(results: Iterable[float | None]) -> float | None:
    """What healthy groups reach, from results of which some may be bad: the median of those near the best."""
    known = [result for result in results if result is not None and result > 0]
    if not known:
        return None
    return median(result for result in known if result >= SURELY_BAD * max(known))


def good(
    scale: Scale, measurements: Iterable[FabricMeasurement], first: Results | None = None
) -> Part[dict[FabricMeasurement, bool | None]]:
    """Measure, and report of each whether it is good; None where there was no result in any attempt.

    Args:
        first: results of a first attempt that was made already.
    """
    values: dict[FabricMeasurement, list[float]] = {each: [] for each in measurements}
    ask = tuple(values)
    for attempt in range(1 + _REPEATS):
        if not ask:
            break
        results = first if first is not None and attempt == 0 else (yield ask)
        for each in ask:
            share = scale.share(each, results.get(each))
            if share is not None:
                values[each].append(share)
        ask = tuple(each for each in ask if _doubtful(values[each]))
    return {each: (median(shares) >= LIMIT if shares else None) for each, shares in values.items()}


class MeasurementFailure(Exception):
    """A measurement had no result in any attempt; the message names its nodes."""


def certain(scale: Scale, measurements: Iterable[FabricMeasurement]) -> Part[dict[FabricMeasurement, bool]]:
    """The same, where only a result makes a node bad.

    Raises:
        Unmeasured: one had no result in any attempt.
    """
    results = yield from good(scale, measurements)
    silent = sorted(node for each, is_good in results.items() if is_good is None for node in each.nodes)
    if silent:
        raise MeasurementFailure(some(list(dict.fromkeys(silent)), _NAMED))
    return {each: bool(is_good) for each, is_good in results.items()}


def _doubtful(shares: list[float]) -> bool:
    if not shares:
        return True
    # After a doubtful result two more are taken, and the middle one counts.
    return len(shares) > 1 or SURELY_BAD < shares[0] < SURELY_GOOD
