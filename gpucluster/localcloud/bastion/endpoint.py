"""Starts the ssh server of the bastions with the first session, because its library is slow to import."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from gpucluster.errors import EnvironmentFault
from gpucluster.localcloud.bastion import sessions
from gpucluster.localcloud.state.cloud import CloudState, SshEndpoint
from gpucluster.localcloud.state.lifecycle_states import LifecycleState

if TYPE_CHECKING:
    from gpucluster.localcloud.bastion.ssh_server import SshServer

_START_DEADLINE = 180.0  # seconds


class BastionEndpoint:
    """Created in the server's event loop; its methods are called from worker threads."""

    def __init__(self, cloud: CloudState) -> None:
        self._cloud = cloud
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._server: SshServer | None = None
        self._address: SshEndpoint | None = None

    def open(self) -> SshEndpoint:
        """Start the ssh server, unless it runs. Returns its address.

        Raises:
            EnvironmentFault: the package asyncssh is missing.
        """
        with self._lock:
            if self._address is None:
                try:
                    from gpucluster.localcloud.bastion.ssh_server import SshServer
                except ImportError as error:
                    hint = "Install what the local cloud needs: pip install 'gpucluster[local]'"
                    raise EnvironmentFault(f"bastions need the package asyncssh: {error}", hint=hint) from error
                self._server = SshServer(self._cloud)
                self._address = asyncio.run_coroutine_threadsafe(self._server.listen(), self._loop).result(
                    _START_DEADLINE
                )
            return self._address

    def reopen(self) -> None:
        """Start the ssh server if there are sessions of an earlier run."""
        if self._cloud.store.count(sessions.SESSION, {"lifecycleState": LifecycleState.ACTIVE}):
            self.open()

    def session_ended(self, session_id: str) -> None:
        """Close the connections of a session."""
        if self._server is not None:
            self._loop.call_soon_threadsafe(self._server.end, session_id)

    def close(self) -> None:
        """Close the ssh server. Call this in the event loop."""
        if self._server is not None:
            self._server.close()
