"""Elastic nodes that are up and have not got what an apply has changed since: they are configured once, when they are
new. Pure.

The configuration record has for each pool what new nodes get, as a fingerprint, and since when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpucluster.cloud.elastic_instances import ElasticInstance

#: The key in the record: {pool: {"fingerprint": ..., "since": seconds since 1970; 0 if it is not known}}.
KEY = "elastic_nodes"


def recorded(before: Mapping[str, Any] | None, fingerprints: Mapping[str, str], now: float) -> dict[str, Any]:
    """The part of the record about this apply.

    Args:
        before: the record of the last one; None if there is none.
        fingerprints: of what new nodes get, by pool.
        now: seconds since 1970.
    """
    known = (before or {}).get(KEY)
    known = known if isinstance(known, dict) else {}
    made = {}
    for pool, fingerprint in fingerprints.items():
        last = known.get(pool) or {"fingerprint": fingerprint, "since": 0}
        made[pool] = last if last["fingerprint"] == fingerprint else {"fingerprint": fingerprint, "since": now}
    return made


def behind(record: Mapping[str, Any], instances: Iterable[ElasticInstance]) -> list[str]:
    """The names of the nodes that were launched before.

    Args:
        record: as `recorded` made it.
    """
    return [
        each.node
        for each in instances
        if not each.builder and each.created and each.created < record.get(each.pool, {}).get("since", 0)
    ]
