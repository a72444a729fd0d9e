"""What the program on the standby knows of its cluster: the file that an apply writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpucluster.errors import InputError
from gpucluster.node_agent.standby.watching import SETTINGS

VERSION = 1
_HINT = "Run: gpucluster apply"


@dataclass(frozen=True)
class Witness:
    """A host that is asked whether it reaches the controller.

    Args:
        target: `user@address`. host_key: its ssh host key, as `type key`.
    """

    name: str
    target: str
    host_key: str


@dataclass(frozen=True)
class WatchSettings:
    """One cluster with a standby. No secret is among it.

    Args:
        own, other: the OCIDs of this instance, and of the one in service.
        other_name: the name of that one in the cloud.
        own_name: the name of this one in the cloud.
        name: what the host in service is called.
        user: the login user of the image.
        address: the address that moves with the service. networks: into which it is spoken from.
        other_address: the private address of the other instance.
        lock: the OCID of the cluster's network, whose tag names the run that holds the cluster.
        authentication: as the autoscaler's: `method`, and `endpoint` where the API is not Oracle's own.
        patience: seconds of silence before others are asked.
        tags: of an address that has to be made again.
    """

    cluster: str
    region: str
    compartment_id: str
    authentication: Mapping[str, str]
    own: str
    other: str
    own_name: str
    other_name: str
    name: str
    user: str
    volume: str
    lock: str
    address: str
    other_address: str
    networks: tuple[str, ...]
    patience: float
    witnesses: tuple[Witness, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> str:
        """As the file has it."""
        return json.dumps({"version": VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def parse(cls, text: str, where: str = "") -> WatchSettings:
        """Read the file's content.

        Raises:
            InputError: it is of another version, or something is missing.
        """
        try:
            raw: dict[str, Any] = json.loads(text)
            if raw.pop("version") != VERSION:
                raise ValueError("another version")
            witnesses = tuple(Witness(**each) for each in raw.pop("witnesses"))
            return cls(**{**raw, "networks": tuple(raw["networks"])}, witnesses=witnesses)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(f"the settings lack or misspell {error}", where=where, hint=_HINT) from error

    @classmethod
    def load(cls, file: Path = Path(SETTINGS)) -> WatchSettings:
        """Read the file. As `parse`."""
        try:
            text = file.read_text()
        except OSError as error:
            raise InputError(f"can't read the settings: {error.strerror}", where=str(file), hint=_HINT) from error
        return cls.parse(text, str(file))
