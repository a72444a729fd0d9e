"""DCGM's diagnosis, as `dcgmi diag -j` prints it."""

from __future__ import annotations

import json
from typing import Any

from gpucluster.agent.checks.collect.place import Collector, Host, Unmeasured


def diagnosis(level: int) -> Collector:
    """The collector of a level: 1 takes seconds, 2 minutes, 3 a quarter of an hour."""

    def collect(host: Host, seconds: float) -> dict[str, Any]:
        # It ends with a status of its own where a test failed; what counts is the JSON.
        return parse(host.output(["dcgmi", "diag", "-r", str(level), "-j"], seconds, good=()))

    return collect


def parse(text: str) -> dict[str, Any]:
    """The part of the output that has the categories of tests. Lines of other programs may be before it.

    Raises:
        Unmeasured: it is cut off, or something else.
    """
    start = text.find("{")
    try:
        answer, _end = json.JSONDecoder().raw_decode(text[max(start, 0) :])
    except ValueError:
        raise Unmeasured(f"the output of dcgmi is cut off or no JSON: {text.strip()[:120]!r}") from None
    for part in answer.values() if isinstance(answer, dict) else ():
        if isinstance(part, dict) and isinstance(part.get("test_categories"), list):
            return part
    raise Unmeasured(f"dcgmi has run no diagnosis: {json.dumps(answer)[:200]}")
