"""Why the versions of Slurm on the hosts can't work together."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = """
name: gpucluster_slurm_refusals
short_description: Why hosts with these versions of Slurm can't work together
description:
  - By the table of releases in the Python package gpucluster, which the operator's machine and the controller have
    beside their Ansible.
options:
  _terms: {description: "The version on the controller, and a dictionary of the nodes' versions.", required: true}
author: gpucluster
"""

EXAMPLES = """
- name: Compare the versions
  ansible.builtin.assert:
    that: refused == ''
  vars:
    refused: "{{ lookup('gpucluster_slurm_refusals', '26.05.5', {'gpu-1': '24.11.5'}) }}"
"""

RETURN = """
_raw: {description: One sentence for each fault., type: list, elements: str}
"""


class LookupModule(LookupBase):  # type: ignore[misc]
    """Asks the table."""

    def run(self, terms: list[Any], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[str]:
        """Called by Ansible."""
        try:
            from gpucluster.slurm import releases
        except ImportError as error:
            raise AnsibleError(
                f"the Python that runs Ansible has no package gpucluster ({error}); run `gpucluster apply`, or install "
                "gpucluster beside ansible-core"
            ) from error
        controller, nodes = terms
        return list(releases.refusals(str(controller), {str(name): str(found) for name, found in nodes.items()}))
