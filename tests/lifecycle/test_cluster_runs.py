"""The runs of a cluster: they hold it, ask whose it is, and let it go however they end."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucluster.errors import OtherClusterError, ToolError
from gpucluster.events import ignore
from gpucluster.lifecycle.cluster_runs import ClusterRuns
from gpucluster.paths import ClusterPaths


class Log:
    """Stands for `Ownership` and `RunLock`: notes what is called, and refuses where it is told to."""

    def __init__(self, refuses: str = "") -> None:
        self.called: list[str] = []
        self._refuses = refuses

    def __getattr__(self, name: str) -> Any:
        def call(*_: object) -> None:
            self.called.append(name)
            if name == self._refuses:
                raise OtherClusterError("another cluster")

        return call


def _runs(tmp_path: Path, log: Any) -> ClusterRuns:
    terraform: Any = lambda: SimpleNamespace(hold_state=contextlib.nullcontext)  # noqa: E731
    return ClusterRuns(paths=ClusterPaths(tmp_path), ownership=log, run_lock=log, terraform=terraform, on_event=ignore)


@pytest.mark.parametrize(("options", "asks"), [({}, True), ({"changes": False}, False), ({"prepares": True}, False)])
def test_whose_cluster_it_is_is_asked_where_the_run_changes_it(
    tmp_path: Path, options: dict[str, bool], asks: bool
) -> None:
    log = Log()
    with _runs(tmp_path, log).run("restore", **options) as run:
        assert run.command == "restore"
        assert log.called == ["require_name", "forget", "begin", *(["require"] if asks else [])]
    assert log.called[-2:] == ["end", "forget"]


def test_a_run_that_fails_lets_the_cluster_go(tmp_path: Path) -> None:
    log = Log()
    with pytest.raises(ToolError), _runs(tmp_path, log).run("restore"):
        raise ToolError("it failed")
    assert log.called[-2:] == ["end", "forget"]


@pytest.mark.parametrize(("refuses", "called"), [("require_name", 1), ("require", 6)])
def test_another_cluster_is_refused(tmp_path: Path, refuses: str, called: int) -> None:
    log = Log(refuses)
    with pytest.raises(OtherClusterError), _runs(tmp_path, log).run("restore"):
        pytest.fail("it was begun")
    assert len(log.called) == called
