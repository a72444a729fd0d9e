"""One GPU node without RDMA, for real: looked at, planned, built, planned again, and destroyed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.site_harness import Site, containers, networks, worked_example

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(worked_example("seed-001-single-node", "10.99")) as made:
        yield made


def test_preflight_and_plan_create_nothing(site: Site) -> None:
    found = site.good("preflight")
    assert [finding for finding in found["findings"] if finding["level"] == "error"] == []
    code, events = site.run("plan", "--detailed-exitcode")
    assert code == 3
    changes = {change["address"]: change["action"] for change in events[-1]["data"]["changes"]}
    assert set(changes.values()) == {"create"}
    assert not [address for address in changes if "cluster_network" in address or "compute_cluster" in address]
    assert containers(site.home) == []


def test_apply_builds_it_as_the_file_says(site: Site) -> None:
    result = site.good("apply")
    assert {check["status"] for check in result["checks"]} <= {"pass", "skip"}
    said = site.plain("ssh", "gpu-1", "--", "readlink /etc/localtime; cloud-init status; id -un")
    assert said.stdout.split() == ["/usr/share/zoneinfo/Asia/Tokyo", "status:", "done", "opc"], said.stderr


def test_the_plan_is_empty_then(site: Site) -> None:
    code, events = site.run("plan", "--detailed-exitcode")
    assert code == 0, events[-1]


def test_destroy_leaves_nothing(site: Site) -> None:
    site.good("destroy", "--delete-data")
    assert containers(site.home) == []
    assert networks(site.home) == []
