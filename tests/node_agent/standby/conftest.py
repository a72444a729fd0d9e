"""What tests of the standby have in common."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.node_agent import programs


@pytest.fixture
def systemctl(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The programs that were started, none of which has run."""
    called: list[tuple[str, ...]] = []

    def run(*argv: str, **_how: Any) -> str:
        called.append(argv)
        return ""

    monkeypatch.setattr(programs, "run", run)
    return called
