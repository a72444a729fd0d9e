"""Sessions of bastions: which there are now, and what one lets through. The API makes them, ssh asks for them."""

from __future__ import annotations

import ipaddress
import time
from dataclasses import dataclass

from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.store import Resource

BASTION, SESSION = "bastion", "bastionsession"


@dataclass(frozen=True)
class SessionAccess:
    """What an active session lets through.

    Args:
        public_key: the one key that is let in, as ssh writes it.
        address, port: the one target.
        expires_at: seconds since 1970.
    """

    session_id: str
    public_key: str
    address: str
    port: int
    expires_at: float


def of_bastion(cloud: CloudState, bastion_id: str) -> list[Resource]:
    """The sessions of a bastion that exist, those whose time is over ended."""
    rows = cloud.store.find(SESSION, bastionId=bastion_id)
    for row in rows:
        if row.hidden["expires_at"] <= time.time():
            end(cloud, row.id)
    return [row for row in rows if row.hidden["expires_at"] > time.time()]


def end(cloud: CloudState, session_id: str) -> None:
    """DELETED, and every connection of it closed."""
    cloud.set_state(SESSION, session_id, "DELETED", gone=True)
    cloud.session_ended(session_id)


def access_of(cloud: CloudState, session_id: str, client: str) -> SessionAccess | None:
    """What a session lets through for a client at an IPv4 address; None if nothing."""
    row = cloud.store.get(SESSION, session_id)
    if row is None or row.gone_at is not None or row.state != "ACTIVE" or row.hidden["expires_at"] <= time.time():
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
