"""The price list for a cluster: Oracle's public list as this machine has refreshed it last, or that of the package."""

from __future__ import annotations

import json

from gpucluster import prices
from gpucluster.artifacts.http_client import HttpClient
from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.paths import ClusterPaths, read_saved, write_private
from gpucluster.prices import PriceList
from gpucluster.text import reason_of


def refresh(paths: ClusterPaths, url: str = prices.URL) -> PriceList:
    """Fetch the list, and keep of it the parts that shapes are made of.

    Raises:
        EnvironmentFault: it can't be fetched.
        InputError: it has another form.
    """
    client = HttpClient(("http", "https") if url.startswith("http:") else ("https",))
    try:
        with client.opened("GET", url) as response:
            text = response.read(prices.MOST_BYTES).decode("utf-8", "replace")
    except (OSError, EnvironmentFault, InputError) as error:
        # The client's own advice is about files of software.
        reason = reason_of(error) if isinstance(error, OSError) else error.what
        raise EnvironmentFault(
            f"the price list can't be fetched: {reason}",
            where=url,
            hint="Run the command without --refresh-prices to use the list that is here",
        ) from error
    PriceList.parse(text, url)
    content = json.loads(text)
    known = {number for parts in prices.parts_of_shapes().values() for number in parts}
    items = [item for item in content["items"] if item.get("partNumber") in known]
    kept = json.dumps({"lastUpdated": content["lastUpdated"], "items": items}, indent=1)
    listed = PriceList.parse(kept, url)
    _keep_earlier(paths, listed)
    write_private(paths.price_list, kept + "\n")
    return listed


def read(paths: ClusterPaths) -> PriceList:
    """The list to use: the refreshed one, if there is one.

    Raises:
        InputError: it is damaged.
    """
    try:
        text = read_saved(paths.price_list)
    except FileNotFoundError:
        return PriceList.parse(prices.shipped())
    try:
        return PriceList.parse(text)
    except InputError as error:
        raise InputError(
            "the refreshed price list is damaged",
            where=str(paths.price_list),
            hint="Fetch it again: gpucluster plan --refresh-prices. Or delete the file to use the list of the package",
        ) from error


def every(paths: ClusterPaths) -> tuple[PriceList, ...]:
    """The list to use, and before it the earlier ones that this folder has, in the order of their days.

    Raises:
        InputError: one is damaged.
    """
    files = sorted(paths.earlier_price_lists.glob("*.json"))
    earlier = [PriceList.parse(read_saved(file), str(file)) for file in files]
    current = read(paths)
    return (*(each for each in earlier if each.updated < current.updated), current)


def _keep_earlier(paths: ClusterPaths, listed: PriceList) -> None:
    """Keep the list that was used until now, if the new one is of another day."""
    current = read(paths)
    if current.updated < listed.updated:
        items = [
            {"partNumber": number, "currencyCodeLocalizations": [_localization(price)]}
            for number, price in sorted(current.parts.items())
        ]
        text = json.dumps({"lastUpdated": current.updated, "items": items}, indent=1)
        paths.earlier_price_lists.mkdir(mode=0o700, exist_ok=True)
        write_private(paths.earlier_price_lists / f"{current.updated}.json", text + "\n")


def _localization(price: float) -> dict[str, object]:
    return {"currencyCode": prices.CURRENCY, "prices": [{"model": prices.MODEL, "value": price}]}
