"""Generated login keys: one key per user, whatever machine runs gpucluster."""

from __future__ import annotations

from pathlib import Path

from gpucluster.paths import ClusterPaths
from gpucluster.spec import loads
from gpucluster.ssh import Host
from gpucluster.workspace.login_keys import LoginKeys
from tests.spec.spec_texts import KEY, LOCAL

CONTROLLER = Host("demo-controller", "127.0.0.9", "debian", "ocid1.instance.test..c")


def _machine(folder: Path, state: dict[str, str]) -> LoginKeys:
    return LoginKeys(loads(LOCAL, "cluster.yml"), ClusterPaths(folder / ".gpucluster"), lambda: state)


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
    assert elsewhere.startswith("ssh bob@127.0.0.9, with the private key that was generated on another machine")
    assert "ssh_public_keys" in elsewhere


def test_a_cluster_of_an_earlier_version_keeps_the_key_that_is_here(tmp_path: Path) -> None:
    before = _machine(tmp_path, {}).public_keys()
    assert _machine(tmp_path, {}).public_keys() == before
    # Another machine was first: what lies here is not in the directory.
    other = _machine(tmp_path, {"bob": KEY})
    assert other.public_keys()["bob"] == (KEY,)
    assert "another machine" in other.login_commands(CONTROLLER)["bob"]
