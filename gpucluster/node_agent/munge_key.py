"""The munge key of a host: it comes from the controller, at each boot and when the key is rotated.

A host asks over TLS, from a port that only root has; the cluster's CA proves that the controller answers. So a node
from a baked image needs no key in the image, and a host that was off while the key changed gets the new one before
slurmd starts. `gpucluster-munge-key.service` runs `await`; the controller runs `stage` and `switch` by ssh
(`controller/rotation`). munged reads its key when it starts, and knows one at a time (munged(8)).

Keys are named by their SHA-256: of 1024 random bytes it tells nothing.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import hashlib
import json
import os
import pwd
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucluster.node_agent import bounded, durable_file, programs
from gpucluster.node_agent.errors import AgentError, Failed, Refused, report
from gpucluster.node_agent.host_certificates import from_a_port_of_root, received, signal_unit
from gpucluster.node_agent.notify import notify

#: Where the controller answers, and the CA that proves it: {"address", "port", "authority"}.
SETTINGS = Path("/etc/gpucluster/munge-key.json")
KEY = Path("/etc/munge/munge.key")
#: The next one, until the cluster switches to it.
NEXT = Path("/etc/munge/munge.key.next")
OWNER = "munge"
#: Bytes: munged refuses a shorter one (MUNGE_KEY_LEN_MIN_BYTES of munge_defs.h), and its own are no longer.
SHORTEST, LONGEST = 32, 1024
#: Bytes of a request, and of an answer.
MESSAGE = 4096

# Between two requests of a host that has no key, seconds, twice as long each time.
_PAUSE, _LONGEST_PAUSE = 1.0, 10.0
# For how long a host that has a key tries to learn at its boot whether it is still the cluster's.
_PATIENCE = 20.0
# Seconds after which it asks again: a key that changes while a host boots, whom the controller does not know yet. Each
# request starts a program on the controller.
_AGAIN = (90.0, 600.0)
_SECONDS = 60.0


def digest(key: bytes) -> str:
    """The name of a key."""
    return hashlib.sha256(key).hexdigest()


def digest_of(file: Path) -> str:
    """The name of the key in a file; empty if there is none."""
    try:
        return digest(file.read_bytes())
    except FileNotFoundError:
        return ""


def ask(settings: Mapping[str, Any], which: str, has: str) -> bytes | None:
    """The key that the controller gives; None if this host has it already.

    Args:
        which: `current` or `next`.
        has: the name of the one that this host has.

    Raises:
        Failed: there is no answer, or none that can be used. Refused: the controller gives none.
    """
    text = conversation(settings, {"which": which, "has": has}, "the munge key", MESSAGE)
    return read_answer(text)


def conversation(settings: Mapping[str, Any], request: Mapping[str, str], what: str, most: int) -> bytes:
    """What the controller's server of the munge key answers to a request.

    Args:
        what: that is asked for, in a message.
        most: bytes of the answer.

    Raises:
        Failed: there is no answer.
    """
    import ssl  # the longest to load of all that is here, and `switch` does without it

    address = str(settings["address"])
    try:
        context = ssl.create_default_context(cafile=str(settings["authority"]))
        plain = from_a_port_of_root(address, int(settings["port"]))
        with plain, context.wrap_socket(plain, server_hostname=address) as connection:
            connection.sendall(json.dumps(request).encode() + b"\n")
            return received(connection, most)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise Failed(f"the controller does not give {what}: {error}", "See there: journalctl -e") from None


def read_answer(text: bytes) -> bytes | None:
    """The key in an answer of the controller; None where the host has it already.

    Raises:
        Refused: the answer is a refusal. Failed: it is not an answer.
    """
    try:
        answer = bounded.loads(text.decode())
        if isinstance(answer, dict) and "refused" in answer:
            raise Refused(f"the controller does not give the munge key: {str(answer['refused'])[:300]}")
        if answer == {"same": True}:
            return None
        key = base64.b64decode(answer["key"], validate=True)
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise Failed("the controller's answer about the munge key can't be read", "Run: gpucluster apply") from None
    if not SHORTEST <= len(key) <= LONGEST:
        raise Failed(f"the controller's munge key has {len(key)} bytes", "Run: gpucluster apply")
    return key


def install(key: bytes, target: Path, owner: str | None = OWNER) -> None:
    """Write a key, all of it or nothing, for its owner alone.

    Args:
        owner: an account; None for that of this process.
    """
    new = target.with_name(f".{target.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb") as stream:
        if owner:
            # Not by its path: munge owns the folder.
            account = pwd.getpwnam(owner)
            os.fchown(stream.fileno(), account.pw_uid, account.pw_gid)
        stream.write(key)
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(target)
    durable_file.sync_folder(target.parent)


def stage(settings: Mapping[str, Any], wanted: str) -> None:
    """Have the next key beside the present one.

    Raises:
        Failed, Refused: see `ask`; also where the controller has another one by now.
    """
    if wanted in (digest_of(NEXT), digest_of(KEY)):
        return
    _take(ask(settings, "next", digest_of(NEXT)), NEXT, wanted)


def switch(settings: Mapping[str, Any], wanted: str, *, late: bool) -> None:
    """Let munged use another key. It may be repeated.

    Args:
        late: slurmctld uses it already, and was refused here: slurmd starts again, and so registers at once. Steps go
            on without it.

    Raises:
        Failed, Refused: see `ask`; or munge does not start.
    """
    if digest_of(KEY) != wanted:
        if digest_of(NEXT) != wanted:
            _take(ask(settings, "current", digest_of(KEY)), NEXT, wanted)
        NEXT.replace(KEY)
        durable_file.sync_folder(KEY.parent)
    NEXT.unlink(missing_ok=True)
    # Also after a switch that was interrupted here.
    _systemctl("restart", "munge.service")
    if late:
        _systemctl("try-restart", "slurmd.service")


def _take(key: bytes | None, target: Path, wanted: str) -> None:
    if key is None or digest(key) != wanted:
        raise Failed("the controller has another munge key by now", "Run the rotation again: gpucluster rotate munge")
    install(key, target)


def _systemctl(*words: str) -> None:
    result = programs.call(["systemctl", *words], seconds=_SECONDS)
    if result.returncode != 0:
        raise Failed(f"systemctl {' '.join(words)}: {result.stderr.strip()[-300:]}", "Run: journalctl -e")


def await_key(settings: Mapping[str, Any]) -> None:
    """At the boot: have the cluster's key before munge starts, then watch for a while whether it changes.

    A host without a key waits for it. One with a key starts with that one if there is no answer: then slurmctld gives
    none either.
    """
    began, pause, last = time.monotonic(), _PAUSE, ""
    while True:
        reason, has_answered = _refresh(settings, restart=False)
        last = _note(reason, last)
        if not reason or (KEY.exists() and (has_answered or time.monotonic() - began > _PATIENCE)):
            break
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
    notify("READY=1")
    for seconds in _AGAIN:
        time.sleep(max(began + seconds - time.monotonic(), 0.0))
        last = _note(_refresh(settings, restart=True)[0], last)


def _note(reason: str, last: str) -> str:
    if reason and reason != last:
        sys.stderr.write(f"no news of the munge key: {reason}\n")
        sys.stderr.flush()
    return reason


def _refresh(settings: Mapping[str, Any], *, restart: bool) -> tuple[str, bool]:
    """Have the key that the controller has now.

    Returns:
        Why this host does not know it, empty if it does; and whether the controller has answered. It refuses a new
        elastic node, which the scheduler does not know yet: that one got its key from the service that configured it.
    """
    try:
        key = ask(settings, "current", digest_of(KEY))
        if key is not None:
            install(key, KEY)
            sys.stderr.write("the munge key is the cluster's now\n")
            if restart:
                # systemd starts them again (`Restart=always`). Steps of jobs go on without slurmd.
                signal_unit("munge.service", signal.SIGTERM)
                signal_unit("slurmd.service", signal.SIGTERM)
    except AgentError as error:
        return error.message, isinstance(error, Refused)
    return "", True


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent munge-key", description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("await", help="have the cluster's key before munge starts")
    staged = parts.add_parser("stage", help="fetch the next key")
    switched = parts.add_parser("switch", help="use another key")
    switched.add_argument("--late", action="store_true", help="slurmctld uses it already")
    for part in (staged, switched):
        part.add_argument("digest", help="the SHA-256 of the key")
    options = parser.parse_args(argv)
    try:
        settings = json.loads(SETTINGS.read_text())
        if options.part == "await":
            await_key(settings)
        elif options.part == "stage":
            stage(settings, options.digest)
        else:
            switch(settings, options.digest, late=options.late)
    except (AgentError, OSError) as error:
        return report(error, "munge-key")
    return 0
