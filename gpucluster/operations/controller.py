"""The controller as the last run left it: the way in, and what Slurm and the autoscaler there have to say.

Nothing here needs a run or the lock, nor the cloud unless the way in is a bastion's; the controller may be gone.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from gpucluster import process
from gpucluster.errors import GpuClusterError, InputError, ToolError
from gpucluster.lifecycle.toolbox import Toolbox
from gpucluster.ssh import SshClient

AUTOSCALER = "gpucluster-autoscaler"
AUTOSCALER_UNITS = ("gpucluster-autoscaler.service", "gpucluster-join.service")
# For a word with the controller that may be gone.
_PATIENCE = 60.0
_SLURM_PATIENCE = 20.0
_SLURM_FIELDS = ("node", "state", "partition")


class Controller:
    """The controller of one cluster, and through it the other hosts."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    def ssh_argv(self, host: str | None = None, command: Sequence[str] = ()) -> list[str]:
        """The command line that logs in to a host (the controller when none is named), or runs a command there.

        Raises:
            ToolError: no such host, or nothing was applied yet.
        """
        names = [known.name for known in self._tools.kept.hosts()]
        if not names:
            raise ToolError("there is no cluster yet", hint="Run: gpucluster apply")
        wanted = host or names[0]
        if wanted not in names:
            raise ToolError(f"there is no host {wanted}", hint=f"The hosts are {', '.join(names)}")
        if self._tools.spec.network.access == "bastion":
            self._tools.bastion().renew()
        # The configuration is there, and names the key.
        return SshClient(self._tools.paths, None).argv(wanted, command)

    def slurm_nodes(self) -> list[dict[str, str]]:
        """What Slurm says of its nodes: [{node, state, partition}]; empty where it gives no answer.

        Raises:
            ProcessError: the controller gives no answer in time.
        """
        argv = self.ssh_argv(None, ["sinfo", "-h", "-N", "-o", "%N/%T/%R"])
        done = process.run(argv, check=False, timeout=_SLURM_PATIENCE)
        rows = [line.split("/") for line in done.stdout.splitlines()]
        return [dict(zip(_SLURM_FIELDS, row, strict=True)) for row in rows if len(row) == len(_SLURM_FIELDS)]

    def autoscaler_argv(self, words: Sequence[str]) -> list[str]:
        """The command line that asks the autoscaler: `["status", "--output", "json"]`.

        Raises:
            InputError: no pool is elastic.
            ToolError: nothing was applied yet.
        """
        spec = self._tools.spec
        if not spec.elastic_pools:
            raise InputError(
                "this cluster has no elastic pool, and so no autoscaler",
                where=str(spec.file),
                hint="Set max_count of a pool above its count, and apply",
            )
        # ssh joins the words by spaces, and a shell reads them.
        return self.ssh_argv(None, [shlex.join(["sudo", AUTOSCALER, *words])])

    def autoscaler_status(self) -> dict[str, Any]:
        """What the autoscaler says of itself, its pools, and the jobs that wait for nodes.

        Raises:
            ToolError: it gives no answer.
        """
        argv = self.autoscaler_argv(["status", "--output", "json"])
        done = process.run(argv, check=False, timeout=_PATIENCE)
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            hint = "Look at its log: gpucluster ssh -- sudo journalctl --unit gpucluster-autoscaler"
            raise ToolError(f"the autoscaler gives no answer: {_last_words(done)}", hint=hint) from None
        return answer

    def stop_autoscaler(self, nodes: Sequence[str], why: str) -> None:
        """Stop it and tell the jobs on these nodes, as well as it goes: there may be no controller.

        Args:
            nodes: those that go now.
            why: what the jobs' owners are told.
        """
        if not self._tools.kept.hosts():
            return
        stop = f"sudo systemctl stop {' '.join(AUTOSCALER_UNITS)}"
        running = f"squeue --noheader --states=RUNNING,COMPLETING --format=%A --nodelist={shlex.quote(','.join(nodes))}"
        words = shlex.quote(f"gpucluster: {why}")
        tell = f"for job in $({running} | sort -u); do sudo scontrol notify $job {words} && echo $job; done"
        argv = self.ssh_argv(None, [f"{stop} && {{ {tell if nodes else 'true'}; }}"])
        try:
            done = process.run(argv, check=False, timeout=_PATIENCE)
            said = "" if done.returncode == 0 else _last_words(done)
            told = done.stdout.split()
        except GpuClusterError as error:
            said, told = error.what, []
        if said and "not loaded" not in said:  # it was never installed
            self._tools.warn(f"the autoscaler could not be stopped on the controller: {said}")
        elif told:
            self._tools.warn(f"jobs run on nodes that go now, and were told: {', '.join(told)}")


def _last_words(done: process.Completed) -> str:
    return done.stderr.strip().rpartition("\n")[2] or f"status {done.returncode}"
