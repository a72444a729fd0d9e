"""Bastion sessions: which exist now, and what each gives access to. The API creates them, the ssh server reads them."""

from __future__ import annotations

import ipaddress
import time
from dataclasses import dataclass

from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.store import Resource

BASTION, SESSION = "bastion", "bastionsession"


@dataclass(frozen=True)
class SessionAccess:
    """What an active session gives access to.

    Args:
        public_key: the only accepted key, in OpenSSH format.
        address, port: the only target.
        expires_at: seconds since 1970.
    """

    session_id: str
    public_key: str
    address: str
    port: int
    expires_at: float


def of_bastion(cloud: CloudState, bastion_id: str) -> list[Resource]:
    """The sessions of a bastion. Ends those that have expired."""
    rows = cloud.store.find(SESSION, bastionId=bastion_id)
    for row in rows:
        if row.hidden["expires_at"] <= time.time():
            end(cloud, row.id)
    return [row for row in rows if row.hidden["expires_at"] > time.time()]


def end(cloud: CloudState, session_id: str) -> None:
    """Set a session to DELETED and close its connections."""
    cloud.set_state(SESSION, session_id, LifecycleState.DELETED, gone=True)
    cloud.session_ended(session_id)


def access_of(cloud: CloudState, session_id: str, client: str) -> SessionAccess | None:
    """What a session gives a client at this IPv4 address access to; None if nothing."""
    row = cloud.store.get(SESSION, session_id)
    if (
        row is None
        or row.gone_at is not None
        or row.state != LifecycleState.ACTIVE
        or row.hidden["expires_at"] <= time.time()
    ):
        return None
    bastion = cloud.store.get(BASTION, row.body["bastionId"])
    if bastion is None or not _allowed(bastion.body["clientCidrBlockAllowList"], client):
        return None
    target = row.body["targetResourceDetails"]
    return SessionAccess(
        session_id,
        row.body["keyDetails"]["publicKeyContent"],
        target["targetResourcePrivateIpAddress"],
        target["targetResourcePort"],
        row.hidden["expires_at"],
    )


def _allowed(blocks: list[str], client: str) -> bool:
    return any(ipaddress.IPv4Address(client) in ipaddress.IPv4Network(block) for block in blocks)
