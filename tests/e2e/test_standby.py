"""A standby goes on in the place of the controller, and back, under jobs that run and wait.

Real Slurm, MariaDB and OpenLDAP; the volume is a loop device, and the address that moves is one of the network of the
containers. The tests run in the order of this file, on one cluster: each is a chapter of the same story.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from gpucluster.node_agent.standby import keeping, watching
from tests.e2e.controller_site import ACCOUNTED, GATE, HOST_KEY, cluster_yml
from tests.e2e.site_harness import ALONE, PATIENCE_TO_BUILD_S, Site, container_of, containers, kill, read_until
from tests.localcloud.api_harness import Api
from tests.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.story, pytest.mark.timeout(3 * PATIENCE_TO_BUILD_S)]

CONTROLLER, STANDBY = "pair-controller", "pair-standby"
ALONE_IN_SERVICE = "controller: {shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16, state_volume_gb: 50}"
WITH_STANDBY = ALONE_IN_SERVICE.replace("}", ", standby: true}")
BY_ITSELF = WITH_STANDBY.replace("}", ", automatic_failover: true}")
CLUSTER_YML = cluster_yml("pair", ALONE_IN_SERVICE)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(CLUSTER_YML) as made:
        yield made


def outputs(site: Site) -> dict[str, Any]:
    return dict(site.good("output")["outputs"])


def instances(site: Site) -> tuple[str, str]:
    """The OCIDs of both hosts, as Terraform names them: they never change places."""
    cluster = outputs(site)["cluster"]
    return str(cluster["controller"]["id"]), str(cluster["standby"]["id"])


def holder(api: Api) -> str:
    """The instance that has the volume."""
    (one,) = holders(api)
    return one


def holders(api: Api) -> list[str]:
    """The same; none while it moves."""
    listed = api.compute.list_volume_attachments(api.tenancy).data
    return [str(each.instance_id) for each in listed if each.lifecycle_state == "ATTACHED"]


def addresses(site: Site, host: str) -> str:
    return site.root(host, "ip -4 -o address show")


def queue(site: Site) -> tuple[str, str]:
    """A job that runs until the gate has a number, and one that waits for its node."""
    running = site.as_alice(f"rm -f {GATE}; mkfifo {GATE}; sbatch --parsable --exclusive --wrap 'exit $(cat {GATE})'")
    site.runs(running)
    return running, site.as_alice(f"sbatch --parsable --exclusive -J {waits_for(running)} --wrap 'exit 0'")


def finish(site: Site, running: str, waiting: str) -> None:
    """Both jobs end as they would have without a failover."""
    site.knows(site.controller, "alice")
    assert (site.state_of(running), site.state_of(waiting)) == ("RUNNING", "PENDING")
    site.root("compute-1", f"echo 7 > {GATE}")
    ended = f"sacct -X -n -P -j {running} -o State,ExitCode || true"
    site.until("the job ended with its own exit", lambda: site.as_alice(ended) == "FAILED|7:0")
    site.accounted(waiting)


def accounted_jobs(site: Site) -> set[str]:
    """The jobs that the accounting has, as soon as it answers: after a failover slurmdbd may be the last one."""
    rows = wait_for(
        "the accounting answers",
        lambda: site.root(CONTROLLER, f"{ACCOUNTED} || true"),
        interval=0.5,
        state=site._state,
        ignore=AssertionError,
    )
    return {line.split("|")[0] for line in rows.splitlines()}


def waits_for(job: str) -> str:
    """The name of the job that waits for the end of another one."""
    return f"waits-for-{job}-to-end"


def seen(site: Site) -> dict[str, Any]:
    """What the program that watches the controller has seen last."""
    return dict(json.loads(site.root(STANDBY, f"cat {watching.STATUS} || echo '{{\"ready\": false}}'")))


def inside(container_id: str, script: str) -> str:
    """What a script prints on a host that ssh may not reach; empty if it fails."""
    argv = ["podman", "exec", container_id, "sh", "-c", script]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def test_a_cluster_that_stands_gets_a_standby_and_its_jobs_go_on(site: Site) -> None:
    """Every host learns another address of the controller meanwhile."""
    site.good("apply")
    running, waiting = queue(site)
    site.change(ALONE_IN_SERVICE, WITH_STANDBY)
    site.good("apply")
    finish(site, running, waiting)


def test_services_run_on_one_of_both_hosts(site: Site) -> None:
    first, second = instances(site)
    service = outputs(site)["service"]
    assert service["current"] == "yes"
    assert service["address"] in addresses(site, CONTROLLER)
    assert service["address"] not in addresses(site, STANDBY)
    assert f"{service['address']} {CONTROLLER}" in site.root("compute-1", "cat /etc/hosts")
    for name in ("slurmctld", "mariadb", "slapd"):
        assert site.root(CONTROLLER, f"systemctl is-active {name}") == "active"
        assert site.root(STANDBY, f"systemctl is-active {name}; true") != "active"
    files = "/etc/slurm/slurm.conf /etc/gpucluster/munge.key /usr/local/bin/gpucluster-agent"
    assert site.root(CONTROLLER, f"sha256sum {files}") == site.root(STANDBY, f"sha256sum {files}")
    assert holder(Api(site.home, engine="podman")) == first != second
    site.require_order(CONTROLLER, STANDBY)


def test_the_standby_goes_on_with_running_and_waiting_jobs(site: Site) -> None:
    ended = site.as_alice("sbatch --parsable --wrap 'exit 0'")
    site.accounted(ended)
    running, waiting = queue(site)
    known, key = accounted_jobs(site), site.root(CONTROLLER, HOST_KEY)
    first, second = instances(site)
    result = site.good("controller", "failover", "--yes")
    # How long it takes is measured by `benchmarks/run.py failover`.
    print("seconds", result["seconds"])
    assert result["host"] == STANDBY
    assert result["released"]
    api = Api(site.home, engine="podman")
    assert holder(api) == second
    assert site.root(CONTROLLER, HOST_KEY) == key
    assert site.root(CONTROLLER, "hostname") == CONTROLLER
    assert known <= accounted_jobs(site)
    name = ("id -un", *ALONE)
    # SSSD of this host has had another directory until now.
    site.until("alice gets in", lambda: site.ssh(CONTROLLER, *name, who="alice").stdout.strip() == "alice")
    finish(site, running, waiting)
    api.wait(api.compute.get_instance, first, "RUNNING")
    site.until("the old host answers as the standby", lambda: site.ssh(STANDBY, "true").returncode == 0)
    assert site.root(STANDBY, "systemctl is-active slurmctld; true") != "active"


def test_an_apply_agrees_and_configures_the_host_in_service(site: Site) -> None:
    site.good("apply")
    assert outputs(site)["service"]["host"] == "standby"
    assert holder(Api(site.home, engine="podman")) == instances(site)[1]


def test_a_change_without_an_apply_reaches_the_standby(site: Site) -> None:
    """What the timer runs; nobody waits ten minutes here.

    A run that its timer has begun before the change does not bring it, nor does one to which the standby gives no
    answer: the next one does.
    """
    file = "/etc/gpucluster-changed"

    def after_a_run(look: str) -> str:
        site.root(CONTROLLER, f"systemctl start {keeping.SERVICE}")
        return site.root(STANDBY, f"{look} || true")

    def behind() -> list[str]:
        return [text for text in site.good_and_said("verify")[1] if "could not go on as the controller" in text]

    site.root(CONTROLLER, f"echo changed >{file}")
    site.until("the standby has the file", lambda: after_a_run(f"cat {file}") == "changed")
    assert site.root(CONTROLLER, f"systemctl is-enabled {keeping.TIMER}") == "enabled"
    site.root(CONTROLLER, f"rm {file}")
    site.until("verify names the file", lambda: [file in warning for warning in behind()] == [True])
    site.until("the standby has it no more", lambda: after_a_run(f"test -e {file} || echo gone") == "gone")
    site.until("nothing is behind", lambda: after_a_run("echo run") and not behind())


def test_it_goes_on_after_a_controller_that_is_lost_and_a_command_that_is_killed(site: Site) -> None:
    """The instance in service is gone, and the first failover is killed when the volume moves."""
    running, waiting = queue(site)
    site.until("Slurm has written its queue", lambda: site.has_saved(CONTROLLER, waits_for(running)))
    known = accounted_jobs(site)
    api = Api(site.home, engine="podman")
    first, second = instances(site)
    api.compute.terminate_instance(second)
    api.wait(api.compute.get_instance, second, "TERMINATED")
    run = site.start("controller", "failover", "--yes")
    read_until(run, '"name": "services", "status": "started"')
    kill(run)
    result = site.good("controller", "failover", "--yes")
    assert result["host"] == CONTROLLER
    assert holder(api) == first
    assert known <= accounted_jobs(site)
    finish(site, running, waiting)


def test_an_apply_makes_another_standby(site: Site) -> None:
    before = instances(site)
    site.good("apply")
    after = instances(site)
    assert after[0] == before[0]
    assert after[1] != before[1]
    service = outputs(site)["service"]
    assert json.dumps(service)
    assert (service.get("host", "controller"), service["current"]) == ("controller", "yes")
    assert site.root(STANDBY, "systemctl is-active slurmctld; true") != "active"


def test_the_standby_goes_on_by_itself_when_the_controller_loses_its_network(site: Site) -> None:
    """The old host runs, has the volume mounted and is RUNNING for the cloud: other hosts are asked, and the fence is
    what keeps it from writing."""
    site.change(WITH_STANDBY, BY_ITSELF)
    site.good("apply")
    first, second = instances(site)
    # Whether it could is asked every five minutes.
    site.until("the standby could go on", lambda: seen(site)["ready"], patience=3 * PATIENCE_S)

    def announced() -> bool:
        site.root(CONTROLLER, f"systemctl start {watching.SHUTDOWN} && systemctl stop {watching.SHUTDOWN}")
        return "until" in site.root(STANDBY, f"cat {watching.PAUSE} || true")

    # A shutdown waits some seconds for that, and goes on without it.
    site.until("a shutdown is announced", announced)
    site.root(STANDBY, f"rm {watching.PAUSE}")
    site.root(CONTROLLER, f"systemctl start {watching.SHUTDOWN}")
    running, waiting = queue(site)
    site.until("Slurm has written its queue", lambda: site.has_saved(CONTROLLER, waits_for(running)))
    known = accounted_jobs(site)
    old, new = container_of(site, CONTROLLER), container_of(site, STANDBY)
    api = Api(site.home, engine="podman")
    inside(old, "ip link set eth0 down")
    wait_for(
        "the standby is the controller",
        lambda: holders(api) == [second] and "UP" in inside(new, "scontrol ping"),
        patience=3 * PATIENCE_S,
        interval=0.5,
        state=lambda: inside(new, "journalctl -u gpucluster-failover -n 40; cat /var/lib/gpucluster-standby/*.json"),
    )
    wait_for("it has noted what it did", lambda: inside(new, f"cat {watching.RECORD}"), interval=0.5)
    print("from the last answer to Slurm's next one", inside(new, f"cat {watching.RECORD}"))
    assert api.compute.get_instance(first).data.lifecycle_state == "STOPPED"
    # The operator learns of it. The state follows, services go on, and the old host becomes the standby.
    code, events = site.run("plan")
    assert code != 0
    assert "pair-standby has gone on by itself" in events[-1]["message"], events[-1]
    started = inside(new, "systemctl show -P ActiveEnterTimestamp slurmctld mariadb")
    assert site.good("controller", "failover", "--yes")["host"] == STANDBY
    assert inside(new, "systemctl show -P ActiveEnterTimestamp slurmctld mariadb") == started
    finish(site, running, waiting)
    site.good("apply")
    service = outputs(site)["service"]
    assert (service["host"], service["current"], service.get("begun")) == ("standby", "yes", None)
    assert known <= accounted_jobs(site)
    assert holder(api) == second
    assert site.root(STANDBY, "systemctl is-active slurmctld; true") != "active"
    site.until("the other host watches now", lambda: seen(site)["ready"], patience=3 * PATIENCE_S)


def test_a_destroy_after_a_failover_leaves_nothing(site: Site) -> None:
    """The attachment that the failover has made is in no state yet."""
    site.good("controller", "failover", "--yes")
    code, events = site.run("destroy")
    assert code != 0
    assert "holds the controller's state" in events[-1]["message"], events[-1]
    site.good("destroy", "--delete-data")
    assert containers(site.home) == []
