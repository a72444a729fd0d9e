"""Opens the ssh server of the bastions when the first session wants it: its library is slow to import."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from gpucluster.errors import EnvironmentFault
from gpucluster.localcloud.bastion import sessions
from gpucluster.localcloud.state.cloud import CloudState, SshEndpoint

if TYPE_CHECKING:
    from gpucluster.localcloud.bastion.ssh_server import SshServer

_PATIENCE = 30.0  # seconds for it to open


class BastionEndpoint:
    """Made in the server's event loop; called from the threads of its workers."""

    def __init__(self, cloud: CloudState) -> None:
        self._cloud = cloud
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._server: SshServer | None = None
        self._gate: SshEndpoint | None = None

    def open(self) -> SshEndpoint:
        """Where it listens.

        Raises:
            EnvironmentFault: its library is missing.
        """
        with self._lock:
            if self._gate is None:
                try:
                    from gpucluster.localcloud.bastion.ssh_server import SshServer
                except ImportError as error:
                    hint = "Install what the local cloud needs: pip install 'gpucluster[local]'"
                    raise EnvironmentFault(f"bastions need the package asyncssh: {error}", hint=hint) from error
                self._server = SshServer(self._cloud)
                self._gate = asyncio.run_coroutine_threadsafe(self._server.listen(), self._loop).result(_PATIENCE)
            return self._gate

    def reopen(self) -> None:
        """Open it if there are sessions of an earlier run of the server."""
        if self._cloud.store.count(sessions.SESSION, {"lifecycleState": "ACTIVE"}):
            self.open()

    def session_ended(self, session_id: str) -> None:
        """Close the connections of a session."""
        if self._server is not None:
            self._loop.call_soon_threadsafe(self._server.end, session_id)

    def close(self) -> None:
        """Close everything; in the event loop."""
        if self._server is not None:
            self._server.close()
