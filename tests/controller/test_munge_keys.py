"""Who gets the cluster's munge key, and how the next one takes its place."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path

import pytest

from gpucluster.controller import munge_keys
from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.munge_key import digest

KNOWN = {"hosts": {"10.0.1.2": ["compute-1"]}, "elastic": [], "domain": ""}
OLD = b"old key " * 16


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "munge.key").write_bytes(OLD)
    return tmp_path / "munge.key", tmp_path / "munge.key.next"


def ask(which: str, has: str = "") -> str:
    return json.dumps({"which": which, "has": has}) + "\n"


def test_only_root_of_a_host_of_the_cluster_gets_it(files: tuple[Path, Path]) -> None:
    with pytest.raises(Refused, match="may belong to any user"):
        munge_keys.answer("10.0.1.2", 1024, ask("current"), KNOWN, files)
    with pytest.raises(Refused, match="no host of this cluster has the address"):
        munge_keys.answer("10.0.9.9", 900, ask("current"), KNOWN, files)
    assert munge_keys.answer("10.0.1.2", 900, ask("current"), KNOWN, files) == {"key": base64.b64encode(OLD).decode()}


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"which": "x", "has": ""}', '{"which": [], "has": ""}'])
def test_what_is_no_request_gets_nothing(files: tuple[Path, Path], text: str) -> None:
    with pytest.raises(Refused, match="can't be read"):
        munge_keys.answer("10.0.1.2", 900, text, KNOWN, files)


def test_a_host_that_has_it_does_not_get_it_again(files: tuple[Path, Path]) -> None:
    assert munge_keys.answer("10.0.1.2", 900, ask("current", digest(OLD)), KNOWN, files) == {"same": True}


def test_the_next_key_is_made_once_and_takes_the_place_of_the_present_one(files: tuple[Path, Path]) -> None:
    secret, following = files
    with pytest.raises(Refused, match="no next munge key"):
        munge_keys.answer("10.0.1.2", 900, ask("next"), KNOWN, files)
    name = munge_keys.prepare(following)
    assert munge_keys.prepare(following) == name, "an interrupted rotation goes on with the same key"
    assert (len(following.read_bytes()), stat.S_IMODE(following.stat().st_mode)) == (1024, 0o400)
    key = munge_keys.answer("10.0.1.2", 900, ask("next"), KNOWN, files)["key"]
    assert digest(base64.b64decode(key)) == name != digest(OLD)
    for _ in range(2):
        munge_keys.commit(name, secret, following)
        assert (digest(secret.read_bytes()), following.exists()) == (name, False)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o400
    # A kill between its two steps: the next rotation must not take up the key that is used already.
    following.write_bytes(secret.read_bytes())
    munge_keys.commit(name, secret, following)
    assert munge_keys.prepare(following) != name
    with pytest.raises(Failed, match="not the key of this rotation"):
        munge_keys.commit(digest(OLD), secret, following)
