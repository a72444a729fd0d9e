"""The ssh host keys of this host: other ones, without a moment in which another host can't check who answers.

The controller runs these parts by ssh (`controller/host_keys`). `prepare` makes the next keys beside the present ones,
and gets a certificate of the cluster's CA for the next ed25519 key. `known` lets this host accept other keys of other
hosts. `switch` renames, and lets sshd read them: it keeps its connections (sshd(8), SIGHUP). Each may be run again.

sshd offers one key of each type, so there is no time in which it has both; the overlap is in known_hosts.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucluster.node_agent import bounded, durable_file, host_certificates, programs
from gpucluster.node_agent.errors import AgentError, Failed, Refused, report
from gpucluster.node_agent.host_certificates import SETTINGS

FOLDER = Path("/etc/ssh")
KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")
#: The types of which a host may have a key; `ssh-keygen -A` makes them.
KINDS = ("ed25519", "ecdsa", "rsa")

_NEXT = ".next"
_AUTHORITY = "@cert-authority "
_CERTIFICATE = "ssh_host_ed25519_key-cert.pub"
_LONGEST = 1 << 22
# An RSA key on a busy host.
_SECONDS = 120.0


def prepare(settings: Mapping[str, Any], folder: Path = FOLDER) -> dict[str, list[str]]:
    """Have the next keys beside the present ones, with a certificate. Those of an interrupted rotation are taken up.

    Args:
        settings: see `host_certificates.request`.

    Returns:
        `present` and `next`: the public keys, as `type key`, in the same order.

    Raises:
        Failed: this host has no ed25519 key, or the CA gives no certificate.
    """
    present = [file for kind in KINDS if (file := folder / f"ssh_host_{kind}_key").is_file()]
    if not present or present[0].name != "ssh_host_ed25519_key":
        raise Failed(f"{folder} has no ed25519 host key", "Run: ssh-keygen -A")
    for file in present:
        _make(file, file.name[len("ssh_host_") : -len("_key")])
    _certify(settings, folder)
    return {
        "present": [public(_of(file)) for file in present],
        "next": [public(_of(_following(file))) for file in present],
    }


def _make(file: Path, kind: str) -> None:
    """The key that follows this one, with its owner and mode: on some systems a group may read it (ssh-keysign)."""
    following = _following(file)
    if following.is_file() and _of(following).is_file():
        return
    making = file.with_name(f".{file.name}{_NEXT}")
    for each in (making, _of(making), following, _of(following)):
        each.unlink(missing_ok=True)
    argv = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "", "-f", str(making)]
    result = programs.call(argv, seconds=_SECONDS)
    if result.returncode != 0:
        raise Failed(f"ssh-keygen: {result.stderr.strip()[-300:]}", "Install openssh-client, or openssh")
    for made, like in ((making, file), (_of(making), _of(file))):
        state = like.stat()
        os.chown(made, state.st_uid, state.st_gid)
        made.chmod(state.st_mode & 0o777)
    # The private one is last: where it exists, the pair is complete.
    _of(making).replace(_of(following))
    making.replace(following)
    durable_file.sync_folder(file.parent)


def _certify(settings: Mapping[str, Any], folder: Path) -> None:
    key = public(folder / f"ssh_host_ed25519_key{_NEXT}.pub")
    authority, name = str(settings["authority"]), socket.gethostname().partition(".")[0]
    target = folder / f"{_CERTIFICATE}{_NEXT}"
    if target.is_file() and host_certificates.is_valid(
        host_certificates.parse(target.read_text()), key, authority, name
    ):
        return
    try:
        text = host_certificates.ask(str(settings["address"]), int(settings["port"]), key)
    except OSError as error:
        raise Failed(f"no certificate for the next host key: {error}", "Run: gpucluster apply") from None
    first = text.partition("\n")[0]
    if not host_certificates.is_valid(host_certificates.parse(first), key, authority, name):
        raise Failed(f"no certificate for the next host key: {first[:200] or 'no answer'}", "Run: gpucluster apply")
    durable_file.replace(target, f"{first}\n", mode=0o644)


def switch(settings: Mapping[str, Any], wanted: str, folder: Path = FOLDER) -> None:
    """Let sshd use the next keys. It may be repeated.

    Args:
        wanted: the next ed25519 key, as `type key`.

    Raises:
        Failed: this host has not prepared it.
    """
    present = folder / "ssh_host_ed25519_key"
    if public(_of(_following(present))) == wanted:
        for following, file in _renamed(folder):
            if following.is_file():
                following.replace(file)
        durable_file.sync_folder(folder)
    elif public(_of(present)) != wanted:
        raise Failed("this host has prepared another key", "Run the rotation again: gpucluster rotate host-keys")
    # Also after a kill between the two.
    host_certificates.signal_unit(str(settings["sshd"]), signal.SIGHUP)


def _renamed(folder: Path) -> list[tuple[Path, Path]]:
    """The next files, and what they become. The public ed25519 key is last: while there is a next one, some of this is
    left to do.
    """
    files = [folder / f"ssh_host_{kind}_key" for kind in reversed(KINDS)]
    pairs = [(_following(file), file) for file in files]
    pairs.append((folder / f"{_CERTIFICATE}{_NEXT}", folder / _CERTIFICATE))
    return pairs + [(_of(_following(file)), _of(file)) for file in files]


def _following(file: Path) -> Path:
    return file.with_name(f"{file.name}{_NEXT}")


def _of(file: Path) -> Path:
    return file.with_name(f"{file.name}.pub")


def public(file: Path) -> str:
    """The key in a file, as `type key`; empty if there is none."""
    try:
        return " ".join(file.read_text().split()[:2])
    except FileNotFoundError:
        return ""


# ---- what this host knows of others


def known(changes: Mapping[str, Any], file: Path = KNOWN_HOSTS) -> None:
    """Accept other keys of other hosts, or another CA that certifies them.

    Args:
        changes: `add`: key -> the one that is accepted beside it; `drop`: keys that are accepted no more. Each is
            `type key`. With `authorities: true` they are those of CAs, otherwise those of hosts.

    Raises:
        Refused: it is something else.
    """
    add, drop, authorities = changes.get("add", {}), changes.get("drop", []), changes.get("authorities", False)
    words = [*add, *add.values(), *drop] if isinstance(add, dict) and isinstance(drop, list) else [None]
    if not all(isinstance(word, str) and len(word.split()) == 2 for word in words):  # noqa: PLR2004 - type and key
        raise Refused("the request names no host keys", "Run: gpucluster rotate host-keys")
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    after = changed(text, add, frozenset(drop), authorities=authorities is True)
    if after != text:
        durable_file.replace(file, after, mode=file.stat().st_mode & 0o777)


def changed(text: str, add: Mapping[str, str], drop: frozenset[str], *, authorities: bool = False) -> str:
    """The text of a known_hosts, with other keys: each in a line after the one that it follows, for the same names.

    Args:
        authorities: lines of CAs are changed, and those of hosts stay; otherwise the other way round.
    """
    lines = text.splitlines()
    there = {line.strip() for line in lines}
    after: list[str] = []
    for line in lines:
        words = line.split()
        # The line of a CA begins with a word of its own: sshd(8), SSH_KNOWN_HOSTS FILE FORMAT.
        number = 2 if line.startswith(_AUTHORITY) else 1
        names, key = " ".join(words[:number]), " ".join(words[number : number + 2])
        is_meant = not line.startswith("#") and (
            line.startswith(_AUTHORITY) if authorities else not line.startswith("@")
        )
        if not is_meant or key not in drop:
            after.append(line)
        if is_meant and key in add and f"{names} {add[key]}" not in there:
            after.append(f"{names} {add[key]}")
    return "".join(f"{line}\n" for line in after)


# ---- the program


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent host-keys", description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("prepare", help="make the next keys, and print the public ones")
    parts.add_parser("switch", help="use the next keys; their ed25519 key is on standard input, as JSON")
    parts.add_parser("known", help="accept other keys of other hosts: JSON on standard input")
    options = parser.parse_args(argv)
    os.umask(0o077)
    try:
        if options.part == "prepare":
            sys.stdout.write(json.dumps(prepare(json.loads(SETTINGS.read_text()))) + "\n")
        elif options.part == "switch":
            switch(json.loads(SETTINGS.read_text()), str(bounded.loads(sys.stdin.read(_LONGEST))))
        else:
            known(bounded.loads(sys.stdin.read(_LONGEST)))
    except AgentError as error:
        return report(error, "host-keys")
    except ValueError:
        sys.stderr.write("gpucluster-agent host-keys: the request is not JSON\n")
        return Refused.status
    except OSError as error:
        return report(error, "host-keys")
    return 0
