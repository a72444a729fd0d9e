"""Which version of the API of an operator our objects have, read once from operator_apis.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from datetime import date
from functools import lru_cache
from importlib import resources
from types import MappingProxyType

from pydantic import BaseModel, ConfigDict


class OperatorApi(BaseModel):
    """One version of an operator's API; the keys are described in the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    api: str
    kinds: tuple[str, ...]
    project: str
    since: str
    checked: str
    on: date
    again: date


@lru_cache(maxsize=1)
def operator_apis() -> Mapping[str, OperatorApi]:
    """Every entry of operator_apis.toml by the name of its operator."""
    text = resources.files("gpucluster.kubernetes").joinpath("operator_apis.toml").read_text(encoding="utf-8")
    return MappingProxyType({name: OperatorApi.model_validate(facts) for name, facts in tomllib.loads(text).items()})


def api_version(kind: str) -> str:
    """The `apiVersion` of an object of this kind.

    Raises:
        KeyError: no operator that we know has this kind.
    """
    for each in operator_apis().values():
        if kind in each.kinds:
            return each.api
    raise KeyError(kind)


def due(apis: Iterable[OperatorApi], today: date) -> list[str]:
    """The APIs whose definition should be read again, as a sentence each."""
    return [
        f"{each.api} was judged by {each.project} {each.checked} on {each.on}: read the newest release's definition"
        for each in apis
        if each.again <= today
    ]
