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
    end_values: dict[int, T] = {}
    questions: dict[int, Sequence[FabricMeasurement]] = {}

    def step(number: int, results: Results | None) -> None:
        try:
            questions[number] = next(parts[number]) if results is None else parts[number].send(results)
        except StopIteration as end:
            end_values[number] = end.value
            questions.pop(number, None)

    for number in range(len(parts)):
        step(number, None)
    while questions:
        distinct = dict.fromkeys(each for measurements in questions.values() for each in measurements)
        results = yield tuple(distinct)
        for number in sorted(questions):
            step(number, {each: results.get(each) for each in questions[number]})
    return [end_values[number] for number in range(len(parts))]
