"""Brings the real provider's client for work requests here: it is the only one whose endpoint can't be changed.

The client calls https://iaas.<region>.<realm>, and obeys HTTPS_PROXY and `custom_cert_location`. So this is an HTTP
proxy for CONNECT: for the domain `NO_DOMAIN`, in which no host can exist, it ends TLS with the certificate that
instances know the API by, and passes the requests on to the API. To any other host it is a tunnel: the backend of a
state may be one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from pathlib import Path

from gpucluster.localcloud.state.cloud import log
from gpucluster.localcloud.state.region import NO_DOMAIN
from gpucluster.paths import write_private

#: Beside the credentials: {"proxy": URL, "certificate": path}. It is there as long as the server runs, or has crashed.
FILE = Path("credentials", "work_requests.json")
_CHUNK = 65536
_HEADER_SECONDS = 30.0
_CONNECT_SECONDS = 30.0


class WorkRequestProxy:
    """The proxy. Runs in the server's event loop.

    Args:
        home: of the local cloud.
        port: of the API at 127.0.0.1.
        tls: the file with the key and the certificate of the API, which instances check with `ca.pem`, too.
    """

    def __init__(self, home: Path, port: int, tls: Path) -> None:
        self._home = home
        self._port = port
        self._tls = tls
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen at 127.0.0.1, and write where."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._tls)
        self._server = await asyncio.start_server(lambda *pair: self._serve(context, *pair), "127.0.0.1", 0)
        proxy = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        certificate = self._home / "credentials" / "ca.pem"
        write_private(self._home / FILE, json.dumps({"proxy": proxy, "certificate": str(certificate)}) + "\n")

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
        (self._home / FILE).unlink(missing_ok=True)

    async def _serve(self, context: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEADER_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            method, target, *_ = head.split(b" ", 2)
            host, _, port = target.decode("ascii").rpartition(":")
            if method != b"CONNECT" or not port.isdigit():
                writer.write(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
                return
            ours = host.endswith(f".{NO_DOMAIN}")
            async with asyncio.timeout(_CONNECT_SECONDS):
                there = await asyncio.open_connection(*(("127.0.0.1", self._port) if ours else (host, int(port))))
            try:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await writer.drain()
                if ours:
                    await writer.start_tls(context)
                await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))
            finally:
                there[1].close()
        except TimeoutError:
            log.debug("a connection to the proxy for work requests took too long")
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("a connection through the proxy for work requests failed: %s", error)
            with contextlib.suppress(OSError):
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        finally:
            with contextlib.suppress(OSError):
                writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    finally:
        with contextlib.suppress(OSError):
            writer.close()
