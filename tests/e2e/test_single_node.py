"""One GPU node without RDMA and without a scheduler, for real: planned, built, used for containers, and destroyed.

The bundle around containerd is a double (tests/doubles/nerdctl), in a mirror that is a folder; containerd, its user
namespaces, sessions and units are real. The tests run in the order of this file, on one cluster.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest

from tests.doubles.nerdctl import OCI, bundle
from tests.e2e.site_harness import Site, all_pass, containers, networks, worked_example
from tests.mirror import Mirror

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

# Not the pinned version: the mirror's own list says the checksum of its file then.
VERSION = "2.99.0"
IMAGE = "registry.example/marker:1"
DATA = "/mnt/localdisk/containers/containerd"
MAKE_IMAGE = f"""
set -e
root=$(mktemp -d)
for program in /bin/sh /bin/cat /bin/id; do
    cp --parents -L $program $(ldd $program | grep -o '/[^ ]*') $root
done
mkdir -p $root/proc $root/sys $root/dev $root/etc $root/run
echo inside > $root/marker
python3 - $root {IMAGE} ~/marker.tar
rm -r $root
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    text = worked_example("seed-001-single-node", "10.99")
    # `software` is the last of the file.
    with Site(f"{text.rstrip()}\n  mirror: mirror\n  versions: {{nerdctl: {VERSION}}}\n") as made:
        bundle(Mirror(made.folder / "mirror"), VERSION)
        yield made


def on_the_node(site: Site, script: str, stdin: str = "") -> str:
    """What a person does: log in to the controller, and on to the node."""
    return site.as_alice(f"ssh -o BatchMode=yes gpu-1 {shlex.quote(script)}", stdin)


def test_preflight_and_plan_create_nothing(site: Site) -> None:
    found = site.good("preflight")
    assert [finding for finding in found["findings"] if finding["level"] == "error"] == []
    code, events = site.run("plan", "--detailed-exitcode")
    assert code == 3
    changes = {change["address"]: change["action"] for change in events[-1]["data"]["changes"]}
    assert set(changes.values()) == {"create"}
    rdma = ("oci_core_cluster_network", "oci_core_compute_cluster")
    assert not [address for address in changes if any(kind in address for kind in rdma)]
    assert containers(site.home) == []


def test_apply_builds_it_as_the_file_says(site: Site) -> None:
    result = site.good("apply")
    checks = {check["name"]: check["status"] for check in result["checks"]}
    assert all_pass(result), result["checks"]
    assert checks["users have accounts"] == "pass"
    said = site.plain("ssh", "gpu-1", "--", "readlink /etc/localtime; cloud-init status; id -un")
    assert said.stdout.split() == ["/usr/share/zoneinfo/Asia/Tokyo", "status:", "done", "opc"], said.stderr


def test_the_second_apply_changes_nothing(site: Site) -> None:
    result = site.good("apply")
    assert result["changes"] == 0
    assert set(result["changed"].values()) == {0}, result["changed"]


def test_a_person_runs_a_container_without_any_preparation(site: Site) -> None:
    on_the_node(site, MAKE_IMAGE, stdin=OCI)
    assert on_the_node(site, "id -nG; id -u").split() == ["people", "10001"]
    said = on_the_node(site, f"nerdctl load -i marker.tar && nerdctl run --rm {IMAGE} /bin/sh -c 'id -u; cat /marker'")
    assert said.splitlines()[-2:] == ["0", "inside"], said


def test_what_containers_leave_lies_on_the_local_disk(site: Site) -> None:
    place = f"{DATA}/user-10001"
    assert on_the_node(site, f"stat -c '%u %a' {place}").split() == ["10001", "700"]
    found = on_the_node(site, f"find {place} -path '*io.containerd.*' -type f | head -1; find ~ -path '*containerd*'")
    assert found.startswith(place)
    assert len(found.splitlines()) == 1, found


def test_roots_containers_are_refused(site: Site) -> None:
    assert "password is required" in on_the_node(site, "sudo -n nerdctl info 2>&1 || true")
    socket = "/run/gpucluster-containerd/containerd.sock"
    assert "permission denied" in on_the_node(site, f"ctr -a {socket} version 2>&1 || true")


def test_the_usual_set_up_command_works_as_well(site: Site) -> None:
    said = on_the_node(site, f"containerd-rootless-setuptool.sh install && nerdctl run --rm {IMAGE} /bin/cat /marker")
    assert "Your containerd runs" in said
    assert said.splitlines()[-1] == "inside"


def test_the_plan_is_empty_then(site: Site) -> None:
    code, events = site.run("plan", "--detailed-exitcode")
    assert code == 0, events[-1]


def test_destroy_leaves_nothing(site: Site) -> None:
    site.good("destroy", "--delete-data")
    assert containers(site.home) == []
    assert networks(site.home) == []
