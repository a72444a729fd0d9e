"""What holds for all tests."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.image_home import hide_local_cloud, remove_hidden

# How long an example takes says how busy the machine is, and nothing of the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# The files that take longest, longest first. A worker has a file to its end, so one that begins late makes all wait.
LONGEST = (
    # about three quarters of a minute and more, each
    "agent/test_oldest_python.py",
    "autoscaler/daemon/test_harness_crashes.py",
    "terraform/test_bad_luck.py",
    "autoscaler/daemon/test_harness_faults.py",
    "terraform/test_tf_lifecycle.py",
    "ansible/test_trials.py",
    "localcloud/test_cloud_init.py",
    "terraform/test_scaling_root.py",
    "ansible/test_docker_host.py",
    "localcloud/test_traps.py",
    "ansible/test_containerd_host.py",
    "agent/backup/test_backup_slurm.py",
    "autoscaler/daemon/test_crash.py",
    "autoscaler/daemon/test_real_slurm.py",
    "ansible/test_elastic_slurm.py",
    "terraform/test_backends.py",
    "autoscaler/daemon/test_join.py",
    # whole clusters: minutes
    "e2e/test_elastic.py",
    "e2e/test_people.py",
    "e2e/test_main_path.py",
    "e2e/test_containers.py",
    "e2e/test_resize.py",
    "e2e/test_slurm_upgrade.py",
    "e2e/test_anywhere.py",
    "e2e/test_login.py",
)
_RANKS = {Path(__file__).parent / name: rank for rank, name in enumerate(LONGEST)}

hide_local_cloud()

# A runner that was started in the background ignores these two, and each program that a test starts would ignore them
# as well: a signal that is ignored stays ignored. Tests of Ctrl-C and of a lost terminal need what a terminal gives.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    """In each worker as well."""
    remove_hidden()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; within a file, and among the others, nothing changes."""
    items.sort(key=lambda item: _RANKS.get(item.path, len(_RANKS)))
