"""Runs of the library in threads, of which some are cancelled: real Terraform and ssh, a cloud without hosts.

The code of docs/how-to/python-automation.md runs as it is there.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpucluster
from gpucluster import cancellation
from gpucluster.plain import as_json
from gpucluster.workspace.run_log import read_runs
from tests.cancelled_calls import calling
from tests.cluster.process_cloud import ProcessCloud, SeenCluster, process_cloud
from tests.event_lines import require_valid

pytestmark = [pytest.mark.slow, pytest.mark.story]

CONTROLLER = "module.controller.oci_core_instance.this"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCloud]:
    with process_cloud(tmp_path_factory.mktemp("site")) as made:
        yield made


@pytest.fixture(scope="module")
def one(cloud: ProcessCloud) -> SeenCluster:
    return cloud.cluster("one")


@pytest.fixture(scope="module")
def other(cloud: ProcessCloud) -> SeenCluster:
    return cloud.cluster("other")


def _last_run(seen: SeenCluster) -> tuple[str, str]:
    last = read_runs(seen.cluster.paths).last
    assert last is not None
    return str(last["status"]), str(last["error"])


def test_of_two_runs_one_is_cancelled_while_its_terraform_works(
    cloud: ProcessCloud, one: SeenCluster, other: SeenCluster
) -> None:
    cloud.faults({"operation": "BootInstance", "display_name": "one-*", "until_removed": True})
    with calling(one.cluster.apply) as first, calling(other.cluster.apply) as second:
        one.reached(name=CONTROLLER, status="creating")
        first.cancellation.cancel("another request replaces it")
        one.told("Terraform finishes what it has begun")
        assert first.running, "Terraform waits for the instance that it has asked for"
        cloud.faults()
        error = first.error()
        assert isinstance(error, gpucluster.Interrupted)
        assert str(error).startswith("apply was cancelled: another request replaces it. Nothing is lost")
        assert _last_run(one) == ("interrupted", "cancelled: another request replaces it")
        assert one.in_state() == one.in_cloud()
        assert one.in_state()[0] == 1, "it had begun"

        other.reached(name="hosts", status="started")
        assert second.running
        assert isinstance(second.cancel(), gpucluster.Interrupted)
    assert [(each.name, each.status) for each in other.events if each.kind == "phase"][-1] == ("hosts", "interrupted")
    assert other.in_state() == other.in_cloud() == (1, 2)


def test_the_next_run_goes_on(one: SeenCluster) -> None:
    one.events.clear()
    with calling(one.cluster.apply) as again:
        one.reached(name="hosts", status="started")
        assert isinstance(again.cancel(), gpucluster.Interrupted)
    assert one.in_state() == one.in_cloud() == (1, 2)


def test_results_of_real_calls_can_be_pickled_and_written_as_json(one: SeenCluster) -> None:
    of_one = one.cluster
    plan = of_one.plan()
    assert plan.changes == (), "the runs that were cancelled have made everything"
    results = [
        plan, of_one.status(timeout=1), of_one.preflight(), of_one.contents(), of_one.clusters(),
        of_one.policies(), of_one.state.outputs(), of_one.hosts.inventory(), of_one.destroy(delete_data=True),
        of_one.spec, *one.events,
    ]  # fmt: skip
    require_valid(event.to_dict() for event in one.events)
    for result in results:
        assert pickle.loads(pickle.dumps(result)) == result
        assert json.loads(json.dumps(as_json(result), allow_nan=False)) == as_json(result)


# --- the page -----

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "python-automation.md"


@pytest.fixture
def page() -> dict[str, Any]:
    """What the code of the page defines."""
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile("\n".join(blocks), PAGE.name, "exec"), names)
    assert {"in_thread", "apply"} <= {*names}
    return names


def test_ctrl_c_in_asyncio_ends_a_run_in_order(other: SeenCluster, page: dict[str, Any]) -> None:
    printed = []

    def show(*words: object, **_: object) -> None:
        printed.append(" ".join(map(str, words)).strip())
        if printed[-1] == "phase hosts started":
            signal.raise_signal(signal.SIGINT)

    page["print"] = show
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(page["apply"](str(other.file), 86400))
    assert printed[0] == "phase cloud started"
    assert _last_run(other) == ("interrupted", "cancelled: its task was cancelled")
    assert other.in_state() == other.in_cloud() == (1, 2)


def test_a_timeout_in_asyncio_ends_a_run(other: SeenCluster, page: dict[str, Any]) -> None:
    with pytest.raises(TimeoutError):
        asyncio.run(page["apply"](str(other.file), 0))
    assert _last_run(other)[0] == "interrupted"


def test_a_task_that_is_cancelled_waits_for_the_end_of_its_call(page: dict[str, Any]) -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(seconds: float) -> None:
        begun.set()
        try:
            cancellation.sleep(seconds)
        finally:
            ended.set()

    async def cancelled() -> None:
        task = asyncio.create_task(page["in_thread"](work, seconds=86400.0))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError) as caught:
        asyncio.run(cancelled())
    assert ended.is_set()
    assert isinstance(caught.value.__cause__, gpucluster.Interrupted)


@pytest.mark.parametrize(("work", "result"), [(lambda: 7, 7), (lambda: int("seven"), ValueError)])
def test_a_task_has_the_result_of_its_call_or_its_error(page: dict[str, Any], work: Any, result: object) -> None:
    if result == 7:
        assert asyncio.run(page["in_thread"](work)) == result
    else:
        with pytest.raises(ValueError, match="seven"):
            asyncio.run(page["in_thread"](work))


def test_a_destroy_in_a_thread_removes_everything(other: SeenCluster) -> None:
    with calling(lambda: other.cluster.destroy(delete_data=True)) as call:
        assert call.result().status == "success"
    assert other.cluster.contents().empty
