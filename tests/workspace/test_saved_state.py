"""What is remembered between runs, in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpucluster.paths import ClusterPaths
from gpucluster.ssh import Host
from gpucluster.workspace.saved_state import SavedHost, SavedRelease, SavedState


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    return ClusterPaths(tmp_path)


def test_the_files_are_read_and_removed_with_the_cluster(paths: ClusterPaths) -> None:
    hosts = [{"name": "demo-controller", "address": "10.77.0.2", "booted": "ocid1.a"}, {"name": "n", "address": "x"}]
    (paths.root / "hosts.json").write_text(json.dumps({"hosts": hosts}))
    (paths.root / "compartment").write_text("ocid1.compartment.a\n")
    saved = SavedState(paths)
    assert saved.hosts() == (SavedHost("demo-controller", "10.77.0.2", "ocid1.a"), SavedHost("n", "x", None))
    assert saved.compartment == "ocid1.compartment.a"
    saved.forget()
    assert list(paths.root.iterdir()) == []
    assert (saved.hosts(), saved.compartment) == ((), "")


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": "x"}', '{"format": null, "release": "9.1.0"}'])
def test_the_release_is_stored_and_a_folder_without_one_is_of_the_first(paths: ClusterPaths, damage: str) -> None:
    saved = SavedState(paths)
    assert saved.release == SavedRelease(1, "0.1.0")
    saved.release = SavedRelease(2, "0.2.0")
    assert SavedState(paths).release == SavedRelease(2, "0.2.0")
    assert json.loads((paths.root / "release.json").read_text()) == {"format": 2, "release": "0.2.0"}
    (paths.root / "release.json").write_text(damage)
    assert saved.release == SavedRelease(1, "0.1.0")
    saved.forget()
    assert list(paths.root.iterdir()) == []


def test_hosts_that_booted_are_written_with_their_instance(paths: ClusterPaths) -> None:
    saved = SavedState(paths)
    saved.save_hosts([Host("a", "10.0.0.1", "u", "ocid1.a"), Host("b", "10.0.0.2", "u", "ocid1.b")], {"ocid1.b", "x"})
    assert json.loads((paths.root / "hosts.json").read_text()) == {
        "hosts": [
            {"name": "a", "address": "10.0.0.1", "booted": None},
            {"name": "b", "address": "10.0.0.2", "booted": "ocid1.b"},
        ]
    }
    (paths.root / "hosts.json").write_text("{ half a fi")
    assert saved.hosts() == ()


def test_a_host_that_boots_again_is_not_one_that_has_booted(paths: ClusterPaths) -> None:
    saved = SavedState(paths)
    saved.forget_booted({"ocid1.a"})  # without any host
    saved.save_hosts(
        [Host("a", "10.0.0.1", "u", "ocid1.a"), Host("b", "10.0.0.2", "u", "ocid1.b")], {"ocid1.a", "ocid1.b"}
    )
    saved.forget_booted({"ocid1.a", "ocid1.x"})
    assert saved.hosts() == (SavedHost("a", "10.0.0.1", None), SavedHost("b", "10.0.0.2", "ocid1.b"))
