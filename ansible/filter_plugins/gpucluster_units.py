"""Filters for templates of systemd units: `systemd_text`, `systemd_word`, `systemd_argument` and `systemd_bare`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError


def _filter(name: str) -> Callable[[Any], str]:
    def quote(value: Any) -> str:
        # The operator's machine and the controller have the package beside their Ansible.
        from gpucluster.errors import InputError
        from gpucluster.systems import units

        try:
            return str(getattr(units, name)(str(value)))
        except InputError as error:
            raise AnsibleFilterError(str(error)) from None

    return quote


class FilterModule:
    """Called by Ansible."""

    def filters(self) -> dict[str, Callable[[Any], str]]:
        """The filters by their names; `gpucluster.systems.units` documents what each does."""
        return {f"systemd_{name}": _filter(name) for name in ("text", "word", "argument", "bare")}
