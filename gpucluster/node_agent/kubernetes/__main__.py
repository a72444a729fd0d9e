"""`gpucluster-agent kubernetes` on every host of a cluster with Kubernetes.

- `check-host` looks at a host before it joins
- `images` brings the images of the cluster's own software, and keeps them
- `authority` writes which control plane a host belongs to
- `place` sets the labels of this node's place in the RDMA network
- `routes` follows the nodes, and keeps a host's routes to their pods
- `token` writes the credential with which programs of this instance reach a control plane of Kubernetes Engine
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NoReturn

from gpucluster.node_agent.errors import AgentError
from gpucluster.node_agent.kubernetes import authority, instance_token, joining, node_images, rdma_labels, routes
from gpucluster.node_agent.kubernetes.error_output import prints_errors
from gpucluster.node_agent.kubernetes.kubectl import ADMIN, Kubectl

_STOPPED_BY = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NOT_JSON = "standard input is not JSON"

#: What a command does, with kubectl and the options; returns the exit status.
Command = Callable[[Kubectl, argparse.Namespace], int]


class Stopped(Exception):
    """A signal has asked this process to end."""


def _stop(*_: Any) -> NoReturn:
    raise Stopped


@prints_errors
def keep_place(kubectl: Kubectl) -> int:
    """Set the labels of this node's place in the network, and print what changed; returns the exit status.

    A metadata service without an answer is not a failure: the labels stay as they are, and the reason is on standard
        error.
    """
    try:
        place = rdma_labels.topology_data()
    except AgentError as error:
        sys.stderr.write(f"the labels of the RDMA network stay as they are: {error.message}\n")
        return 0
    changes = rdma_labels.keep(kubectl, place)
    sys.stdout.write("".join(f"{label}: {value or 'removed'}\n" for label, value in sorted(changes.items())))
    return 0


def check_host(text: str) -> int:
    """Print what is wrong with this host before it joins, a line each; returns the exit status.

    Args:
        text: JSON, see `joining.look`.
    """
    try:
        request = json.loads(text)
        problems = joining.look(request if isinstance(request, dict) else {})
    except ValueError:
        problems = [{"message": _NOT_JSON, "hint": ""}]
    except AgentError as error:
        problems = [{"message": error.message, "hint": error.hint}]
    sys.stdout.write("".join(f"{each['message']}. {each['hint']}\n" for each in problems))
    return 1 if problems else 0


@prints_errors
def keep_images(text: str) -> int:
    """Bring the images of the cluster's own software, and print what was done; returns the exit status.

    Args:
        text: JSON, see `node_images.keep`.
    """
    try:
        request = json.loads(text)
        result = node_images.keep(request if isinstance(request, dict) else {})
    except ValueError:
        sys.stderr.write(f"gpucluster-agent kubernetes: {_NOT_JSON}\n")
        return 2
    sys.stdout.write(f"{node_images.summary(result)}\n")
    return 0


@prints_errors
def write_authority() -> int:
    """Write which control plane this host belongs to; returns the exit status."""
    sys.stdout.write(authority.of_host() + "\n")
    return 0


@prints_errors
def write_credential(cluster: str) -> int:
    """Write an ExecCredential, as client-go asks for it; returns the exit status."""
    sys.stdout.write(json.dumps(instance_token.credential(cluster)) + "\n")
    return 0


COMMANDS: Mapping[str, Command] = {
    "check-host": lambda _kubectl, _options: check_host(sys.stdin.read()),
    "images": lambda _kubectl, _options: keep_images(sys.stdin.read()),
    "authority": lambda _kubectl, _options: write_authority(),
    "place": lambda kubectl, _options: keep_place(kubectl),
    "routes": lambda _kubectl, options: routes.main(options.pods, options.node),
    "token": lambda _kubectl, options: write_credential(options.cluster),
}


def parser_of(commands: Mapping[str, Command], description: str) -> argparse.ArgumentParser:
    """What reads a command line with one of these commands."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent kubernetes", description=description.splitlines()[0])
    parser.add_argument("--kubeconfig", default=ADMIN, help="default: %(default)s")
    parser.add_argument("command", choices=list(commands))
    parser.add_argument("--cluster", default="", help="token: the OCID of the control plane")
    parser.add_argument("--pods", default="", help="routes: the range of the addresses of pods")
    parser.add_argument("--node", default="", help="routes: the name of this host in the API; default: its host name")
    return parser


def run(
    parser: argparse.ArgumentParser,
    commands: Mapping[str, Command],
    argv: Sequence[str] | None,
    stop: Callable[..., NoReturn] = _stop,
) -> int:
    """Run the command that the command line names, as root; returns its exit status.

    Args:
        stop: what a signal that ends this process does.
    """
    options = parser.parse_args(argv)
    if os.geteuid() != 0:
        sys.stderr.write("gpucluster-agent kubernetes: only root can run this\n")
        return 1
    for number in _STOPPED_BY:
        signal.signal(number, stop)
    return commands[options.command](Kubectl(options.kubeconfig), options)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    return run(parser_of(COMMANDS, __doc__ or ""), COMMANDS, argv)


if __name__ == "__main__":
    sys.exit(main())
