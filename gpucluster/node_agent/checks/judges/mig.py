"""Judge of divided GPUs (MIG)."""

from __future__ import annotations

from collections.abc import Sequence

from gpucluster.node_agent.checks.expected import NodeExpectation
from gpucluster.node_agent.checks.judges.parts import PartResult, sum_up
from gpucluster.node_agent.checks.model import CheckOutcome, Measurements, Status
from gpucluster.node_agent.mig import plan
from gpucluster.node_agent.mig.collect import Card
from gpucluster.node_agent.rules import mig

_MOST_WORDS = 3


def instances(measured: Measurements, expected: NodeExpectation, _subject: str) -> CheckOutcome:
    """The instances that the pool names, each with a compute instance, and no others."""
    cards: Sequence[Card] = measured["mig"]["cards"]
    reason: str = measured["mig"]["said"]
    if len(cards) != len(expected.mig):
        # The check gpu_count reports it.
        return CheckOutcome(Status.UNKNOWN, f"the driver sees {len(cards)} of {len(expected.mig)} GPUs")
    parts = []
    for index, (card, words) in enumerate(zip(cards, expected.mig)):
        desired = mig.parse(words)
        if plan.is_right(card, desired):
            parts.append(PartResult(Status.PASS, ""))
        else:
            parts.append(PartResult(Status.FAIL, f"GPU {index}: {_wrong(card, words)}"))
    number = sum(len(mig.parse(words)) for words in expected.mig)
    outcome = sum_up(parts, f"{number} instances, as the pool has them")
    if outcome.status is not Status.FAIL or not reason:
        return outcome
    return CheckOutcome(outcome.status, f"{reason} ({outcome.message})", outcome.evidence)


def _wrong(card: Card, words: str) -> str:
    desired = mig.parse(words)
    mode = plan.ON if desired else plan.OFF
    if card.mode != mode:
        return f"its MIG mode is {card.mode}, and not {mode}"
    if card.pending != mode:
        return f"its MIG mode will be {card.pending} after a restart"
    differences = plan.differences(card, desired)
    more = f" (and {len(differences) - _MOST_WORDS} more)" if len(differences) > _MOST_WORDS else ""
    return ", ".join(differences[:_MOST_WORDS]) + more
