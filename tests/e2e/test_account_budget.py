"""A budget of an account and a report of cost, with Slurm's accounting, the autoscaler and a cloud: a whole cluster.

The tests run in the order of this file, on one cluster.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.e2e.site_harness import ENDLESS, NETWORK, PATIENCE_TO_BUILD_S, Site, all_pass
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.e2e, pytest.mark.story, pytest.mark.timeout(2 * PATIENCE_TO_BUILD_S)]

#: Half of what Oracle's list of the package has for an hour of a node, 2 cores and 16 GB: it is preemptible.
HOURLY = (2 * 0.03 + 16 * 0.002) / 2
#: Of a month: what half a minute of a node costs, or a little less.
BUDGET = 0.00025
CLUSTER_YML = f"""\
version: 1
name: purse
cloud: {{provider: local}}
{NETWORK}\
pools:
  burst:
    count: 0
    max_count: 3
    shape: VM.Standard.E5.Flex
    ocpus: 2
    memory_gb: 16
    idle_timeout: 3600
    preemptible: true
slurm:
  accounts:
    vision: {{monthly_budget: {BUDGET}, users: [alice]}}
    speech: {{users: [alice]}}
autoscaler: {{times: {{backoff: 5, backoff_limit: 10}}}}
monitoring: {{enabled: false}}
users:
  people:
    - {{name: alice, generate_key: true}}
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    now = datetime.now(UTC)
    if (now + timedelta(seconds=2 * PATIENCE_TO_BUILD_S)).month != now.month:
        pytest.skip("the month ends while these tests run, and with it what was spent of its budget")
    with Site(CLUSTER_YML, bakes=True) as made:
        yield made


def submit(site: Site, account: str, script: str = ENDLESS) -> str:
    return site.as_alice(f"sbatch --parsable --exclusive -o /dev/null --account={account} --wrap '{script}'")


def ran_seconds(site: Site, job: str) -> int:
    """For how long a job that runs has run."""
    clock = site.root(site.controller, f"squeue -h -j {job} -O timeused:20").strip()
    return sum(int(part) * unit for part, unit in zip(reversed(clock.split(":")), (1, 60, 3600), strict=False))


def comment(site: Site, job: str) -> str:
    return site.root(site.controller, f"squeue -h -j {job} -O admin_comment:500")


def budgets(site: Site) -> list[dict[str, Any]]:
    """What the autoscaler reports of them; nothing before its first look."""
    found = site.good("status", "--timeout", str(PATIENCE_S))["autoscaler"].get("budgets", [])
    assert isinstance(found, list)
    return found


def test_every_check_passes(site: Site) -> None:
    assert all_pass(site.good("apply"))
    # The capacity of all nodes that are launched from now on is taken back as soon as this is removed.
    site.faults({"operation": "ReclaimCapacity", "until_removed": True})
    site.until("the accounting has answered", lambda: any(each["spent"] is not None for each in budgets(site)))
    assert budgets(site) == [{"account": "vision", "budget": BUDGET, "spent": 0.0, "currency": "USD", "held": False}]


def test_when_it_is_spent_new_nodes_are_held_and_running_jobs_go_on(site: Site) -> None:
    first = submit(site, "vision")
    site.runs(first)
    # Half a minute of a node is more than the budget. Slurm's accounting counts from the allocation while a node boots,
    # and from the start of the job afterwards: what was spent is less then.
    site.until("it has run for half a minute", lambda: ran_seconds(site, first) > 1.1 * BUDGET / HOURLY * 3600)
    # The accounting is asked every minute.
    site.until("the budget is spent", lambda: budgets(site)[0]["held"], patience=3 * PATIENCE_S)
    second, third = submit(site, "vision", "true"), submit(site, "speech")
    site.until("the job is told", lambda: "has spent its budget of this month" in comment(site, second))
    site.runs(third)
    # It is tried again every few seconds: then it has nodes that are never launched.
    assert site.state_of(first) == "RUNNING"
    assert site.state_of(second) in ("PENDING", "CONFIGURING")
    said = site.plain("autoscaler", "explain", second).stdout
    assert "the account vision has spent its budget of this month, 0.00 USD, and gets no new nodes" in said
    assert "! budget of account vision: " in site.plain("status", "--timeout", str(PATIENCE_S)).stdout

    # It is raised, while jobs run.
    site.change(f"monthly_budget: {BUDGET}", "monthly_budget: 50")
    site.good("apply")
    site.over(second)
    site.accounted(second)
    assert (site.state_of(first), site.state_of(third)) == ("RUNNING", "RUNNING")
    site.root(site.controller, f"scancel {first} {third}")


def test_a_job_runs_again_elsewhere_when_the_cloud_takes_its_node_back(site: Site) -> None:
    job = submit(site, "speech")
    site.runs(job)
    [lost] = site.as_alice(f"squeue -h -j {job} -o %N").split()
    site.faults()
    restarted = f"squeue -h -j {job} -t running -O restartcnt"
    site.until("the job runs again", lambda: site.as_alice(restarted).strip() == "1", patience=3 * PATIENCE_S)
    said = site.plain("autoscaler", "explain", lost).stdout
    assert "preemptible instance" in said
    site.root(site.controller, f"scancel {job}")


def test_cost_is_seconds_of_the_recorded_instances_times_their_price(site: Site) -> None:
    found = site.good("cost")
    rows = json.loads(site.root(site.controller, "gpucluster-agent accounts usage"))["hosts"]
    elastic = [row for row in rows if row["pool"] == "burst"]
    assert len(elastic) > 3, "one at least was launched after the cloud had taken the others back"
    until = datetime.fromisoformat(found["until"]).timestamp()
    expected = sum((min(row["ended"] or until, until) - row["began"]) / 3600 * HOURLY for row in elastic)
    keys = {row["key"]: row for row in found["rows"]}
    jobs = keys["vision"]["job"] + keys["speech"]["job"]
    assert jobs + keys["-"]["idle"] + keys["-"]["unused"] == pytest.approx(expected, rel=0.02)
    assert 0 < keys["vision"]["job"] < expected
    pools = {row["key"]: row for row in site.good("cost", "--by", "pool", "--until", found["until"])["rows"]}
    assert pools["burst"]["total"] == pytest.approx(expected, rel=0.02)
    assert pools["controller"]["service"] == pools["controller"]["total"] > 0
    assert (found["unpriced"], found["uncovered"], found["unsure_hours"]) == ({}, {}, 0.0)
    assert (found["held_unknown"], found["total"]["held"]) == ("monitoring is off", 0.0)
