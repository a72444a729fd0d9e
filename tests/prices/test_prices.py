"""Oracle's price list: its form, and what an hour of a shape costs. The list of the package has its source and day."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gpucluster import prices, shapes
from gpucluster.errors import InputError
from gpucluster.prices import Machine, PriceList, parts_of_shapes, shipped


def _item(number: str, *values: float, currency: str = "USD", model: str = "PAY_AS_YOU_GO") -> dict[str, Any]:
    listed = [{"model": model, "value": value} for value in values]
    return {"partNumber": number, "currencyCodeLocalizations": [{"currencyCode": currency, "prices": listed}]}


def _list(*items: dict[str, Any]) -> str:
    return json.dumps({"lastUpdated": "2026-09-01T14:26:53.943Z", "items": items})


@pytest.mark.parametrize(
    ("machine", "price"),
    [
        (Machine("BM.GPU.H100.8", gpus=8), 80.0),
        (Machine("VM.Standard.E5.Flex", ocpus=4, memory_gb=32), 4 * 0.03 + 32 * 0.002),
        (Machine("VM.Standard.E4.Flex", ocpus=2, memory_gb=16), 2 * 0.025 + 16 * 0.0015),
        (Machine("BM.GPU3.8", gpus=8), None),
        (Machine("BM.Optimized3.36", ocpus=36, memory_gb=512), None),
        (Machine("nothing"), None),
    ],
)
def test_an_hour_of_a_shape_is_the_sum_of_its_parts(machine: Machine, price: float | None) -> None:
    found = PriceList.parse(shipped()).of_machine(machine)
    assert found == (None if price is None else pytest.approx(price))


def test_a_shape_with_a_part_without_a_price_has_none() -> None:
    listed = PriceList.parse(_list(_item("B97384", 0.03)))
    assert listed.of_machine(Machine("VM.Standard.E5.Flex", ocpus=4, memory_gb=32)) is None


def test_only_prices_of_the_currency_and_without_a_contract_count() -> None:
    listed = PriceList.parse(
        _list(
            _item("B1", 1.0, currency="EUR"),
            _item("B2", 2.0, model="MONTHLY_COMMIT"),
            _item("B3", 0.0, 3.0),  # a free tier first
            _item("B4"),
        )
    )
    assert (listed.parts, listed.updated) == ({"B3": 3.0}, "2026-09-01")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"items": []}',
        '{"lastUpdated": "2026", "items": []}',
        '{"lastUpdated": "2026", "items": [1]}',
        '{"lastUpdated": "2026", "items": [{"partNumber": "B1"}]}',
        _list(_item("B1", 1.0)).replace("1.0", '"much"'),
        "<html>blocked</html>",
    ],
)
def test_another_form_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(InputError, match="not a price list in the form of Oracle's API") as caught:
        PriceList.parse(text, "there")
    assert caught.value.where == "there"


def test_the_parts_are_of_shapes_that_exist_and_the_list_has_no_others() -> None:
    assert set(parts_of_shapes()) <= set(shapes.catalogue())
    numbers = {number for parts in parts_of_shapes().values() for number in parts}
    assert set(PriceList.parse(shipped()).parts) <= numbers
    assert all(re.fullmatch(r"B[0-9]{5,6}", number) for number in numbers)
    units = {unit for parts in parts_of_shapes().values() for unit in parts.values()}
    assert units == {"gpus", "ocpus", "memory"}
    # With GPUs all else is in the price.
    for shape, parts in parts_of_shapes().items():
        assert (list(parts.values()) == ["gpus"]) == bool(shapes.get(shape).gpus), shape


def test_the_url_is_the_one_of_the_documentation() -> None:
    assert prices.URL.startswith("https://apexapps.oracle.com/pls/apex/cetools/api/v1/products/")
    assert prices.URL.endswith(f"currencyCode={prices.CURRENCY}")


def test_a_preemptible_instance_costs_half_of_what_the_customer_pays() -> None:
    listed = PriceList.parse(shipped())
    sold = {"shape": "VM.Standard.E5.Flex", "ocpus": 4, "memory_gb": 32}
    on_demand, preemptible = Machine.of(sold), Machine.of({**sold, "preemptible": True})
    assert prices.hourly(on_demand, listed, {}, 0.8) == pytest.approx(0.8 * 0.184)
    assert prices.hourly(preemptible, listed, {}, 0.8) == pytest.approx(0.4 * 0.184)
    assert prices.hourly(preemptible, listed, {"VM.Standard.E5.Flex": 0.1}, 0.8) == pytest.approx(0.05)
    assert prices.hourly(Machine("BM.GPU3.8", gpus=8, preemptible=True), listed, {}, 1) is None
