"""What tests in containers begin with."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from gpucluster.errors import CloudError
from gpucluster.localcloud.engine import containers
from gpucluster.localcloud.image.base_image import ensure_image
from gpucluster.localcloud.podman.command import probe
from gpucluster.systems import host_python
from tests.addresses import free_range
from tests.image_home import image_home


def need_containers() -> None:
    """Skip the test where this host can't run containers, and report why."""
    problems = probe()
    if problems:
        pytest.skip("; ".join(problems))


def base_image() -> str:
    """The name of the local cloud's image, which is made if it is nowhere. Without containers: skipped."""
    need_containers()
    return ensure_image(image_home()).reference


def of_this_run() -> str:
    """The option of `podman run` with which a container is found if it is left over (tools/leftovers.py)."""
    return f"--label=gpucluster.test={tempfile.gettempdir()}"


def provide_python(run: Callable[..., object]) -> None:
    """Make the link to the hosts' Python in a container, as user data does at the boot of an instance.

    Args:
        run: runs a program in the container, given as words.
    """
    run("sh", "-c", host_python.script(), "host_python", *host_python.arguments())


@contextmanager
def free_network(prefix: str, labels: dict[str, str]) -> Iterator[str]:
    """A small network in a range that is free on this host, to the end of the block: its first three octets.

    It is removed at the end, so whatever is in it must be gone by then.
    """
    with ExitStack() as ranges:
        subnet = _create_network(ranges, prefix, labels)
        try:
            yield subnet
        finally:
            containers.remove_network(prefix)


def _create_network(ranges: ExitStack, prefix: str, labels: dict[str, str]) -> str:
    while True:
        subnet = f"{ranges.enter_context(free_range())}.0"
        # The network of stopped containers has a range, and no route.
        with suppress(CloudError):
            containers.create_network(prefix, f"{subnet}.0/24", labels)
            return subnet
