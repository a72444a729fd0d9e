"""Tokens of an instance: which ones are used again, and what is reported where none is made.

tests/localcloud/test_instance_token.py makes them by openssl, and has them checked.
"""

from __future__ import annotations

import json
import stat
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.kubernetes import instance_token

try:
    import ssl
except ImportError:  # the unpacked Python of test_oldest_python.py has no libssl
    ssl = None  # type: ignore[assignment]

needs_ssl = pytest.mark.skipif(ssl is None, reason="this Python has no ssl")
CLUSTER, OTHER = "ocid1.cluster.oc1.eu-frankfurt-1.aaa", "ocid1.cluster.oc1.eu-frankfurt-1.bbb"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The clusters for which a token was made; a double of the services that sign."""
    clusters: list[str] = []

    def make(cluster: str, *_: str) -> str:
        clusters.append(cluster)
        return f"token {len(clusters)}"

    monkeypatch.setattr(instance_token, "_made", make)
    return clusters


@pytest.mark.parametrize("cluster", ["", "ocid1.instance.oc1.x", "ocid1.cluster.oc1.x/../y", "ocid1.cluster.x\n"])
def test_what_is_not_the_ocid_of_a_cluster_is_refused(cluster: str, tmp_path: Path, made: list[str]) -> None:
    with pytest.raises(Refused, match="not the OCID of a cluster"):
        instance_token.credential(cluster, tmp_path / "cache")
    assert made == []


def test_a_credential_has_the_form_that_client_go_reads(tmp_path: Path, made: list[str]) -> None:
    content = instance_token.credential(CLUSTER, tmp_path / "cache")
    assert (content["kind"], content["status"]["token"]) == ("ExecCredential", "token 1")
    until = time.strptime(content["status"]["expirationTimestamp"], "%Y-%m-%dT%H:%M:%SZ")
    assert until > time.gmtime()


def test_a_recent_token_is_used_again_for_the_same_cluster_alone(tmp_path: Path, made: list[str]) -> None:
    cache = tmp_path / "folder" / "cache"
    tokens = [instance_token.credential(each, cache)["status"]["token"] for each in (CLUSTER, CLUSTER, OTHER, CLUSTER)]
    assert tokens == ["token 1", "token 1", "token 2", "token 3"]
    assert stat.S_IMODE(cache.stat().st_mode) == 0o600
    assert list(cache.parent.iterdir()) == [cache]


@pytest.mark.parametrize(
    "changes",
    [{"until": 0.0}, {"until": 30.0}, {"until": 1000.0}, {"token": ""}, {"until": "soon"}, {"cluster": OTHER}],
    ids=str,
)
def test_a_token_that_does_not_last_or_lasts_too_long_is_made_again(
    changes: dict[str, Any], tmp_path: Path, made: list[str]
) -> None:
    entry = {"cluster": CLUSTER, "token": "old", "until": 120.0, **changes}
    if isinstance(entry["until"], float):
        entry["until"] += time.time()
    cache = tmp_path / "cache"
    cache.touch(mode=0o600)
    cache.write_text(json.dumps(entry))
    assert instance_token.credential(CLUSTER, cache)["status"]["token"] == "token 1"


@pytest.mark.parametrize("kind", ["open", "link", "rubbish"])
def test_a_file_that_others_may_have_written_is_not_believed(kind: str, tmp_path: Path, made: list[str]) -> None:
    cache, real = tmp_path / "cache", tmp_path / "real"
    real.touch(mode=0o600)
    real.write_text(json.dumps({"cluster": CLUSTER, "token": "theirs", "until": time.time() + 120}))
    if kind == "open":
        real.rename(cache)
        cache.chmod(0o644)
    elif kind == "link":
        cache.symlink_to(real)
    else:
        cache.touch(mode=0o600)
        cache.write_text("[")
    assert instance_token.credential(CLUSTER, cache)["status"]["token"] == "token 1"


def test_without_the_file_each_call_makes_a_token(tmp_path: Path, made: list[str]) -> None:
    (tmp_path / "file").touch()
    for number in (1, 2):
        content = instance_token.credential(CLUSTER, tmp_path / "file" / "cache")
        assert content["status"]["token"] == f"token {number}"


class Metadata(BaseHTTPRequestHandler):
    """Answers as no metadata service of OCI does."""

    answers: ClassVar[dict[str, tuple[int, str]]] = {}

    def do_GET(self) -> None:
        status, text = self.answers.get(self.path, (404, ""))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Metadata)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@needs_ssl
@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({}, "refuses this instance: 404"),
        ({"/instance/": (200, "[")}, "names no region and tenancy"),
        ({"/instance/": (200, '{"canonicalRegionName": "eu-frankfurt-1"}')}, "names no region and tenancy"),
        ({"/instance/": (200, '{"canonicalRegionName": "x", "tenantId": "t"}')}, "cert.pem refuses this instance: 404"),
    ],
    ids=["nothing", "not JSON", "no tenancy", "no certificate"],
)
def test_what_the_metadata_service_does_not_give_is_named(
    answers: dict[str, tuple[int, str]], message: str, metadata: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Metadata, "answers", answers)
    with pytest.raises(Failed, match=message):
        instance_token.credential(CLUSTER, tmp_path / "cache", metadata)
    assert not (tmp_path / "cache").exists()


@needs_ssl
def test_a_service_that_is_not_there_gives_no_answer(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"http://127\.0\.0\.1:1/instance/ gives no answer"):
        instance_token.credential(CLUSTER, tmp_path / "cache", "http://127.0.0.1:1")
