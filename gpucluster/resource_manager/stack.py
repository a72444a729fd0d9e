"""The values of a stack's variables with their types: Resource Manager has each of them as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from gpucluster.resource_manager.table import variables

_FLAGS = {"true": True, "1": True, "false": False, "0": False}
#: Values of the stack for "not given", beside the empty one.
_PLACEHOLDERS = frozenset({"image.ocid", "0.0.0.0"})  # noqa: S104 - a value of the form, no address to bind


class Stack:
    """The values that a file gives, and the stack's own defaults for the others.

    Args:
        values: by the names of the variables, of any type.

    `faults` fills with a message for each value that is not of its type; such a value is then as if it were not given.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.faults: dict[str, str] = {}

    def given(self, name: str) -> bool:
        """Whether the file has a value for it."""
        value = self.values.get(name)
        return value is not None and value != "" and value not in ({}, [])

    def first(self, *names: str) -> str:
        """The first of these variables that has a value; without any, the first: its default counts."""
        return next((name for name in names if self.given(name)), names[0])

    def release(self) -> int:
        """The major release of the stack, by variables that only one of them has; 3 if nothing tells it apart."""
        of_two = {"cluster_network", "use_multiple_ads", "autoscaling", "bastion_shape", "home_nfs", "inst_prin"}
        of_three = {"rdma_enabled", "shared_home", "stand_alone", "ondemand_partition", "slurm_version"}
        return 2 if of_two & self.values.keys() and not of_three & self.values.keys() else 3

    def _raw(self, name: str) -> Any:
        return self.values[name] if self.given(name) else variables()[name].default

    def text(self, name: str) -> str:
        """Its value as text without spaces around it; "" without one. Placeholders of the stack's form are none."""
        value = self._raw(name)
        if value is None or isinstance(value, (dict, list)):
            if value is not None:
                self._fault(name, "is not a text")
            return ""
        text = str(value).lower() if isinstance(value, bool) else str(value).strip()
        return "" if text in _PLACEHOLDERS else text

    def flag(self, name: str) -> bool:
        """Its value as true or false; without one false."""
        value = self._raw(name)
        if value is None:
            return False
        found = _FLAGS.get(str(value).strip().lower())
        if found is None:
            self._fault(name, "is neither true nor false")
        return bool(found)

    def number(self, name: str) -> int | None:
        """Its value as a whole number; None without one."""
        value = self._raw(name)
        if value is None:
            return None
        match = re.fullmatch(r"\s*(-?[0-9]{1,9})(?:\.0*)?\s*", str(value))
        if match is None or isinstance(value, bool):
            self._fault(name, "is not a whole number")
            return None
        return int(match[1])

    def mapping(self, name: str) -> Mapping[str, str]:
        """Its value as names with texts, which Resource Manager has as JSON."""
        value = self._raw(name)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                value = None
        return {str(key): str(each) for key, each in value.items()} if isinstance(value, dict) else {}

    def active(self, name: str) -> bool:
        """Whether a variable has an effect in the stack: what it needs is on, and its value is not the usual one."""
        variable = variables()[name]
        if variable.needs and not self.flag(variable.needs):
            return False
        value = self._raw(name)
        usual = self._raw(variable.same_as) if variable.same_as else variable.default
        if value is None or variable.filled_in or self._same(value, usual):
            return False
        if variable.off_counts:
            return not self.flag(name)
        return str(value).strip().lower() not in ("", "false", "none", "default", "null", *_PLACEHOLDERS)

    @staticmethod
    def _same(value: Any, default: Any) -> bool:
        return default is not None and str(value).strip().lower() == str(default).strip().lower()

    def _fault(self, name: str, message: str) -> None:
        self.faults[name] = message


def secret_names(values: Mapping[str, Any]) -> Iterable[str]:
    """The variables whose values are secrets: by the table, by their name, or because a private key is in the value."""
    table = variables()
    for name, value in values.items():
        by_name = name not in table and re.search(r"(?i)passw|secret|token|private_?key|api_?key|credential", name)
        if by_name or (name in table and table[name].secret) or "PRIVATE KEY" in str(value):
            yield name
