"""The release file of Grafana with the double in it, for a mirror."""

from __future__ import annotations

from pathlib import Path

from tests.mirror import Mirror

VERSION = "12.4.6"
PROGRAM = Path(__file__).parent / "grafana"


def add(mirror: Mirror, version: str = VERSION) -> None:
    """Put the archive into the mirror, which gets its checksum as well."""
    mirror.tar(f"grafana-{version}.linux-amd64.tar.gz", {f"grafana-{version}/bin/grafana": PROGRAM.read_text()})
