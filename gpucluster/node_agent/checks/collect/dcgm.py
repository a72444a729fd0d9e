"""DCGM's diagnosis, as `dcgmi diag -j` prints it."""

from __future__ import annotations

import json
from typing import Any

from gpucluster.node_agent.checks import refusals
from gpucluster.node_agent.checks.collect.place import Collector, MeasuredHost, Refusal, Unmeasured

#: What dcgmi has instead of results where the diagnosis did not run.
_ERROR = "runtime_error"


def diagnosis(level: int) -> Collector:
    """The collector of a level: 1 takes seconds, 2 minutes, 3 a quarter of an hour."""

    def collect(host: MeasuredHost, seconds: float) -> dict[str, Any]:
        # It ends with a status of its own where a test failed; what counts is the JSON.
        run = host.run(["dcgmi", "diag", "-r", str(level), "-j"], seconds)
        try:
            return parse(run.output)
        except Unmeasured as error:
            result = refusals.result_of_dcgmi(run.status)
            words = f"dcgmi ended with status {run.status}: {run.errors.strip()[:120] or error}"
            reason = f"{refusals.DCGMI[result]} ({result}); {words}" if result else words
            if result in refusals.DCGMI_BROKEN:
                raise Refusal(reason) from None
            raise Unmeasured(reason) from None

    return collect


def parse(text: str) -> dict[str, Any]:
    """The part of the output that has the categories of tests. Lines of other programs may be before it.

    Where DCGM does not test GPUs because they are divided (MIG), `divided` has its words, and there are no categories.

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
        message = " ".join(str(part.get(_ERROR, "")).split()) if isinstance(part, dict) else ""
        if refusals.is_divided(message):
            return {"test_categories": [], "divided": message[:300]}
        if message:
            raise Unmeasured(f"dcgmi has run no diagnosis: {message[:300]}")
    raise Unmeasured(f"dcgmi has run no diagnosis: {json.dumps(answer)[:200]}")
