"""Waits until an instance has booted. No module: what Python the host has is known only when its boot has ended."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

DOCUMENTATION = """
module: gpucluster_boot
short_description: Wait until ssh answers and cloud-init has ended
description:
  - cloud-init creates the host's names, keys, users and the link to its Python, and may overwrite what is written
    earlier. Errors of cloud-init are no failure here; the roles report what is missing.
options:
  seconds: {description: For how long., type: int, required: true}
author: gpucluster
"""

_POLL = 1.0
# cloud-init writes the first file when its last stage has ended, and has the second where it does not run.
# `cloud-init status --wait` reports the same and takes a second of processor time.
_WAIT = (
    "timeout {seconds} sh -c 'until [ -s /run/cloud-init/result.json ] || [ -e /run/cloud-init/disabled ] ||"
    " ! command -v cloud-init > /dev/null; do sleep 0.2; done'"
)
_TIMED_OUT = 124


class ActionModule(ActionBase):
    """Connects again and again, and waits on the host itself once it answers."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Called by Ansible."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        if self._task.check_mode:
            return {**result, "skipped": True}
        seconds = int(self._task.args["seconds"])
        until = time.monotonic() + seconds
        while True:
            reason = self._wait(max(1, int(until - time.monotonic())))
            if not reason:
                return {**result, "changed": False}
            if time.monotonic() >= until:
                return {**result, "failed": True, "msg": f"the instance did not boot in {seconds} s: {reason}"}
            time.sleep(_POLL)

    def _wait(self, seconds: int) -> str:
        """Wait until it has booted; returns why it has not."""
        try:
            done = self._low_level_execute_command(_WAIT.format(seconds=seconds), sudoable=False)
        except AnsibleConnectionFailure as error:
            with contextlib.suppress(AnsibleConnectionFailure):
                self._connection.reset()
            return str(error)
        if done["rc"] == _TIMED_OUT:
            return "its cloud-init still runs"
        return "" if done["rc"] == 0 else str(done.get("stderr") or done.get("stdout")).strip()
