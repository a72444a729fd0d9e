"""What the GPUs are divided into (MIG), and what the program said that divides them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpucluster.node_agent.checks import refusals
from gpucluster.node_agent.checks.collect.place import MeasuredHost, Refusal, Unmeasured
from gpucluster.node_agent.mig import apply, collect
from gpucluster.node_agent.rules.mig import FOLDER


def mig(host: MeasuredHost, seconds: float) -> dict[str, Any]:
    """The GPUs of `mig.collect.Card`, and why the last run of `gpucluster-mig` did not divide them.

    Raises:
        Refusal: nvidia-smi reports that the driver or a GPU does not work.
        Unmeasured: it did not answer, or its answers do not belong together.
    """

    def run(argv: Sequence[str], limit: float) -> collect.ProgramOutput:
        result = host.run(list(argv), limit)
        if result.status == refusals.INFOROM:  # a warning: its output counts
            return collect.ProgramOutput(0, result.output)
        reason = refusals.refusal(result.status, result.output, result.errors)
        if result.status and reason:
            raise Refusal(reason)
        return collect.ProgramOutput(result.status, result.output + result.errors)

    try:
        return {"cards": collect.read(run, seconds), "said": apply.last_words(host.path(FOLDER))}
    except collect.Unreadable as error:
        raise Unmeasured(str(error)) from None
