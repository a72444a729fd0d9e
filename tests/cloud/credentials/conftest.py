"""A local cloud's API, and a CI system that its identity domain trusts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpucluster.cloud.credentials import id_token, principals, token_exchange
from tests.doubles.ci_system import CiSystem, ci_system
from tests.localcloud.api_harness import Api, running
from tests.waiting import PATIENCE_S


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services of tests answer, however busy the machine is: some of them run in this process."""
    for client in (id_token, principals, token_exchange):
        monkeypatch.setattr(client, "_TIMEOUT", PATIENCE_S)


@pytest.fixture(scope="module")
def ci() -> Iterator[CiSystem]:
    with ci_system() as system:
        yield system


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("cloud")) as started:
        yield started
