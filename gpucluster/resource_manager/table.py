"""The table of the stack's variables: what answers each of them in cluster.yml, or why nothing does."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

#: Releases of the stack that the table covers.
FIRST, LAST = "2.6.0", "3.1.0"

Type = Literal["bool", "number", "string", "map"]


@dataclass(frozen=True)
class Variable:
    """One variable of the stack.

    Args:
        since: the first release that has it.
        until: the last one.
        type: as the stack declares it.
        default: what the stack takes without a value; None if it has to have one.
        keys: the keys of cluster.yml that it decides, alone or with others.
        reason: why no key answers it; empty if one does.
        needs: the variable without which it has no effect in the stack; empty if it always has one.
        filled_in: whether the form or Resource Manager fills it in, and it decides nothing of the cluster.
        off_counts: whether "off" is an effect that nothing has here.
        same_as: the variable with whose value it has no effect of its own; empty if there is none.
        secret: whether its value is never shown.
    """

    name: str
    since: str
    until: str
    type: Type
    default: Any = None
    keys: tuple[str, ...] = ()
    reason: str = ""
    needs: str = ""
    filled_in: bool = False
    off_counts: bool = False
    same_as: str = ""
    secret: bool = False


@lru_cache(maxsize=1)
def variables() -> Mapping[str, Variable]:
    """Every variable of the stack by its name."""
    text = resources.files(__package__).joinpath("oci_hpc.toml").read_text(encoding="utf-8")
    read = tomllib.loads(text)
    reasons = {"": "", **read["reasons"]}
    table = {}
    for name, facts in read["variables"].items():
        reason = reasons[facts.pop("reason", "")]
        keys = tuple(facts.pop("keys", ()))
        table[name] = Variable(name=name, reason=reason, keys=keys, **facts)
    return MappingProxyType(table)


def markdown() -> str:
    """The table as the page of the documentation has it."""
    lines = ["| variable | releases | type | in cluster.yml |", "|---|---|---|---|"]
    for variable in variables().values():
        answer = ", ".join(f"`{key}`" for key in variable.keys) or f"none. {variable.reason}"
        releases = f"{variable.since} to {variable.until}" if variable.since != variable.until else variable.since
        lines.append(f"| `{variable.name}` | {releases} | {variable.type} | {answer} |")
    return "\n".join(lines)
