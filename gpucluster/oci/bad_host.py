"""Whether the reason of a node shows that its physical host is bad. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection

from gpucluster.node_agent.checks.refusals import OF_SOFTWARE
from gpucluster.node_agent.rules.reasons import FAILED_CHECKS, FOR_A_PERSON, RETURNED

#: Before what an operator has seen, where no check shows it.
BY_OPERATOR = "an operator reports:"
# The names of checks in a reason, with one message for each group: "gpu_ecc, gpu_repair: 3 errors; drives: 7 of 8".
_NAMED = re.compile(r"(?:^|; )\s*([a-z0-9_]+(?:, [a-z0-9_]+)*):")


def bad_host(reason: str, hardware: Collection[str]) -> str:
    """What failed, where a check of the hardware is among it; else empty: what is wrong with a mount or a driver is not
    Oracle's, and what a reboot may fix shows nothing as yet.

    Args:
        reason: of a node that is drained for its checks, or for those of an earlier instance on its physical host.
        hardware: the names of the checks whose failure shows that the host is bad (`registry.of_hardware`).
    """
    bare = reason
    for beginning in (RETURNED, FOR_A_PERSON, FAILED_CHECKS):
        bare = bare.strip().removeprefix(beginning)
    bare = bare.strip()
    if bare.startswith(BY_OPERATOR):
        return bare
    checks = {name for names in _NAMED.findall(bare) for name in names.replace(" ", "").split(",")}
    return bare if not checks.isdisjoint(hardware) and not of_software(bare) else ""


def of_software(message: str) -> bool:
    """Whether a check of the hardware failed because of the driver, which shows nothing of the hardware."""
    return any(words in message for words in OF_SOFTWARE)
