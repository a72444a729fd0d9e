"""The cluster's ssh CA: it signs the host keys of the cluster's hosts, and admits nodes from baked images.

The role `base` creates the CA. `gpucluster-agent host-certificate answer` serves one connection of a host that asks:
systemd starts it with the connection as its standard streams.

A host proves by the network who it is. The cloud delivers packets for an address only to the instance that has it, and
on that instance only root may use a port below 1024. The names in the certificate are those that the controller knows
for this address; the request names none.

A node that boots from a baked image sends the hash of a password, too. The controller makes the entry in the directory
for the node that the autoscaler has launched at this address (`booting_nodes`). What Slurm reports of an address is not
enough for that: slurmd of any node can report it.

A host whose CA of the directory is not the present one asks here for it, too (`node_agent/directory_authority`).
"""

from __future__ import annotations

import base64
import json
import os
import re
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucluster.controller import booting_nodes, ca
from gpucluster.controller.users.hosts import in_service, lists
from gpucluster.node_agent import directory_authority, host_certificates, programs
from gpucluster.node_agent.errors import AgentError, Failed, Refused
from gpucluster.node_agent.host_certificates import LONGEST, TYPE, Add, read_string

KEY = Path("/etc/gpucluster/authority/ssh_ca")
#: What is known of the hosts.
KNOWN = Path("/etc/gpucluster/host-names.json")
#: The nodes that boot from baked images, and the configuration of the directory.
BOOTING = booting_nodes.FILE
DIRECTORY = Path("/etc/gpucluster/directory.json")

_FIRST_UNPRIVILEGED = 1024
# The second line of a request.
_HASH = re.compile(r"directory (\{CRYPT\}\S{1,200})\n?")


def sign(public_key: str, names: Sequence[str], key: Path = KEY) -> str:
    """A certificate for a host key.

    Args:
        names: those that the certificate is for; the first one is its id.

    Raises:
        Refused: it is not an ed25519 key.
        Failed: there is no CA, or ssh-keygen refused.
    """
    words = public_key.split()
    try:
        good = len(words) == 2 and words[0] == TYPE and read_string(base64.b64decode(words[1]))[0] == TYPE.encode()  # noqa: PLR2004
    except (ValueError, struct.error):
        good = False
    if not good:
        raise Refused("the request is not an ed25519 host key", "Run: ssh-keygen -A")
    if not key.is_file():
        raise Failed(f"there is no ssh CA in {key}", "Run: gpucluster apply")
    with tempfile.TemporaryDirectory(prefix="gpucluster-") as folder:
        file = Path(folder) / "host.pub"
        file.write_text(f"{words[0]} {words[1]}\n")
        _keygen("-q", "-s", str(key), "-I", names[0], "-h", "-n", ",".join(names), str(file))
        return (Path(folder) / "host-cert.pub").read_text()


def _keygen(*words: str) -> str:
    result = programs.call(["ssh-keygen", *words])
    if result.returncode != 0:
        raise Failed(f"ssh-keygen: {result.stderr.strip()}", "Install openssh-client, or openssh")
    return result.stdout


def names_of(address: str, known: Mapping[str, Any]) -> list[str]:
    """The names of the host with this address; empty if none of the cluster's hosts has it.

    Args:
        known: `hosts` are the permanent ones, with their names by address; `elastic` the hostlists of the others, whose
            addresses the scheduler knows while they are in service, and the autoscaler before that if they boot from a
            baked image; `domain` is that of the nodes, and may be empty.

    Raises:
        Failed: the scheduler does not answer.
    """
    names: list[str] = list(known["hosts"].get(address, ()))
    booting = _booting(address, known)
    if booting is not None:
        names = [booting.node]
    if not names and known["elastic"]:
        names = [name for name, there in in_service(",".join(known["elastic"])).items() if there == address]
        # An address that two nodes have is not one of either.
        names = names if len(names) == 1 else []
    domain = known["domain"]
    return [*names, *([f"{names[0]}.{domain}"] if domain else []), address] if names else []


def _booting(address: str, known: Mapping[str, Any]) -> booting_nodes.BootingNode | None:
    """The node that boots from a baked image at this address. The autoscaler can name no permanent host, and no address
    of one.
    """
    if address in known["hosts"]:
        return None
    node = booting_nodes.find(address, BOOTING)
    return node if node is not None and any(lists(nodes, node.node) for nodes in known["elastic"]) else None


def proven_names(address: str, port: int, known: Mapping[str, Any]) -> list[str]:
    """The names of the host at the other end of a connection, whose root has opened it.

    Args:
        known: see `names_of`.

    Raises:
        Refused: another user than root has asked, or no host of the cluster.
        Failed: the scheduler does not answer.
    """
    if port >= _FIRST_UNPRIVILEGED:
        raise Refused(f"port {port} of {address} may belong to any user", "Ask as root")
    names = names_of(address, known)
    if not names:
        raise Refused(f"no host of this cluster has the address {address} now", "Ask again when the scheduler knows it")
    return names


def caller() -> tuple[str, int]:
    """Address and port of the other end of the connection for which systemd has started this program."""
    address, port = os.environ.get("REMOTE_ADDR", ""), os.environ.get("REMOTE_PORT", "")
    # An IPv4 address, as systemd shows it for a socket that serves both.
    return re.sub("^::ffff:", "", address), int(port or _FIRST_UNPRIVILEGED)


def answer(address: str, port: int, text: str, known: Mapping[str, Any], key: Path = KEY) -> str:
    """The certificate for the host at the other end of a connection.

    Args:
        text: the host's public key, and in a second line `directory HASH` if it needs an entry in the directory. Then
            the second line of the answer is `directory entry NAME`, or the reason why there is none.

    Raises:
        Refused: another user than root has asked, or no host of the cluster.
        Failed: the certificate could not be made.
    """
    names = proven_names(address, port, known)
    first, _, rest = text.partition("\n")
    hashed = _HASH.fullmatch(rest)
    if hashed is None:
        return sign(text, names, key)
    return sign(first, names, key) + _entry(address, known, hashed[1])


def _entry(address: str, known: Mapping[str, Any], hashed: str) -> str:
    # A host that asks for a certificate alone does not pay for these.
    from gpucluster.controller.users import base_tree
    from gpucluster.controller.users.config import Config
    from gpucluster.controller.users.host_entries import DesiredHost

    def host() -> DesiredHost | None:
        node = _booting(address, known)
        return DesiredHost(node.node, node.instance) if node else None

    try:
        return f"directory entry {base_tree.admit(Config.load(DIRECTORY), host, hashed)}\n"
    except (AgentError, OSError) as error:
        reason = error.message if isinstance(error, AgentError) else str(error)
        sys.stderr.write(f"no directory entry for {address}: {reason}\n")
        return f"no directory entry: {reason}\n"


# ---- the program


def add_parts(add: Add) -> None:
    """Add what the controller can do: it asks itself, too."""
    add("answer", "serve one host", _serve)
    host_certificates.add_parts(add)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the parts; returns the exit status."""
    return host_certificates.main(argv, host_certificates.__doc__, add_parts)


def _serve() -> None:
    """One connection. A refusal goes to the host as well: only root there can have sent the request."""
    address, port = caller()
    try:
        request = sys.stdin.read(LONGEST)
        if request.strip() == directory_authority.REQUEST:
            # Public, so it does not matter who asks.
            text = json.dumps(ca.published())
        else:
            text = answer(address, port, request, json.loads(KNOWN.read_text()))
    except AgentError as error:
        sys.stdout.write(f"{error.message}\n")
        raise
    sys.stdout.write(text)
