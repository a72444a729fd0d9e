"""`cluster.hosts`: ssh to the hosts, where users log in, and Ansible's inventory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from gpucluster.cluster.composition import Parts
from gpucluster.cluster.state import unknown
from gpucluster.paths import read_saved


class HostOperations:
    """Reaches the hosts of one cluster."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def ssh_argv(self, host: str | None = None, command: Sequence[str] = ()) -> list[str]:
        """The command line that logs in to a host, or runs a command there.

        Args:
            host: its name; None or "controller" is the controller, and "login" is a login node that answers.

        Raises:
            InputError: no such host.
            ToolError: nothing was applied yet.
        """
        return self._parts.connections.controller.ssh_argv(host, command)

    def has_new_key(self, host: str | None = None) -> bool:
        """Whether ssh to a host was refused because of a new host key that Terraform's state has: then try again.

        Raises:
            ToolError: the host answers with another key than the state has.
        """
        return self._parts.connections.controller.has_new_key(host)

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
