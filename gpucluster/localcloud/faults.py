"""Faults on purpose: `<home>/faults.json` makes operations fail as OCI would, for tests of whatever calls the API.

    [{"operation": "LaunchInstance", "status": 500, "code": "InternalError", "message": "Out of host capacity.",
      "times": 2}]

`operation` is the SDK's name (CreateVcn), or BootInstance for a launch that was accepted and fails afterwards. `times`
counts down in this process; absent means always. `delay` (seconds) makes an operation slow, and fail only where a
`status` is given too.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path

from gpucluster.localcloud.wire import ApiError


class Faults:
    """Reads the file at every request, so that a test can change it while the server runs."""

    def __init__(self, home: Path) -> None:
        self._file = home / "faults.json"
        self._used: Counter[str] = Counter()
        self._lock = threading.Lock()

    def check(self, operation: str) -> None:
        """Wait for, or raise, the fault that is set for an operation, if there is one left.

        A file that is no JSON list of such objects raises too, for a test must not pass by a typo.
        """
        try:
            text = self._file.read_text()
        except FileNotFoundError:
            return
        try:
            faults = json.loads(text)
            for fault in faults:
                if fault["operation"] == operation:
                    self._apply(fault)
        except (ValueError, KeyError, TypeError) as error:
            raise ApiError(500, "InternalError", f"{self._file} is not a list of faults: {error!r}") from error

    def _apply(self, fault: dict[str, object]) -> None:
        key = json.dumps(fault, sort_keys=True)
        with self._lock:
            if "times" in fault and self._used[key] >= int(str(fault["times"])):
                return
            self._used[key] += 1
        time.sleep(float(str(fault.get("delay", 0))))
        if "status" not in fault:
            return
        raise ApiError(int(str(fault["status"])), str(fault["code"]), str(fault["message"]))
