"""The ssh connection to a cluster's hosts: keys, one configuration file, and waiting until the hosts are ready.

Nodes are reached through the controller, on both clouds. A controller without a public address is reached through a
gateway (see `cloud.bastion`). Host keys are stored by the instance's OCID: a new instance at an old address is a new
host, not a changed key. A host whose key is known answers with that key, or nothing is sent to it. The first contact of
the run that builds a host is trusted; every later run, on any machine, has the key from Terraform's state.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpucluster import process
from gpucluster.errors import ToolError
from gpucluster.events import Event, EventKind, Sink, ignore
from gpucluster.paths import ClusterPaths, write_private
from gpucluster.waiting import wait_until

_POLL = 0.5
_WORKERS = 16
_QUIET = 10.0  # seconds before the first event about hosts that do not answer
_ANNOUNCED = 15.0  # seconds between two such events
_NAMED = 3  # the number of hosts that one event names
# What ssh says when the connection through a jump host has ended, whatever the reason.
_CLOSED = ("kex_exchange_identification:", "Connection closed by", "Connection to UNKNOWN", "stdio forwarding failed")
# cloud-init writes this file when its last stage has ended. `cloud-init status --wait` reports the same, but takes
# a second of processor time on each host, which matters with sixteen hosts on one machine. Our own user data writes its
# errors for people into the second file (see `handover.user_data`).
_CLOUD_INIT = (
    "until [ -s /run/cloud-init/result.json ]; do sleep 0.2; done; cat /run/cloud-init/result.json; "
    "cat /run/gpucluster/boot-errors 2>/dev/null || :"
)
# The number of characters, from the end, that are shown of the errors of a failed boot.
_SHOWN = 600

# What ssh says last, whether the key is another one, or one of another type.
_KEY_REFUSED = "Host key verification failed"

#: The name under which ssh knows the gateway.
GATEWAY = "oci-bastion"


@dataclass(frozen=True)
class Host:
    """One host.

    Args:
        name: also its name in Slurm.
        address: where ssh connects to.
        user: the login user.
        instance_id: its OCID, under which its host key is stored.
        jump: the name of the host through which it is reached; empty if directly.
        alias: another name under which ssh knows it; empty for none.
    """

    name: str
    address: str
    user: str
    instance_id: str
    jump: str = ""
    alias: str = ""

    @property
    def is_entry_point(self) -> bool:
        """Whether it is reached without another host of the cluster in between."""
        return self.jump in ("", GATEWAY)


@dataclass(frozen=True)
class Gateway:
    """A host in front of the controller: a session of OCI's Bastion service.

    Args:
        user: the session's OCID.
        key_alias: the name under which its host key is stored: the bastion's OCID.
    """

    host: str
    port: int
    user: str
    key_alias: str


def ensure_key(file: Path, comment: str) -> Path:
    """Create an ed25519 key pair without passphrase if there is none yet. Returns the private key's path."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        process.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(file)])
    return file


def adopt_key(old: Path, new: Path) -> None:
    """Copy a key pair to another folder. Does nothing without one, or if there is another one in the new place.

    The old one stays: until the next run that reaches the hosts, the ssh configuration names it.
    """
    if new.exists() or not old.exists():
        return
    public = public_key(old)
    # The private key last: without it, the next run begins again.
    write_private(new.with_name(new.name + ".pub"), public + "\n")
    write_private(new, old.read_text())


def public_key(private_key: Path) -> str:
    """The public half of a key pair made by `ensure_key`, as one line."""
    return private_key.with_name(private_key.name + ".pub").read_text().strip()


def host_key_refused(stderr: str) -> bool:
    """Whether ssh has ended because a host's key is not the one that is known."""
    return _KEY_REFUSED in stderr


def host_key_error(host: str) -> ToolError:
    """The error for a host that answers with another key than the known one."""
    return ToolError(
        f"{host} answers with another ssh host key than the one that is known of it: nothing was sent there",
        hint="Somebody may be in between. The console history of the instance shows the key that it made at its first "
        "boot. If its keys were made again on purpose, run: gpucluster apply --accept-host-keys",
    )


def own_key(public_keys: Sequence[str]) -> str:
    """The one of these public keys with which this machine can log in: the first that ssh's agent has, if there are
    several and it has one; else the first."""
    if len(public_keys) > 1:
        try:
            listed = process.run(["ssh-add", "-L"], check=False, timeout=10).stdout
        except ToolError:
            listed = ""
        held = {tuple(line.split()[:2]) for line in listed.splitlines()}
        return next((key for key in public_keys if tuple(key.split()[:2]) in held), public_keys[0])
    return public_keys[0]


