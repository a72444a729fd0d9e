"""`gpucluster-agent kubernetes` on the controller: its own commands, and those of every host (`node_commands`).

- `serve` answers what an operator's machine asks of the control plane
- `apply` reads a set of objects, and the labels, taints and devices of nodes, as JSON, and applies them
- `arrange` reads the second of these alone, for a node that has just joined
- `ready` renews expired certificates, waits until the control plane answers, and else prints what is wrong with it
- `renew` renews the control plane's certificates before they expire; a timer runs it
- `access` reads the rights of a service as JSON, and creates its account and its kubeconfig
- `health-access` does that for the health service
- `await` waits until the API server answers without a break, after a step of an upgrade
- `pods` runs pods for `verify` on nodes that standard input names, and prints what they found
- `grant` gives a user of this host access: a request of `gpucluster-kubeconfig`, from a socket of systemd
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NoReturn

from gpucluster.controller.conversation import Disconnected, RequestChannel
from gpucluster.controller.kubernetes import (
    api_stability,
    apply_requests,
    certificates,
    containers,
    control_plane_state,
    health_access,
    namespaces,
    nodes,
    own_kubeconfig,
    pod_checks,
    service_access,
    verify_facts,
)
from gpucluster.controller.kubernetes.drain import Left, NodeDrain
from gpucluster.controller.kubernetes.etcd import Etcd
from gpucluster.controller.users import kubernetes_requests
from gpucluster.node_agent.errors import AgentError, Refused, of_system
from gpucluster.node_agent.kubernetes import __main__ as node_commands
from gpucluster.node_agent.kubernetes.__main__ import Command
from gpucluster.node_agent.kubernetes.error_output import prints_errors
from gpucluster.node_agent.kubernetes.kubectl import Kubectl, checked_name

#: Seconds for a control plane that was just started.
_READY_WITHIN_S = 60.0
#: Seconds that a drain may wait.
_LONGEST_DRAIN = 7 * 86400.0

Operation = Callable[[Kubectl, RequestChannel, Mapping[str, Any]], Any]


def _stop(*_: Any) -> NoReturn:
    raise Disconnected


def _nodes(kubectl: Kubectl, _talk: RequestChannel, _given: Mapping[str, Any]) -> Any:
    return nodes.list_nodes(kubectl)


def _reasons(arguments: Mapping[str, Any]) -> dict[str, str]:
    reasons = arguments.get("reasons")
    if not isinstance(reasons, dict) or not reasons:
        raise Refused("no node is named")
    return {checked_name(name): str(reason) for name, reason in reasons.items()}


def _cordon(kubectl: Kubectl, _talk: RequestChannel, arguments: Mapping[str, Any]) -> Any:
    reasons = _reasons(arguments)
    known = [each["name"] for each in nodes.list_nodes(kubectl) if each["name"] in reasons]
    for name in known:
        nodes.cordon(kubectl, name, reasons[name])
    return known


def _drain(kubectl: Kubectl, talk: RequestChannel, arguments: Mapping[str, Any]) -> Any:
    checked = _reasons(arguments)
    try:
        seconds = min(max(float(arguments.get("seconds", 0)), 0.0), _LONGEST_DRAIN)
    except (TypeError, ValueError):
        raise Refused("the limit of time is not a number") from None

    def on_left(left: Left) -> None:
        refused = [message for message, _hint in left.refused.values()]
        talk.say(progress={"waiting": left.waiting, "refused": refused})

    return NodeDrain(kubectl, talk.wait).drain(checked, seconds, on_left)


def _uncordon(kubectl: Kubectl, _talk: RequestChannel, arguments: Mapping[str, Any]) -> Any:
    return nodes.uncordon(kubectl, checked_name(arguments.get("node")), anybody=arguments.get("anybody") is True)


def _remove(kubectl: Kubectl, _talk: RequestChannel, arguments: Mapping[str, Any]) -> Any:
    return nodes.remove(kubectl, checked_name(arguments.get("node")))


def _stuck_namespaces(kubectl: Kubectl, _talk: RequestChannel, _given: Mapping[str, Any]) -> Any:
    return namespaces.look(kubectl)


def _state(kubectl: Kubectl, _talk: RequestChannel, _given: Mapping[str, Any]) -> Any:
    return control_plane_state.look(kubectl, Etcd())


def _certificates(_kubectl: Kubectl, _talk: RequestChannel, _given: Mapping[str, Any]) -> Any:
    now = time.time()
    return [each.to_dict(now) for each in certificates.read()]


def _renew(kubectl: Kubectl, talk: RequestChannel, arguments: Mapping[str, Any]) -> Any:
    days = arguments.get("within_days", certificates.RENEW_WITHIN_DAYS)
    if not isinstance(days, (int, float)):
        raise Refused("the number of days is not a number")
    return certificates.renew(kubectl, talk.wait, within_days=float(days))


def _version(kubectl: Kubectl, _talk: RequestChannel, _given: Mapping[str, Any]) -> Any:
    return str(kubectl.object("get", "--raw=/version").get("gitVersion", ""))


def _compact(_kubectl: Kubectl, talk: RequestChannel, _given: Mapping[str, Any]) -> Any:
    before, after = Etcd().compact()
    if before.full:
        # Parts that could not renew their lease meanwhile have ended, again and again.
        containers.start_ended_parts(talk.wait)
    return {"before": before._asdict(), "after": after._asdict()}


def _apply(kubectl: Kubectl, talk: RequestChannel, arguments: Mapping[str, Any]) -> Any:
    return apply_requests.applied(kubectl, talk.wait, arguments)


#: Operation -> what answers it, with kubectl, the conversation (to report progress, to wait) and the arguments.
OPERATIONS: Mapping[str, Operation] = {
    "nodes": _nodes,
    "cordon": _cordon,
    "drain": _drain,
    "uncordon": _uncordon,
    "remove": _remove,
    "namespaces.stuck": _stuck_namespaces,
    "apply": _apply,
    "version": _version,
    "state": _state,
    "certificates": _certificates,
    "certificates.renew": _renew,
    "etcd.compact": _compact,
    "people.follow": lambda kubectl, _talk, arguments: kubernetes_requests.follow(kubectl, arguments),
    "client.token": lambda kubectl, _talk, arguments: kubernetes_requests.token(kubectl, arguments),
    "client.certificate": lambda kubectl, _talk, arguments: kubernetes_requests.certificate(kubectl, arguments),
}


def answer(kubectl: Kubectl, talk: RequestChannel, operation: Any, arguments: Any) -> Any:
    """The result of one operation.

    Raises:
        AgentError: it failed, or there is no such operation.
        Disconnected: the caller no longer waits for it.
    """
    if operation not in OPERATIONS:
        raise Refused(f"there is no operation {str(operation)[:40]!r}", f"One of: {', '.join(OPERATIONS)}")
    if not isinstance(arguments, dict):
        raise Refused("the arguments are not an object")
    return OPERATIONS[operation](kubectl, talk, arguments)


def serve(talk: RequestChannel, kubectl: Kubectl) -> int:
    """Answer requests until the other end is gone; returns the exit status."""
    try:
        while True:
            request = talk.request()
            try:
                talk.say(result=answer(kubectl, talk, request.get("operation"), request.get("arguments", {})))
            except AgentError as error:
                talk.say_error(error)
            except OSError as error:
                talk.say_error(of_system(error))
    except Disconnected:
        return 0


@prints_errors
def await_ready(kubectl: Kubectl) -> int:
    """Renew what has expired, wait until the control plane answers, and print what was done; returns the exit
    status.
    """
    # An API server with an expired certificate never answers.
    files = certificates.renew(kubectl, time.sleep, within_days=0)
    control_plane_state.await_ready(kubectl, Etcd(), time.sleep, _READY_WITHIN_S)
    sys.stdout.write("".join(f"{file}: renewed\n" for file in files))
    return 0


@prints_errors
def renew(kubectl: Kubectl) -> int:
    """Renew what expires soon, and print it; returns the exit status."""
    files = certificates.renew(kubectl, time.sleep)
    sys.stdout.write("".join(f"{file}: renewed\n" for file in files) or "no certificate expires soon\n")
    return 0


@prints_errors
def await_server(kubectl: Kubectl) -> int:
    """Wait until the API server answers without a break, and print how often it did not; returns the exit status."""
    sys.stdout.write(f"the API server is ready; breaks: {api_stability.await_steady(kubectl)}\n")
    return 0


@prints_errors
def keep_health_access(kubectl: Kubectl, *, enabled: bool) -> int:
    """Create or remove the access of the health service, and print its path if that has changed; returns the exit
    status."""
    changed = health_access.keep(kubectl, time.sleep, enabled=enabled)
    sys.stdout.write(f"{health_access.FILE}: changed\n" if changed else "")
    return 0


def print_facts(kubectl: Kubectl, control_plane: str) -> int:
    """Print what `verify` asks for, as JSON; returns the exit status.

    Args:
        control_plane: "self" or "oke".
    """
    own = control_plane == "self"
    facts = verify_facts.collect(
        kubectl,
        lambda: control_plane_state.look(kubectl, Etcd()) if own else control_plane_state.look_at_server(kubectl),
        is_node=own,
    )
    sys.stdout.write(json.dumps(facts) + "\n")
    return 0


def print_pods(kubectl: Kubectl, text: str) -> int:
    """Print what pods on nodes find, as JSON; returns the exit status.

    Args:
        text: JSON, see `pod_checks.collect`.
    """
    output: dict[str, Any]
    try:
        output = {"kubernetes_pods": pod_checks.collect(kubectl, json.loads(text))}
    except ValueError:
        output = {"kubernetes_pods": None, "kubernetes_pods_error": "standard input is not JSON"}
    except AgentError as error:
        output = {"kubernetes_pods": None, "kubernetes_pods_error": error.message}
    except OSError as error:
        output = {"kubernetes_pods": None, "kubernetes_pods_error": of_system(error).message}
    except Disconnected:
        output = {"kubernetes_pods": None, "kubernetes_pods_error": "it was interrupted"}
    sys.stdout.write(json.dumps(output) + "\n")
    return 0


COMMANDS: Mapping[str, Command] = {
    **node_commands.COMMANDS,
    "serve": lambda kubectl, _options: serve(RequestChannel(sys.stdin.fileno(), sys.stdout.fileno()), kubectl),
    "apply": lambda kubectl, _options: apply_requests.from_input(
        lambda arguments: apply_requests.applied(kubectl, time.sleep, arguments)
    ),
    "arrange": lambda kubectl, _options: apply_requests.from_input(
        lambda arguments: apply_requests.arranged(kubectl, arguments)
    ),
    "facts": lambda kubectl, options: print_facts(kubectl, options.control_plane),
    "pods": lambda kubectl, _options: print_pods(kubectl, sys.stdin.read()),
    "ready": lambda kubectl, _options: await_ready(kubectl),
    "renew": lambda kubectl, _options: renew(kubectl),
    "access": lambda kubectl, _options: apply_requests.from_input(
        lambda arguments: {"changed": service_access.keep(kubectl, time.sleep, arguments)}
    ),
    "health-access": lambda kubectl, options: keep_health_access(kubectl, enabled=not options.absent),
    "await": lambda kubectl, _options: await_server(kubectl),
    "grant": lambda kubectl, _options: own_kubeconfig.serve(
        lambda uid, request: kubernetes_requests.for_uid(kubectl, uid, request)
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = node_commands.parser_of(COMMANDS, __doc__ or "")
    parser.add_argument("--absent", action="store_true", help="health-access: remove it")
    parser.add_argument(
        "--control-plane", choices=["self", "oke"], default="self", help="facts: who runs it; default: %(default)s"
    )
    return node_commands.run(parser, COMMANDS, argv, _stop)


if __name__ == "__main__":
    sys.exit(main())
