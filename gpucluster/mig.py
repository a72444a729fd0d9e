"""What a GPU can be divided into (NVIDIA's Multi-Instance GPU), read once from mig.toml. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from gpucluster.node_agent.rules.mig import MigInstance


class DoesNotFit(Exception):
    """A GPU can't be divided like this; the message states why."""


@dataclass(frozen=True)
class MigProfile:
    """A kind of instance. `size` and `starts` are slices of memory; `most` is the number of them on one GPU."""

    name: str
    compute: int
    size: int
    starts: tuple[int, ...]
    most: int


@dataclass(frozen=True)
class MigGpu:
    """A GPU that can be divided: its slices of compute and of memory, and its profiles by name."""

    name: str
    compute: int
    memory: int
    profiles: Mapping[str, MigProfile]

    def place(self, numbers: Mapping[str, int]) -> tuple[MigInstance, ...]:
        """Where each instance begins, in the order in which they are made: the large ones first.

        Args:
            numbers: the number of instances by the name of their profile.

        Raises:
            DoesNotFit: there is no such profile, or the GPU has no room for all of them.
        """
        for name, number in numbers.items():
            if name not in self.profiles:
                raise DoesNotFit(f"{self.name} has no profile {name}")
            if number > self.profiles[name].most:
                raise DoesNotFit(f"{self.name} holds at most {self.profiles[name].most} x {name}, and not {number}")
        each = [self.profiles[name] for name, number in numbers.items() for _ in range(number)]
        layout = " + ".join(f"{number} x {name}" for name, number in numbers.items())
        for what, needed, there in (
            ("compute", sum(profile.compute for profile in each), self.compute),
            ("memory", sum(profile.size for profile in each), self.memory),
        ):
            if needed > there:
                raise DoesNotFit(f"{layout} need {needed} slices of {what}, and {self.name} has {there}")
        # Instances of a profile that is large or particular about its place come first: NVIDIA's driver, too, refuses
        # a 3g after smaller ones ("known issue" of the MIG User Guide).
        each.sort(key=lambda profile: (-profile.size, len(profile.starts), -profile.compute, profile.name))
        starts = next(_places(each, frozenset(range(self.memory))), None)
        if starts is None:
            rules = ", ".join(
                f"{name} at {' or '.join(map(str, self.profiles[name].starts))}"
                for name, number in numbers.items()
                if number
            )
            raise DoesNotFit(
                f"{self.name} has no room for {layout}: instances begin at fixed slices of memory ({rules})"
            )
        return tuple(MigInstance(profile.name, start) for profile, start in zip(each, starts, strict=True))


def _places(each: Sequence[MigProfile], free: frozenset[int]) -> Iterator[tuple[int, ...]]:
    """Every way to give each profile slices that no other one has."""
    if not each:
        yield ()
        return
    for start in each[0].starts:
        taken = frozenset(range(start, start + each[0].size))
        if taken <= free:
            for rest in _places(each[1:], free - taken):
                yield (start, *rest)


@lru_cache(maxsize=1)
def catalogue() -> Mapping[str, MigGpu]:
    """Every GPU that can be divided, by its name in shapes.toml (`mig_gpu`)."""
    data = tomllib.loads(resources.files("gpucluster").joinpath("mig.toml").read_text(encoding="utf-8"))
    return MappingProxyType(
        {name: _gpu(name, facts, data["forms"][facts["form"]]) for name, facts in data["gpus"].items()}
    )


def _gpu(name: str, facts: Mapping[str, Any], form: Mapping[str, Any]) -> MigGpu:
    profiles = {}
    for kind, profile in facts["names"].items():
        of = form["kinds"][kind]
        fits = min(form["compute"] // of["compute"], len(_apart(of["starts"], of["size"])))
        most = min(fits, of.get("most", fits))
        profiles[profile] = MigProfile(profile, of["compute"], of["size"], tuple(of["starts"]), most)
    return MigGpu(name, form["compute"], form["memory"], MappingProxyType(profiles))


def _apart(starts: Sequence[int], size: int) -> list[int]:
    """The starts that instances of one kind can have at the same time."""
    chosen: list[int] = []
    for start in starts:
        if not chosen or start >= chosen[-1] + size:
            chosen.append(start)
    return chosen
