"""The standby as the operator's machine handles it: made ready, and kept like the host in service.

Both hosts are told over ssh; what differs goes from one to the other directly. `node_agent.standby` does the work.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpucluster import process
from gpucluster.artifacts import agent_archive
from gpucluster.errors import ToolError
from gpucluster.node_agent import bounded
from gpucluster.node_agent.interpreter import PYTHON, PYTHON_IN_SHELL
from gpucluster.node_agent.standby.mirror import AGENT
from gpucluster.ssh import Host, SshClient

_RUN_AGENT = f'file=$(mktemp) && trap "rm -f $file" EXIT && cat >"$file" && sudo -n {PYTHON_IN_SHELL} -I "$file"'
_INSTALLED = "/usr/local/bin/gpucluster-agent"
_SHORT, _LONG = 120.0, 3600.0


@dataclass(frozen=True)
class MirrorResult:
    """How the standby differed from the host in service.

    Args:
        differing: the number of paths; `paths` are some of them.
    """

    differing: int
    paths: tuple[str, ...]


class StandbyMirror:
    """The two hosts of one cluster that can be the controller.

    Args:
        ssh_client: makes the client that reaches both.
    """

    def __init__(self, ssh_client: Callable[[], SshClient]) -> None:
        self._ssh_client = ssh_client

    def update(
        self,
        controller: Host,
        standby: Host,
        address: str,
        *,
        operator_keys: Sequence[str] = (),
        automatic: bool = False,
    ) -> MirrorResult:
        """Make the standby like the controller. May be killed and run again.

        Args:
            address: the standby's private one.
            operator_keys: the public keys that log in there as on every host. Without them its keys stay.
            automatic: it goes on by itself.

        Raises:
            ToolError: a host can't be reached, or the standby is in service.
        """
        self._let_in(controller, standby)
        words = ["standby", "prepare", "--name", standby.name, "--user", standby.user]
        words += [word for key in operator_keys for word in ("--operator-key", key)]
        self._root(standby, words, f"{standby.name} can't be made ready", seconds=_SHORT)
        return self._send(controller, standby, address, ["--automatic"] if automatic else [])

    def compare(self, controller: Host, standby: Host, address: str) -> MirrorResult:
        """How the standby differs; changes nothing.

        Raises:
            ToolError: a host can't be reached, or no apply has made the standby ready.
        """
        return self._send(controller, standby, address, ["--only-compare"])

    def end(self, controller: Host) -> None:
        """Let the controller know that it has no standby any more. May be repeated.

        Raises:
            ToolError: it can't be reached.
        """
        self._root(controller, ["standby", "end"], f"{controller.name} still keeps a standby", seconds=_SHORT)

    def watch(self, standby: Host, settings: str) -> None:
        """Let the standby go on by itself when the controller is lost. May be repeated.

        Args:
            settings: what `gpucluster.failover.settings` reads; no secret.

        Raises:
            ToolError: it can't be reached.
        """
        what = f"{standby.name} can't watch the controller"
        self._root(standby, ["standby", "watch", "--settings", settings], what, seconds=_SHORT)

    def unwatch(self, standby: Host) -> None:
        """Let the standby wait for an operator. As `watch`."""
        self._root(standby, ["standby", "unwatch"], f"{standby.name} still watches the controller", seconds=_SHORT)

    def key_of(self, host: Host) -> str:
        """The public key of a host for connections that run one program, as `type key`. As `watch`."""
        what = f"{host.name} has no key for other hosts"
        return str(_object(self._root(host, ["standby", "key"], what, seconds=_SHORT)).get("key", ""))

    def let_ask(self, host: Host, key: str, addresses: Sequence[str]) -> None:
        """Let the standby ask a host whether it reaches the controller, and nothing else. As `watch`.

        Args:
            key: the standby's. addresses: of the controller.
        """
        program = f"{_INSTALLED} standby witness {' '.join(addresses)}"
        self._authorize(host, program, key, f"{host.name} can't let the standby ask")

    def _send(self, controller: Host, standby: Host, address: str, more: Sequence[str]) -> MirrorResult:
        key = self._ssh_client().host_keys().get(standby.instance_id, "")
        if not key:
            raise ToolError(f"the ssh host key of {standby.name} is not known", hint="Run: gpucluster apply")
        words = ["standby", "send", "--to", f"{standby.user}@{address}", "--host-key", key]
        what = f"{standby.name} can't be compared with {controller.name}"
        text = self._root(controller, [*words, *more], what, seconds=_LONG)
        answer = _object(text)
        try:
            return MirrorResult(int(answer["differing"]), tuple(map(str, answer["paths"])))
        except (KeyError, TypeError, ValueError):
            raise ToolError(f"{what}: the answer can't be read: {text[:200]!r}", hint="Run: gpucluster apply") from None

    def _let_in(self, controller: Host, standby: Host) -> None:
        """Let the controller run one program on the standby, and nothing else, with a key for that alone."""
        public = self.key_of(controller)
        # In this file a quotation mark ends the command. What the controller asks for is one word of a fixed list.
        program = f"sudo -n $(command -v {PYTHON} || echo python3) -I {AGENT} standby receive $SSH_ORIGINAL_COMMAND"
        self._authorize(standby, program, public, f"{standby.name} can't let the controller in")

    def _authorize(self, host: Host, program: str, key: str, what: str) -> None:
        """Let a key run one program on a host, and nothing else."""
        line, file = f'restrict,command="{program}" {key}', ".ssh/authorized_keys"
        quoted = shlex.quote(line)
        script = f"umask 077; mkdir -p .ssh; touch {file}; grep -qxF -- {quoted} {file} || echo {quoted} >>{file}"
        self._shell(host, script, what)

    def _shell(self, host: Host, script: str, what: str) -> str:
        argv = self._ssh_client().argv(host.name, [script])
        result = process.run(argv, check=False, timeout=_SHORT)
        if result.returncode != 0:
            raise ToolError(f"{what}: {result.stderr.strip()}", hint="Run: gpucluster apply")
        return result.stdout

    def _root(self, host: Host, words: Sequence[str], what: str, *, seconds: float) -> str:
        argv = self._ssh_client().argv(host.name, [f"{_RUN_AGENT} {shlex.join(words)}"])
        result = process.run(argv, input=agent_archive.of_node(), check=False, timeout=seconds)
        if result.returncode != 0:
            reason, _, hint = result.stderr.strip().partition("\n")
            raise ToolError(f"{what}: {reason or 'no reason was given'}", hint=hint)
        return result.stdout


def _object(text: str) -> dict[str, Any]:
    """The answer of the agent; empty if it is none."""
    try:
        answer = bounded.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
