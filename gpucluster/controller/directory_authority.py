"""Rotation of the cluster's CA, which certifies the directory, the server of the munge key and the REST API (`ca`).

All hosts in service trust the next CA beside the present one. Then the next one signs, and the servers get other
certificates. Then no host trusts the former CA: each tries the directory with the next one alone before it forgets it.
Where it stands is in the files of the CA, so each step may be killed: the same request goes on, and an `apply` in
between writes the same on the hosts.

A host that is off learns the next CA when it boots, and so does a node from an image: by a chain that the former CA has
signed (`node_agent/directory_authority`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpucluster.controller import ca, host_commands, rotation_parts
from gpucluster.controller.host_commands import ReachableHosts
from gpucluster.controller.kubernetes import certificates
from gpucluster.controller.rotation_parts import UnconfirmedHosts
from gpucluster.controller.users.config import HostLogins
from gpucluster.node_agent import directory_authority, programs
from gpucluster.node_agent.errors import Failed, Unconfirmed
from gpucluster.node_agent.standby import keeping

NAME = "directory-ca"
_UNIT_BY_PURPOSE = {ca.DIRECTORY: "slapd.service", ca.REST: "gpucluster-rest.service"}
_UNITS = Path("/etc/systemd/system")
_SECONDS, _POLL_SECONDS = 60.0, 0.2
_STANDBY_SECONDS = 300.0


def rotate(config: HostLogins, note: Callable[[str], None]) -> dict[str, Any]:
    """Give the cluster another CA, or complete a rotation that was interrupted.

    Raises:
        Refused: this cluster has no CA.
        Failed: a host in service does not take part, and the present CA still signs; or a server does not start.
        Unconfirmed: hosts still trust the former one.
    """
    hosts = ReachableHosts.of(config)
    is_new = ca.phase() == "complete"
    if not is_new:
        note("goes on with a rotation that was interrupted")
    if ca.phase() != "switched":
        ca.servers()
        ca.prepare()
        note(f"lets all hosts trust the next CA: {len(hosts.names)} hosts")
        if problems := hosts.problems(_trust(hosts, ca.trusted())):
            raise Failed(f"the present CA still signs: {host_commands.named(problems)}", rotation_parts.HINT)
        ca.switch()
    note("gives the servers certificates of the next CA")
    for purpose in ca.issue():
        rotation_parts.restart(_UNIT_BY_PURPOSE[purpose], _SECONDS)
    _await_directory()
    _tell_standby()
    note("lets all hosts trust it alone")
    silent = _trust(hosts, ca.authority())
    unconfirmed, counts = hosts.confirmation(silent, hosts.off(silent))
    result = {"new": is_new, **counts, "authority": ca.authority()}
    if unconfirmed:
        _waiting().keep(list(unconfirmed))
        raise Unconfirmed(
            f"not every host trusts the next CA alone: {host_commands.named(unconfirmed)}",
            "Run the same command again when they answer. Until then they trust the former CA, too",
            result,
        )
    _waiting().keep([])
    ca.end()
    return result


def _trust(hosts: ReachableHosts, text: str) -> dict[str, str]:
    """Let hosts trust these CAs. Returns those that have not done it, with the reason."""
    text_by_host = dict.fromkeys(hosts.names, json.dumps(text))
    words = ["directory-authority", "trust"]
    return host_commands.reasons(hosts.ask(hosts.names, words, text_by_host, host_commands.SECONDS))


def _await_directory() -> None:
    """Wait until the directory answers with its next certificate, which this host trusts."""
    uri, until = directory_authority.own_directory(), time.monotonic() + _SECONDS
    why = "its certificate is not of the next CA"
    while uri:
        try:
            if directory_authority.is_proven(uri, ca.FOLDER / "ca.pem"):
                return
        except Failed as error:
            why = error.message
        if time.monotonic() > until:
            raise Failed(f"the directory does not answer with its next certificate: {why}", "Run: journalctl -u slapd")
        time.sleep(_POLL_SECONDS)


def _tell_standby() -> None:
    """The standby has a copy of the certificates, and shows it after a failover. One that is off gets it later."""
    if (_UNITS / keeping.SERVICE).is_file():
        programs.call(["systemctl", "start", keeping.SERVICE], seconds=_STANDBY_SECONDS)


def _waiting() -> UnconfirmedHosts:
    return UnconfirmedHosts(ca.FOLDER / "unconfirmed.json", NAME)


def state() -> list[dict[str, Any]]:
    """For the list of what can be rotated: when the CA was made, when it ends, and what is not complete. Empty without
    a CA.
    """
    certificate = ca.FOLDER / "ca.pem"
    if not certificate.is_file():
        return []
    made, ends = certificate.stat().st_mtime, certificates.end_of(certificate, certificate.read_bytes())
    return [{**_waiting().row(made, ca.phase()), "expires": rotation_parts.moment(ends)}]
