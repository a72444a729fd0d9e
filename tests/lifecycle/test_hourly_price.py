"""What an hour costs before and after a change, and with all elastic nodes that the limits allow."""

from __future__ import annotations

from typing import Any

import pytest

from gpucluster.lifecycle.hourly_price import HourlyPrice, hourly_price
from gpucluster.prices import PriceList, shipped
from gpucluster.spec import loads, updates

H100 = 80.0
E5 = 4 * 0.03 + 32 * 0.002
TEXT = """\
version: 1
name: priced
cloud: {provider: local}
network: {vcn_cidr: 10.77.0.0/16, public_subnet_cidr: 10.77.0.0/24, private_subnet_cidr: 10.77.1.0/24,
          ssh_allowed_cidrs: [127.0.0.0/8]}
controller: {shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32}
pools:
  gpu: {shape: BM.GPU.H100.8, count: 2, max_count: 5}
  cpu: {shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32, count: 0, max_count: 10}
"""


def _values(text: str = TEXT) -> dict[str, Any]:
    return updates.recorded(loads(text))


def _price(before: Any, after: dict[str, Any], own: dict[str, float] | None = None) -> HourlyPrice:
    return hourly_price(before, after, PriceList.parse(shipped()), own or {})


def test_permanent_hosts_before_and_after_and_all_elastic_ones() -> None:
    smaller = _values(TEXT.replace("count: 2", "count: 1"))
    found = _price(smaller, _values())
    assert found.before == pytest.approx(H100 + E5)
    assert found.after == pytest.approx(2 * H100 + E5)
    assert found.at_limits == pytest.approx(5 * H100 + 11 * E5)
    assert (found.unknown, found.currency) == ((), "USD")
    assert found.source == "Oracle's public list of 2026-09-01"


def test_login_nodes_count() -> None:
    with_login = _values(TEXT + "login: {count: 2, shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32}\n")
    assert _price(_values(), with_login).after == pytest.approx(2 * H100 + 3 * E5)


@pytest.mark.parametrize(
    ("limits", "elastic"),
    [
        ("max_nodes: 2", 2 * H100),
        ("max_nodes: 4", 3 * H100 + E5),
        ("max_nodes: 100", 3 * H100 + 10 * E5),
    ],
)
def test_the_limits_of_the_autoscaler_hold_for_the_dearest_nodes(limits: str, elastic: float) -> None:
    found = _price({}, _values(TEXT + f"autoscaler: {{{limits}}}\n"))
    assert found.at_limits - found.after == pytest.approx(elastic)


def test_preemptible_nodes_cost_half() -> None:
    found = _price({}, _values(TEXT.replace("max_count: 10}", "max_count: 10, preemptible: true}")))
    assert found.at_limits - found.after == pytest.approx(3 * H100 + 5 * E5)


def test_the_cost_limit_of_the_autoscaler_holds() -> None:
    values = _values()
    values["autoscaler"]["max_cost_per_hour"] = 100.0
    found = _price({}, values)
    assert found.at_limits - found.after == pytest.approx(100.0)


def test_no_cluster_costs_nothing_and_an_unknown_one_is_not_known() -> None:
    assert _price({}, _values()).before == 0
    assert _price(None, _values()).before is None


def test_a_contract_is_a_factor_of_the_list_and_own_prices_hold_as_they_are() -> None:
    cheaper = _values(TEXT.replace("provider: local", "provider: local, price_factor: 0.5"))
    assert _price({}, cheaper).after == pytest.approx((2 * H100 + E5) / 2)
    assert "times 0.5 (cloud.price_factor)" in _price({}, cheaper).source
    own = _price({}, cheaper, {"BM.GPU.H100.8": 30.0})
    assert own.after == pytest.approx(60 + E5 / 2)
    assert "BM.GPU.H100.8 of autoscaler.prices_file" in own.source


def test_a_shape_without_a_price_is_named_and_not_guessed() -> None:
    unknown = _values(TEXT.replace("BM.GPU.H100.8", "BM.GPU3.8"))
    found = _price({}, unknown)
    assert found.unknown == ("BM.GPU3.8",)
    assert found.after == pytest.approx(E5)
    assert _price({}, unknown, {"BM.GPU3.8": 20.0}).unknown == ()


def test_a_factor_of_nothing_is_refused_by_the_file() -> None:
    with pytest.raises(Exception, match="price_factor"):
        loads(TEXT.replace("provider: local", "provider: local, price_factor: 0"))
