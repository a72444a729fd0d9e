"""Rotation of secrets on the controller, while jobs run: the requests, and the munge key. `host_passwords`,
`host_keys`, `ssh_authority`, `directory_authority`, `controller_key`, `container_keys`, `join_key`, `rest_key` and
`grafana_password` have others. The last one is also
asked for on a login node, if that has Grafana.

`gpucluster-agent rotate request` answers one request of the operator's machine; `gpucluster-munge-switch.service` runs
`gpucluster-agent rotate switch`. What has to be done is in files, so each may be killed at any point: the same
request goes on, and systemd starts the service again, also after a boot.

The munge key. munged knows one key, and Slurm's daemons use one munged: there is no time in which two keys are good. So
the key is brought to every host first, as a file that nothing reads. Then slurmctld stops, every host takes the other
key, and slurmctld starts again. Jobs run meanwhile: a step reports its end again until slurmctld answers (mgr.c of
slurmstepd, 15 s apart), and a command of a user waits for it for MessageTimeout. While slurmctld runs, no host has
another key than it: it would give up a job whose launch a node refuses.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucluster.controller import (
    container_keys,
    controller_key,
    directory_authority,
    file_lock,
    grafana_password,
    host_commands,
    host_keys,
    host_passwords,
    join_key,
    munge_keys,
    rest_key,
    rotation_parts,
    shared_keys,
    ssh_authority,
)
from gpucluster.controller.users import hosts
from gpucluster.controller.users.config import FILE, Config, HostLogins
from gpucluster.controller.users.hosts import HostLogin
from gpucluster.node_agent import bounded, munge_key, programs
from gpucluster.node_agent.errors import AgentError, Failed, Refused, Unconfirmed, of_system
from gpucluster.node_agent.passwords import write_file

MUNGE = "munge"
#: What can be rotated.
SECRETS = (
    MUNGE,
    rest_key.NAME,
    host_passwords.NAME,
    host_keys.NAME,
    ssh_authority.NAME,
    directory_authority.NAME,
    controller_key.NAME,
    container_keys.NAME,
    join_key.NAME,
    grafana_password.NAME,
)
#: A switch that has begun, until slurmctld runs again; hosts that have not confirmed it.
BEGUN = Path("/etc/gpucluster/munge.switch")
MISSING = Path("/etc/gpucluster/munge.missing")
LOCK = Path("/run/gpucluster-rotation.lock")
UNIT = "gpucluster-munge-switch.service"

_SECONDS = 60.0
# Of one host, while slurmctld is stopped: ssh and a restart of munge. A command of a user waits 30 s for slurmctld.
_SWITCH_SECONDS = 12.0
_TRIES = 2
# For a launch that is on its way to a node when slurmctld has stopped.
_GRACE_SECONDS = 1.0
# slurmctld reads its state; that of a large cluster takes minutes.
_SLURMCTLD_SECONDS = 600.0
_PATIENCE_SECONDS = 900.0
_POLL_SECONDS = 0.2

Note = Callable[[str], None]


@dataclass(frozen=True)
class Switch:
    """A switch to another munge key.

    Args:
        digest: the name of the key.
        logins: the hosts that have it beside the present one, apart from this one.
    """

    digest: str
    logins: Mapping[str, HostLogin]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {"digest": self.digest, "hosts": {name: [each.user, each.address] for name, each in self.logins.items()}}

    @classmethod
    def load(cls, file: Path) -> Switch | None:
        """What a file has; None if there is none.

        Raises:
            Failed: it can't be read.
        """

        def made(raw: Any) -> Switch:
            return cls(str(raw["digest"]), {name: HostLogin(*map(str, each)) for name, each in raw["hosts"].items()})

        return rotation_parts.read(file, "munge", made)

    def save(self, file: Path) -> None:
        """Write it to the disk, for root alone."""
        write_file(file, json.dumps(self.document()))


# ---- requests


def rotate_munge(config: HostLogins, note: Note) -> dict[str, Any]:
    """Give the cluster another munge key, or complete a rotation that was interrupted.

    Raises:
        Failed: a host in service does not take the key, and nothing was switched; or slurmctld does not start.
        Unconfirmed: hosts have not confirmed that they use it.
    """
    begun, missing = Switch.load(BEGUN), Switch.load(MISSING)
    if begun is None and missing is not None:
        note("asks the hosts again that have not confirmed the last rotation")
        return _completed(missing, config)
    away: tuple[str, ...] = ()
    if begun is None:
        begun, away = _prepared(config, note)
        begun.save(BEGUN)
    else:
        note("goes on with a rotation that was interrupted")
    _run_switch(note)
    if munge_key.digest_of(munge_keys.SECRET) != begun.digest:
        raise Failed("the prepared munge key is gone: nothing was switched", "Run: gpucluster rotate munge")
    return _result(Switch.load(MISSING), len(begun.logins) + 1, away, new=True)


def _prepared(config: HostLogins, note: Note) -> tuple[Switch, tuple[str, ...]]:
    """Have the next key on every host in service, and name those that are off: they ask for it when they boot."""
    if not (munge_keys.SECRET.is_file() and shutil.which("slurmctld")):
        raise Refused("this cluster has no munge key", "A cluster without Slurm has none")
    logins, unknown = hosts.remote(config, hosts.in_service)
    if unknown:
        raise Failed(f"Slurm does not tell which of {', '.join(unknown)} are in service", "Run: gpucluster status")
    name = munge_keys.prepare()
    note(f"brings the next munge key to the hosts in service: {len(logins)}")
    refused = host_commands.on_all(logins, config.key, ["munge-key", "stage", name])
    away = host_commands.away(refused)
    problems = {host: why for host, why in refused.items() if host not in away}
    if problems:
        raise Failed(
            f"nothing was switched: {host_commands.named(problems)}",
            rotation_parts.HINT,
        )
    return Switch(name, {host: each for host, each in logins.items() if host not in away}), away


def _run_switch(note: Note) -> None:
    """Have systemd run the switch, and wait for its end: a lost connection does not end it."""
    note("switches: slurmctld stops for some seconds, jobs run on")
    _systemctl("reset-failed", UNIT, check=False)
    _systemctl("start", "--no-block", UNIT)
    until = time.monotonic() + _PATIENCE_SECONDS
    while BEGUN.exists():
        if time.monotonic() > until:
            raise Failed(
                "the switch to the next munge key does not end", f"Run: gpucluster ssh -- journalctl -u {UNIT}"
            )
        time.sleep(_POLL_SECONDS)


def _completed(missing: Switch, config: HostLogins) -> dict[str, Any]:
    """Ask the hosts again that missed the switch. Those that are gone, or out of service, are not waited for."""
    present, _unknown = hosts.remote(config, hosts.in_service)
    there = Switch(missing.digest, {host: present[host] for host in missing.logins if host in present})
    left = _late(there, config.key)
    away = host_commands.away(dict.fromkeys(left.logins, ""))
    left = Switch(left.digest, {host: each for host, each in left.logins.items() if host not in away})
    _keep(left)
    return _result(left, len(there.logins) - len(away), away, new=False)


def _late(missing: Switch, key: Path | None) -> Switch:
    """Let hosts switch that missed it, while slurmctld runs. Returns those that have not confirmed it."""
    refused = host_commands.on_all(missing.logins, key, ["munge-key", "switch", "--late", missing.digest])
    return Switch(missing.digest, {host: each for host, each in missing.logins.items() if host in refused})


def _keep(missing: Switch) -> None:
    if missing.logins:
        missing.save(MISSING)
    else:
        MISSING.unlink(missing_ok=True)


def _result(missing: Switch | None, number: int, away: Sequence[str], *, new: bool) -> dict[str, Any]:
    unconfirmed = sorted(missing.logins) if missing else []
    result = {"new": new, "hosts": max(number - len(unconfirmed), 0), "away": list(away), "unconfirmed": unconfirmed}
    if unconfirmed:
        raise Unconfirmed(
            f"the munge key is changed, and not every host confirms it: {host_commands.listed(unconfirmed)}",
            "Run the same command again when they answer. A host that boots asks for the key itself",
            result,
        )
    return result


def state() -> dict[str, Any]:
    """What can be rotated here, when it was changed, and what a rotation has left."""
    found = _munge_state() + rest_key.state() + grafana_password.state()
    if FILE.exists():
        found += [host_passwords.state(Config.load(FILE)), host_keys.state(), *ssh_authority.state()]
        found += directory_authority.state() + controller_key.state(Config.load(FILE).hosts)
        found += container_keys.state() + join_key.state()
    return {"secrets": found}


def _munge_state() -> list[dict[str, Any]]:
    if not munge_keys.SECRET.is_file():
        return []
    missing = Switch.load(MISSING)
    phase = "switching" if BEGUN.exists() else "prepared" if munge_keys.NEXT.exists() else "complete"
    row = {
        "name": MUNGE,
        "changed": rotation_parts.moment(munge_keys.SECRET.stat().st_mtime),
        "state": "unconfirmed" if missing and phase == "complete" else phase,
        "unconfirmed": sorted(missing.logins) if missing else [],
    }
    return [row]


# ---- the switch, which systemd runs


def switch(config: HostLogins) -> None:
    """Let every host use the next key, with slurmctld stopped. Run again, it goes on.

    Raises:
        Failed: munge or slurmctld does not start.
    """
    begun = Switch.load(BEGUN)
    if begun is None:
        return
    if begun.digest not in (munge_key.digest_of(munge_keys.SECRET), munge_key.digest_of(munge_keys.NEXT)):
        BEGUN.unlink()
        raise Failed(f"{munge_keys.NEXT} is not the key of this switch", "Run: gpucluster rotate munge")
    _systemctl("stop", "slurmctld.service")
    time.sleep(_GRACE_SECONDS)
    munge_keys.commit(begun.digest)
    shared_keys.save_to_volume(config)
    refused: Mapping[str, str] = dict.fromkeys(begun.logins, "")
    for _ in range(_TRIES):
        again = {host: each for host, each in begun.logins.items() if host in refused}
        refused = host_commands.on_all(
            again, config.key, ["munge-key", "switch", begun.digest], seconds=_SWITCH_SECONDS
        )
    for host, why in sorted(refused.items()):
        sys.stderr.write(f"{host} has not switched: {why}\n")
    munge_key.install(munge_keys.SECRET.read_bytes(), munge_key.KEY)
    _systemctl("restart", "munge.service")
    _systemctl("start", "slurmctld.service", seconds=_SLURMCTLD_SECONDS)
    left = Switch(begun.digest, {host: each for host, each in begun.logins.items() if host in refused})
    _keep(left)
    if left.logins:
        _keep(_late(left, config.key))
    BEGUN.unlink()


# ---- other programs


def _systemctl(*words: str, check: bool = True, seconds: float = _SECONDS) -> None:
    result = programs.call(["systemctl", *words], seconds=seconds)
    if check and result.returncode != 0:
        raise Failed(f"systemctl {' '.join(words)}: {result.stderr.strip()[-300:]}", "Run: journalctl -e")


@contextlib.contextmanager
def _exclusive() -> Iterator[None]:
    with LOCK.open("w") as stream:
        if not file_lock.acquire(stream.fileno()):
            raise Refused("another rotation runs on this controller", "Run the same command again when it has ended")
        yield


# ---- the program


def request(text: str, note: Note) -> dict[str, Any]:
    """Answer one request: {"operation": "state"} or {"operation": "rotate", "arguments": {"what": [...]}}.

    Raises:
        AgentError: it failed, or is refused.
    """
    try:
        raw = bounded.loads(text)
        operation, arguments = raw["operation"], raw["arguments"]
        what = list(arguments.get("what", ()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused("the request can't be read", "Run: gpucluster apply") from None
    if operation == "state":
        return state()
    if operation != "rotate" or not what or not set(what) <= set(SECRETS):
        raise Refused("the request names nothing that can be rotated", f"One of: {', '.join(SECRETS)}")
    with _exclusive():
        return {name: _rotate(name, note) for name in what}


def _rotate(name: str, note: Note) -> dict[str, Any]:
    if name == grafana_password.NAME:
        return grafana_password.rotate(note)
    config = Config.load(FILE)
    try:
        if name == rest_key.NAME:
            return rest_key.rotate(note, lambda: shared_keys.save_to_volume(config.hosts))
        if name == host_passwords.NAME:
            return host_passwords.rotate(config, note)
        return _ON_HOSTS[name](config.hosts, note)
    except Unconfirmed as error:
        raise Unconfirmed(error.message, error.hint, {name: error.partial_result}) from None


_ON_HOSTS: Mapping[str, Callable[[HostLogins, Note], dict[str, Any]]] = {
    MUNGE: rotate_munge,
    host_keys.NAME: host_keys.rotate,
    ssh_authority.NAME: ssh_authority.rotate,
    directory_authority.NAME: directory_authority.rotate,
    controller_key.NAME: controller_key.rotate,
    container_keys.NAME: container_keys.rotate,
    join_key.NAME: join_key.rotate,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent rotate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=("request", "switch"))
    options = parser.parse_args(argv)
    os.umask(0o077)

    # A lost connection does not end a rotation.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def note(text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    try:
        if options.part == "switch":
            switch(Config.load(FILE).hosts)
            return 0
        answer: dict[str, Any] = {"result": request(sys.stdin.read(munge_key.MESSAGE), note)}
        status = 0
    except (AgentError, OSError) as problem:
        error = problem if isinstance(problem, AgentError) else of_system(problem)
        if options.part == "switch":
            note(f"gpucluster-agent rotate: {error.message}")
            return error.status
        answer = {"error": {"message": error.message, "hint": error.hint}}
        if error.partial_result is not None:
            answer["done"] = error.partial_result
        status = error.status
    with contextlib.suppress(OSError):
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return status
