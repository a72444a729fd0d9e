"""Shapes of GB200 and GB300 without the rack that they need: for tests of what else holds for them."""

from __future__ import annotations

import pytest

from gpucluster import shapes


def allow(patch: pytest.MonkeyPatch) -> None:
    """Let cluster.yml have these shapes as any others."""
    known = {name: shape.model_copy(update={"memory_fabric": False}) for name, shape in shapes.catalogue().items()}
    patch.setattr(shapes, "catalogue", lambda: known)