class SshClient:
    """The ssh configuration of one cluster, as a file, and connections that use it.

    Args:
        private_key: None leaves the choice to ssh and its agent.
    """

    def __init__(self, paths: ClusterPaths, private_key: Path | None) -> None:
        self.config = paths.ssh / "config"
        self._gateway = paths.ssh / "gateway"
        self._known_hosts = paths.ssh / "known_hosts"
        self._key = private_key
        # The path of a control socket may have about 100 characters; that of the state folder may be longer.
        digest = hashlib.sha256(str(paths.root).encode()).hexdigest()[:12]
        self._sockets = Path(tempfile.gettempdir()) / f"gpucluster-ssh-{os.geteuid()}-{digest}"

    def write(self, hosts: Sequence[Host], recorded: Mapping[str, str] | None = None) -> None:
        """Write the configuration for these hosts. A host whose `jump` is GATEWAY is reached through the gateway.

        Args:
            recorded: host keys by the instance's OCID, as Terraform's state has them. They go before those that this
                machine knows: another one may have given a host a new disk.
        """
        self._sockets.mkdir(mode=0o700, exist_ok=True)
        known = self.host_keys()
        present = {**known, **(recorded or {})}
        if present != known:
            write_private(self._known_hosts, "".join(f"{alias} {key}\n" for alias, key in sorted(present.items())))
        write_private(self.config, self._text(hosts, present))

    def host_keys(self) -> dict[str, str]:
        """The host keys that this machine knows, by the instance's OCID: type and key."""
        try:
            lines = [line.split() for line in self._known_hosts.read_text().splitlines()]
        except OSError:
            return {}
        return {words[0]: f"{words[1]} {words[2]}" for words in lines if len(words) >= 3}  # noqa: PLR2004 - a key's line

    def write_gateway(self, gateway: Gateway) -> None:
        """Write the gateway into a file of its own, because it changes more often than the hosts."""
        lines = [
            f"HostName {gateway.host}",
            f"Port {gateway.port}",
            f"User {gateway.user}",
            f"HostKeyAlias {gateway.key_alias}",
            # A connection through a session that was replaced must not be shared.
            "ControlMaster no",
            "ControlPath none",
        ]
        write_private(self._gateway, "\n".join([f"Host {GATEWAY}", *(f"  {line}" for line in lines)]) + "\n")

    def _text(self, hosts: Sequence[Host], known: Collection[str]) -> str:
        blocks = [f"Include {_quoted(self._gateway)}"] if any(host.jump == GATEWAY for host in hosts) else []
        for host in hosts:
            lines = [f"HostName {host.address}", f"User {host.user}", f"HostKeyAlias {host.instance_id}"]
            if host.instance_id in known:
                # With accept-new, a known host could come with a key of another type.
                lines.append("StrictHostKeyChecking yes")
            if host.jump:
                # With ProxyJump, ssh would not read this file for the jump host; with -W it does.
                lines.append(f"ProxyCommand ssh -F {_quoted(self.config)} -W %h:%p {host.jump}")
            named = f"{host.name} {host.alias}".rstrip()
            blocks.append("\n".join([f"Host {named}", *(f"  {line}" for line in lines)]))
        defaults = [
            "BatchMode yes",
            "StrictHostKeyChecking accept-new",
            f"UserKnownHostsFile {_quoted(self._known_hosts)}",
            "GlobalKnownHostsFile /dev/null",
            "ForwardAgent no",
            "ConnectTimeout 10",
            "ServerAliveInterval 15",
            "ControlMaster auto",
            "ControlPersist 60s",
            f"ControlPath {_quoted(self._sockets / '%C')}",
            "LogLevel ERROR",
        ]
        if self._key is not None:
            defaults += [f"IdentityFile {_quoted(self._key)}", "IdentitiesOnly yes"]
        blocks.append("\n".join(["Host *", *(f"  {line}" for line in defaults)]))
        return "\n\n".join(blocks) + "\n"

    def argv(self, host: str, command: Sequence[str] = (), *, direct: bool = False) -> list[str]:
        """The ssh command line for a host of the configuration.

        Args:
            command: its words are joined with spaces by ssh, and the result is read by the remote shell.
            direct: connect without another host in between, which may not answer any more.
        """
        options = ["-o", "ProxyCommand=none"] if direct else []
        return ["ssh", "-F", str(self.config), *options, host, *(["--", *command] if command else [])]

    def wait(self, hosts: Sequence[Host], deadline: float, on_event: Sink = ignore) -> None:
        """Wait until every host answers and its cloud-init has finished. Says after some seconds who does not.

        Args:
            deadline: seconds from now, for all hosts together.

        Raises:
            EnvironmentFault: there is no ssh.
            ToolError: some hosts did not answer in time, or their cloud-init failed; all of them are named. Or one has
                another host key than the known one.
        """
        until = time.monotonic() + deadline
        # The controller first: a connection through one that does not answer yet can only fail.
        for group in ([h for h in hosts if h.is_entry_point], [h for h in hosts if not h.is_entry_point]):
            failures = _Waiting(self, group, until, on_event).failures()
            if failures:
                raise ToolError(
                    "not every host is ready: " + "; ".join(failures),
                    hint="Read the console history of these instances, then run: gpucluster apply",
                )

    def forget(self, instances: Collection[str]) -> None:
        """Forget the host keys of these instances, and close the shared connections: a host that boots again has ended
        them, and ssh notices that only after 45 seconds.

        Args:
            instances: their OCIDs.
        """
        if instances and self._known_hosts.exists():
            kept = [
                line for line in self._known_hosts.read_text().splitlines() if line.split(" ", 1)[0] not in instances
            ]
            write_private(self._known_hosts, "".join(f"{line}\n" for line in kept))
        self._close_connections()

    def close(self) -> None:
        """Close the shared connections and remove their sockets."""
        self._close_connections()
        if self._sockets.is_dir():
            self._sockets.rmdir()

    def _close_connections(self) -> None:
        for socket in self._sockets.glob("*"):
            # ssh requires the name of a host, and does not use it here.
            process.run(["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "unused"], check=False, timeout=10)
            socket.unlink(missing_ok=True)


class _Waiting:
    """Waits for hosts at the same time.

    Args:
        until: by the monotonic clock.
    """

    def __init__(self, client: SshClient, hosts: Sequence[Host], until: float, on_event: Sink) -> None:
        self._client = client
        self._hosts = hosts
        self._until = until
        self._on_event = on_event
        self._stop = threading.Event()
        # By name of a host that has not answered yet: the last reason.
        self._reasons: dict[str, str] = {}

    def failures(self) -> list[str]:
        """Wait, and return why hosts are not ready."""
        began = time.monotonic()
        with ThreadPoolExecutor(max_workers=_WORKERS) as pool:
            waiting = {pool.submit(self._wait_for, host) for host in self._hosts}
            try:
                pause = _QUIET
                while futures.wait(waiting, timeout=pause).not_done:
                    self._announce(time.monotonic() - began)
                    pause = _ANNOUNCED
                return sorted(text for one in waiting if (text := one.result()))
            finally:
                self._stop.set()  # after Ctrl-C, no thread waits for its host any more

    def _announce(self, elapsed: float) -> None:
        named = [f"{name}: {reason}" for name, reason in sorted(self._reasons.items())]
        if named:
            more = f", and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
            text = f"waiting for {'; '.join(named[:_NAMED])}{more} ({elapsed:.0f} s)"
            self._on_event(Event(EventKind.LOG, "ssh", "waiting", text, elapsed=elapsed))

    def _wait_for(self, host: Host) -> str:
        """Wait for one host. Returns why it is not ready; empty if it is."""
        self._reasons[host.name] = "no answer yet"

        def booted() -> process.Completed | None:
            left = max(self._until - time.monotonic(), 1)
            try:
                argv = self._client.argv(host.name, [_CLOUD_INIT])
                done = process.run(argv, check=False, timeout=left, stop=self._stop)
            except ToolError as error:
                if not self._stop.is_set():
                    self._reasons[host.name] = error.what
                return None
            if done.returncode != 0:
                if host_key_refused(done.stderr):
                    raise host_key_error(host.name)  # to wait does not help
                self._reasons[host.name] = _reason(done.stderr, host)
            return done if done.returncode == 0 else None

        def booted_or_stopped() -> process.Completed | bool | None:
            return self._stop.is_set() or booted()

        done = wait_until(booted_or_stopped, self._until - time.monotonic(), _POLL, sleep=self._stop.wait)
        if not isinstance(done, process.Completed):
            return f"{host.name}: {self._reasons[host.name]}"
        del self._reasons[host.name]
        errors = _cloud_init_errors(done.stdout)
        return f"{host.name}: cloud-init failed: {'; '.join(errors)[-_SHOWN:]}" if errors else ""


def _reason(stderr: str, host: Host) -> str:
    """Why ssh has no connection, in one line. What ssh says last is often only that its way through a jump host has
    ended."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(_CLOSED)]
    if telling:
        return telling[-1]
    if lines and host.jump:
        return f"{host.jump} has no connection to it at {host.address}"
    return lines[-1] if lines else "no answer"


def _cloud_init_errors(result: str) -> list[str]:
    """The errors in cloud-init's result.json, as `{"v1": {"errors": [...]}}`, and in the text that follows it: that of
    our user data."""
    try:
        parsed, end = json.JSONDecoder().raw_decode(result.lstrip())
        errors = [str(error) for error in parsed["v1"]["errors"]]
    except (ValueError, KeyError, TypeError):
        return [f"its result can't be read: {result[:100]}"]
    ours = result.lstrip()[end:].strip()
    return [*errors, ours] if errors and ours else errors


def _quoted(path: Path) -> str:
    return f'"{path}"'
