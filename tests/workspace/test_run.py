"""A run holds the cluster, times its phases, and writes into the run log how it ended, however that was."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.errors import CloudError, GpuClusterError, InputError, Interrupted, LockedError, ReplacementError
from gpucluster.events import Event, EventKind, ignore
from gpucluster.paths import ClusterPaths
from gpucluster.workspace.leftovers import VARIABLE
from gpucluster.workspace.run import environment, run
from gpucluster.workspace.run_log import RunStatus, holder, records


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    return ClusterPaths.of(tmp_path / "cluster.yml")


def test_a_run_holds_the_cluster_to_its_end(paths: ClusterPaths) -> None:
    with run("apply", paths, ignore) as this:
        held = holder(paths)
        assert held is not None
        assert held["command"] == "apply"
        with pytest.raises(LockedError), run("plan", paths, ignore):
            pass
    assert holder(paths) is None
    (record,) = records(paths)
    assert (record["run"], record["command"], record["status"]) == (this.id, "apply", RunStatus.SUCCESS)


def test_phases_are_announced_and_their_times_add_up(paths: ClusterPaths) -> None:
    events: list[Event] = []

    def fails() -> None:
        with this.phase("hosts"):
            raise CloudError("no answer")

    with run("apply", paths, events.append) as this:
        for _ in range(2):
            with this.phase("terraform"):
                pass
        with pytest.raises(CloudError):
            fails()
    assert list(this.phases) == ["terraform", "hosts"]
    assert [(event.name, event.status) for event in events if event.kind == EventKind.PHASE] == [
        ("terraform", "started"), ("terraform", "done"), ("terraform", "started"), ("terraform", "done"),
        ("hosts", "started"), ("hosts", "failed"),
    ]  # fmt: skip
    assert this.elapsed >= sum(this.phases.values())


@pytest.mark.parametrize(
    ("phase", "error", "status"),
    [
        ("terraform", CloudError("refused"), RunStatus.FAILED),
        ("terraform", InputError("wrong"), RunStatus.REFUSED),
        ("terraform", ReplacementError("would be replaced"), RunStatus.REFUSED),
        # Something may have been changed by then.
        ("ansible", InputError("wrong"), RunStatus.FAILED),
        ("terraform", ValueError("a bug"), RunStatus.FAILED),
    ],
)
def test_an_error_is_in_the_log_and_whether_anything_was_changed(
    paths: ClusterPaths, phase: str, error: Exception, status: RunStatus
) -> None:
    with pytest.raises(type(error)), run("apply", paths, ignore) as this, this.phase(phase):
        raise error
    (record,) = records(paths)
    assert record["status"] == status
    assert str(error if isinstance(error, GpuClusterError) else repr(error)) in record["error"]
    assert holder(paths) is None


@pytest.mark.parametrize(("words", "hint"), [((), "Nothing is lost"), (("The copy is lost",), "The copy is lost")])
def test_a_stop_is_interrupted_and_states_what_is_lost(paths: ClusterPaths, words: tuple[str, ...], hint: str) -> None:
    stopped = pytest.raises(Interrupted, match="apply was interrupted")
    with stopped as caught, run("apply", paths, ignore) as this, this.phase("terraform"):
        raise KeyboardInterrupt(*words)
    assert caught.value.hint == f"{hint}: run the same command again to continue"
    assert records(paths)[0]["status"] == RunStatus.INTERRUPTED


def test_programs_of_a_run_are_known_by_the_folder_of_its_cluster(paths: ClusterPaths) -> None:
    assert environment(paths) == {VARIABLE: str(paths.root)}
