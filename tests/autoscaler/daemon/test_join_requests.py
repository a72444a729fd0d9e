"""Files of requests and results: what is one, and what the daemon sees of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.autoscaler.daemon.join_requests import JoinResult, Requests, parse
from gpucluster.errors import InputError
from tests.autoscaler.daemon.join_samples import GOOD

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{", b'{"node": "x"}', b'{"node":1,"pool":"p","instance_id":"i","address":"a"}']
)
def test_what_is_not_a_request_is_refused(raw: bytes) -> None:
    with pytest.raises(InputError):
        parse(raw)


def test_the_daemon_sees_what_waits_and_what_ended(tmp_path: Path) -> None:
    requests = Requests(tmp_path)
    assert (requests.waiting(), requests.results()) == (frozenset(), {})
    requests.submit(GOOD)
    requests.submit(GOOD)
    assert requests.waiting() == {GOOD.instance_id}
    (tmp_path / "join" / f"{GOOD.stem}.result.json").write_text('{"ok": false, "message": "no ssh"}')
    assert requests.waiting() == frozenset()
    assert requests.results() == {GOOD.instance_id: JoinResult(False, "no ssh")}
    requests.remove(GOOD.instance_id)
    assert list((tmp_path / "join").iterdir()) == []
