"""Two GPU nodes that stay, without a scheduler, for real: Docker, a list of hosts, and ssh between them.

The tests run in the order of this file, on one cluster: each is a chapter of the same story.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator

import pytest

from tests.e2e.site_harness import Site, all_pass, containers, networks, worked_example

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

UNITS = ("slurmctld", "slurmd", "slurmdbd", "munge", "mariadb", "slapd", "sssd")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(worked_example("seed-000-static", "10.91")) as made:
        yield made


def on(site: Site, host: str, command: str, stdin: bytes = b"") -> str:
    argv = ["ssh", "-F", str(site.folder / ".gpucluster" / "ssh" / "config"), host, command]
    done = subprocess.run(argv, input=stdin, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def image_of(site: Site, host: str) -> bytes:
    """A root file system with a shell, of the host's own files, as `docker import` takes it."""
    script = (
        "set -e; d=$(mktemp -d); mkdir -p $d/bin $d/etc; cp /bin/dash $d/bin/sh; cp /bin/cat $d/bin/cat;"
        "for f in /bin/dash /bin/cat; do ldd $f | grep -o '/[^ ]*' | while read l; do"
        ' mkdir -p "$d$(dirname $l)"; cp -n $l "$d$l"; done; done;'
        "echo inside > $d/etc/marker; tar -C $d -c .; rm -r $d"
    )
    argv = ["ssh", "-F", str(site.folder / ".gpucluster" / "ssh" / "config"), host, script]
    packed = subprocess.run(argv, capture_output=True, timeout=120, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as image:
        assert "./etc/marker" in image.getnames()
    return packed


def test_apply_builds_nodes_with_docker_and_nothing_of_a_scheduler(site: Site) -> None:
    result = site.good("apply")
    checks = {check["name"]: check["status"] for check in result["checks"]}
    assert all_pass(result), result["checks"]
    assert checks["nodes reach each other by ssh"] == "pass"
    assert checks["users have accounts"] == "pass"
    for host in ("seed-000-controller", "gpu-1"):
        running = on(site, host, f"systemctl is-active {' '.join(UNITS)} || true").split()
        assert set(running) == {"inactive"}, (host, running)
    assert "nfs" not in on(site, "gpu-1", "findmnt --noheadings --output FSTYPE")
    assert len(containers(site.home)) == 3


def test_the_second_apply_changes_nothing(site: Site) -> None:
    result = site.good("apply")
    assert result["changes"] == 0
    assert set(result["changed"].values()) == {0}, result["changed"]


def test_the_list_of_hosts_and_the_mesh(site: Site) -> None:
    assert site.as_alice("cat /etc/gpucluster/hostlist").split() == ["gpu-1", "gpu-2"]
    assert site.as_alice("cat /etc/gpucluster/hostfile").splitlines() == ["gpu-1 slots=8", "gpu-2 slots=8"]
    hop = "ssh -o BatchMode=yes gpu-1 ssh -o BatchMode=yes gpu-2 'hostname; id -un; id -u'"
    assert site.as_alice(hop).split() == ["gpu-2", "alice", "10001"]


def test_a_member_of_privilege_runs_a_container_and_nobody_else_does(site: Site) -> None:
    on(site, "gpu-1", "sudo docker import - local/marker", image_of(site, "gpu-1"))
    ssh = "ssh -o BatchMode=yes gpu-1"
    assert site.as_alice(f"{ssh} docker run --rm --network none local/marker /bin/cat /etc/marker") == "inside"
    on(site, "gpu-1", "sudo useradd --create-home --uid 20001 bob")
    refused = on(site, "gpu-1", "sudo runuser -u bob -- docker ps 2>&1 || true")
    assert "permission denied" in refused.lower()


def test_destroy_leaves_nothing(site: Site) -> None:
    site.good("destroy")
    assert containers(site.home) == []
    assert networks(site.home) == []
