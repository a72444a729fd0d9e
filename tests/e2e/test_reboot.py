"""A node that Slurm drained is rebooted and comes back, for real: by slurmd, systemd and the health service.

The node is an instance of the local cloud, a container whose systemd boots again. What a host with hardware does, and
how long it takes, is not proven by it. `Kill task failed` is what a test writes, in the place of slurmd.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.site_harness import PATIENCE_TO_BUILD_S, Site, all_pass, worked_example

pytestmark = [pytest.mark.e2e, pytest.mark.story, pytest.mark.timeout(2 * PATIENCE_TO_BUILD_S)]

CONTROLLER, NODE = "demo-controller", "compute-1"
CLUSTER_YML = worked_example("local").replace("    count: 2  ", "    count: 1  ", 1) + (
    "\nchecks: {repair: reboot, interval: 10}\n"
)
BOOTED = "stat --format=%Y /run/gpucluster/boot-checked"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(CLUSTER_YML) as made:
        yield made


def test_a_cluster_with_one_node(site: Site) -> None:
    result = site.good("apply")
    assert all_pass(result), result["checks"]


def test_a_node_with_a_process_that_did_not_end_is_rebooted_and_takes_jobs_again(site: Site) -> None:
    before = site.root(NODE, BOOTED)
    site.root(CONTROLLER, f"scontrol update nodename={NODE} state=drain reason='Kill task failed'")

    def decisions() -> list[str]:
        status = json.loads(site.root(CONTROLLER, "gpucluster-agent health status --output json"))
        return [each["kind"] for each in status["decisions"] if each["node"] == NODE]

    site.until("it is undrained", lambda: decisions()[-1:] == ["ended"], patience=PATIENCE_TO_BUILD_S)
    # Slurm may have begun with the reboot when its answer comes too late to count.
    assert decisions() in [["drain", "done", "reboot", *asked, "undrain", "ended"] for asked in (["asked"], [])]
    assert site.root(NODE, BOOTED) != before
    assert site.as_alice("srun hostname").strip() == NODE
