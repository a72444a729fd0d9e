"""Brings the real provider's client for work requests here: it is the only one whose endpoint can't be changed.

The client calls https://iaas.<region>.<realm>, and obeys HTTPS_PROXY and `custom_cert_location`. So this is an HTTP
proxy for CONNECT: for the domain `NO_DOMAIN`, in which no host can exist, it ends TLS with a certificate of
its own and passes the requests on to the API. To any other host it is a tunnel, as for the backend of a state.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gpucluster.localcloud.state.cloud import log
from gpucluster.localcloud.state.region import NO_DOMAIN, REGION
from gpucluster.paths import write_private

#: Beside the credentials: {"proxy": URL, "certificate": path}. It is there as long as the server runs, or has crashed.
FILE = Path("credentials", "work_requests.json")
_HOST = f"iaas.{REGION}.{NO_DOMAIN}"
_DAYS = 3650
_CHUNK = 65536
_HEADER_SECONDS = 30.0
_CONNECT_SECONDS = 30.0


class WorkRequestProxy:
    """The proxy. Runs in the server's event loop.

    Args:
        home: of the local cloud.
        port: of the API at 127.0.0.1.
    """

    def __init__(self, home: Path, port: int) -> None:
        self._home = home
        self._port = port
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen at 127.0.0.1, and write where."""
        certificate, key = (self._home / "credentials" / f"work_requests{suffix}.pem" for suffix in ("", "_key"))
        _write_pair(certificate, key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server = await asyncio.start_server(lambda *pair: self._serve(context, *pair), "127.0.0.1", 0)
        proxy = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
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


def _write_pair(certificate: Path, key: Path) -> None:
    """A certificate of its own for the host that the client calls. A new one at each start: nobody keeps it."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _HOST)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_HOST)]), critical=False)
        .sign(private, SHA256())
    )
    write_private(key, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode())
    write_private(certificate, made.public_bytes(Encoding.PEM).decode())
