"""Tests never see the local cloud of this machine, in which a cluster may stand; its images all of them share."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

_HOME = "GPUCLUSTER_HOME"
# What it was before: the workers of one run, and what a test starts, inherit it.
_BEFORE = "GPUCLUSTER_TEST_IMAGE_HOME"


def hide_local_cloud() -> None:
    """Let GPUCLUSTER_HOME name a folder that does not exist, for each test that does not name one itself."""
    os.environ.setdefault(_BEFORE, os.environ.get(_HOME, ""))
    os.environ[_HOME] = str(_hidden())


def remove_hidden() -> None:
    """Remove what tests of this process have written there, such as an operator's key."""
    shutil.rmtree(_hidden(), ignore_errors=True)


def _hidden() -> Path:
    return Path(tempfile.gettempdir(), f"gpucluster-no-local-cloud-{os.getpid()}")


def image_home() -> Path:
    """The folder of this machine's local cloud, for `ensure_image`."""
    from gpucluster.paths import local_cloud_home  # the agent's tests, which hide it too, run with an older Python

    with mock.patch.dict(os.environ, {_HOME: os.environ[_BEFORE]}):
        return local_cloud_home()
