"""Users' files are not deleted without consent. The playbook that counts them is a double."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpucluster.configuration.runner import PlaybookResult
from gpucluster.errors import AnsibleError, DataGuardError
from gpucluster.events import ignore
from gpucluster.lifecycle.teardown import DataGuard
from gpucluster.paths import ClusterPaths
from gpucluster.spec import loads
from gpucluster.workspace.run import Run
from gpucluster.workspace.saved_state import SavedState
from tests.spec.spec_texts import LOCAL

OWNED = "module.home[0].oci_file_storage_file_system.this"


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    made = ClusterPaths(tmp_path)
    made.create()
    SavedState(made).home_in_use = True
    return made


def _guard(paths: ClusterPaths, collect: Callable[[str, Run], PlaybookResult], text: str = LOCAL) -> DataGuard:
    return DataGuard(loads(text, "cluster.yml"), SavedState(paths), collect)


def _finds(files: Mapping[str, Any]) -> Callable[[str, Run], PlaybookResult]:
    return lambda _playbook, _run: PlaybookResult({}, {"controller": {"gpucluster_home_files": files}}, {})


def _fails(_playbook: str, _run: Run) -> PlaybookResult:
    raise AnsibleError("the controller is unreachable")


def test_files_of_users_are_counted_and_guarded(paths: ClusterPaths) -> None:
    run = Run("destroy", paths, ignore)
    with pytest.raises(DataGuardError, match="holds 4 files of users: 1 of alice, 3 of bob") as caught:
        _guard(paths, _finds({"bob": 3, "alice": "1", "carol": 0})).require_no_files(run)
    assert "pass --delete-data" in caught.value.hint
    assert SavedState(paths).home_in_use


def test_where_nobody_can_look_the_homes_stay(paths: ClusterPaths) -> None:
    with pytest.raises(DataGuardError, match="the controller is unreachable"):
        _guard(paths, _fails).require_no_files(Run("destroy", paths, ignore))
    assert SavedState(paths).home_in_use


def test_an_empty_share_may_go_and_is_not_looked_at_twice(paths: ClusterPaths) -> None:
    run = Run("destroy", paths, ignore)
    _guard(paths, _finds({"alice": 0})).require_no_files(run)
    assert not SavedState(paths).home_in_use
    _guard(paths, _fails).require_no_files(run)


@pytest.mark.parametrize(
    ("home", "addresses", "deletes"),
    [
        ("  home:", [], True),
        ("  home:\n    server: 10.0.0.9", ["module.network.oci_core_vcn.this"], False),
        ("  home:\n    server: 10.0.0.9", [OWNED], True),
    ],
    ids=["its own", "one of others", "one of others now, its own in the state"],
)
def test_only_a_file_system_of_the_cluster_is_guarded(
    paths: ClusterPaths, home: str, addresses: list[str], deletes: bool
) -> None:
    assert _guard(paths, _fails, LOCAL.replace("  home:", home)).deletes_homes(addresses) is deletes
