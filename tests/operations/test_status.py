"""What `status` reports where something does not answer. The controller is a double."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import ToolError
from gpucluster.operations.status import status
from gpucluster.paths import ClusterPaths
from gpucluster.spec import loads
from gpucluster.ssh import Host
from gpucluster.workspace.run_log import RunLog, RunStatus
from gpucluster.workspace.saved_state import SavedState
from tests.spec.spec_texts import LOCAL

NODE = {"node": "compute-1", "state": "idle", "partition": "compute"}


class ControllerDouble:
    """Stands for `ControllerConnection`: Slurm answers, the autoscaler does not."""

    def __init__(self, saved: SavedState) -> None:
        self.hosts = saved.hosts

    def slurm_nodes(self) -> list[dict[str, str]]:
        return [NODE]

    def autoscaler_status(self) -> dict[str, Any]:
        raise ToolError("the autoscaler gives no answer", hint="See its log")


def _status(paths: ClusterPaths) -> dict[str, Any]:
    spec = loads(LOCAL, "cluster.yml")
    return status(spec, paths, ControllerDouble(SavedState(paths)))  # type: ignore[arg-type]


def test_before_the_first_apply_nobody_is_asked(tmp_path: Path) -> None:
    found = _status(ClusterPaths(tmp_path / "nowhere"))
    assert found == {
        "name": "demo", "state": "absent", "last_run": None, "hosts": [], "slurm": [], "autoscaler": None,
    }  # fmt: skip


@pytest.mark.parametrize("close", [True, False], ids=["ended", "killed"])
def test_an_autoscaler_without_an_answer_does_not_hide_the_rest(tmp_path: Path, close: bool) -> None:
    paths = ClusterPaths(tmp_path)
    paths.create()
    log = RunLog(paths, "apply")
    if close:
        log.close(RunStatus.SUCCESS)
    SavedState(paths).save_hosts([Host("demo-controller", "10.0.0.2", "u", "i")], {"i"})
    found = _status(paths)
    assert (found["state"], found["slurm"]) == ("present", [NODE])
    assert found["hosts"] == [{"name": "demo-controller", "address": "10.0.0.2"}]
    assert found["autoscaler"] == {"error": "the autoscaler gives no answer"}
    assert found["last_run"]["status"] == ("success" if close else "running")
