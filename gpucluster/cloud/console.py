"""The ssh host keys that the console of an instance shows.

At the first boot cloud-init writes the host keys and their fingerprints to the console (its module `keys_to_console`).
The cloud keeps that and gives it to an operator through its API, past the network between both.
"""

from __future__ import annotations

import base64
import hashlib
import re
from contextlib import suppress
from typing import Any

from gpucluster.cloud.client import CloudAccess, model, refusals
from gpucluster.oci.states import LifecycleState
from gpucluster.waiting import wait_until

#: Seconds in which the console must show them. cloud-init has ended before it is asked, but the console may lag behind.
PATIENCE = 30.0
_POLL = 1.0
_LONGEST = 1_000_000  # bytes; a history has no more
_BLOCK = re.compile(r"-----BEGIN SSH HOST KEY (FINGERPRINTS|KEYS)-----(.*?)-----END SSH HOST KEY \1-----", re.DOTALL)
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}(?![A-Za-z0-9+/])")
_KEY = re.compile(r"(?:ssh-|ecdsa-)\S+ ([A-Za-z0-9+/]+=*)(?= |\s*$)", re.MULTILINE)


def fingerprint(key: str) -> str:
    """`SHA256:...` of a key, `type base64`, as ssh-keygen shows it."""
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def fingerprints(console: str) -> frozenset[str]:
    """The fingerprints of the host keys that cloud-init has written; empty if it has written none."""
    hashes: set[str] = set()
    for kind, block in _BLOCK.findall(console):
        if kind == "FINGERPRINTS":
            hashes |= set(_FINGERPRINT.findall(block))
        else:
            for key in _KEY.findall(block):
                with suppress(ValueError):  # a line that the console has cut
                    hashes.add(fingerprint(f"- {key}"))
    return frozenset(hashes)


class Consoles:
    """Reads the consoles of instances.

    Args:
        patience: seconds, for one instance.
    """

    def __init__(self, access: CloudAccess, *, patience: float = PATIENCE) -> None:
        self._access = access
        self._patience = patience

    def fingerprints(self, instance_id: str) -> frozenset[str]:
        """The fingerprints of the host keys of an instance; empty if its console does not show them in time.

        Raises:
            CloudError: the cloud refused, or can't be reached.
        """
        compute = self._access.client("core", "ComputeClient")
        with refusals(f"reading the console of {instance_id}"):
            return wait_until(lambda: self._look(compute, instance_id), self._patience, _POLL)

    def _look(self, compute: Any, instance_id: str) -> frozenset[str]:
        details = model("core", "CaptureConsoleHistoryDetails", instance_id=instance_id)
        history = compute.capture_console_history(details).data.id
        ended = (LifecycleState.SUCCEEDED, LifecycleState.FAILED)

        def state() -> str:
            return str(compute.get_console_history(history).data.lifecycle_state)

        wait_until(lambda: state() in ended, self._patience, _POLL / 4)
        content = compute.get_console_history_content(history, length=_LONGEST).data
        text = content.decode(errors="replace") if isinstance(content, bytes) else str(content)
        return fingerprints(text)
