"""The ssh server of all bastions of a home: one port of 127.0.0.1, where a session's OCID is the user.

A client is let in with the session's key alone, and may forward to the session's target and to nothing else: no shell,
no other address, no port of ours. Everything here runs in the server's event loop; bastion_endpoint.py opens it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any

import asyncssh

from gpucluster.localcloud.bastion import sessions
from gpucluster.localcloud.bastion.sessions import SessionAccess
from gpucluster.localcloud.state.cloud import CloudState, SshEndpoint, log
from gpucluster.paths import write_private

HOST = "127.0.0.1"
_PORT_SETTING = "bastion_port"
_LOGIN_TIMEOUT = 30  # seconds
_BUFFER = 256 * 1024  # bytes


def public_key(text: str) -> asyncssh.SSHKey:
    """A key as ssh writes it. Raises asyncssh.KeyImportError."""
    return asyncssh.import_public_key(text)


class SshServer:
    """Listens, and knows the connections of each session."""

    def __init__(self, cloud: CloudState) -> None:
        self._cloud = cloud
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self._connections: defaultdict[str, set[asyncssh.SSHServerConnection]] = defaultdict(set)

    async def listen(self) -> SshEndpoint:
        """At the port of the first time, or at another one if somebody else has taken that."""
        key = await asyncio.to_thread(self._host_key)
        wanted = int(self._cloud.store.setting(_PORT_SETTING) or 0)
        try:
            self._acceptor = await self._accept(key, wanted)
        except OSError as error:
            log.warning("port %d is taken (%s); the bastions get another", wanted, error.strerror)
            self._acceptor = await self._accept(key, 0)
        port = self._acceptor.get_port()
        self._cloud.store.set_setting(_PORT_SETTING, str(port))
        log.info("bastions listen on %s:%d", HOST, port)
        return SshEndpoint(HOST, port, key.get_fingerprint())

    async def _accept(self, key: asyncssh.SSHKey, port: int) -> asyncssh.SSHAcceptor:
        return await asyncssh.create_server(
            lambda: _Client(self._cloud, self._connections),
            HOST,
            port,
            server_host_keys=[key],
            password_auth=False,
            kbdint_auth=False,
            gss_host=None,
            agent_forwarding=False,
            login_timeout=_LOGIN_TIMEOUT,
        )

    def _host_key(self) -> asyncssh.SSHKey:
        """It stays, so that clients meet no changed host."""
        file = self._cloud.home / "credentials" / "bastion_host_key"
        if not file.exists():
            write_private(file, asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode())
        os.chmod(file, 0o600)
        return asyncssh.read_private_key(file)

    def end(self, session_id: str) -> None:
        """Close the connections of a session."""
        for connection in list(self._connections.pop(session_id, ())):
            connection.close()

    def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._acceptor is not None:
            self._acceptor.close()
        for session_id in list(self._connections):
            self.end(session_id)


class _Client(asyncssh.SSHServer):
    """One connection."""

    def __init__(self, cloud: CloudState, connections: defaultdict[str, set[asyncssh.SSHServerConnection]]) -> None:
        self._cloud = cloud
        self._connections = connections
        self._connection: asyncssh.SSHServerConnection | None = None
        self._address = ""
        self._pass: SessionAccess | None = None
        self._ends: asyncio.TimerHandle | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """Remember where it comes from."""
        self._connection = conn
        self._address = str(conn.get_extra_info("peername")[0])

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        if self._ends is not None:
            self._ends.cancel()
        if self._pass is not None and self._connection is not None:
            self._connections[self._pass.session_id].discard(self._connection)

    async def begin_auth(self, username: str) -> bool:
        """Look the session up. Who has none gets as far as a refused key, and learns nothing."""
        self._pass = await asyncio.to_thread(sessions.access_of, self._cloud, username, self._address)
        if self._pass is None:
            log.warning("ssh from %s: %r is no active session that this client may use", self._address, username)
        return True

    def public_key_auth_supported(self) -> bool:
        """The only way in."""
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Only the session's."""
        return self._pass is not None and key.public_data == public_key(self._pass.public_key).public_data

    def auth_completed(self) -> None:
        """The connection ends with the session."""
        if self._pass is None or self._connection is None:
            return
        self._connections[self._pass.session_id].add(self._connection)
        left = max(0.0, self._pass.expires_at - time.time())
        self._ends = asyncio.get_running_loop().call_later(left, self._connection.close)

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> Any:
        """Forward to the target and to nothing else."""
        if self._pass is not None and (dest_host, dest_port) == (self._pass.address, self._pass.port):
            return _tunnel(dest_host, dest_port)
        log.warning("ssh from %s: %s:%d is not the target of the session", self._address, dest_host, dest_port)
        raise asyncssh.ChannelOpenError(
            asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, f"{dest_host}:{dest_port} is not the target of this session"
        )


async def _tunnel(host: str, port: int) -> _Tunnel:
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error)) from error
    return _Tunnel(reader, writer)


class _Tunnel(asyncssh.SSHTCPSession[bytes]):
    """A channel and a connection to the target. The library's own loses the end of a target that is quick to close."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, chan: asyncssh.SSHTCPChannel[bytes]) -> None:
        """Remember the channel."""
        self._channel = chan

    def session_started(self) -> None:
        """What the target says goes to the client."""
        self._start(self._to_client())

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """What the client says goes to the target, no faster than that reads."""
        self._writer.write(data)
        if self._writer.transport.get_write_buffer_size() > _BUFFER:
            self._channel.pause_reading()
            self._start(self._drain())

    def eof_received(self) -> bool:
        """The client has said all, and may still listen."""
        self._writer.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        for task in self._tasks:
            task.cancel()
        self._writer.close()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._may_write.set()

    def _start(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _to_client(self) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(_BUFFER):
                self._channel.write(data)
                await self._may_write.wait()
        self._channel.close()

    async def _drain(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()
        self._channel.resume_reading()
