"""What `verify` wants to know of a cluster with Kubernetes, as one JSON object: nodes, control plane, names, homes.

Each fact that can't be had is null, and `NAME_error` says why: what is not known is no fault.
"""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, Callable

from gpucluster.agent.errors import AgentError, Failed
from gpucluster.agent.kubernetes import nodes
from gpucluster.agent.kubernetes.kubectl import Kubectl
from gpucluster.agent.kubernetes.person_objects import HOME, USER_NAME

#: A name that every cluster has, whatever its services are.
NAME, _NAMESPACE, _SERVICE = "kubernetes.default.svc.cluster.local", "default", "kubernetes"
_DNS_NAMESPACE, _DNS_SERVICE = "kube-system", "kube-dns"
_DNS_PORT = 53
_ASK_S, _ATTEMPTS = 2.0, 3
#: Seconds until the DNS of a control plane that was just made answers: its pods start while the nodes join, or, in a
#: cluster without permanent nodes, while nothing else is to be done.
ANSWERS_IN_S = 20.0
_ANSWERS = "!HHHHHH"
_POINTER = 0xC0
#: The kind of a record with an IPv4 address, and its bytes.
_IPV4 = (1, 4)
_SETS = ("labels", "allocatable", "capacity")


def collect(kubectl: Kubectl, state: Callable[[], Any]) -> dict[str, Any]:
    """All facts.

    Args:
        state: says what `kubernetes state` says of the control plane.
    """
    parts: Mapping[str, Callable[[], Any]] = {
        "kubernetes_nodes": lambda: [_listed(each) for each in nodes.list_nodes(kubectl)],
        "kubernetes_control_plane": state,
        "kubernetes_names": lambda: names(kubectl),
        "kubernetes_homes": lambda: homes(kubectl),
    }
    found: dict[str, Any] = {}
    for name, ask in parts.items():
        try:
            found[name] = ask()
        except AgentError as error:
            found |= {name: None, f"{name}_error": error.message}
        except OSError as error:
            found |= {name: None, f"{name}_error": str(error)}
    return found


def _listed(node: dict[str, Any]) -> dict[str, Any]:
    """A node whose labels and resources are lists, `key=value`: one that is not there was not set, and not cut off."""
    return {**node, **{part: [f"{key}={value}" for key, value in node[part].items()] for part in _SETS}}


def names(kubectl: Kubectl) -> dict[str, str]:
    """What the cluster's DNS answers this host, through the address of its service: {server, wanted, answer, error}.

    The question goes the way of a pod's: to the address of the service, which kube-proxy leads to one of its pods.
    """
    server = _address(kubectl, _DNS_NAMESPACE, _DNS_SERVICE)
    wanted = _address(kubectl, _NAMESPACE, _SERVICE)
    until = time.monotonic() + ANSWERS_IN_S
    while True:
        try:
            return {"server": server, "wanted": wanted, "answer": ask_dns(server, NAME), "error": ""}
        except (Failed, OSError) as error:
            if time.monotonic() > until:
                return {"server": server, "wanted": wanted, "answer": "", "error": str(error) or type(error).__name__}
        time.sleep(1.0)


def _address(kubectl: Kubectl, namespace: str, service: str) -> str:
    return str((kubectl.get("service", service, namespace).get("spec") or {}).get("clusterIP", ""))


def ask_dns(server: str, name: str, port: int = _DNS_PORT) -> str:
    """The first IPv4 address of a name.

    Raises:
        Failed: the server answers with an error, or without an address.
        OSError: it does not answer.
    """
    number = secrets.randbits(16)
    words = b"".join(bytes([len(word)]) + word.encode() for word in name.split("."))
    question = struct.pack(_ANSWERS, number, 0x0100, 1, 0, 0, 0) + words + struct.pack("!BHH", 0, 1, 1)
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as talk:
        talk.settimeout(_ASK_S)
        # Answers of anybody else are not taken.
        talk.connect((server, port))
        for attempt in range(_ATTEMPTS):
            talk.send(question)
            try:
                return address_of(talk.recv(4096), number)
            except socket.timeout:
                if attempt == _ATTEMPTS - 1:
                    raise OSError(f"{server} does not answer within {_ASK_S * _ATTEMPTS:.0f} s") from None
    raise AssertionError


def address_of(answer: bytes, number: int) -> str:
    """The first IPv4 address of an answer to one question.

    Raises:
        Failed: there is none.
    """
    try:
        got, flags, questions, answers, _authority, _more = struct.unpack_from(_ANSWERS, answer)
        if got != number or flags & 0x000F:
            raise Failed(f"the DNS server answers with error {flags & 0x000F}")
        place = struct.calcsize(_ANSWERS)
        for _question in range(questions):
            place = _after_name(answer, place) + 4
        for _answer in range(answers):
            place = _after_name(answer, place)
            kind, _class, _ttl, length = struct.unpack_from("!HHIH", answer, place)
            place += 10
            if (kind, length) == _IPV4:
                return socket.inet_ntoa(answer[place : place + length])
            place += length
    except (struct.error, IndexError):
        raise Failed("the answer of the DNS server can't be read") from None
    raise Failed("the DNS server knows no address of this name")


def _after_name(answer: bytes, place: int) -> int:
    while answer[place]:
        if answer[place] & _POINTER == _POINTER:
            return place + 2
        place += answer[place] + 1
    return place + 1


#: Seconds that a control plane may take to bind a claim that was just made: it looks every 15 s.
BINDS_IN_S = 30.0


def homes(kubectl: Kubectl) -> list[dict[str, str]]:
    """The claims of people's homes, {user, namespace, phase}; the phase is `Bound` where pods can mount them."""
    until = time.monotonic() + BINDS_IN_S
    while True:
        found = _homes_now(kubectl)
        if not any(each["phase"] == "Pending" for each in found) or time.monotonic() > until:
            return found
        time.sleep(1.0)


def _homes_now(kubectl: Kubectl) -> list[dict[str, str]]:
    """The claims now.

    Whose namespace it is, is in its annotation: some names of users can't be in the name of a namespace.
    """
    users = {
        str(each["metadata"]["name"]): str(each["metadata"].get("annotations", {}).get(USER_NAME, ""))
        for each in kubectl.list("namespaces")
    }
    return [
        {
            "user": users.get(str(each["metadata"].get("namespace", "")), ""),
            "namespace": str(each["metadata"].get("namespace", "")),
            "phase": str((each.get("status") or {}).get("phase", "")),
        }
        for each in kubectl.list("persistentvolumeclaims", fields=f"metadata.name={HOME}")
    ]
