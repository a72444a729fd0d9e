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


def applied(kubectl: Kubectl, wait: apply.Wait, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a set of objects, and the labels, taints and devices of nodes.

    Args:
        arguments: {set, manifests, pools}; see `apply.apply` and `hardware.arrange`.

    Raises:
        AgentError: see there.
    """
    result: dict[str, Any] = apply.apply(kubectl, wait, arguments.get("set"), arguments.get("manifests", []))
    return {**result, "nodes": hardware.arrange(kubectl, arguments.get("pools", []))}


def arranged(kubectl: Kubectl, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Apply the labels, taints and devices of nodes, and change nothing else.

    Args:
        arguments: {pools}; see `hardware.arrange`.

    Raises:
        AgentError: see there.
    """
    return {"nodes": hardware.arrange(kubectl, arguments.get("pools", []))}


@prints_errors
def from_input(does: Callable[[Mapping[str, Any]], dict[str, Any]]) -> int:
    """Read a request as a JSON object, carry it out, and write what has changed as JSON; returns the exit status."""
    try:
        arguments = json.load(sys.stdin)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise Refused("the input is not a JSON object")
    sys.stdout.write(json.dumps(does(arguments)) + "\n")
    return 0
