"""The table of advisories, read once from advisories.toml, which explains each field and names its source."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping
from datetime import date
from functools import lru_cache
from importlib import resources
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gpucluster.advisories.versions import is_of_line, is_older, of_project

Product = Literal[
    "slurm", "enroot", "pyxis", "nvidia-container-toolkit", "nvidia-driver", "containerd", "runc", "kubernetes",
    "kernel",
]  # fmt: skip
#: What advisories are about, and what hosts are asked for.
PRODUCTS: tuple[str, ...] = get_args(Product)
Severity = Literal["critical", "high", "medium", "low", ""]


class _Fact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Advisory(_Fact):
    """Vulnerabilities of one product that the same versions fix; see advisories.toml."""

    names: tuple[str, ...] = Field(min_length=1)
    product: Product
    published: str = Field(pattern=r"^20\d\d-(0[1-9]|1[0-2])$")
    severity: Severity = ""
    what: str
    fixed: Mapping[str, str] = Field(min_length=1)
    introduced: Mapping[str, str] = {}
    packages: Mapping[str, str] = {}
    source: str = Field(pattern=r"^https://")
    action: str = ""
    modules: tuple[str, ...] = ()

    @field_validator("fixed", "introduced")
    @classmethod
    def _of_their_lines(cls, versions: Mapping[str, str]) -> Mapping[str, str]:
        own = {line: of_project(version) for line, version in versions.items()}
        if wrong := [line for line, version in own.items() if not is_of_line(version, line)]:
            raise ValueError(f"the version of {wrong[0]} is of another line")
        if any(is_older(after, before) for before, after in itertools.pairwise(own.values())):
            raise ValueError("the oldest line is first")
        return own

    def fixed_for(self, version: str) -> str:
        """The first fixed version of the line of a version; empty if none is known."""
        return next((fixed for line, fixed in self.fixed.items() if is_of_line(version, line)), "")

    def concerns(self, version: str) -> bool:
        """Whether a version has the vulnerabilities, as the project has published it.

        Args:
            version: the project's own, as `versions.of_project` returns it.
        """
        if any(is_of_line(version, line) and is_older(version, first) for line, first in self.introduced.items()):
            return False
        if self.introduced and all(is_older(version, first) for first in self.introduced.values()):
            return False
        fixed = self.fixed_for(version)
        return is_older(version, fixed) if fixed else any(is_older(version, each) for each in self.fixed.values())


class _Table(_Fact):
    searched: date
    advisory: tuple[Advisory, ...]


@lru_cache
def _table() -> _Table:
    text = resources.files("gpucluster.advisories").joinpath("advisories.toml").read_text(encoding="utf-8")
    return _Table.model_validate(tomllib.loads(text))


def advisories(product: str) -> tuple[Advisory, ...]:
    """The advisories of a product, the newest first; none for a product that the table does not have."""
    own = [each for each in _table().advisory if each.product == product]
    return tuple(sorted(own, key=lambda each: each.published, reverse=True))


def searched() -> date:
    """The day until which the sources were searched."""
    return _table().searched
