"""The controller's state on a volume of its own: it moves there, and another controller goes on with it.

Real Slurm, MariaDB and OpenLDAP; the volume is a loop device (`localcloud/engine/volumes`). The tests run in the order
of this file, on one cluster: each is a chapter of the same story.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.controller_site import ACCOUNTED, GATE, HOST_KEY, cluster_yml
from tests.e2e.site_harness import ALONE, PATIENCE_TO_BUILD_S, Site, containers, kill, read_until
from tests.localcloud.api_harness import Api
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.story, pytest.mark.timeout(3 * PATIENCE_TO_BUILD_S)]

CONTROLLER = "keep-controller"
WITHOUT = "controller: {shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16}"
WITH = "controller: {shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16, state_volume_gb: 50}"
CLUSTER_YML = cluster_yml("keep", WITHOUT)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(CLUSTER_YML) as made:
        yield made


def controller_of(site: Site) -> dict[str, Any]:
    """Id and addresses of the controller, as Terraform has them."""
    return dict(site.good("output")["outputs"]["cluster"]["controller"])


def keys(site: Site) -> str:
    """The hashes of the CAs, the munge key and the controller's key for the nodes."""
    authority = "/etc/gpucluster/authority"
    files = (
        f"{authority}/ca.key {authority}/ca.pem {authority}/ssh_ca /etc/gpucluster/munge.key ~debian/.ssh/gpucluster"
    )
    return site.root(CONTROLLER, f"sha256sum {files}")


def mounted(site: Site, host: str = CONTROLLER) -> str:
    return site.root(host, "findmnt -n -o SOURCE,FSTYPE --mountpoint /var/lib/gpucluster-state; true")


def test_a_cluster_that_stands_moves_its_state_to_a_volume(site: Site) -> None:
    site.good("apply")
    site.good("user", "add", "bob")
    first = site.as_alice("sbatch --parsable --wrap 'exit 0'")
    site.accounted(first)
    before, rows = (site.root(CONTROLLER, HOST_KEY), keys(site)), site.root(CONTROLLER, ACCOUNTED)
    site.change(WITHOUT, WITH)
    site.good("apply")
    assert "ext4" in mounted(site)
    assert (site.root(CONTROLLER, HOST_KEY), keys(site)) == before
    assert site.root(CONTROLLER, ACCOUNTED).startswith(rows)
    assert site.root(CONTROLLER, "ls -d /var/lib/mysql.before-state-volume") == "/var/lib/mysql.before-state-volume"
    assert site.as_alice("id -un") == "alice"


def test_the_services_find_it_after_a_reboot(site: Site) -> None:
    site.require_order(*site.host_names)
    before = site.boot(CONTROLLER)
    site.ssh(CONTROLLER, "sudo systemctl reboot")
    site.until("it has booted again", lambda: site.boot(CONTROLLER) not in ("", before))
    site.until("slurmctld answers", lambda: "UP" in site.ssh(CONTROLLER, "sudo scontrol ping").stdout)
    assert "ext4" in mounted(site)
    site.knows(CONTROLLER, "bob")


def test_a_destroy_does_not_take_the_state_without_being_told(site: Site) -> None:
    code, events = site.run("destroy")
    assert code != 0
    assert "holds the controller's state" in events[-1]["message"], events[-1]
    assert site.as_alice("id -un") == "alice"


def test_another_controller_goes_on_after_the_first_is_gone(site: Site) -> None:
    running = site.as_alice(f"rm -f {GATE}; mkfifo {GATE}; sbatch --parsable --exclusive --wrap 'exit $(cat {GATE})'")
    site.runs(running)
    names = ("waits-as-first", "waits-as-second")
    waiting = [site.as_alice(f"sbatch --parsable --exclusive -J {name} --wrap 'exit 0'") for name in names]
    site.until("Slurm has written its queue", lambda: site.has_saved(CONTROLLER, names[-1]))
    rows = site.root(CONTROLLER, ACCOUNTED)
    host_key, cluster_keys, before = site.root(CONTROLLER, HOST_KEY), keys(site), controller_of(site)

    api = Api(site.home, engine="podman")
    api.compute.terminate_instance(before["id"])
    wait_for("the controller is gone", lambda: len(containers(site.home)) == 1)
    site.good("controller", "replace", "--yes")

    after = controller_of(site)
    assert after["id"] != before["id"]
    assert after["private_ip"] == before["private_ip"]
    assert (site.root(CONTROLLER, HOST_KEY), keys(site)) == (host_key, cluster_keys)
    for user in ("alice", "bob"):
        site.knows(CONTROLLER, user)
    assert site.ssh(CONTROLLER, "id -un", *ALONE, who="alice").stdout.strip() == "alice"
    assert site.state_of(running) == "RUNNING"
    assert [site.state_of(job) for job in waiting] == ["PENDING", "PENDING"]
    assert {line.split("|")[0] for line in rows.splitlines()} <= {
        line.split("|")[0] for line in site.root(CONTROLLER, ACCOUNTED).splitlines()
    }
    site.root("compute-1", f"echo 7 > {GATE}")
    ended = f"sacct -X -n -P -j {running} -o State,ExitCode"
    site.until("the job ended with its own exit", lambda: site.as_alice(ended) == "FAILED|7:0")
    for job in waiting:
        site.accounted(job)


def test_a_controller_that_runs_is_replaced_by_the_same_command_after_a_kill(site: Site) -> None:
    """The kill comes when the second host takes the volume over; the same command puts a third one in its place."""
    running = site.as_alice(f"sbatch --parsable --exclusive --wrap 'exit $(cat {GATE})'")
    site.runs(running)
    waiting = site.as_alice("sbatch --parsable --exclusive --wrap 'exit 0'")
    host_key, cluster_keys, before = site.root(CONTROLLER, HOST_KEY), keys(site), controller_of(site)

    run = site.start("controller", "replace", "--yes")
    read_until(run, '"name": "state volume", "status": "started"')
    kill(run)
    second = controller_of(site)
    site.good("controller", "replace", "--yes")

    after = controller_of(site)
    assert len({before["id"], second["id"], after["id"]}) == 3
    assert after["private_ip"] == before["private_ip"]
    assert (site.root(CONTROLLER, HOST_KEY), keys(site)) == (host_key, cluster_keys)
    assert site.state_of(running) == "RUNNING"
    site.root("compute-1", f"echo 5 > {GATE}")
    ended = f"sacct -D -X -n -P -j {running} -o State,ExitCode"
    site.until("the job ended with its own exit", lambda: site.as_alice(ended) == "FAILED|5:0")
    site.accounted(waiting)


def test_the_state_moves_back(site: Site) -> None:
    site.root(CONTROLLER, "gpucluster-agent state-volume move-back")
    assert mounted(site) == ""
    site.knows(CONTROLLER, "bob")
    site.change(WITH, WITHOUT)
    code, events = site.run("apply")
    assert code != 0
    assert "would delete the volume" in events[-1]["message"], events[-1]
    site.good("apply", "--delete-data")
    assert site.as_alice("id -un") == "alice"
