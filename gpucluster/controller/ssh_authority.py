"""Rotation of the cluster's ssh CA, which certifies the host keys of all hosts (`ssh_ca`).

All hosts in service accept the certificates of the next CA beside those of the present one. Then the next one signs,
and each host gets another certificate. When all of them have one, no host accepts the former CA. Where it stands is in
a file, so each step may be killed: the same request goes on.

A host that is out of service keeps a certificate of the former CA; others know its key itself. `gpucluster apply`
brings it what it lacks. An image has the CA of its day.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpucluster.controller import host_commands, rotation_parts, ssh_ca
from gpucluster.controller.host_commands import ReachableHosts
from gpucluster.controller.users.config import HostLogins
from gpucluster.node_agent import durable_file, programs
from gpucluster.node_agent.errors import Failed, Refused, Unconfirmed
from gpucluster.node_agent.host_keys import public
from gpucluster.node_agent.passwords import write_file

NAME = "ssh-ca"
#: A rotation that is not complete.
BEGUN = Path("/etc/gpucluster/ssh-ca.rotation")


@dataclass(frozen=True)
class AuthorityRotation:
    """A rotation that is not complete.

    Args:
        former: the public key of the CA before, as `type key`. `following`: of the next one.
        signs: whether the next one signs.
        unconfirmed: hosts that have not confirmed all of it; empty until a first attempt.
    """

    former: str
    following: str
    signs: bool = False
    unconfirmed: tuple[str, ...] = ()

    @classmethod
    def load(cls, file: Path) -> AuthorityRotation | None:
        """What a file has; None if there is none.

        Raises:
            Failed: it can't be read.
        """

        def made(raw: Any) -> AuthorityRotation:
            names = tuple(map(str, raw["unconfirmed"]))
            return cls(str(raw["former"]), str(raw["following"]), bool(raw["signs"]), names)

        return rotation_parts.read(file, NAME, made)

    def save(self, file: Path) -> None:
        """Write it to the disk; nothing of it is secret."""
        write_file(file, json.dumps(asdict(self)))


def rotate(config: HostLogins, note: Callable[[str], None], key: Path = ssh_ca.KEY) -> dict[str, Any]:
    """Give the cluster another ssh CA, or complete a rotation that was interrupted.

    Args:
        key: the file with the CA's private key.

    Raises:
        Refused: this cluster has no ssh CA.
        Failed: a host in service does not take part, and the present CA still signs.
        Unconfirmed: hosts have no certificate of it, or still accept the former one.
    """
    hosts = ReachableHosts.of(config)
    begun = AuthorityRotation.load(BEGUN)
    is_new = begun is None
    if begun is None:
        begun = AuthorityRotation(public(_of(key)), _made(key))
        begun.save(BEGUN)
    else:
        note("goes on with a rotation that was interrupted")
    if not begun.signs:
        note(f"lets all hosts accept the next ssh CA: {len(hosts.names)} hosts")
        silent = _known(hosts, {"add": {begun.former: begun.following}, "drop": []})
        if problems := hosts.problems(silent):
            raise Failed(f"the present CA still signs: {host_commands.named(problems)}", rotation_parts.HINT)
        _commit(key, begun.following)
        begun = replace(begun, signs=True)
        begun.save(BEGUN)
    note("gives each host another certificate")
    text_by_host = dict.fromkeys(hosts.names, json.dumps(begun.following))
    words = ["host-certificate", "renew"]
    silent = host_commands.reasons(hosts.ask(hosts.names, words, text_by_host, host_commands.SECONDS))
    off = hosts.off(silent)
    if not [name for name in silent if name not in off]:
        # Each host in service has one. A node may have joined since all were told of the next CA.
        more = _known(hosts, {"add": {begun.former: begun.following}, "drop": [begun.former]})
        silent.update(more)
        off = hosts.off(silent)
    unconfirmed, counts = hosts.confirmation(silent, off)
    result = {"new": is_new, **counts, "authority": _of(key).read_text()}
    if not unconfirmed:
        BEGUN.unlink(missing_ok=True)
        return result
    replace(begun, unconfirmed=tuple(sorted(unconfirmed))).save(BEGUN)
    raise Unconfirmed(
        f"not every host has a certificate of the next ssh CA: {host_commands.named(unconfirmed)}",
        "Run the same command again when they answer. Until then hosts accept the former CA, too",
        result,
    )


def _made(key: Path) -> str:
    """The public key of the next CA; that of an interrupted rotation is taken up.

    Raises:
        Refused: there is no CA.
    """
    if not key.is_file():
        raise Refused(f"there is no ssh CA in {key}", "Run: gpucluster apply")
    following = _next(key)
    if not (following.is_file() and _of(following).is_file()):
        for file in (following, _of(following)):
            file.unlink(missing_ok=True)
        comment = " ".join(_of(key).read_text().split()[2:])
        result = programs.call(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(following)])
        if result.returncode != 0:
            raise Failed(f"ssh-keygen: {result.stderr.strip()[-300:]}", "Install openssh-client, or openssh")
        durable_file.sync_folder(key.parent)
    return public(_of(following))


def _commit(key: Path, wanted: str) -> None:
    """From now on the next CA signs. It may be repeated.

    Raises:
        Failed: there is no such key.
    """
    following = _next(key)
    if wanted not in (public(_of(following)), public(_of(key))):
        raise Failed(f"{following} is not the CA of this rotation", f"Run: gpucluster rotate {NAME}")
    # The public one is last: until then there is a next one, and this is repeated.
    for old, file in ((following, key), (_of(following), _of(key))):
        if old.is_file():
            old.replace(file)
    durable_file.sync_folder(key.parent)


def _next(key: Path) -> Path:
    return key.with_name(f"{key.name}.next")


def _of(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


def _known(hosts: ReachableHosts, changes: Mapping[str, Any]) -> dict[str, str]:
    """Change which CAs hosts accept. Returns those that have not done it, with the reason."""
    text_by_host = dict.fromkeys(hosts.names, json.dumps({**changes, "authorities": True}))
    return host_commands.reasons(hosts.ask(hosts.names, ["host-keys", "known"], text_by_host, host_commands.SECONDS))


def state(key: Path = ssh_ca.KEY) -> list[dict[str, Any]]:
    """For the list of what can be rotated: when the CA was made, and what is not complete. Empty without a CA."""
    if not key.is_file():
        return []
    begun = AuthorityRotation.load(BEGUN)
    row = {
        "name": NAME,
        "changed": rotation_parts.moment(key.stat().st_mtime),
        "state": "complete" if begun is None else "unconfirmed" if begun.signs else "prepared",
        "unconfirmed": list(begun.unconfirmed) if begun is not None and begun.signs else [],
    }
    return [row]
