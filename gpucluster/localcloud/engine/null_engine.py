"""An engine that runs nothing: it records what it was asked for in files. For tests of the API."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucluster.localcloud.engine.protocol import LABEL_OCID, EngineInstance, LaunchRequest, NetworkListeners, RunState
from gpucluster.localcloud.image.contents import Contents


@dataclass
class NullEngine:
    """A test double that launches nothing: it keeps one small file per instance and network under `root`.

    For tests of the API only (`--engine null`); nothing answers at the addresses of its instances.
    """

    root: Path
    image: str = "null/debian:13"
    workers = 4
    networked = False

    def __post_init__(self) -> None:
        # The volumes of all instances are in one file, and jobs of several instances run at the same time.
        self._recording = threading.Lock()
        for folder in ("machines", "networks", "images"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)

    def boot_seconds(self) -> float:
        """No time."""
        return 0.0

    def problems(self) -> list[str]:
        """None."""
        return []

    def platform_image(self, contents: Contents) -> str:
        """The name of an image that does not exist."""
        return self.image

    def create_network(self, name: str, cidr: str, labels: Mapping[str, str]) -> None:
        """Record it."""
        _write(self.root / "networks" / name, {"cidr": cidr, **labels})

    def remove_network(self, name: str) -> None:
        """Remove the record."""
        (self.root / "networks" / name).unlink(missing_ok=True)

    def networks(self) -> list[str]:
        """The recorded ones."""
        return sorted(path.name for path in _records(self.root / "networks"))

    def serve_networks(self, listeners: Mapping[str, NetworkListeners]) -> None:
        """Not asked for."""

    def launch(self, request: LaunchRequest) -> None:
        """Record it as running."""
        _write(
            self.root / "machines" / request.name,
            {
                "state": RunState.RUNNING,
                "ocid": request.labels[LABEL_OCID],
                "ip": request.ip,
                "network": request.network,
                "hostname": request.hostname,
                **({"devices": request.devices} if request.devices else {}),
            },
        )

    def start(self, name: str) -> None:
        """Record it as running."""
        self._set(name, RunState.RUNNING)

    def event_command(self) -> list[str]:
        """Nothing: no instance of it reboots itself."""
        return []

    def rebooted(self, event: str) -> str:
        """No instance."""
        return ""

    def stop(self, name: str) -> None:
        """Record it as stopped."""
        self._set(name, RunState.STOPPED)

    def terminate(self, name: str) -> None:
        """Remove the record."""
        (self.root / "machines" / name).unlink(missing_ok=True)

    def state(self, name: str) -> RunState:
        """The recorded state."""
        try:
            return RunState(json.loads((self.root / "machines" / name).read_text())["state"])
        except FileNotFoundError:
            return RunState.ABSENT

    def instances(self) -> list[EngineInstance]:
        """The recorded ones."""
        return [
            EngineInstance(name, RunState(record["state"]), record["ocid"]) for name, record in self._machines().items()
        ]

    def _machines(self) -> dict[str, dict[str, Any]]:
        """The records by name."""
        found = {}
        for path in _records(self.root / "machines"):
            with suppress(FileNotFoundError):  # it is removed at this moment
                found[path.name] = json.loads(path.read_text())
        return found

    def states(self) -> Mapping[str, RunState] | None:
        """The recorded ones."""
        return {instance.name: instance.state for instance in self.instances()}

    def devices_in_use(self) -> list[str]:
        """The recorded ones."""
        return [device for record in self._machines().values() for device in record.get("devices", [])]

    def attach_volume(self, name: str, device: str, file: Path) -> None:
        """Record it."""
        with self._recording:
            _write(self.root / "volumes.json", self._volumes() | {str(file): [name, device]})

    def detach_volume(self, name: str, device: str, file: Path) -> None:
        """Remove the record."""
        with self._recording:
            _write(self.root / "volumes.json", {at: who for at, who in self._volumes().items() if at != str(file)})

    def _volumes(self) -> dict[str, list[str]]:
        record = self.root / "volumes.json"
        return dict(json.loads(record.read_text())) if record.exists() else {}

    def commit(self, name: str, image: str) -> None:
        """Record it."""
        _write(self.root / "images" / image.replace("/", "_"), {"of": name})

    def remove_image(self, image: str) -> None:
        """Remove the record."""
        (self.root / "images" / image.replace("/", "_")).unlink(missing_ok=True)

    def set_writable(self, share: Path, *, writable: bool) -> None:
        """No instance mounts anything."""

    def console(self, name: str) -> bytes:
        """One line of text."""
        return f"{name} is {self.state(name)}\n".encode()

    def _set(self, name: str, state: RunState) -> None:
        path = self.root / "machines" / name
        _write(path, {**json.loads(path.read_text()), "state": state})


def _records(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _write(path: Path, record: Mapping[str, Any]) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(dict(record)))
    os.replace(part, path)
