"""Parts of a search, each a generator that asks for measurements, and how several of them run in the same rounds."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

from gpucluster.fabric.model import FabricMeasurement, Results

T = TypeVar("T")
#: Yields what it wants to have measured, gets the results, and returns what it found.
Part = Generator[Sequence[FabricMeasurement], Results, T]


def together(parts: Sequence[Part[T]]) -> Part[list[T]]:
    """Run parts side by side: in each round, all of them ask together. Returns what they found, in their order."""
    finished: dict[int, T] = {}
    pending: dict[int, Sequence[FabricMeasurement]] = {}

    def step(number: int, results: Results | None) -> None:
        try:
            pending[number] = next(parts[number]) if results is None else parts[number].send(results)
        except StopIteration as end:
            finished[number] = end.value
            pending.pop(number, None)

    for number in range(len(parts)):
        step(number, None)
    while pending:
        distinct = dict.fromkeys(each for measurements in pending.values() for each in measurements)
        results = yield tuple(distinct)
        for number in sorted(pending):
            step(number, {each: results.get(each) for each in pending[number]})
    return [finished[number] for number in range(len(parts))]
