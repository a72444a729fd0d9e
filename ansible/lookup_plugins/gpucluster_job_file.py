"""A program that a job template has beside its script, in base64: from the gpucluster that runs Ansible."""

from __future__ import annotations

import base64
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = """
name: gpucluster_job_file
short_description: A program of a job template, in base64
description:
  - The payload of a template of the Python package C(gpucluster.jobs). The operator's machine and the controller have
    the package beside their Ansible.
options:
  _terms: {description: The name of the template and the name of the file., required: true}
author: gpucluster
"""

EXAMPLES = """
- name: Copy what builds nccl-tests
  gpucluster_service:
    files:
      - path: /opt/gpucluster/samples/nccl_tests/build.sh
        content_base64: "{{ lookup('gpucluster_job_file', 'nccl_tests', 'build.sh') }}"
        mode: "0755"
"""

RETURN = """
_raw: {description: The file in base64., type: list, elements: str}
"""


class LookupModule(LookupBase):  # type: ignore[misc]
    """Reads the file."""

    def run(self, terms: list[Any], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[str]:
        """Called by Ansible."""
        try:
            from gpucluster.errors import InputError
            from gpucluster.jobs.payload import text_of
            from gpucluster.jobs.registry import template
        except ImportError as error:
            raise AnsibleError(
                f"the Python that runs Ansible has no package gpucluster ({error}); run `gpucluster apply`, or install "
                "gpucluster beside ansible-core"
            ) from error
        name, file = (str(term) for term in terms)
        try:
            wanted = template(name)
        except InputError as error:
            raise AnsibleError(str(error)) from error
        for payload in wanted.payload:
            if payload.name == file:
                return [base64.b64encode(text_of(wanted, payload).encode()).decode()]
        raise AnsibleError(f"the template {name} has no file {file}")
