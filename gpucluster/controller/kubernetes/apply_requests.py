"""What the cluster must have, as one answer or one run of `gpucluster-agent kubernetes apply`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Callable

from gpucluster.controller.kubernetes import apply, hardware
from gpucluster.node_agent.errors import Refused
from gpucluster.node_agent.kubernetes.error_output import prints_errors
from gpucluster.node_agent.kubernetes.kubectl import Kubectl


def applied(kubectl: Kubectl, wait: apply.Wait, given: Mapping[str, Any]) -> dict[str, Any]:
    """Let the cluster have a set of objects, and nodes what they say of themselves.

    Args:
        given: {set, manifests, pools}; see `apply.apply` and `hardware.arrange`.

    Raises:
        AgentError: see there.
    """
    result: dict[str, Any] = apply.apply(kubectl, wait, given.get("set"), given.get("manifests", []))
    return {**result, "nodes": hardware.arrange(kubectl, given.get("pools", []))}


def arranged(kubectl: Kubectl, given: Mapping[str, Any]) -> dict[str, Any]:
    """Let nodes have what they say of themselves, and change nothing else.

    Args:
        given: {pools}; see `hardware.arrange`.

    Raises:
        AgentError: see there.
    """
    return {"nodes": hardware.arrange(kubectl, given.get("pools", []))}


@prints_errors
def from_input(does: Callable[[Mapping[str, Any]], dict[str, Any]]) -> int:
    """Read an object of JSON, do what it says, and write what has changed as JSON; returns the exit status."""
    try:
        given = json.load(sys.stdin)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise Refused("the input is no object of JSON")
    sys.stdout.write(json.dumps(does(given)) + "\n")
    return 0
