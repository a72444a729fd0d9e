"""HTTP for release files: servers that misbehave, answer slowly, redirect, or are not there."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gpucluster.artifacts import http_client, releases, sources, store
from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.events import ignore
from tests.artifacts.release_files import DEBS, PYXIS, wanted
from tests.artifacts.test_releases import files
from tests.mirror import Mirror, Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cache")]


@pytest.mark.parametrize("fault", ["truncated", "wrong", "broken", "redirect"])
def test_a_mirror_that_misbehaves(fault: Any, server: Server, cache: Path) -> None:
    server.faults[PYXIS] = fault
    with pytest.raises(InputError if fault == "wrong" else EnvironmentFault) as caught:
        releases.ensure(wanted("enroot"), server.url, ignore)
    assert PYXIS in str(caught.value)
    assert not list(cache.rglob(PYXIS))
    assert not list(cache.rglob(".new-*"))
    if fault in ("truncated", "broken"):
        assert server.asked[PYXIS] + server.looked[PYXIS] >= 3, "a passing fault is tried again"
    server.faults.clear()
    assert files(releases.ensure(wanted("enroot"), server.url, ignore)) == [*DEBS, PYXIS]


def test_endless_and_slow_answers_come_to_an_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_MAX_BYTES", 100_000)
    monkeypatch.setattr(store, "_CHUNK", 4)
    server.faults[PYXIS] = "endless"
    with pytest.raises(EnvironmentFault, match="larger than 100000 bytes"):
        releases.ensure(wanted("enroot"), server.url, ignore)
    server.faults[PYXIS] = "slow"
    monkeypatch.setattr(store, "_MAX_SECONDS", 0.2)
    with pytest.raises(EnvironmentFault, match=r"did not arrive within 0\.2 s"):
        releases.ensure(wanted("enroot"), server.url, ignore)


def test_no_mirror_answers(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="no answer") as caught:
        releases.ensure(wanted("enroot"), "http://127.0.0.1:9/mirror", ignore)
    assert caught.value.exit_code == 5
    assert "software.mirror" in caught.value.hint
    (finding,) = releases.check(wanted("enroot"), "http://127.0.0.1:9/mirror")
    assert (finding.level, finding.check) == ("error", "software")
    with pytest.raises(InputError, match="not a directory"):
        releases.ensure(wanted("enroot"), str(tmp_path / "none"), ignore)
    with pytest.raises(InputError, match="password") as refusal:
        releases.ensure(wanted("enroot"), "http://me:geheim@127.0.0.1:9/", ignore)
    assert "geheim" not in str(refusal.value)


def test_who_is_on_the_way_can_forge_plain_http(
    mirror: Mirror, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sources.source("http://registry.example/x").forgeable
    for location in (
        "https://registry.example",
        "http://localhost:80",
        "http://127.0.0.2",
        "http://[::1]:1",
        "/m",
        None,
    ):
        assert not sources.source(location).forgeable, location
    assert releases.check(wanted("enroot"), server.url) == ()
    monkeypatch.setattr(sources, "is_loopback", lambda _host: False)
    (warning,) = releases.check(wanted("enroot"), server.url)
    assert (warning.level, warning.check, server.url in warning.reason) == ("warning", "software", True)
    assert all(name in warning.action for name in (*DEBS, PYXIS))
    # A file with all checksums does not depend on it.
    sums = {name: mirror.sha256(name) for name in (*DEBS, PYXIS)}
    assert releases.check(wanted("enroot", checksums=sums), server.url) == ()
    asked = server.asked.copy()
    with pytest.raises(InputError, match="nothing that comes by plain http"):
        releases.fetch(wanted("enroot"), server.url, tmp_path / "own", trust_download=True, on_event=ignore)
    assert server.asked == asked
    assert not (tmp_path / "own").exists()


def test_https_never_leads_to_http() -> None:
    handler = http_client.Redirects(("https",))
    request = urllib.request.Request("https://registry.example/x")
    with pytest.raises(EnvironmentFault, match="leads to http"):
        handler.redirect_request(request, None, 302, "", {}, "http://registry.example/x")  # type: ignore[arg-type]
    with pytest.raises(EnvironmentFault, match="leads to file"):
        handler.redirect_request(request, None, 302, "", {}, "file:///etc/passwd")  # type: ignore[arg-type]
