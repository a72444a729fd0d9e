"""The connection to the controller: how ssh reaches it, and what Slurm and the autoscaler there report.

Nothing here needs a run or the lock. The state and the cloud are only needed where this machine does not know the hosts
yet, and for a controller behind a bastion. The controller may not exist any more.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Protocol

from gpucluster import process
from gpucluster.cloud.bastion import Bastion
from gpucluster.errors import GpuClusterError, InputError, ProcessError, ToolError
from gpucluster.events import Sink, warn
from gpucluster.handover.names import LOGIN, is_elastic_name, is_login_name
from gpucluster.node_agent import bounded
from gpucluster.operations.copying import Copying
from gpucluster.paths import ClusterPaths
from gpucluster.spec import ClusterSpec
from gpucluster.ssh import CONNECT_SECONDS, SSH_FAILED, SshClient, host_key_error, host_key_refused, unreachable
from gpucluster.workspace.saved_state import SavedHost

AUTOSCALER = "gpucluster-autoscaler"
#: How the hosts were configured last: see `configuration_record`.
CONFIGURATION_RECORD = "/var/lib/gpucluster/configuration.json"
AUTOSCALER_UNITS = ("gpucluster-autoscaler.service", "gpucluster-join.service")
# Commands of the autoscaler's program that change nothing.
_AUTOSCALER_READS = frozenset({"status", "plan", "explain"})
# Seconds that one command on the controller may take; the controller may not exist any more.
_TIMEOUT = 60.0
_HEALTH = "sudo -n gpucluster-agent health status --output json"
# Seconds until another login node is tried, and for its connection: a shared one to a host that is gone is silent.
_ANSWER_TIMEOUT = 10.0
_LOGIN_CONNECT_TIMEOUT = 3
_SLURM_FIELDS = ("node", "state", "partition")
# Exit statuses: of a shell without the program, of `timeout`.
_NOT_FOUND = 127
_TIMED_OUT = 124


class Locator(Protocol):
    """Finds the hosts, the controller first, and writes how ssh reaches them; empty without a cluster."""

    def __call__(self, *, refresh: bool = False) -> Sequence[SavedHost]:
        """With `refresh` it does not trust what this machine has saved."""


class ControllerConnection:
    """The connection to the controller of one cluster, and through it to the other hosts.

    Args:
        locate: finds the hosts.
        bastion: opens the sessions of the Bastion service; only called for a cluster without a public address.
        require_own: raises OtherClusterError if the controller may be that of another folder's cluster.
    """

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        paths: ClusterPaths,
        locate: Locator,
        bastion: Callable[[], Bastion],
        on_event: Sink,
        require_own: Callable[[], None] = lambda: None,
    ) -> None:
        self._require_own = require_own
        self._spec = spec
        self._paths = paths
        self._locate = locate
        self._bastion = bastion
        self._on_event = on_event

    def require_own(self) -> None:
        """Before an operation that changes something: the cluster must be known to be the one of this folder.

        Raises:
            OtherClusterError: it is not; nothing was changed.
        """
        self._require_own()

    def hosts(self) -> tuple[SavedHost, ...]:
        """The hosts, the controller first; empty if there is no cluster.

        Raises:
            GpuClusterError: they can't be found.
        """
        return tuple(self._locate())

    def login_addresses(self) -> tuple[str, ...]:
        """Where users log in: the addresses of the login nodes, or of the controller where there is none.

        Raises:
            GpuClusterError: the hosts can't be found.
        """
        hosts = self.hosts()
        login = [host for host in hosts if is_login_name(self._spec.name, host.name)]
        return tuple(host.address for host in login or hosts[:1])

    def relocate(self) -> bool:
        """Find the hosts again, after ssh reached no host: another machine may have built the cluster again. True if it
        did. An error of the search is not the caller's, which knows that no host was reached.
        """
        before = (set(self.hosts()), self._host_keys())
        try:
            hosts = set(self._locate(refresh=True))
        except GpuClusterError:
            return False
        return bool(hosts) and (hosts, self._host_keys()) != before

    def _host_keys(self) -> dict[str, str]:
        return SshClient(self._paths, None).host_keys()

    def has_new_key(self, host: str | None = None) -> bool:
        """Whether ssh was refused because of a host key that is right: another machine's run has given the host a new
        disk, and Terraform's state has its key. This machine knows it now.

        Raises:
            ToolError: the host answers with another key than the state has.
        """
        argv = self.ssh_argv(host, ["true"])
        if not host_key_refused(process.run(argv, check=False, timeout=_TIMEOUT).stderr):
            return False
        if not self.relocate():
            raise host_key_error(argv[-3])
        return True

    def ssh_argv(self, host: str | None = None, command: Sequence[str] = ()) -> list[str]:
        """The command line that logs in to a host, or runs a command there.

        Args:
            host: its name; None or "controller" is the controller, whatever its name is, and "login" is a login node
                that answers. An elastic node is reached from the controller, which alone knows where it is now.

        Raises:
            InputError: no such host.
            ToolError: nothing was applied yet.
        """
        names = self._names()
        if host and host not in names and is_elastic_name(self._spec, host):
            return self._through_controller(names[0], host, command)
        target = self._named(host, names, f"For a command on the controller: gpucluster ssh -- {host}")
        self._renew_bastion()
        # The ssh configuration exists and names the key: the key itself is not needed here.
        return SshClient(self._paths, None).argv(target, command)

    def copy_argv(self, asked: Copying) -> list[str]:
        """The command line that copies files to a host or from it.

        Raises:
            InputError: no such host, or an elastic node.
            ToolError: nothing was applied yet.
        """
        names, host = self._names(), asked.host
        if host not in names and is_elastic_name(self._spec, host):
            raise InputError(
                f"{host} is an elastic node: only the controller knows where it is now",
                hint="Copy to a folder that all hosts share, or: gpucluster ssh controller",
            )
        target = self._named(host, names, "")
        self._renew_bastion()
        return ["scp", "-r", "-F", str(SshClient(self._paths, None).config), "--", *asked.words(target)]

    def _names(self) -> list[str]:
        """The hosts, the controller first.

        Raises:
            ToolError: nothing was applied yet.
        """
        names = [host.name for host in self.hosts()]
        if not names:
            raise ToolError("there is no cluster yet", hint="Run: gpucluster apply")
        return names

    def _named(self, host: str | None, names: Sequence[str], hint: str) -> str:
        """The host that a user names.

        Args:
            names: of the hosts, the controller first. hint: follows their list.

        Raises:
            InputError: there is none.
        """
        login = [name for name in names if is_login_name(self._spec.name, name)]
        target = names[0] if host in (None, "controller") else host
        if host == LOGIN and login and host not in names:
            target = self._answering(login)
        if target not in names:
            raise InputError(f"there is no host {target}", hint=f"The hosts are {', '.join(names)}. {hint}".rstrip())
        return str(target)

    def _through_controller(self, controller: str, node: str, command: Sequence[str]) -> list[str]:
        """The controller's own ssh, with the key for nodes and the CA of their certificates, which are there."""
        terminal = [] if command else ["-t"]
        words = ["ssh", *terminal, node, *(["--", shlex.quote(" ".join(command))] if command else [])]
        self._renew_bastion()
        ssh, *rest = SshClient(self._paths, None).argv(controller, words)
        return [ssh, *terminal, *rest]

    def _answering(self, login: Sequence[str]) -> str:
        """The first login node that answers; without any the first, for which ssh reports why it does not."""
        if len(login) > 1:
            self._renew_bastion()
        for name in login if len(login) > 1 else ():
            ssh, *rest = SshClient(self._paths, None).argv(name, ["true"])
            argv = [ssh, "-o", f"ConnectTimeout={_LOGIN_CONNECT_TIMEOUT}", *rest]
            with suppress(ProcessError):
                if process.run(argv, check=False, timeout=_ANSWER_TIMEOUT).returncode != SSH_FAILED:
                    return name
        return login[0]

    def _renew_bastion(self) -> None:
        if self._spec.network.access == "bastion":
            self._bastion().renew()

    def ask(
        self, command: str, *, host: str | None = None, text: str = "", timeout: float = _TIMEOUT
    ) -> process.Completed:
        """Run a short command on the controller or another host.

        Args:
            command: is read by a shell there.
            host: its name; None is the controller.
            text: its standard input.
            timeout: seconds.

        Raises:
            ToolError: it can't be reached or does not answer in time, or nothing was applied yet.
        """
        where = host or "the controller"
        ssh, *rest = self.ssh_argv(host, [command])
        # Who gives a command fewer seconds, as `status` does, gives the connection those.
        connecting = max(1, min(CONNECT_SECONDS, int(timeout)))
        argv = [ssh, "-o", f"ConnectTimeout={connecting}", *rest]
        try:
            result = process.run(argv, check=False, input=text, timeout=timeout)
            if result.returncode == SSH_FAILED and host_key_refused(result.stderr) and self.relocate():
                result = process.run(argv, check=False, input=text, timeout=timeout)
        except ProcessError as error:
            message = f"{where} does not answer within {timeout:g} s"
            raise ToolError(message, hint="See whether it runs: gpucluster status") from error
        if result.returncode == SSH_FAILED:
            raise unreachable(where, result.stderr)
        return result

    def slurm_nodes(self, *, timeout: float = _TIMEOUT) -> list[dict[str, str]]:
        """What Slurm reports of its nodes: [{node, state, partition}].

        Args:
            timeout: seconds.

        Raises:
            ToolError: the controller or Slurm does not answer.
        """
        # sinfo itself would wait a minute for a slurmctld that is down.
        result = self.ask(f"timeout {timeout:g} sinfo -h -N -o %N/%T/%R", timeout=timeout)
        if result.returncode != 0:
            reasons = {_NOT_FOUND: "it is not installed yet", _TIMED_OUT: "slurmctld is not reached"}
            reason = reasons.get(result.returncode) or _last_line(result)
            hint = "See its log: gpucluster ssh -- sudo journalctl --unit slurmctld"
            raise ToolError(f"Slurm gives no answer: {reason}", hint=hint)
        rows = [line.split("/") for line in result.stdout.splitlines()]
        return [dict(zip(_SLURM_FIELDS, row, strict=True)) for row in rows if len(row) == len(_SLURM_FIELDS)]

    def autoscaler_argv(self, arguments: Sequence[str]) -> list[str]:
        """The command line that runs the autoscaler's own program.

        Args:
            arguments: of that program, such as `["status", "--output", "json"]`.

        Raises:
            InputError: no pool is elastic.
            ToolError: nothing was applied yet.
        """
        if not self._spec.elastic_pools:
            raise InputError(
                "this cluster has no elastic pool, and so no autoscaler",
                where=str(self._spec.file),
                hint="Set max_count of a pool above its count, then run: gpucluster apply",
            )
        if arguments[:1] and arguments[0] not in _AUTOSCALER_READS:
            self.require_own()
        # ssh joins the arguments by spaces, and a shell reads them.
        return self.ssh_argv(None, [shlex.join(["sudo", AUTOSCALER, *arguments])])

    def run_autoscaler(self, arguments: Sequence[str], *, timeout: float | None = None) -> process.Completed:
        """Run the autoscaler's own program, and return what it has printed, however it has ended.

        Args:
            arguments: see `autoscaler_argv`.
            timeout: seconds; None waits as long as it takes.

        Raises:
            InputError: no pool is elastic.
            ToolError: the controller can't be reached, or has no autoscaler; or nothing was applied yet.
        """
        result = process.run(self.autoscaler_argv(arguments), check=False, timeout=timeout)
        if result.returncode == SSH_FAILED:
            raise unreachable("the controller", result.stderr)
        if "command not found" in result.stderr and not result.stdout:
            raise ToolError("the controller has no autoscaler yet", hint="Run: gpucluster apply")
        return result

    def autoscaler_status(self, *, timeout: float = _TIMEOUT) -> dict[str, Any]:
        """What the autoscaler reports of itself, its pools, and the jobs that wait for nodes.

        Args:
            timeout: seconds.

        Raises:
            ToolError: it does not answer.
        """
        result = self.run_autoscaler(["status", "--output", "json"], timeout=timeout)
        try:
            answer: dict[str, Any] = bounded.loads(result.stdout)
        except ValueError:
            hint = "See its log: gpucluster ssh -- sudo journalctl --unit gpucluster-autoscaler"
            raise ToolError(f"the autoscaler gives no answer: {_last_line(result)}", hint=hint) from None
        return answer

    def maintenance(self, *, timeout: float = _TIMEOUT) -> dict[str, Any] | None:
        """What the health service knows of maintenance that the cloud announces; None if it knows nothing yet.

        Args:
            timeout: seconds.

        Raises:
            ToolError: it does not answer.
        """
        result = self.ask(f"timeout {timeout:g} {_HEALTH}", timeout=timeout)
        try:
            content = bounded.loads(result.stdout)["maintenance"]
        except (ValueError, KeyError, TypeError):
            hint = "See its log: gpucluster ssh -- sudo journalctl --unit gpucluster-health"
            raise ToolError(f"the health service gives no answer: {_last_line(result)}", hint=hint) from None
        return content if isinstance(content, dict) else None

    def stop_autoscaler(self, nodes: Sequence[str], why: str) -> None:
        """Stop the autoscaler, notify the owners of the jobs on these nodes, and warn of what runs there.

        Best effort: a controller that does not exist any more must not stop the caller.

        Args:
            nodes: those that are removed now.
            why: the reason that the jobs' owners get. Kubernetes has no way to tell the owner of a pod.
        """
        # From now on, the controller is not as the last apply has configured it.
        stop = f"sudo rm -f {CONFIGURATION_RECORD}; sudo systemctl stop {' '.join(AUTOSCALER_UNITS)}"
        on_kubernetes = self._spec.scheduler == "kubernetes"
        ask = f"{_RUNNING_PODS} || true" if on_kubernetes else _notify_owners(nodes, why)
        try:
            if not self.hosts():
                return
            argv = self.ssh_argv(None, [f"{stop} && {{ {ask if nodes else 'true'}; }}"])
            result = process.run(argv, check=False, timeout=_TIMEOUT)
            failure = "" if result.returncode == 0 else _last_line(result)
            affected = _pods_of(result.stdout, nodes) if on_kubernetes else result.stdout.split()
        except GpuClusterError as error:
            failure, affected = error.what, []
        if failure and "not loaded" not in failure:  # it was never installed
            warn(self._on_event, "cluster", f"the autoscaler could not be stopped on the controller: {failure}")
        elif affected:
            what = "pods" if on_kubernetes else "jobs"
            then = "they end with them" if on_kubernetes else "their owners were notified"
            warn(self._on_event, "cluster", f"{what} run on nodes that are removed now; {then}: {', '.join(affected)}")


