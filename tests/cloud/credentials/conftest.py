"""A local cloud's API, and a CI system that its identity domain trusts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.doubles.ci_system import CiSystem, ci_system
from tests.localcloud.api_harness import Api, running


@pytest.fixture(scope="module")
def ci() -> Iterator[CiSystem]:
    with ci_system() as system:
        yield system


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("cloud")) as started:
        yield started
