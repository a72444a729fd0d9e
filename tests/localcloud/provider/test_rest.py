"""Signed calls of the API without the SDK: a key that can't be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.localcloud.provider.rest import ApiCredentials, CredentialsError, RestClient


def test_a_missing_or_wrong_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"key\.pem can't be read: No such file"):
        RestClient("http://127.0.0.1:1", ApiCredentials("t", "u", "f", tmp_path / "key.pem"))
    (tmp_path / "key.pem").write_text("no key")
    with pytest.raises(CredentialsError, match="is not a private key"):
        RestClient("http://127.0.0.1:1", ApiCredentials("t", "u", "f", tmp_path / "key.pem"))
