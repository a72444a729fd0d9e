"""The agent as one file, in base64, or its checksum: built from the gpucluster that runs Ansible."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = """
name: gpucluster_agent
short_description: The program gpucluster-agent for hosts, in base64, or its SHA-256
description:
  - A zipapp of the Python package C(gpucluster.node_agent); with the term C(controller) instead of C(node), of
    C(gpucluster.controller) as well. The operator's machine and the controller have the packages beside their Ansible.
    The same version gives the same bytes on both.
  - With the second term C(sha256) the result is the checksum of the file, in hexadecimal digits.
options: {}
author: gpucluster
"""

EXAMPLES = """
- name: Install the agent
  gpucluster_service:
    files:
      - path: /usr/local/bin/gpucluster-agent
        content_base64: "{{ lookup('gpucluster_agent', 'node') }}"
        mode: "0755"
"""

RETURN = """
_raw: {description: The file in base64, or its checksum., type: list, elements: str}
"""


class LookupModule(LookupBase):  # type: ignore[misc]
    """Builds the archive."""

    def run(self, terms: list[Any], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[str]:
        """Called by Ansible."""
        try:
            from gpucluster.artifacts import agent_archive
        except ImportError as error:
            raise AnsibleError(
                f"the Python that runs Ansible has no package gpucluster ({error}); run `gpucluster apply`, or install "
                "gpucluster beside ansible-core"
            ) from error
        archive = agent_archive.of_controller() if terms[0] == "controller" else agent_archive.of_node()
        return [hashlib.sha256(archive).hexdigest() if "sha256" in terms else base64.b64encode(archive).decode()]
