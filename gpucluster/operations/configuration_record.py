"""The configuration record: a file on the controller that states how the hosts were configured last.

The controller has it, and not the machine that ran apply: any machine may run the next plan. It is not complete from
the moment when Ansible begins until all of it has succeeded. What is in it, and how two of them are compared, is in
`handover.configuration_diff`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpucluster.errors import ToolError
from gpucluster.node_agent import bounded
from gpucluster.operations.controller import CONFIGURATION_RECORD as _FILE
from gpucluster.operations.controller import ControllerConnection

_READ = f"sudo -n sh -c 'test ! -e {_FILE} || cat {_FILE}'"
_WRITE = (
    f"sudo -n sh -c 'mkdir -p {_FILE.rpartition('/')[0]} && umask 077 && cat > {_FILE}.new && mv {_FILE}.new {_FILE}'"
)
# Seconds: a plan does not wait for a controller that is gone, an apply needs it.
_READ_TIMEOUT = 10.0
_WRITE_TIMEOUT = 60.0


class ConfigurationRecord:
    """The record on the controller of one cluster."""

    def __init__(self, controller: ControllerConnection) -> None:
        self._controller = controller

    def read(self, *, timeout: float = _READ_TIMEOUT) -> Mapping[str, Any] | None:
        """The record; None if there is none that can be read.

        Args:
            timeout: seconds.

        Raises:
            ToolError: the controller can't be reached.
        """
        result = self._controller.ask(_READ, timeout=timeout)
        try:
            record = bounded.loads(result.stdout) if result.returncode == 0 else None
        except ValueError:
            return None
        return record if isinstance(record, dict) else None

    def reopen(self) -> None:
        """Say that a host has to be configured again: the last configuration is not complete any more.

        Raises:
            ToolError: the controller can't be reached, or can't write it.
        """
        record = self.read()
        if record is not None and record.get("complete"):
            self.write({**record, "complete": False})

    def write(self, record: Mapping[str, Any]) -> None:
        """Write it, whole or not at all.

        Raises:
            ToolError: the controller can't be reached, or can't write it.
        """
        result = self._controller.ask(_WRITE, text=json.dumps(record), timeout=_WRITE_TIMEOUT)
        if result.returncode != 0:
            raise ToolError(
                f"the controller can't store how its hosts are configured: {result.stderr.strip()}",
                where=_FILE,
                hint="Free some space there, then run: gpucluster apply",
            )
