"""What holds for all tests."""

from __future__ import annotations

import gc
import hashlib
import os
import resource
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import evidence, surroundings
from tests.image_home import hide_local_cloud, remove_hidden
from tests.long_tests import is_long
from tests.waiting import PATIENCE_S

# The time that an example takes shows how busy the machine is, and nothing about the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# For `make check`: more examples find more, but most of what is wrong is found by the first ones. `make test` has all.
settings.register_profile("check", settings.get_profile("tests"), max_examples=25)
settings.load_profile("tests")

# The files that take longest, longest first. A worker has a file to its end, so one that begins late makes all wait.
LONGEST = (
    # whole clusters: minutes. First those that make test has.
    "e2e/test_elastic.py",
    "e2e/test_main_path.py",
    "e2e/test_people.py",
    "e2e/test_changes.py",
    "e2e/test_standby.py",
    "e2e/test_drift.py",
    "e2e/test_controller_state.py",
    "e2e/test_account_budget.py",
    "e2e/test_reboot.py",
    "e2e/test_tutorial.py",
    "e2e/test_rollout.py",
    "e2e/test_without_scheduler.py",
    "e2e/test_machine_gpus.py",
    "e2e/test_slurm_upgrade.py",
    "e2e/test_anywhere.py",
    # about three quarters of a minute and more, each
    "node_agent/test_oldest_python.py",
    "autoscaler/daemon/test_harness_crashes.py",
    "lifecycle/test_ownership.py",
    "terraform/test_bad_luck.py",
    "autoscaler/daemon/test_harness_faults.py",
    "terraform/test_tf_lifecycle.py",
    "ansible/test_trials.py",
    "localcloud/test_cloud_init.py",
    "terraform/test_scaling_root.py",
    "ansible/test_docker_host.py",
    "localcloud/test_traps.py",
    "ansible/test_containerd_host.py",
    "controller/backup/test_jobs_slurm.py",
    "autoscaler/daemon/test_crash.py",
    "autoscaler/daemon/test_real_slurm.py",
    "ansible/test_elastic_slurm.py",
    "terraform/test_backends.py",
    "autoscaler/daemon/test_join.py",
)
_RANKS = {Path(__file__).parent / name: rank for rank, name in enumerate(LONGEST)}

surroundings.set_up()
hide_local_cloud()

# A runner that was started in the background ignores these two, and each program that a test starts would ignore them
# as well: a signal that is ignored stays ignored. Tests of Ctrl-C and of a lost terminal need what a terminal gives.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    """In each worker as well."""
    remove_hidden()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--order=SEED`: files, and tests within each, in another order; without it the longest files come first."""
    parser.addoption("--order", default="", help="shuffle files and the tests in them; the seed is any word")


def pytest_collection() -> None:
    """What is collected lives to the end. The garbage collector would look through all of it again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Objects that tests create are collected as ever, and none of those from before."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; within a file, and among the others, nothing changes.

    With `--order`, files come in any order, and so do the tests of a file, unless they tell a story. What `make test`
    leaves out gets its mark here.
    """
    for item in items:
        if is_long(item.path, item.name):
            item.add_marker(pytest.mark.long)
    seed = str(config.getoption("order"))
    if not seed:
        items.sort(key=lambda item: _RANKS.get(item.path, len(_RANKS)))
        return

    def place(name: str) -> str:
        return hashlib.sha256(f"{seed} {name}".encode()).hexdigest()

    def key(item: pytest.Item) -> tuple[str, str]:
        return place(str(item.path)), "" if item.get_closest_marker("story") else place(item.nodeid)

    items.sort(key=key)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """After Ctrl-C workers have time to remove what their tests made, such as a whole cluster. Their own is 10 s."""
    from xdist.workermanage import NodeManager

    NodeManager.EXIT_TIMEOUT = PATIENCE_S


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What one worker does alone: a file, or the tests that `xdist_group` names, from whatever file they are.

    pytest-xdist has either of the two. A group that is spelled differently for each test spreads a file.
    """
    from xdist.scheduler import LoadScopeScheduling  # the oldest Python of hosts has none

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            name, _, group = nodeid.rpartition("@")
            # Words in brackets are parameters, and may hold the sign.
            return group if name and "]" not in group else nodeid.partition("::")[0]

    return Groups(config, log)


_PROCESSOR_S = pytest.StashKey[float]()
# What a program that a test calls as a function may change of the process: its `main` is made for a process of its own.
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Give the next test the signals and the umask that this one had, whatever it has called."""
    handlers, umask = {number: signal.getsignal(number) for number in _SIGNALS}, os.umask(0o022)
    os.umask(umask)
    try:
        return (yield)
    finally:
        os.umask(umask)
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


# Chapters that follow a failed one wait for what never comes, each to the end of its patience: an hour in one file. The
# second one may be independent, and its failure explains more.
_FAILED_CHAPTERS = 2
_FAILED = pytest.StashKey[dict[Path, list[str]]]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out the rest of a story in which two chapters failed."""
    failed = item.session.stash.get(_FAILED, {}).get(item.path, [])
    if item.get_closest_marker("story") and len(failed) >= _FAILED_CHAPTERS:
        pytest.skip(f"chapters before this one failed: {', '.join(failed)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Count the processor time of a test, with the fixtures that begin or end with it."""
    item.stash[_PROCESSOR_S] = _processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what explains a failure while the test's folders and containers still stand."""
    report = yield
    if report.failed:
        failed = item.session.stash.setdefault(_FAILED, {}).setdefault(item.path, [])
        failed.extend([item.name] if item.name not in failed else [])
        # With what it has printed: the programs that it has started print there, too.
        printed = (f"{title}:\n{text}" for title, text in report.sections)
        evidence.keep(item.nodeid, "\n\n".join([str(report.longrepr), *printed]), getattr(item, "funcargs", {}))
    if report.when == "teardown":
        used = _processor_seconds() - item.stash[_PROCESSOR_S]
        report.user_properties.append(("processor_seconds", f"{used:.2f}"))
    return report


def _processor_seconds() -> float:
    """Of this process and of the programs that it has waited for. What runs in containers is not among them."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)
