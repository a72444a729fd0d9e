"""Fixtures that several tests of this folder use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from gpucluster.controller.kubernetes.person_objects import POLICIES_UNTIL
from tests.controller.kubernetes.api_server import (
    controllers,
    minor,
    pod_security,
    running,
)
from tests.controller.kubernetes.people_world import ADA, BOB, People, openssl, pod, refused
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    folder = tmp_path_factory.mktemp("kubernetes-people")
    authority = folder / "pki"
    authority.mkdir()
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kubernetes",
             "-keyout", str(authority / "ca.key"), "-out", str(authority / "ca.crt"))  # fmt: skip
    more = (f"--client-ca-file={authority / 'ca.crt'}", *pod_security())
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running(folder, *more))
        stack.enter_context(controllers(server, "resourcequota"))
        yield People(server, authority)


@pytest.fixture
def start(world: People) -> People:
    world.sync(ADA, BOB)
    # PodSecurityPolicy is in force at once, and lets an administrator do everything.
    if minor() > POLICIES_UNTIL:
        as_root = pod("root", container={"securityContext": {"runAsUser": 0}})
        wait_for("policies are enforced", lambda: refused(world.admin, as_root))
    return world
