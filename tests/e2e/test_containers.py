"""Container steps on permanent nodes; those that come with a job, and those of a baked image, are in test_elastic.py.

Enroot and Pyxis are doubles here (tests/doubles), in a mirror that is a folder: what is proven is that they are built,
installed, configured, upgraded and removed, and that Slurm's steps reach them, not what the real ones do. The tests run
in the order of this file, on one cluster.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.doubles.pyxis import packages as pyxis
from tests.e2e.containers_harness import LOOK, MARKER, PLUGIN, batch, image, mirror
from tests.e2e.site_harness import Site, all_pass

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

NEXT = "0.24.1"
CACHE = "/var/cache/gpucluster/software"
CLUSTER_YML = f"""
version: 1
name: boxes
cloud: {{provider: local}}
network:
  vcn_cidr: 10.106.0.0/16
  public_subnet_cidr: 10.106.0.0/24
  private_subnet_cidr: 10.106.1.0/24
  ssh_allowed_cidrs: [127.0.0.0/8]
controller: {{shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32}}
pools:
  compute: {{shape: BM.GPU4.8, count: 2}}
containers: {{runtimes: [enroot]}}
software: {{mirror: mirror, versions: {{pyxis: {pyxis.VERSION}}}}}
users:
  people:
    - {{name: alice, generate_key: true}}
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(CLUSTER_YML) as made:
        mirror(made, pyxis.VERSION, NEXT)
        yield made


def change(site: Site, old: str, new: str) -> None:
    text = site.file.read_text()
    assert old in text
    site.file.write_text(text.replace(old, new))


def on(site: Site, host: str, *command: str) -> str:
    done = site.plain("ssh", host, "--", "sudo", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def statuses(result: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["status"] for check in result["checks"]}


def test_apply_installs_all_of_it_and_every_check_passes(site: Site) -> None:
    result = site.good("apply")
    found = statuses(result)
    assert all_pass(result), result["checks"]
    assert found["container steps run in pool compute"] == "pass"
    image(site)


def test_the_second_apply_changes_nothing(site: Site) -> None:
    result = site.good("apply")
    assert set(result["changed"].values()) == {0}, result["changed"]


def test_a_person_runs_a_step_in_a_container_on_two_nodes(site: Site) -> None:
    said = site.as_alice(LOOK.replace("srun", "srun -N 2 --ntasks-per-node=1 -p compute"))
    assert sorted(said.splitlines()) == [f"{MARKER} compute-1", f"{MARKER} compute-2"]


def test_a_batch_job_starts_steps_from_a_node(site: Site) -> None:
    assert batch(site, "-N 2", "-p compute") == [f"{MARKER} compute-1", f"{MARKER} compute-2"]


def test_an_image_is_imported_once_for_all_nodes(site: Site) -> None:
    """By a job of alice's, from a web server, which is all that the double of Enroot wants of a registry."""
    site.as_alice(
        "mkdir -p registry && tar -C root -cf registry/box_1.tar . && cd registry && "
        "{ setsid timeout 300 python3 -m http.server 8099 > /dev/null 2>&1 < /dev/null & } && "
        "for _ in $(seq 100); do curl -so /dev/null http://localhost:8099 && break; sleep 0.1; done"
    )
    uri = "docker://boxes-controller:8099#box:1"
    made = site.good("image", "import", uri)
    assert (made["changed"], made["image"]["name"], made["image"]["user"]) == (True, "box+1", "alice")
    path = made["image"]["path"]
    assert on(site, "boxes-controller", "stat", "-c", "%U:%a", path) == "root:644"
    look = LOOK.replace("$HOME/box.sqsh", path).replace("srun", "srun -N 2 -p compute")
    assert sorted(site.as_alice(look).splitlines()) == [f"{MARKER} compute-1", f"{MARKER} compute-2"]
    assert not site.good("image", "import", uri)["changed"]
    code, events = site.run("image", "import", "docker://boxes-controller:8099#nothing:1")
    assert (code, "404" in events[-1]["data"]["what"]) == (1, True)
    site.good("image", "remove", "box+1")
    assert site.good("image", "list")["container_images"] == []


def test_a_node_without_the_plugin_runs_nothing_and_verify_names_it(site: Site) -> None:
    on(site, "compute-2", "rm", "-f", PLUGIN)
    code, events = site.run("verify")
    assert code == 1
    checks = {event["name"]: event for event in events if event["kind"] == "check"}
    check = checks["container steps run in pool compute"]
    assert check["status"] == "fail"
    assert "compute-2: " in check["message"]
    assert "compute-1: " not in check["message"]
    # After the job Slurm asked the plugin there to clean up behind it.
    wait_for(site, "sinfo -h -n compute-2 -o '%T %E'", "drained Epilog error")


def test_another_version_is_built_and_brought_to_every_host(site: Site) -> None:
    change(site, f"pyxis: {pyxis.VERSION}", f"pyxis: {NEXT}")
    # compute-2 has none at all.
    on(site, "boxes-controller", "scontrol", "update", "nodename=compute-2", "state=resume")
    assert statuses(site.good("apply"))["container steps run in pool compute"] == "pass"
    for host in ("boxes-controller", "compute-1", "compute-2"):
        assert on(site, host, "grep", "-c", f"'pyxis double {NEXT}'", PLUGIN) == "1"
    assert len(site.as_alice(LOOK.replace("srun", "srun -N 2 -p compute")).splitlines()) == 2


def test_without_enroot_nothing_of_it_is_left_and_jobs_run(site: Site) -> None:
    change(site, "runtimes: [enroot]", "runtimes: []")
    result = site.good("apply")
    assert not [name for name in statuses(result) if "container" in name]
    # What a role would look for in the next run is gone as well: it would change nothing.
    left = (
        f"{PLUGIN} /usr/bin/enroot /usr/local/bin/enroot /usr/local/sbin/gpucluster-image /etc/gpucluster/runtimes/* "
        f"{CACHE}/*"
    )
    for host in ("boxes-controller", "compute-1", "compute-2"):
        assert on(site, host, "sh", "-c", f"'ls -d {left} 2> /dev/null | wc -l'") == "0"
    assert set(site.as_alice("srun -N 2 -p compute hostname").split()) == {"compute-1", "compute-2"}


def test_nodes_with_jobs_get_it_and_go_on(site: Site) -> None:
    """The plugin's epilog runs for jobs that began before it, too; if it failed, their nodes would be drained."""
    job = site.as_alice("sbatch --parsable -N 2 -p compute --wrap 'sleep 600'")
    wait_for(site, f"squeue -h -j {job} -o %T", "RUNNING")
    change(site, "runtimes: []", "runtimes: [enroot]")
    assert statuses(site.good("apply"))["container steps run in pool compute"] in ("pass", "skip")
    assert site.as_alice(f"squeue -h -j {job} -o %T") == "RUNNING"
    site.as_alice(f"scancel {job}")
    wait_for(site, "sinfo -h -p compute -o '%D %T'", "2 idle")
    said = site.as_alice(LOOK.replace("srun", "srun -N 2 --ntasks-per-node=1 -p compute"))
    assert sorted(said.splitlines()) == [f"{MARKER} compute-1", f"{MARKER} compute-2"]


def wait_for(site: Site, command: str, answer: str) -> None:
    deadline = time.monotonic() + 120
    while (said := site.as_alice(command)) != answer:
        assert time.monotonic() < deadline, said
        time.sleep(0.5)
