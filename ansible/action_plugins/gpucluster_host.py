"""The first look at a host: where it has no Python for Ansible's modules, it gets one."""

from __future__ import annotations

import shlex
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

DOCUMENTATION = """
The part of the module gpucluster_host that runs on the operator's machine: see library/gpucluster_host.py.
"""


class ActionModule(ActionBase):
    """Runs the module, and a second time after it has made the link to the host's Python.

    User data has made it on most hosts. It is missing on those that were created with the user data of an earlier
    release, or with none of ours.
    """

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Called by Ansible."""
        super().run(tmp, task_vars)
        seen: dict[str, Any] = self._execute_module(task_vars=task_vars)
        # There is no Python, or one that the module or Ansible's library refuses. Any other failure happens again.
        if not seen.get("failed"):
            return seen
        python = {"ansible_python_interpreter": self._provide_python()}
        again: dict[str, Any] = self._execute_module(task_vars={**(task_vars or {}), **python})
        return again

    def _provide_python(self) -> str:
        """The path of the host's Python. In check mode the link is not made."""
        try:
            from gpucluster.systems import host_python
        except ImportError as error:
            raise AnsibleActionFail(
                f"the Python that runs Ansible has no package gpucluster ({error}); run `gpucluster apply`, or install "
                "gpucluster beside ansible-core"
            ) from error
        words = [*(["--look"] if self._task.check_mode else []), *host_python.arguments()]
        done = self._low_level_execute_command(f"sh -s -- {shlex.join(words)}", in_data=host_python.script().encode())
        if done["rc"] != 0:
            raise AnsibleActionFail(str(done.get("stderr") or done.get("stdout")).strip())
        path: str = done["stdout"].strip().rpartition("\n")[2]
        return path
