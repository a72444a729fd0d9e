"""The key files of the operator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.localcloud.api_harness import Api, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("server") / "cloud") as api:
        yield api


def test_the_private_key_belongs_to_one_user_and_is_in_no_log(shared: Api) -> None:
    folder = shared.home / "credentials"
    assert folder.stat().st_mode & 0o777 == 0o700
    for name in ("config", "api_key.pem"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    log = (shared.home / "log" / "server.log").read_text()
    assert "BEGIN" not in log
    assert 'signature="' not in log
