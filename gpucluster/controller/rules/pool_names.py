"""The pool of an elastic node, by its name: pools name their elastic nodes `gpu-e[1-6]`."""

from __future__ import annotations

import re
from collections.abc import Mapping

_ELASTIC = re.compile(r"(.+)\[1-(\d+)\]")
_NUMBER = re.compile(r"[1-9]\d{0,8}")


def elastic_pool_of(elastic: Mapping[str, str], node: str) -> str:
    """The pool of an elastic node; empty if this is not the name of one.

    Args:
        elastic: pool -> the names of its elastic nodes, `gpu-e[1-6]`.
    """
    for pool, names in elastic.items():
        match = _ELASTIC.fullmatch(names)
        if match is None:
            continue
        prefix, most = match.group(1), int(match.group(2))
        number = node[len(prefix) :]
        if node.startswith(prefix) and _NUMBER.fullmatch(number) and int(number) <= most:
            return pool
    return ""
