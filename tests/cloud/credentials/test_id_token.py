"""Where the ID token of a CI job comes from, and what is said where there is none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpucluster.cloud.credentials import id_token, jwt
from gpucluster.errors import EnvironmentFault
from tests.doubles.ci_system import CiSystem


def test_a_variable_comes_before_a_file_and_a_file_before_github(tmp_path: Path, ci: CiSystem) -> None:
    file = tmp_path / "token"
    file.write_text(ci.token(sub="file") + "\n")
    every = {**ci.of_github(), "GPUCLUSTER_ID_TOKEN_FILE": str(file), "GPUCLUSTER_ID_TOKEN": ci.token(sub="variable")}
    found = []
    for name in ("GPUCLUSTER_ID_TOKEN", "GPUCLUSTER_ID_TOKEN_FILE", ""):
        claims = jwt.claims(id_token.read(every, "oci"))
        found.append((claims["sub"], claims["aud"]))
        every.pop(name, None)
    assert found == [("variable", "oci"), ("file", "oci"), ("repo:example/site:ref:refs/heads/main", "oci")]


def test_github_chooses_the_audience_where_none_is_named(ci: CiSystem) -> None:
    assert jwt.claims(id_token.read(ci.of_github(), ""))["aud"] == "https://github.com/example"


def test_what_is_missing_is_named(tmp_path: Path, ci: CiSystem) -> None:
    rows = {
        "there is no ID token": ({}, "id_tokens"),
        "is not a JSON Web Token": ({"GPUCLUSTER_ID_TOKEN": "abc"}, "GPUCLUSTER_ID_TOKEN"),
        "expired 36.. s ago": ({"GPUCLUSTER_ID_TOKEN": ci.token(exp=int(time.time()) - 3600)}, "timeout"),
        "can't be read": ({"GPUCLUSTER_ID_TOKEN_FILE": str(tmp_path / "none")}, "GPUCLUSTER_ID_TOKEN_FILE"),
        "it answered 403": ({**ci.of_github(), "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "x"}, "id-token: write"),
        "no ID token of a CI": ({"GITHUB_ACTIONS": "true"}, "id-token: write"),
    }
    for words, (environ, hint) in rows.items():
        with pytest.raises(EnvironmentFault, match=words) as refused:
            id_token.read(environ, "oci")
        assert hint in refused.value.hint, words
