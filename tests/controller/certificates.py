"""A certificate of the cluster's CA for a server, as the role `ldap` has it made."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

from gpucluster.controller import ca


def server_of(folder: Path, address: str) -> tuple[Path, Path, Path]:
    """Files with the CA's certificate, and a server's certificate and key.

    Args:
        folder: an existing one, where all of it is made.
        address: of the server.
    """
    work, target = folder / "work", folder / "server"
    work.mkdir()
    server = ca.Server(ca.DIRECTORY, target, ("DNS:demo-controller", f"IP:{address}"), None)
    with mock.patch.object(ca, "FOLDER", folder / "authority"):
        ca.make_ca("demo", work)
        ca.make_server(server, work)
    return folder / "authority" / "ca.pem", target / "server.pem", target / "server.key"
