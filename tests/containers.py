"""What tests in containers begin with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpucluster.localcloud.image.base_image import ensure_image
from gpucluster.localcloud.podman.command import probe
from gpucluster.paths import local_cloud_home
from gpucluster.systems import host_python


def need_containers() -> None:
    """Skip the test where this host can't run containers, and say why."""
    problems = probe()
    if problems:
        pytest.skip("; ".join(problems))


def base_image() -> str:
    """The name of the local cloud's image, which is made if it is nowhere. Without containers: skipped."""
    need_containers()
    return ensure_image(local_cloud_home()).reference


def provide_python(run: Callable[..., object]) -> None:
    """Make the link to the hosts' Python in a container, as user data does at the boot of an instance.

    Args:
        run: runs a program in the container, given as words.
    """
    run("sh", "-c", host_python.script(), "host_python", *host_python.arguments())
