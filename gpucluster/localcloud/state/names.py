"""OCIDs, and the names of this machine that are made of them."""

from __future__ import annotations

import base64
import re
import secrets

#: The path that answers as long as the server works.
HEALTH = "/health"
#: With this query, the server first looks whether its containers still run.
LOOK = "look"


def new_ocid(kind: str) -> str:
    """An OCID of the local realm: ocid1.<kind>.local..<60 random characters> (OCI documents the syntax)."""
    random = base64.b32encode(secrets.token_bytes(33)).decode().lower()[:52]
    return f"ocid1.{kind}.local..aaaaaaaa{random}"


def short(ocid: str) -> str:
    """The last twelve characters of an OCID, which are unique enough for a name on one machine."""
    return ocid[-12:]


def slug(text: str) -> str:
    """Text made fit for a part of a container's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40]


def network_name(vcn_id: str) -> str:
    """The engine's name for a VCN."""
    return f"gpucluster-{short(vcn_id)}"
