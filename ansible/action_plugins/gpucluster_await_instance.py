"""Waits until a host that boots can be logged in to, and cloud-init has ended."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

DOCUMENTATION = """
Arguments: seconds, the longest time to wait for each of the two.

It runs one shell command on the host and no module: Python starts there only after cloud-init has ended, because a host
that boots has no processor time to spare. cloud-init writes its result last. An error from which it did not recover is
no failure here: the roles then report what is missing.
"""

PAUSE = 1.0
LATE = 124
# cloud-init decides before sshd starts whether it is disabled.
# No newline at the end: Ansible's ssh appends ` && sleep 0`.
SCRIPT = """\
n=0
while [ ! -e /run/cloud-init/result.json ] && [ ! -e /run/cloud-init/disabled ] && command -v cloud-init > /dev/null; do
    [ $((n += 1)) -le {polls} ] || exit {late}
    sleep 0.5
done"""


class ActionModule(ActionBase):
    """Tries again until the host answers."""

    _requires_connection = True
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Called by Ansible."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        seconds = float(self._task.args.get("seconds", 300))
        deadline = time.monotonic() + seconds
        while True:
            done = self._attempt(SCRIPT.format(polls=int(seconds * 2), late=LATE))
            if done["rc"] == 0:
                return {**result, "changed": False}
            if done["rc"] == LATE:
                return {**result, "failed": True, "msg": f"cloud-init has not ended within {seconds:g} seconds"}
            if time.monotonic() > deadline:
                words = f"it did not answer as it should within {seconds:g} seconds: {done['stderr']}"
                return {**result, "failed": True, "msg": words}
            time.sleep(PAUSE)
            # The shared connection of the failed attempt may still be there.
            with contextlib.suppress(AnsibleConnectionFailure, AttributeError):
                self._connection.reset()

    def _attempt(self, script: str) -> dict[str, Any]:
        try:
            done: dict[str, Any] = self._low_level_execute_command(script, sudoable=False)
        except AnsibleConnectionFailure as error:
            return {"rc": 255, "stderr": str(error)}
        return done
