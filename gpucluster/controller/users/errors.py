"""The error that concerns one user only."""

from __future__ import annotations

from gpucluster.node_agent.errors import Failed


class InHome(Failed):
    """Something inside a home directory did not work. Its owner decides what is there, so others are not affected."""
