"""kill -9 of the daemon at every write-ahead point (scenario 9), against the local cloud's real server.

What is killed is a process of its own with the product's loop, ledger and SDK; only Slurm is a double.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.autoscaler import crashing_daemon
from tests.autoscaler.cloud_harness import Site
from tests.autoscaler.slurm_double import COMING, LEAVING, SlurmFile, job
from tests.localcloud.api_harness import Api, running
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow

POINTS = ("committed", "sent", "answered", "decided", "written")
NODES = ("compute-e1", "compute-e2", "compute-e3")
# Seconds, for which the server thinks about a launch or a termination. The daemon that dies meanwhile changes nothing.
SLOW = 0.75
# Each daemon is a process of its own. What it imports was imported in the process from which it is forked.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([crashing_daemon.__name__])


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("cloud")) as started:
        yield started


class Controller:
    """A controller's folders, and the daemon's process."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.state, self.spool = site, folder / "state", folder / "spool"
        self.state.mkdir(mode=0o700)
        self.spool.mkdir()
        self.config = site.write_policy(folder / "autoscaler.json")
        pool = site.policy.pools["compute"]
        self.slurm = SlurmFile(folder / "slurm.json", tuple(f"{pool.prefix}{n}" for n in range(1, pool.names + 1)))

    def daemon(self, point: str = "", goal: int = len(NODES)) -> int:
        """Run the daemon until it dies, or until so many instances are there and nothing moves."""
        log = self.state.parent / "log"
        arguments = (self.config, self.state, self.spool, self.slurm.file, log, point, goal)
        process = PROCESSES.Process(target=crashing_daemon.main, args=arguments)
        process.start()
        try:
            process.join(2 * PATIENCE_S)
            assert process.exitcode is not None, log.read_text()
        finally:
            process.kill()
            process.join()
        print(log.read_text())
        return process.exitcode

    def nodes(self) -> Counter[str]:
        return Counter(instance.freeform_tags["node"] for instance in self.site.elastic())


@pytest.fixture
def controller(api: Api, tmp_path: Path) -> Iterator[Controller]:
    (api.home / "faults.json").unlink(missing_ok=True)
    made = Controller(Site(api), tmp_path)
    yield made
    (api.home / "faults.json").unlink(missing_ok=True)
    made.site.remove_elastic()


def slow(operation: str) -> dict[str, object]:
    return {"operation": operation, "delay": SLOW}


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_it_launches_there_is_one_instance_a_node(controller: Controller, point: str) -> None:
    controller.slurm.write(dict.fromkeys(NODES, COMING), [job("7", NODES)])
    controller.site.faults(slow("LaunchInstanceConfiguration"))
    assert controller.daemon(point) == -signal.SIGKILL
    assert set(controller.nodes().values()) <= {1}
    # The next one starts while the server still thinks about what the first one has sent.
    assert controller.daemon() == 0
    assert controller.nodes() == dict.fromkeys(NODES, 1)
    # And a third one, with everything there, does nothing more.
    assert controller.daemon() == 0
    assert controller.nodes() == dict.fromkeys(NODES, 1)


def test_killed_again_and_again_there_is_one_instance_a_node(controller: Controller) -> None:
    controller.slurm.write(dict.fromkeys(NODES, COMING), [job("7", NODES)])
    controller.site.faults(slow("LaunchInstanceConfiguration"))
    # Not every one gets as far as its point: what the one before has sent may be there already.
    ends = [controller.daemon(point) for point in POINTS]
    assert ends.count(-signal.SIGKILL) >= 3
    assert controller.daemon() == 0
    assert controller.nodes() == dict.fromkeys(NODES, 1)


@pytest.mark.parametrize("point", ["committed", "sent", "answered"])
def test_killed_while_it_terminates_nothing_is_left(controller: Controller, point: str) -> None:
    controller.slurm.write(dict.fromkeys(NODES, COMING), [job("7", NODES)])
    assert controller.daemon() == 0
    assert controller.nodes() == dict.fromkeys(NODES, 1)
    controller.slurm.write(dict.fromkeys(NODES, LEAVING))
    controller.site.faults(slow("TerminateInstance"))
    assert controller.daemon(point, goal=0) == -signal.SIGKILL
    assert controller.daemon(goal=0) == 0
    wait_for("no node is left", lambda: not controller.nodes())


def test_a_lost_ledger_is_rebuilt_from_the_clouds_tags(controller: Controller) -> None:
    """Scenario 46: only the history is lost."""
    controller.slurm.write(dict.fromkeys(NODES, COMING), [job("7", NODES)])
    assert controller.daemon() == 0
    for file in controller.state.glob("ledger.sqlite*"):
        file.unlink()
    assert controller.daemon() == 0
    assert controller.nodes() == dict.fromkeys(NODES, 1)
