"""A template of a role, evaluated as Ansible's own lookup does it, without a copy of all variables of the play."""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import lookup_loader
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = """
name: gpucluster_template
short_description: A template, as ansible.builtin.template gives it, at a third of the processor time
description:
  - C(ansible.builtin.template) copies every variable deeply before each template, to add five names to them. With an
    inventory of ours that takes longer than all else that a task does on the operator's machine.
options:
  _terms: {description: Names of templates., type: list, elements: str}
author: gpucluster
"""

EXAMPLES = """
- gpucluster_service:
    files:
      - path: /etc/slurm/gres.conf
        content: "{{ lookup('gpucluster_template', 'gres.conf.j2') }}"
"""

RETURN = """
_raw: {description: The text., type: list, elements: str}
"""


class _Variables(dict[str, Any]):
    """Variables whose copy has its own names and the same values, which a template does not change."""

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        del memo
        return dict(self)


class LookupModule(LookupBase):  # type: ignore[misc]
    """Ansible's own lookup, for variables that are cheap to copy."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[str]:
        """Called by Ansible."""
        template = lookup_loader.get("ansible.builtin.template", loader=self._loader, templar=self._templar)
        found: list[str] = template.run(terms, variables=_Variables(variables or {}), **kwargs)
        return found
