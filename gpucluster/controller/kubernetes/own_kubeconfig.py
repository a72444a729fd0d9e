"""`gpucluster-kubeconfig`: users make a kubeconfig for themselves, on the controller.

`gpucluster-agent kubernetes grant` serves one request: systemd starts it as root with a connection to the socket as its
standard streams. The user who asks is what the kernel reports of the other end of the connection, so no password and no
secret is needed, and a request has no name in it. Its only content is the public half of a key that stays with the
user.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from gpucluster.controller.kubernetes import kubeconfig
from gpucluster.node_agent import bounded, programs
from gpucluster.node_agent.errors import AgentError, Failed, Refused, of_system
from gpucluster.node_agent.kubernetes.kubectl import Kubectl

SOCKET = "/run/gpucluster-kubeconfig.sock"
#: Where kubectl looks for it.
FILE = Path(".kube/config")
_SECONDS = 60.0
_LONGEST = 65536
_CREDENTIALS = struct.Struct("3i")

#: The uid of who asks, and the certificate request -> what a kubeconfig needs (`users.kubernetes_requests.for_uid`).
Grant = Callable[[int, str], Mapping[str, Any]]


# --- the controller, as root -----


def serve(grant: Grant, incoming: int = 0, outgoing: int = 1) -> int:
    """Answer one request; returns the exit status. A refusal goes to the user, too.

    Args:
        incoming: the file descriptor of the connection. `outgoing`: the one to write to.
    """
    try:
        with socket.socket(fileno=os.dup(incoming)) as connection:
            connection.settimeout(_SECONDS)
            _pid, uid, _gid = _CREDENTIALS.unpack(
                connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            answer: dict[str, Any] = {"granted": grant(uid, _received(connection))}
    except (AgentError, OSError) as error:
        failure = of_system(error) if isinstance(error, OSError) else error
        answer = {"error": failure.message, "hint": failure.hint}
        sys.stderr.write(f"gpucluster-agent kubernetes: {failure.message}\n")
    os.write(outgoing, json.dumps(answer).encode())
    return 0 if "granted" in answer else 1


def _received(connection: socket.socket) -> str:
    """All that the other end writes until it stops.

    Raises:
        Refused: it is too long.
    """
    data = b""
    while part := connection.recv(_LONGEST):
        data += part
        if len(data) > _LONGEST:
            raise Refused("the request is too long")
    return data.decode(errors="replace")


# --- the user -----


def ask(local_port: int | None = None, address: str = SOCKET) -> tuple[Mapping[str, Any], str]:
    """Ask for access; returns what was granted, and a kubeconfig.

    Args:
        local_port: the file names this port of its own machine, which ssh forwards to the API server.

    Raises:
        Refused: the user may not use the cluster.
        Failed: this is not the controller, or it gives no answer.
    """
    with tempfile.TemporaryDirectory(prefix="gpucluster-") as folder:
        key = Path(folder) / "key"
        granted = _ask(address, _request(key))
        made = kubeconfig.of_person(granted["cluster"], granted, key.read_text(), local_port)
        return granted, json.dumps(made, indent=2) + "\n"


def write(file: Path, text: str, cluster: str, kubectl: str = "kubectl") -> None:
    """Write a kubeconfig, which only its owner may read.

    Args:
        file: it is replaced if it has nothing but access to this cluster.
        kubectl: the program.

    Raises:
        Refused: another file is there.
    """
    if file.exists():
        _check_replaceable(file, cluster, kubectl)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}.", delete=False) as new:
        new.write(text)
    Path(new.name).replace(file)


def _request(key: Path) -> str:
    """A certificate request for a new key, which is written to a file."""
    argv = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-batch"]
    result = programs.call([*argv, "-subj", "/CN=gpucluster kubeconfig", "-keyout", str(key)])
    if result.returncode != 0:
        raise Failed(f"openssl makes no key: {result.stderr.strip()[-200:]}", "Ask the administrator of the cluster")
    return result.stdout


def _ask(address: str, request: str) -> Mapping[str, Any]:
    data = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SECONDS)
        try:
            connection.connect(address)
            connection.sendall(request.encode())
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(_LONGEST):
                data += part
        except FileNotFoundError:
            raise Failed("this host gives no access to Kubernetes", "Run it on the controller of the cluster") from None
        except OSError as error:
            raise of_system(error, "the service that gives access to Kubernetes") from None
    try:
        answer = bounded.loads(data)
        granted: Mapping[str, Any] | None = answer.get("granted")
    except (ValueError, AttributeError):
        hint = "Ask the administrator of the cluster: journalctl -u 'gpucluster-kubeconfig@*'"
        raise Failed("the controller gave no answer", hint) from None
    if granted is None:
        raise Refused(str(answer.get("error", "refused")), str(answer.get("hint", "")))
    return granted


def _check_replaceable(file: Path, cluster: str, kubectl: str) -> None:
    """Only a file that has nothing but this cluster is replaced.

    Raises:
        Refused: something else is there.
    """
    content: Any = None
    if file.is_file():
        with contextlib.suppress(AgentError):  # what kubectl can't read is none
            content = Kubectl(str(file), kubectl).object("config", "view", "--output=json")
    if not kubeconfig.holds_only(content, cluster):
        raise Refused(
            f"{file} is there, and it is not a kubeconfig of {cluster} alone",
            "Name another file: gpucluster-kubeconfig FILE; and let kubectl use it: export KUBECONFIG=FILE",
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Write a kubeconfig for the user who runs this, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="gpucluster-kubeconfig",
        description="Write a kubeconfig for you: FILE, with which kubectl reaches Kubernetes from the hosts of this "
        "cluster. It is valid for some hours; the same command renews it.",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="default: ~/.kube/config; -: standard output")
    parser.add_argument(
        "--local-port", type=int, metavar="PORT",
        help="for a machine outside of the cluster, whose ssh forwards this port to the API: the file names the port",
    )  # fmt: skip
    options = parser.parse_args(argv)
    try:
        granted, text = ask(options.local_port)
        if options.file == "-":
            sys.stdout.write(text)
            return 0
        file = Path(options.file) if options.file else Path.home() / FILE
        write(file, text, granted["cluster"])
    except (AgentError, OSError) as error:
        failure = of_system(error) if isinstance(error, OSError) else error
        sys.stderr.write(f"gpucluster-kubeconfig: {failure.message}. {failure.hint}\n")
        return failure.status
    what = f"{granted['user']}, namespace {granted['namespace']}, until {granted['expires']}"
    sys.stdout.write(f"{file} written: {what}\n")
    return 0
