"""Facts of preflight: what could not be read is found wherever it stands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucluster.preflight.facts import Facts, Limit, Subnet, Unknown
from tests.preflight.preflight_facts import AD1, EXISTING, GPU_SHAPE, GPUS, good

NOT_READ = Unknown("network", "the subnets", "no answer")
SUBNET = Subnet("ocid1.subnet.oc1.iad.x", "ocid1.vcn.oc1.iad.x", "10.0.0.0/24")


def test_good_facts_have_nothing_unknown() -> None:
    assert list(good().unknown()) == []
    assert list(good(*EXISTING).unknown()) == []


@pytest.mark.parametrize(
    "facts",
    [
        good(domains=NOT_READ),
        good(limits={GPUS: NOT_READ, ("compute", "other", ""): Limit(1)}),
        good(capacity={(AD1, GPU_SHAPE): NOT_READ}),
        good(images={"controller": NOT_READ}),
        good(subnets={"public": NOT_READ, "private": SUBNET}),
        good(subnets={"private": replace(SUBNET, routes=NOT_READ)}),
        good(subnets={"private": replace(SUBNET, ingress=NOT_READ)}),
        good(subnets={"private": replace(SUBNET, in_use=NOT_READ)}),
    ],
)
def test_what_could_not_be_read_is_found_alone_in_mappings_and_in_a_subnet(facts: Facts) -> None:
    assert list(facts.unknown()) == [NOT_READ]


@pytest.mark.parametrize(("status", "refused", "busy"), [(404, True, False), (429, False, True), (0, False, False)])
def test_the_status_tells_a_refusal_from_a_busy_cloud(status: int, refused: bool, busy: bool) -> None:
    fact = replace(NOT_READ, status=status)
    assert (fact.refused, fact.busy) == (refused, busy)
