"""Asks the controller whether it answers, and other hosts whether they reach it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpucluster.failover.settings import WatchSettings, Witness
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import AgentError
from gpucluster.node_agent.standby import mirror, watching

# A witness tries to connect for some seconds; ssh itself gets as long again.
_WITNESS_SECONDS = 12.0


def controller_answers(settings: WatchSettings, ports: Mapping[str, int] = watching.PORTS) -> dict[str, bool]:
    """By probe, whether the controller accepts a connection: at the address that moves, and at that of its instance."""
    probes = {
        f"{name} at {address}": (address, port)
        for address in dict.fromkeys((settings.address, settings.other_address))
        for name, port in ports.items()
    }
    with ThreadPoolExecutor(len(probes)) as pool:
        found = pool.map(lambda each: watching.reaches(*each), probes.values())
        return dict(zip(probes, found, strict=True))


def ask_witnesses(settings: WatchSettings, root: Path = Path("/")) -> dict[str, bool | None]:
    """By witness, whether it reaches the controller; None where the witness gives no answer."""
    witnesses: Sequence[Witness] = settings.witnesses
    if not witnesses:
        return {}
    with ThreadPoolExecutor(len(witnesses)) as pool:
        answers = pool.map(lambda each: _ask(each, root), witnesses)
        return {each.name: answer for each, answer in zip(witnesses, answers, strict=True)}


def _ask(witness: Witness, root: Path) -> bool | None:
    with tempfile.TemporaryDirectory() as folder:
        ssh = mirror.connection(witness.target, witness.host_key, Path(folder), root)
        try:
            ended = programs.call(ssh, seconds=_WITNESS_SECONDS)
            answer = json.loads(ended.stdout) if ended.returncode == 0 else {}
            reached = answer.get("reached")
        except (AgentError, OSError, ValueError, AttributeError):
            return None
    return reached if isinstance(reached, bool) else None
