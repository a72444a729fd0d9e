"""What tests in containers begin with."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import pytest

from gpucluster.errors import CloudError
from gpucluster.localcloud.engine import containers
from gpucluster.localcloud.image.base_image import ensure_image
from gpucluster.localcloud.podman.command import probe
from gpucluster.systems import host_python
from tests.image_home import image_home


def need_containers() -> None:
    """Skip the test where this host can't run containers, and say why."""
    problems = probe()
    if problems:
        pytest.skip("; ".join(problems))


def base_image() -> str:
    """The name of the local cloud's image, which is made if it is nowhere. Without containers: skipped."""
    need_containers()
    return ensure_image(image_home()).reference


def provide_python(run: Callable[..., object]) -> None:
    """Make the link to the hosts' Python in a container, as user data does at the boot of an instance.

    Args:
        run: runs a program in the container, given as words.
    """
    run("sh", "-c", host_python.script(), "host_python", *host_python.arguments())


def free_network(prefix: str, labels: dict[str, str]) -> str:
    """A small network in a range that is free on this host. Returns its first three octets.

    No test and no default of a configuration uses 10.140 to 10.189 for something else: what a firewall trusts, as
    10.244.0.0/16 (pods), must not hold this network by chance.
    """
    for _ in range(20):
        subnet = f"10.{140 + secrets.randbelow(50)}.{secrets.randbelow(256)}"
        try:
            containers.create_network(prefix, f"{subnet}.0/24", labels)
        except CloudError:
            continue
        return subnet
    raise AssertionError("no free range for a network was found")
