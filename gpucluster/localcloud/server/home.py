"""The home of a local cloud as its server opens it: the lock, the engine and the state."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from gpucluster import process
from gpucluster.errors import LockedError
from gpucluster.localcloud.auth.credentials import bootstrap
from gpucluster.localcloud.auth.instance_principals import PrincipalAuthority
from gpucluster.localcloud.compute import memory_clusters, pools
from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.engine.process_engine import ProcessEngine
from gpucluster.localcloud.engine.protocol import Engine
from gpucluster.localcloud.kubernetes import nodes
from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.faults import Faults
from gpucluster.localcloud.state.region import SERVICE_HOSTS
from gpucluster.localcloud.state.store import ResourceStore
from gpucluster.paths import make_private, write_private


def open_engine(name: str, home: Path) -> Engine:
    """The engine that runs instances: "podman", "process" for thousands of nodes, or "null" for tests of the API."""
    if name == "null":
        return NullEngine(home / "null")
    if name == "process":
        return ProcessEngine(home)
    from gpucluster.localcloud.engine.podman_engine import PodmanEngine

    return PodmanEngine(home)


def open_authority(home: Path) -> PrincipalAuthority:
    """The CA that signs the identities of this home's instances, created at the first start."""
    folder = home / "credentials"
    make_private(folder)
    return PrincipalAuthority.open(folder / "instance_authority.pem")


def write_certificates(home: Path, authority: PrincipalAuthority) -> Path:
    """Write what the API's web server for instances needs, and the certificate that they check it with (`ca.pem`).

    Returns the file with the server's key and certificate.
    """
    folder = home / "credentials"
    tls = folder / "api_tls.pem"
    write_private(tls, authority.server_certificate(SERVICE_HOSTS))
    certificate = folder / "ca.pem"
    if not certificate.exists() or certificate.read_text() != authority.intermediate:
        # In place: instances have this file mounted.
        certificate.write_text(authority.intermediate)
    certificate.chmod(0o644)
    return tls


def open_cloud(home: Path, engine: Engine, authority: PrincipalAuthority) -> CloudState:
    """The state of a home, created at the first start."""
    store = ResourceStore(home / "cloud.db")
    cloud = CloudState(home, store, engine, bootstrap(home, store, authority.read_token), Faults(home))
    cloud.node_folders = lambda: nodes.folders(home)
    cloud.member_lost = lambda owner: (memory_clusters if memory_clusters.owns(owner) else pools).member_lost(
        cloud, owner
    )
    return cloud


def lock(home: Path) -> int:
    """Take the lock that the server of a home holds while it runs. Returns its file descriptor."""
    descriptor = os.open(home / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise LockedError("another server of the local cloud already runs", where=str(home)) from error
    announce(descriptor, "")
    return descriptor


def announce(descriptor: int, endpoint: str) -> str:
    """Write the process and its endpoint into the lock file. Returns the text, which endpoint.json gets as well."""
    text = json.dumps({"endpoint": endpoint, "pid": os.getpid(), "identity": process.identity(os.getpid())}) + "\n"
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)
    return text
