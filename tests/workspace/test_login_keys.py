"""Generated login keys: one key per user, whatever machine runs gpucluster."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpucluster.controller.rules import ssh_keys
from gpucluster.paths import ClusterPaths
from gpucluster.spec import loads
from gpucluster.ssh import Host
from gpucluster.workspace.login_keys import LoginKeys
from tests.spec.spec_texts import KEY, LOCAL

CONTROLLER = Host("demo-controller", "127.0.0.9", "debian", "ocid1.instance.test..c")


def _machine(folder: Path, state: dict[str, str], directory: dict[str, tuple[str, ...]] | None = None) -> LoginKeys:
    paths = ClusterPaths(folder / ".gpucluster")
    return LoginKeys(loads(LOCAL, "cluster.yml"), paths, lambda: state, lambda: directory or {})


def test_another_machine_uses_the_key_of_the_first_and_makes_none(tmp_path: Path) -> None:
    state: dict[str, str] = {}
    first = _machine(tmp_path / "first", state)
    state |= first.generated()
    assert list(state) == ["bob"]  # alice has a key of her own
    second = _machine(tmp_path / "second", state)
    assert second.public_keys() == first.public_keys() == {"alice": (KEY,), "bob": (state["bob"],)}
    assert not second.private_key("bob").exists()
    assert f"-i {first.private_key('bob')}" in first.login_commands(CONTROLLER)["bob"]
    elsewhere = second.login_commands(CONTROLLER)["bob"]
    assert elsewhere.startswith("ssh bob@127.0.0.9, with the private key that was generated on another machine (")
    assert f"({socket.gethostname()}): .gpucluster/ssh/bob_ed25519 there" in elsewhere
    assert "gpucluster user key bob --replace" in elsewhere


def test_a_cluster_of_an_earlier_version_keeps_the_key_that_is_here(tmp_path: Path) -> None:
    before = _machine(tmp_path, {}).public_keys()
    assert _machine(tmp_path, {}).public_keys() == before
    # Another machine was first: what lies here is not in the directory.
    other = _machine(tmp_path, {"bob": KEY})
    assert other.public_keys()["bob"] == (KEY,)
    assert "another machine" in other.login_commands(CONTROLLER)["bob"]


def test_a_machine_without_state_uses_the_key_of_the_directory_and_makes_none(tmp_path: Path) -> None:
    first = _machine(tmp_path / "first", {})
    public = first.generated()["bob"]
    assert ssh_keys.label(public) == "bob@demo"
    second = _machine(tmp_path / "second", {}, {"bob": (KEY, public)})
    assert (second.missing(), second.generated()) == ((), {"bob": public})
    assert not second.private_key("bob").exists()
    # Without a word of the directory it makes one, which the directory does not take, and the state gets the right one.
    third = _machine(tmp_path / "third", {})
    assert third.generated() != {"bob": public}
    assert third.differing({"bob": (public,)}) == {"bob": public}
    assert not third.is_here("bob", public)
    assert first.differing({"bob": (public, KEY)}) == {}


def test_a_new_pair_counts_when_the_directory_has_it(tmp_path: Path) -> None:
    keys = _machine(tmp_path, {})
    old = keys.generated()["bob"]
    offered = []

    def refused() -> None:
        with keys.replacing("bob") as public:
            offered.append(public)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        refused()
    assert keys.generated() == {"bob": old}
    with keys.replacing("bob") as new:
        assert len({old, new, *offered}) == 3
    assert (keys.is_here("bob", new), keys.is_here("bob", old)) == (True, False)
    assert keys.private_key("bob").stat().st_mode & 0o777 == 0o600
    assert sorted(file.name for file in keys.private_key("bob").parent.iterdir()) == ["bob_ed25519", "bob_ed25519.pub"]
    # The state has the old one until the next apply.
    assert _machine(tmp_path, {"bob": old}).differing({"bob": (new,)}) == {"bob": new}
