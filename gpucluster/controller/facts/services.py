"""What the autoscaler and the control plane of Kubernetes report on the controller."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gpucluster.node_agent.facts.questions import AGENT, document, said
from gpucluster.node_agent.programs import ProgramGroup

# The autoscaler's next pass corrects one that failed because slurmctld was just starting. The first pass of a daemon
# that has just been started is waited for longer: it loads Oracle's SDK, on a host that does much else.
_TRIES, _TRIES_OF_NEW, _AGAIN_SECONDS = 8, 46, 2.0
_NOT_YET = "has run no reconcile pass yet"
_AUTOSCALER_SECONDS = 20
_FACTS_SECONDS = 110
# Its pods are removed when it ends, and when `timeout` ends it.
_PODS_SECONDS, _PODS_KILL_SECONDS = 170, 60
_MARGIN_SECONDS = 10.0


def autoscaler(programs: ProgramGroup) -> Any:
    """The status of the autoscaler; `error` has why there is none."""
    argv = ["timeout", str(_AUTOSCALER_SECONDS), "gpucluster-autoscaler", "status", "--output", "json"]
    for tried in range(1, _TRIES_OF_NEW + 1):
        done = programs.run(argv, _AUTOSCALER_SECONDS + _MARGIN_SECONDS)
        healthy = re.search(r'"healthy":\s*true', done.stdout) is not None
        if healthy or (tried >= _TRIES and _NOT_YET not in done.stdout) or programs.stopped:
            break
        if tried < _TRIES_OF_NEW:
            time.sleep(_AGAIN_SECONDS)
    return document(done) or {"error": said(done) or "no response within the time limit"}


def kubernetes(asked: Mapping[str, Any], programs: ProgramGroup, program: str = AGENT) -> dict[str, Any]:
    """What the API server knows.

    Args:
        asked: the `control_plane`.
    """
    command = [program, "kubernetes", f"--control-plane={asked['control_plane']}", "facts"]
    done = programs.run(["timeout", str(_FACTS_SECONDS), *command], _FACTS_SECONDS + _MARGIN_SECONDS)
    return dict(document(done) or {})


def pods(asked: Sequence[Any], programs: ProgramGroup, program: str = AGENT) -> dict[str, Any]:
    """What pods on the nodes find."""
    argv = ["timeout", f"--kill-after={_PODS_KILL_SECONDS}", str(_PODS_SECONDS), program, "kubernetes", "pods"]
    limit = _PODS_SECONDS + _PODS_KILL_SECONDS + _MARGIN_SECONDS
    done = programs.run(argv, limit, json.dumps(list(asked)).encode())
    return dict(document(done) or {"kubernetes_pods_error": done.stderr.strip() or "no answer in time"})
