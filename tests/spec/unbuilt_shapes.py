"""Shapes that `validate` refuses, as they are when gpucluster can build them: what else holds for them stays tested."""

from __future__ import annotations

import pytest

from gpucluster import shapes


def allow(patch: pytest.MonkeyPatch) -> None:
    """Let cluster.yml have shapes whose hosts share an NVLink fabric."""
    known = {name: shape.model_copy(update={"memory_fabric": False}) for name, shape in shapes.catalogue().items()}
    patch.setattr(shapes, "catalogue", lambda: known)
