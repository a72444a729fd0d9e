"""A built release of Slurm on hosts of two systems: a controller with Debian 12, nodes with Debian 13.

One node is permanent, one is elastic, and the elastic one is then launched from a baked image. It runs by hand
(`built_slurm`). The other direction is in test_slurm_upgrade.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.built_slurm import (
    SECONDS,
    from_cache,
    make_mirror,
    newest_source,
    on_host,
    to_cache,
    version_of,
)
from tests.e2e.site_harness import NETWORK, Site, container_names, container_of, containers
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.story, pytest.mark.timeout(2 * SECONDS)]

CLUSTER_YML = """\
version: 1
name: mixed
cloud: {{provider: local}}
{network}controller: {{ocpus: 2, memory_gb: 8, image: {{operating_system: Debian, version: "12"}}}}
pools:
  fixed: {{shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 8, count: 1, image: {image}}}
  burst: {{ocpus: 2, memory_gb: 8, count: 0, max_count: 1, idle_timeout: 15, shape: VM.Standard.E5.Flex,
          image: {image}}}
users:
  people: [{{name: alice, full_name: Alice Example, generate_key: true}}]
slurm: {{release: "26.05"}}
software: {{mirror: mirror, versions: {{slurm: {version}}}}}
"""
CONTROLLER = "mixed-controller"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    source = newest_source()
    image = '{operating_system: Debian, version: "13"}'
    with Site(CLUSTER_YML.format(network=NETWORK, image=image, version=version_of(source))) as made:
        make_mirror(made, source)
        yield made


def _job(site: Site, pool: str, *options: str) -> str:
    """Which host ran a step that was started on the controller."""
    return site.as_alice(f"srun --quiet -p {pool} {' '.join(options)} hostname")


def _until_alone(site: Site) -> None:
    site.until("the elastic node is gone", lambda: len(containers(site.home)) == 2)


def test_a_newer_system_on_the_nodes_has_the_same_release(site: Site) -> None:
    applied = site.start("apply")
    # Nodes are launched at the same time.
    launched = f"gpucluster-{CONTROLLER}-"
    wait_for(
        "the controller is launched",
        lambda: any(name.startswith(launched) for name in container_names(site.home)) or applied.poll() is not None,
    )
    from_cache(container_of(site, CONTROLLER))
    said, _ = applied.communicate(timeout=SECONDS)
    assert applied.returncode == 0, said[-3000:]
    to_cache(container_of(site, CONTROLLER))
    assert 'VERSION_ID="12"' in on_host(site, CONTROLLER, "cat", "/etc/os-release")
    assert 'VERSION_ID="13"' in on_host(site, "fixed-1", "cat", "/etc/os-release")
    versions = {on_host(site, host, "/usr/sbin/slurmd" if host == "fixed-1" else "/usr/sbin/slurmctld", "-V")
                for host in (CONTROLLER, "fixed-1")}  # fmt: skip
    assert len(versions) == 1
    assert versions.pop().startswith("slurm 26.05")
    assert "= pmi2" in site.as_alice("scontrol show config | grep MpiDefault")
    assert _job(site, "fixed") == "fixed-1"


def test_a_step_with_pmix_runs_from_a_batch_script(site: Site) -> None:
    script = "#!/bin/bash\nsrun --mpi=pmix -n 2 sh -c 'echo $PMIX_RANK'\n"
    site.as_alice("cat > pmix.sh", stdin=script)
    site.as_alice("sbatch --quiet --wait -p fixed -n 2 -o pmix.txt pmix.sh")
    assert sorted(site.as_alice("cat pmix.txt").split()) == ["0", "1"]


def test_an_elastic_node_gets_the_packages(site: Site) -> None:
    assert _job(site, "burst") == "burst-e1"
    _until_alone(site)


def test_a_baked_node_has_them(site: Site) -> None:
    assert site.good("image", "bake", "burst")["status"] == "success"
    ran = _job(site, "burst")
    requests = on_host(site, CONTROLLER, "sudo", "journalctl", "-u", "gpucluster-join", "--since=-60s", "-o", "cat")
    assert ran.startswith("burst-e")
    assert ran not in requests
    assert on_host(site, CONTROLLER, "sudo", "sinfo", "-h", "-n", ran, "-o", "%v") == on_host(
        site, CONTROLLER, "sudo", "sinfo", "-h", "-n", "fixed-1", "-o", "%v"
    )


def test_a_second_apply_changes_and_builds_nothing(site: Site) -> None:
    assert set(site.good("apply")["changed"].values()) == {0}
