"""Oracle's public list prices, and what an hour of a shape costs.

    prices = PriceList.parse(shipped())
    prices.of_machine(Machine("BM.GPU.H100.8", gpus=8))       # 80.0, or None where no price is known

The list is in the form of Oracle's public API, which needs no credentials (docs.oracle.com: "Estimating Costs", Price
List API; its form as of 2026-09-01)::

    {"lastUpdated": "...", "items": [{"partNumber": "B98415", "currencyCodeLocalizations": [
        {"currencyCode": "USD", "prices": [{"model": "PAY_AS_YOU_GO", "value": 10}]}]}]}

price_list.json in the package has the parts whose prices were sourced, parts.toml which parts a shape is made of. Boot
volumes, file systems and traffic are not in it: they depend on use. Pure, but for reading these files.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from gpucluster.errors import InputError
from gpucluster.node_agent import bounded

#: Where Oracle publishes the list; an item for each part, in this currency.
URL = "https://apexapps.oracle.com/pls/apex/cetools/api/v1/products/?currencyCode=USD"
CURRENCY = "USD"
MODEL = "PAY_AS_YOU_GO"
#: What a preemptible instance costs of the price that the customer pays for its shape (blogs.oracle.com, "Announcing GA
#: of Oracle preemptible instances for VM shapes"): the same for all shapes and regions, beside other discounts.
PREEMPTIBLE_FACTOR = 0.5
#: The whole list has some 600 parts, and less than 1 MB.
MOST_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Machine:
    """What of a machine is sold.

    Args:
        ocpus: cores.
        memory_gb: memory in GB.
        preemptible: whether it is a preemptible instance.
    """

    shape: str
    gpus: int = 0
    ocpus: float = 0
    memory_gb: float = 0
    preemptible: bool = False

    @classmethod
    def of(cls, sold: Mapping[str, Any]) -> Machine:
        """Of a record with these names; what it lacks is 0."""
        ocpus, memory_gb = (float(sold.get(name) or 0) for name in ("ocpus", "memory_gb"))
        shape, gpus = str(sold.get("shape", "")), int(sold.get("gpus") or 0)
        return cls(shape, gpus, ocpus, memory_gb, preemptible=bool(sold.get("preemptible")))


@dataclass(frozen=True)
class PriceList:
    """Prices of parts.

    Args:
        updated: the day of the list, in ISO 8601.
        parts: the price of each part in `CURRENCY`, by its number, for one unit and hour.
    """

    updated: str
    parts: Mapping[str, float]

    @classmethod
    def parse(cls, text: str, where: str = "the price list of the package") -> PriceList:
        """Read a list in the form of Oracle's API. Parts without a price in `CURRENCY` are left out.

        Raises:
            InputError: it has another form.
        """
        try:
            content = bounded.loads(text, MOST_BYTES)
            parts = {str(item["partNumber"]): price for item in content["items"] for price in _prices(item)}
            updated = str(content["lastUpdated"])[: len("2026-09-01")]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _other_form(where) from error
        if not parts:
            raise _other_form(where)
        return cls(updated, parts)

    def of_machine(self, machine: Machine) -> float | None:
        """What an hour of a machine costs; None if a part of it has no known price."""
        units = {"gpus": machine.gpus, "ocpus": machine.ocpus, "memory": machine.memory_gb}
        costs = [
            (self.parts.get(number), units[unit]) for number, unit in parts_of_shapes().get(machine.shape, {}).items()
        ]
        known = [price * amount for price, amount in costs if price is not None]
        return sum(known) if costs and len(known) == len(costs) else None


def hourly(machine: Machine, listed: PriceList, own: Mapping[str, float], factor: float) -> float | None:
    """What an hour of a machine costs a cluster; None if that is not known.

    Args:
        own: the prices of `autoscaler.prices_file`, by shape: they come first, and are those of on-demand capacity.
        factor: `cloud.price_factor`, for the list.
    """
    price = own.get(machine.shape)
    if price is None:
        of_list = listed.of_machine(machine)
        price = None if of_list is None else of_list * factor
    return price * PREEMPTIBLE_FACTOR if price is not None and machine.preemptible else price


@cache
def parts_of_shapes() -> Mapping[str, Mapping[str, str]]:
    """The parts that an hour of each shape is made of, by number, and what each is counted by."""
    return tomllib.loads((files(__package__) / "parts.toml").read_text(encoding="utf-8"))


def shipped() -> str:
    """The list of the package."""
    return (files(__package__) / "price_list.json").read_text(encoding="utf-8")


def _prices(item: Mapping[str, Any]) -> Iterator[float]:
    """The price of an item; of several tiers the highest one."""
    values = [
        price["value"]
        for localization in item["currencyCodeLocalizations"]
        if localization["currencyCode"] == CURRENCY
        for price in localization["prices"]
        if price["model"] == MODEL
    ]
    if values:
        yield float(max(values))


def _other_form(where: str) -> InputError:
    hint = "Look at the answer of the URL with a browser; a release of gpucluster may know its new form"
    return InputError("this is not a price list in the form of Oracle's API", where=where, hint=hint)
