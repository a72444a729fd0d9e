"""The ssh route to a cluster's hosts: keys, one configuration file, waiting until they answer.

Nodes are reached through the controller, on both clouds; where that has no public address, a gateway stands in front of
it (see `bastion`). Host keys are remembered by the instance's OCID, so that a new instance at an old address is a new
host and not an alarm.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpucluster import process
from gpucluster.errors import GpuClusterError, ToolError
from gpucluster.paths import ClusterPaths, write_private

_POLL = 0.5
# cloud-init writes this file when its last stage has ended. `cloud-init status --wait` tells the same and costs a
# second of processor time on each host, which sixteen hosts of one machine feel. Our own user data writes its words for
# people beside it (see `cloudinit`).
_CLOUD_INIT = (
    "until [ -s /run/cloud-init/result.json ]; do sleep 0.2; done; cat /run/cloud-init/result.json; "
    "cat /run/gpucluster/boot-errors 2>/dev/null || :"
)
# Of what cloud-init says of a failed boot, so many characters from the end.
_LAST_WORDS = 600

#: The name under which ssh knows the gateway.
GATEWAY = "oci-bastion"


@dataclass(frozen=True)
class Host:
    """One host: its name (also in Slurm), the address that ssh dials, its login user, what its host key goes by."""

    name: str
    address: str
    user: str
    instance_id: str
    jump: str = ""

    @property
    def is_entrance(self) -> bool:
        """Whether it is reached without another host of the cluster."""
        return self.jump in ("", GATEWAY)


@dataclass(frozen=True)
class Gateway:
    """A host in front of the controller: a session of OCI's Bastion service.

    Args:
        user: the session's OCID.
        key_alias: what its host key goes by: the bastion's OCID.
    """

    host: str
    port: int
    user: str
    key_alias: str


def ensure_key(file: Path, comment: str) -> Path:
    """Make an ed25519 key pair without passphrase if there is none yet; returns the private key's path."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        process.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(file)])
    return file


def public_key(private_key: Path) -> str:
    """The public half of a key pair made by `ensure_key`, as one line."""
    return private_key.with_name(private_key.name + ".pub").read_text().strip()


class Route:
    """The written ssh configuration of a cluster."""

    def __init__(self, paths: ClusterPaths, private_key: Path | None) -> None:
        self.config = paths.ssh / "config"
        self._gateway = paths.ssh / "gateway"
        self._known_hosts = paths.ssh / "known_hosts"
        self._key = private_key
        # A control socket's path may have some 100 characters; the state folder's own path may be longer.
        mark = hashlib.sha256(str(paths.root).encode()).hexdigest()[:12]
        self._sockets = Path(tempfile.gettempdir()) / f"gpucluster-ssh-{os.geteuid()}-{mark}"

    def write(self, hosts: Sequence[Host]) -> None:
        """Write the configuration for these hosts. A host whose `jump` is GATEWAY is reached through the gateway."""
        self._sockets.mkdir(mode=0o700, exist_ok=True)
        write_private(self.config, self._text(hosts))

    def write_gateway(self, gateway: Gateway) -> None:
        """Write the gateway: a file of its own, for it changes more often than the hosts do."""
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

    def _text(self, hosts: Sequence[Host]) -> str:
        blocks = [f"Include {_quoted(self._gateway)}"] if any(host.jump == GATEWAY for host in hosts) else []
        for host in hosts:
            lines = [f"HostName {host.address}", f"User {host.user}", f"HostKeyAlias {host.instance_id}"]
            if host.jump:
                # ProxyJump would not read this file again; -W through a named host of it does.
                lines.append(f"ProxyCommand ssh -F {_quoted(self.config)} -W %h:%p {host.jump}")
            blocks.append("\n".join([f"Host {host.name}", *(f"  {line}" for line in lines)]))
        common = [
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
            common += [f"IdentityFile {_quoted(self._key)}", "IdentitiesOnly yes"]
        blocks.append("\n".join(["Host *", *(f"  {line}" for line in common)]))
        return "\n\n".join(blocks) + "\n"

    def argv(self, host: str, command: Sequence[str] = ()) -> list[str]:
        """The ssh command line for a host of the configuration. As ssh does it, the words of `command` are joined by
        spaces and read by the remote shell."""
        return ["ssh", "-F", str(self.config), host, *(["--", *command] if command else [])]

    def wait(self, hosts: Sequence[Host], deadline: float) -> None:
        """Wait until every host answers and its cloud-init has ended.

        Args:
            deadline: seconds from now, for all hosts together.

        Raises:
            ToolError: some hosts did not answer in time, or their cloud-init failed; all of them are named.
        """
        until = time.monotonic() + deadline
        # First the controller: asking through one that does not answer yet only makes noise.
        for group in ([h for h in hosts if h.is_entrance], [h for h in hosts if not h.is_entrance]):
            with ThreadPoolExecutor(max_workers=16) as pool:
                troubles = [text for text in pool.map(lambda h: self._wait_for(h, until), group) if text]
            if troubles:
                raise ToolError(
                    "not every host is ready: " + "; ".join(troubles),
                    hint="Look at the instance's console, then run apply again",
                )

    def _wait_for(self, host: Host, until: float) -> str:
        said = "no answer"
        while True:
            left = until - time.monotonic()
            if left <= 0:
                return f"{host.name}: {said}"
            try:
                done = process.run(self.argv(host.name, [_CLOUD_INIT]), check=False, timeout=max(left, 1))
            except GpuClusterError as error:
                said = error.what
                continue
            if done.returncode == 0:
                errors = _cloud_init_errors(done.stdout)
                return f"{host.name}: cloud-init failed: {'; '.join(errors)[-_LAST_WORDS:]}" if errors else ""
            said = (done.stderr.strip().splitlines() or ["no answer"])[-1]
            time.sleep(_POLL)

    def close(self) -> None:
        """End the shared connections and forget the hosts."""
        for socket in self._sockets.glob("*"):
            process.run(["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "gone"], check=False, timeout=10)
            socket.unlink(missing_ok=True)
        if self._sockets.is_dir():
            self._sockets.rmdir()


def _cloud_init_errors(result: str) -> list[str]:
    """The errors in cloud-init's result.json, as `{"v1": {"errors": [...]}}`, and behind it what our user data said."""
    try:
        told, end = json.JSONDecoder().raw_decode(result.lstrip())
        errors = [str(error) for error in told["v1"]["errors"]]
    except (ValueError, KeyError, TypeError):
        return [f"its result can't be read: {result[:100]}"]
    words = result.lstrip()[end:].strip()
    return [*errors, words] if errors and words else errors


def _quoted(path: Path) -> str:
    return f'"{path}"'
