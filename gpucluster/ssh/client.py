"""The ssh configuration of a cluster, and connections that use it."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from gpucluster import process
from gpucluster.errors import ToolError
from gpucluster.events import Sink, ignore
from gpucluster.paths import ClusterPaths, read_saved, write_private
from gpucluster.ssh import quoting
from gpucluster.ssh.boot import Waiting
from gpucluster.ssh.hosts import GATEWAY, Host, JumpHost
from gpucluster.ssh.sockets import Sockets

# What stands before the key of the cluster's ssh CA in known_hosts.
_AUTHORITY = "@cert-authority *"
_NOT_SHARED = ("-o", "ControlMaster=no", "-o", "ControlPath=none")


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
        self._sockets = Sockets(paths.root)

    def write(
        self,
        hosts: Sequence[Host],
        recorded: Mapping[str, str] | None = None,
        *,
        authority: str = "",
        new: Collection[str] = (),
        alternatives: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        """Write the configuration for these hosts. A host whose `jump` is GATEWAY is reached through the gateway.

        Args:
            recorded: host keys by the instance's OCID, as Terraform's state has them. They go before those that this
                machine knows: another one may have given a host a new disk.
            authority: the public key of the cluster's ssh CA, which certifies the keys of hosts for their OCIDs;
                empty leaves the one that this machine knows.
            new: the OCIDs of instances that this run builds: their keys are learned at the first contact. Where there
                is a CA, no other host is trusted at first sight.
            alternatives: keys that an instance may have instead of the one that this machine knows, by its OCID; None
                leaves those of before. Where an instance has none any more, its key is recorded.
        """
        known = self._known()
        keys = {**known, **(recorded or {}), **({_AUTHORITY: authority} if authority else {})}
        lines = [f"{alias} {key}\n" for alias, key in sorted(keys.items())]
        # What `_known` reads is the first key of an instance. One that was not met yet has a key to be learned.
        others = [(alias, key) for alias, each in sorted((alternatives or {}).items()) for key in each if alias in keys]
        lines += [f"{alias} {key}\n" for alias, key in others if keys[alias] != key]
        ended = alternatives is not None and not others and len(self._lines()) > len(known)
        if keys != known or others or ended:
            write_private(self._known_hosts, "".join(lines))
        learned = {host.instance_id for host in hosts if _AUTHORITY not in keys or host.instance_id in new}
        write_private(self.config, self._text(hosts, learned - keys.keys()))

    def host_keys(self) -> dict[str, str]:
        """The host keys that this machine knows, by the instance's OCID: type and key."""
        return {alias: key for alias, key in self._known().items() if alias != _AUTHORITY}

    def _known(self) -> dict[str, str]:
        """The lines of known_hosts: type and key, by what stands before them."""
        lines = self._lines()
        # The CA's line begins with two words, any other with one.
        parts = [(line.split()[: 1 + line.startswith("@")], line.split()[1 + line.startswith("@") :]) for line in lines]
        known: dict[str, str] = {}
        for alias, key in parts:
            if len(key) >= 2:  # noqa: PLR2004 - type, key
                known.setdefault(" ".join(alias), " ".join(key[:2]))
        return known

    def has_alternatives(self, instance: str) -> bool:
        """Whether this machine knows several keys of an instance, of which it has one."""
        return sum(line.split(" ", 1)[0] == instance for line in self._lines()) > 1

    def _lines(self) -> list[str]:
        try:
            return read_saved(self._known_hosts).splitlines()
        except OSError:
            return []

    def write_gateway(self, gateway: JumpHost) -> None:
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

    def _text(self, hosts: Sequence[Host], learned: Collection[str]) -> str:
        blocks = [f"Include {quoting.included(self._gateway)}"] if any(host.jump == GATEWAY for host in hosts) else []
        for host in hosts:
            lines = [f"HostName {host.address}", f"User {host.user}", f"HostKeyAlias {host.instance_id}"]
            if host.instance_id not in learned:
                # With accept-new, a known host could come with a key of another type.
                lines.append("StrictHostKeyChecking yes")
            if host.jump:
                # With ProxyJump, ssh would not read this file for the jump host; with -W it does.
                command = quoting.shell_line(["ssh", "-F", self.config, "-W"], "%h:%p", quoting.shell_word(host.jump))
                lines.append(f"ProxyCommand {command}")
            named = f"{host.name} {host.alias}".rstrip()
            blocks.append("\n".join([f"Host {named}", *(f"  {line}" for line in lines)]))
        defaults = [
            "BatchMode yes",
            "StrictHostKeyChecking accept-new",
            f"UserKnownHostsFile {quoting.quoted_path(self._known_hosts)}",
            "GlobalKnownHostsFile /dev/null",
            "ForwardAgent no",
            "ConnectTimeout 10",
            "ServerAliveInterval 15",
            "LogLevel ERROR",
        ]
        if self._key is not None:
            defaults += [f"IdentityFile {quoting.quoted_path(self._key)}", "IdentitiesOnly yes"]
        blocks += [self._sharing(), "\n".join(["Host *", *(f"  {line}" for line in defaults)])]
        return "\n\n".join(blocks) + "\n"

    def _sharing(self) -> str:
        """Connections are shared where the sockets are safe. ssh asks again for each connection, also for those that
        Ansible, a jump host's command or a user with this file opens: the folder may be gone, and not be ours any
        more."""
        folder = self._sockets.folder()
        if folder is None:
            return "# No folder for sockets is safe from other users: each connection is one of its own."
        place = quoting.shell_word(folder)
        return "\n".join((
            f"Match exec {quoting.exec_argument(f'test -O {place} && test ! -L {place}')}",
            "  ControlMaster auto",
            "  ControlPersist 60s",
            f"  ControlPath {quoting.control_path(folder)}",
        ))  # fmt: skip

    def argv(self, host: str, command: Sequence[str] = (), *, direct: bool = False) -> list[str]:
        """The ssh command line for a host of the configuration.

        Args:
            command: its words are joined with spaces by ssh, and the result is read by the remote shell.
            direct: connect without another host in between, which may not answer any more.
        """
        options = ["-o", "ProxyCommand=none"] if direct else []
        if self._sockets.folder() is None:
            options += _NOT_SHARED
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
            failures = Waiting(self.argv, group, until, on_event).failures()
            if failures:
                raise ToolError(
                    "not every host is ready: " + "; ".join(failures),
                    hint="Read the console history of these instances, then run: gpucluster apply",
                )

    def silent(self, hosts: Sequence[Host], deadline: float, on_event: Sink = ignore) -> dict[str, str]:
        """Wait as `wait` does, and return why a host is not ready, by its name; empty if all are.

        Args:
            hosts: which are reached through one that answers.
            deadline: seconds from now, for all hosts together.
        """
        texts = Waiting(self.argv, hosts, time.monotonic() + deadline, on_event).failures()
        named = {host.name: [text for text in texts if text.startswith(f"{host.name}: ")] for host in hosts}
        return {name: of_host[0].removeprefix(f"{name}: ") for name, of_host in named.items() if of_host}

    def forget(self, instances: Collection[str]) -> None:
        """Forget the host keys of these instances, and close the shared connections: a host that boots again has ended
        them, and ssh notices that only after 45 seconds.

        Args:
            instances: their OCIDs.
        """
        if instances and self._known_hosts.exists():
            kept = [
                line for line in read_saved(self._known_hosts).splitlines() if line.split(" ", 1)[0] not in instances
            ]
            write_private(self._known_hosts, "".join(f"{line}\n" for line in kept))
        self._close_connections()

    def learn(self, instance: str, key: str) -> None:
        """Expect this host key of an instance from now on, and close the shared connections.

        Args:
            key: type and key, from a connection that was verified.
        """
        keys = {**self._known(), instance: key}
        write_private(self._known_hosts, "".join(f"{alias} {known}\n" for alias, known in sorted(keys.items())))
        self._close_connections()

    def learn_authority(self, key: str) -> None:
        """Believe the certificates of another CA from now on, and not those of the one before.

        Args:
            key: its public key, as `type key`.
        """
        known = {**self._known(), _AUTHORITY: key}
        write_private(self._known_hosts, "".join(f"{alias} {each}\n" for alias, each in sorted(known.items())))

    def learn_others(self, keys: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Expect other host keys of instances from now on, where this machine knows one of the same type.

        Args:
            keys: the public keys of an instance, as `type key`, by its OCID.

        Returns:
            The key that is expected of each.
        """
        known = self._known()
        others = {
            instance: key
            for instance, each in keys.items()
            for key in each
            if known.get(instance, "").split()[:1] == key.split()[:1]
        }
        if others:
            lines = [f"{alias} {key}\n" for alias, key in sorted({**known, **others}.items())]
            write_private(self._known_hosts, "".join(lines))
        return others

    def forget_all(self) -> None:
        """Forget all host keys, and the CA that has certified some."""
        self._known_hosts.unlink(missing_ok=True)
        self._close_connections()

    def close(self) -> None:
        """Close the shared connections and remove their sockets."""
        self._close_connections()
        self._sockets.remove()

    def _close_connections(self) -> None:
        for socket in self._sockets.present():
            # ssh requires the name of a host, and does not use it here.
            process.run(
                ["ssh", "-o", f"ControlPath={quoting.quoted_path(socket)}", "-O", "exit", "unused"],
                check=False,
                timeout=10,
            )
            socket.unlink(missing_ok=True)
