"""The controller is lost, or replaced, or both, at random moments. `make chaos` runs this; other runs leave it out.

GPUCLUSTER_TEST_CHAOS is the number of rounds, GPUCLUSTER_TEST_CHAOS_SEED decides what happens in each and when,
GPUCLUSTER_TEST_CHAOS_JOBS is how many jobs run and how many wait, as "40,200".
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.chaos.chaos_site import ChaosSite
from tests.chaos.disturbances import Round, rounds
from tests.e2e.site_harness import PATIENCE_TO_BUILD_S

ROUNDS = int(os.environ.get("GPUCLUSTER_TEST_CHAOS") or 0)
SEED = os.environ.get("GPUCLUSTER_TEST_CHAOS_SEED") or "1"
RUNNING, WAITING = map(int, (os.environ.get("GPUCLUSTER_TEST_CHAOS_JOBS") or "120,1000").split(","))

pytestmark = [pytest.mark.chaos, pytest.mark.story, pytest.mark.timeout(5 * PATIENCE_TO_BUILD_S)]


@pytest.fixture(scope="module")
def site() -> Iterator[ChaosSite]:
    with ChaosSite(running=RUNNING, waiting=WAITING) as made:
        assert isinstance(made, ChaosSite)
        made.begin()
        yield made
        print(f"\nchaos with the seed {SEED}, {RUNNING} jobs that run and {WAITING} that wait:")
        print(*made.outcomes, sep="\n")


@pytest.mark.parametrize("each", rounds(ROUNDS, SEED), ids=str)
def test_nothing_is_lost(site: ChaosSite, each: Round) -> None:
    print(f"\n{each}", flush=True)
    print(f"  {site.play(each)}", flush=True)


def test_every_job_ends_as_it_should(site: ChaosSite) -> None:
    site.end_all()
