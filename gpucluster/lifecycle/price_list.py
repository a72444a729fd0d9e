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
