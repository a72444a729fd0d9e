"""The section kubernetes: releases, and what it can't have."""

from __future__ import annotations

import pytest

from gpucluster.spec import loads
from tests.spec.rules.test_kubernetes import KUBERNETES, found


@pytest.mark.parametrize("release", ["1.20.0", "1.20.2", "1.34.2", "1.40.11"])
def test_releases_are_exact(release: str) -> None:
    text = f"{KUBERNETES}kubernetes: {{release: {release}, network: routes}}\n"
    assert loads(text).kubernetes.release == release


@pytest.mark.parametrize("release", ["1.19.16", '"1.34"', "v1.34.2", "1.34.02", "2.0.0", "1.34.2-rc1", "1.34.2.1"])
def test_another_form_or_an_older_release_is_refused(release: str) -> None:
    ((path, message),) = found(f"{KUBERNETES}kubernetes: {{release: {release}}}\n")
    assert path == "kubernetes.release"
    assert "1.20.0 or newer" in message
