"""A cluster as a library's user has it: what it holds, and that nothing is asked before a method is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.cluster import Cluster
from gpucluster.errors import InputError, LockedError
from gpucluster.spec import load
from gpucluster.workspace.run_log import lock
from tests.spec.spec_texts import LOCAL

NAMESPACES = (
    "users", "groups", "generated_keys", "jobs", "job_reports", "container_images", "images", "slurm", "kubernetes",
    "secrets",
    "autoscaler", "hosts", "dashboard", "backup", "state", "controller",
)  # fmt: skip


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Without an earlier run."""
    monkeypatch.setenv("GPUCLUSTER_HOME", str(tmp_path / "home"))
    (tmp_path / "cluster.yml").write_text(LOCAL)
    return Cluster(load(tmp_path / "cluster.yml"))


def test_a_cluster_is_made_without_a_request_and_without_a_file(fresh: Cluster, tmp_path: Path) -> None:
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.yml"]
    assert fresh.paths.root == tmp_path / ".gpucluster"
    assert fresh.spec.name == "demo"


def test_every_namespace_is_there_and_documented(fresh: Cluster) -> None:
    held = {name for name in vars(fresh) if not name.startswith("_")} - {"spec", "paths"}
    assert held == set(NAMESPACES)
    documented = Cluster.__doc__ or ""
    assert [name for name in NAMESPACES if f"        {name}: " not in documented] == []


@pytest.mark.parametrize("command", ["plan", "apply", "destroy"])
def test_a_run_is_refused_while_another_one_holds_the_cluster(fresh: Cluster, command: str) -> None:
    fresh.paths.create()
    with lock(fresh.paths, "apply"), pytest.raises(LockedError, match="apply"):
        getattr(fresh, command)()


def test_nodes_that_do_not_exist_are_refused_before_anything_is_asked(fresh: Cluster, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        fresh.replace(["no-such-node"])
    assert not (tmp_path / "home").exists()