# One row for each: node, namespace, name, and the kind of what made it.
_RUNNING_PODS = shlex.join(
    [
        *("sudo", "kubectl", "--kubeconfig=/etc/kubernetes/admin.conf", "--request-timeout=20s"),
        *("get", "pods", "--all-namespaces", "--field-selector=status.phase=Running", "--no-headers"),
        "--output=custom-columns=:spec.nodeName,:metadata.namespace,:metadata.name,:metadata.ownerReferences[0].kind",
    ]
)
_POD_COLUMNS, _ON_EACH_NODE = 4, ("DaemonSet", "Node")


def _pods_of(rows: str, nodes: Collection[str]) -> list[str]:
    """The pods on these nodes that do not run on each node anyway."""
    columns = [row.split() for row in rows.splitlines()]
    return [
        f"{row[1]}/{row[2]}"
        for row in columns
        if len(row) == _POD_COLUMNS and row[0] in nodes and row[3] not in _ON_EACH_NODE
    ]


def _notify_owners(nodes: Sequence[str], why: str) -> str:
    """The command that notifies the owners of the jobs on these nodes, and prints the jobs."""
    running = f"squeue --noheader --states=RUNNING,COMPLETING --format=%A --nodelist={shlex.quote(','.join(nodes))}"
    message = shlex.quote(f"gpucluster: {why}")
    return f"for job in $({running} | sort -u); do sudo scontrol notify $job {message} && echo $job; done"


def _last_line(result: process.Completed) -> str:
    return result.stderr.strip().rpartition("\n")[2] or f"status {result.returncode}"
