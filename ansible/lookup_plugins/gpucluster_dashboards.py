"""Grafana's dashboards, as files: from the gpucluster that runs Ansible, which builds them."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = """
name: gpucluster_dashboards
short_description: Grafana's dashboards, as files
description:
  - What the Python package C(gpucluster.dashboards) builds. The operator's machine has it beside its Ansible.
options:
  _terms: {description: The folder of the files on the host., required: true}
author: gpucluster
"""

EXAMPLES = """
- name: Write the dashboards
  gpucluster_service:
    files: "{{ query('gpucluster_dashboards', '/etc/gpucluster-grafana/dashboards') }}"
"""

RETURN = """
_raw: {description: "Each file with its C(path) and C(content), by name.", type: list, elements: dict}
"""


class LookupModule(LookupBase):  # type: ignore[misc]
    """Builds the files."""

    def run(self, terms: list[Any], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[dict[str, str]]:
        """Called by Ansible."""
        try:
            from gpucluster.dashboards.boards import all_files
        except ImportError as error:
            raise AnsibleError(
                f"the Python that runs Ansible has no package gpucluster ({error}); run `gpucluster apply`, or install "
                "gpucluster beside ansible-core"
            ) from error
        (folder,) = terms
        return [{"path": f"{folder}/{name}", "content": text} for name, text in all_files().items()]
