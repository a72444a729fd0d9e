"""The ssh server of all bastions of a home: one port of 127.0.0.1, where the user name is a session's OCID.

A client logs in with the session's key only, and may forward to the session's target only: no shell, no other address,
no remote forwarding. Everything here runs in the server's event loop; endpoint.py starts it.
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
_LOGIN_TIMEOUT = 120  # seconds; the default of sshd (LoginGraceTime)
_BUFFER = 256 * 1024  # bytes


def public_key(text: str) -> asyncssh.SSHKey:
    """Parse a key in OpenSSH format. Raises asyncssh.KeyImportError."""
    return asyncssh.import_public_key(text)


class SshServer:
    """Listens, and keeps the connections of each session."""

    def __init__(self, cloud: CloudState) -> None:
        self._cloud = cloud
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self._connections: defaultdict[str, set[asyncssh.SSHServerConnection]] = defaultdict(set)

    async def listen(self) -> SshEndpoint:
        """Listen at the same port as the last time, or at another one if that is in use."""
        key = await asyncio.to_thread(self._host_key)
        last_port = int(self._cloud.store.setting(_PORT_SETTING) or 0)
        try:
            self._acceptor = await self._accept(key, last_port)
        except OSError as error:
            log.warning("port %d is in use (%s); the bastions get another one", last_port, error.strerror)
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
        """The host key, created once: a changed key would look like another host to clients."""
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
    """One connection of a client."""

    def __init__(self, cloud: CloudState, connections: defaultdict[str, set[asyncssh.SSHServerConnection]]) -> None:
        self._cloud = cloud
        self._connections = connections
        self._connection: asyncssh.SSHServerConnection | None = None
        self._address = ""
        self._session = ""
        self._access: SessionAccess | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """Store the client's address."""
        self._connection = conn
        self._address = str(conn.get_extra_info("peername")[0])

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from its session."""
        if self._expiry is not None:
            self._expiry.cancel()
        if self._connection is not None and (others := self._connections.get(self._session)) is not None:
            others.discard(self._connection)
            if not others:
                del self._connections[self._session]

    async def begin_auth(self, username: str) -> bool:
        """Look the session up. A client without a session continues and gets a rejected key, so it learns nothing.

        The connection is known before that: a session that ends from now on takes it along, however far it has come.
        """
        if self._connection is not None:
            self._session = username
            self._connections[username].add(self._connection)
        self._access = await asyncio.to_thread(sessions.access_of, self._cloud, username, self._address)
        if self._access is None:
            log.warning("ssh from %s: %r is not an active session that this client may use", self._address, username)
        return True

    def public_key_auth_supported(self) -> bool:
        """Public keys are the only authentication."""
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Accept the session's key only."""
        return self._access is not None and key.public_data == public_key(self._access.public_key).public_data

    def auth_completed(self) -> None:
        """Close the connection when the session ends."""
        if self._access is None or self._connection is None:
            return
        left = max(0.0, self._access.expires_at - time.time())
        self._expiry = asyncio.get_running_loop().call_later(left, self._connection.close)

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> Any:
        """Forward to the session's target only."""
        if self._access is not None and (dest_host, dest_port) == (self._access.address, self._access.port):
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
    """A channel and a connection to the target.

    The library's own class loses the last data of a target that closes quickly.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, chan: asyncssh.SSHTCPChannel[bytes]) -> None:
        """Store the channel."""
        self._channel = chan

    def session_started(self) -> None:
        """Copy the target's data to the client."""
        self._start(self._to_client())

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Copy the client's data to the target, no faster than the target reads."""
        self._writer.write(data)
        if self._writer.transport.get_write_buffer_size() > _BUFFER:
            self._channel.pause_reading()
            self._start(self._drain())

    def eof_received(self) -> bool:
        """The client sends no more data, and may still receive."""
        self._writer.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has closed the channel."""
        for task in self._tasks:
            task.cancel()
        self._writer.close()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """The client reads again."""
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
