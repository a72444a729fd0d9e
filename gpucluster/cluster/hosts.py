"""`cluster.hosts`: ssh to the hosts, their journals, where users log in, and Ansible's inventory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from gpucluster.cluster.composition import Parts
from gpucluster.cluster.state import unknown
from gpucluster.operations.copying import copying
from gpucluster.operations.host_logs import HostLogs, JobLines, KeptLines, LogFilter
from gpucluster.paths import read_saved


class HostOperations:
    """Reaches the hosts of one cluster."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._logs = HostLogs(parts.spec, parts.connections.controller)

    def ssh_argv(self, host: str | None = None, command: Sequence[str] = ()) -> list[str]:
        """The command line that logs in to a host, or runs a command there.

        Args:
            host: its name; None or "controller" is the controller, and "login" is a login node that answers.

        Raises:
            InputError: no such host.
            ToolError: nothing was applied yet.
        """
        return self._parts.connections.controller.ssh_argv(host, command)

    def copy_argv(self, words: Sequence[str]) -> list[str]:
        """The command line that copies files between this machine and a host, as the host's login user.

        Args:
            words: the sources and the target, where a path on a host is HOST:PATH, and :PATH is on the controller.

        Raises:
            InputError: no such host, an elastic node, or not exactly one side is a host.
            ToolError: nothing was applied yet.
        """
        return self._parts.connections.controller.copy_argv(copying(words))

    def has_new_key(self, host: str | None = None) -> bool:
        """Whether ssh to a host was refused because of a new host key that Terraform's state has: then try again.

        Raises:
            ToolError: the host answers with another key than the state has.
        """
        return self._parts.connections.controller.has_new_key(host)

    def journal(self, host: str, chosen: LogFilter | None = None) -> tuple[str, ...]:
        """The last lines of a host's journal, the oldest first, with times in UTC.

        Args:
            host: its name; "controller" for the controller.
            chosen: which lines; None for the last ones.

        Raises:
            InputError: the filter has a value that is not one.
            ToolError: there is no such host, or it does not answer.
        """
        return self._logs.of_host(host, chosen or LogFilter())

    def kept_journal(self, host: str, chosen: LogFilter | None = None) -> KeptLines:
        """Lines of a host that the controller has kept (`logs.keep_days`): also of one that is gone.

        Args:
            host: its name; "controller" for the controller.
            chosen: which lines; None for the last ones.

        Raises:
            InputError: cluster.yml keeps none, or the filter has a value that is not one.
            ToolError: the controller does not answer, or has nothing of this host.
        """
        return self._logs.kept(host, chosen or LogFilter())

    def kept_journals(self) -> dict[str, float]:
        """Of which hosts the controller has lines, and when it asked each the last time, in seconds since 1970.

        Raises:
            InputError: cluster.yml keeps none.
            ToolError: the controller does not answer.
        """
        return self._logs.kept_hosts()

    def follow_journal(self, host: str, on_line: Callable[[str], None], chosen: LogFilter | None = None) -> None:
        """Pass on each line of a host's journal as it is written, until a signal stops it.

        Raises:
            ToolError: there is no such host, or the connection has ended.
        """
        self._logs.follow(host, chosen or LogFilter(), on_line)

    def journal_of_job(self, job: str, chosen: LogFilter | None = None) -> JobLines:
        """The lines of a job of Slurm: of its hosts in its time, and what slurmctld has logged about it.

        Args:
            job: its number, or that of an array and of a task in it: 12_3.

        Raises:
            InputError: the cluster has no Slurm.
            ToolError: the controller does not answer, or Slurm does not know the job.
        """
        return self._logs.of_job(job, chosen or LogFilter())

    def login_addresses(self) -> tuple[str, ...]:
        """Where users log in: the addresses of the login nodes, or of the controller where there is none.

        Raises:
            GpuClusterError: the hosts can't be found.
        """
        return self._parts.connections.controller.login_addresses()

    def inventory(self) -> Mapping[str, object]:
        """The Ansible inventory: of the last run on this machine that reached the hosts, else as the state has it.

        Raises:
            ToolError: there is no cluster, or its state is lost.
        """
        import yaml

        file = self._parts.paths.ansible / "inventory.yml"
        with suppress(OSError, yaml.YAMLError):
            loaded = yaml.safe_load(read_saved(file))
            if isinstance(loaded, dict):
                return loaded
        deployment = self._parts.connections.locator.deployment()
        if deployment is None:
            raise unknown(self._parts)
        return self._parts.phases.configuration.inventory(deployment)
