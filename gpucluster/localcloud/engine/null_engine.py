"""An engine that runs nothing: it writes down what it was asked for. For tests of the API."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucluster.localcloud.engine.protocol import LABEL_OCID, EngineInstance, LaunchRequest


@dataclass
class NullEngine:
    """A test double that launches nothing: it keeps one small file per machine and network under `root`.

    For tests of the API alone (`--engine null`); nothing answers at the addresses of its instances.
    """

    root: Path
    image: str = "null/debian:13"
    workers = 4

    def __post_init__(self) -> None:
        for folder in ("machines", "networks", "images"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)

    def boot_seconds(self) -> float:
        """At once."""
        return 0.0

    def problems(self) -> list[str]:
        """Never any."""
        return []

    def platform_image(self) -> str:
        """A name that stands for nothing."""
        return self.image

    def create_network(self, name: str, cidr: str, labels: Mapping[str, str]) -> None:
        """Write it down."""
        _write(self.root / "networks" / name, {"cidr": cidr, **labels})

    def remove_network(self, name: str) -> None:
        """Forget it."""
        (self.root / "networks" / name).unlink(missing_ok=True)

    def networks(self) -> list[str]:
        """Those written down."""
        return sorted(path.name for path in _records(self.root / "networks"))

    def launch(self, request: LaunchRequest) -> None:
        """Write it down as running."""
        _write(
            self.root / "machines" / request.name,
            {"state": "running", "ocid": request.labels[LABEL_OCID], "ip": request.ip, "hostname": request.hostname},
        )

    def start(self, name: str) -> None:
        """Write it down as running."""
        self._set(name, "running")

    def stop(self, name: str) -> None:
        """Write it down as stopped."""
        self._set(name, "stopped")

    def terminate(self, name: str) -> None:
        """Forget it."""
        (self.root / "machines" / name).unlink(missing_ok=True)

    def state(self, name: str) -> str:
        """What was written down."""
        path = self.root / "machines" / name
        return str(json.loads(path.read_text())["state"]) if path.exists() else "absent"

    def instances(self) -> list[EngineInstance]:
        """Those written down."""
        found = []
        for path in _records(self.root / "machines"):
            record = json.loads(path.read_text())
            found.append(EngineInstance(path.name, record["state"], record["ocid"]))
        return found

    def commit(self, name: str, image: str) -> None:
        """Write it down."""
        _write(self.root / "images" / image.replace("/", "_"), {"of": name})

    def remove_image(self, image: str) -> None:
        """Forget it."""
        (self.root / "images" / image.replace("/", "_")).unlink(missing_ok=True)

    def console(self, name: str) -> bytes:
        """One line."""
        return f"{name} is {self.state(name)}\n".encode()

    def _set(self, name: str, state: str) -> None:
        path = self.root / "machines" / name
        _write(path, {**json.loads(path.read_text()), "state": state})


def _records(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _write(path: Path, record: Mapping[str, Any]) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(dict(record)))
    os.replace(part, path)
