"""Signatures of requests: which are accepted, by the server and by the pure check."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import nullcontext
from email.utils import formatdate
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gpucluster.localcloud.auth.signing import SignatureRefused, verify
from gpucluster.localcloud.state.tenancy import fingerprint
from tests.localcloud.api_harness import Api, refused, running
from tests.localcloud.raw_requests import raw, signed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("server") / "cloud") as api:
        yield api


# who may call


def test_another_key_is_refused(shared: Api, tmp_path: Path) -> None:
    key = tmp_path / "other.pem"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    stranger = shared.client("identity.IdentityClient", key_file=str(key))
    with refused(401, "NotAuthenticated"):
        stranger.list_availability_domains(shared.tenancy)
    unknown = fingerprint(generate_private_key(public_exponent=65537, key_size=2048).public_key())
    with refused(401, "NotAuthenticated"):
        shared.client("identity.IdentityClient", fingerprint=unknown).list_availability_domains(shared.tenancy)


def test_what_is_not_signed_or_was_changed_is_refused(shared: Api) -> None:
    path = f"/20160918/vcns?compartmentId={shared.tenancy}"
    assert raw(shared, "GET", path, {})[0] == 401
    good = signed(shared, "GET", path)
    assert raw(shared, "GET", path, good)[0] == 200
    assert raw(shared, "GET", path + "&limit=1", good)[0] == 401
    assert raw(shared, "GET", path, {**good, "authorization": good["authorization"].replace("date ", "")})[0] == 401
    broken = {**good, "authorization": 'Signature version="1",keyId="x"'}
    status, answer = raw(shared, "GET", path, broken)
    assert (status, answer["code"]) == (401, "NotAuthenticated")
    assert "keyId" not in answer["message"]


def test_a_changed_body_is_refused(shared: Api) -> None:
    body = json.dumps({"compartmentId": shared.tenancy, "cidrBlock": "10.50.0.0/16"}).encode()
    headers = signed(shared, "POST", "/20160918/vcns", body)
    changed = body.replace(b"10.50", b"10.51")
    assert raw(shared, "POST", "/20160918/vcns", headers, changed)[0] == 401
    assert raw(shared, "POST", "/20160918/vcns", headers, body)[0] == 200


@pytest.mark.parametrize(("skew", "accepted"), [(-301, False), (-300, True), (300, True), (301, False)])
def test_the_clock_may_differ_by_five_minutes(shared: Api, skew: int, accepted: bool) -> None:
    then, path = 1_800_000_000, f"/20160918/vcns?compartmentId={shared.tenancy}"
    headers = {
        name.lower(): text for name, text in signed(shared, "GET", path, date=formatdate(then, usegmt=True)).items()
    }
    headers["host"] = shared.endpoint.removeprefix("http://")
    key = load_pem_private_key(Path(shared.config["key_file"]).read_bytes(), None).public_key()
    with nullcontext() if accepted else pytest.raises(SignatureRefused, match="301 s off"):
        verify(method="GET", target=path, headers=headers, body=b"", key_of=lambda _: key, now=then + skew)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(("skew", "status"), [(-3600, 401), (-100, 200), (100, 200), (3600, 401)])
def test_the_server_compares_the_date_with_its_clock(shared: Api, skew: int, status: int) -> None:
    path = f"/20160918/vcns?compartmentId={shared.tenancy}"
    headers = signed(shared, "GET", path, date=formatdate(time.time() + skew, usegmt=True))
    assert raw(shared, "GET", path, headers)[0] == status
