"""`cluster.autoscaler`: the autoscaler of elastic nodes, on the controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpucluster.cluster.composition import Parts
from gpucluster.process import Completed


class AutoscalerOperations:
    """Runs the autoscaler's own program on the controller of one cluster."""

    def __init__(self, parts: Parts) -> None:
        self._controller = parts.connections.controller

    def argv(self, arguments: Sequence[str]) -> list[str]:
        """The command line that runs the program.

        Args:
            arguments: of that program, such as `["status", "--output", "json"]`.

        Raises:
            InputError: no pool is elastic.
            ToolError: nothing was applied yet.
        """
        return self._controller.autoscaler_argv(arguments)

    def run(self, arguments: Sequence[str]) -> Completed:
        """Run the program, and return what it has printed, however it has ended.

        Args:
            arguments: see `argv`.

        Raises:
            InputError: no pool is elastic.
            ToolError: the controller can't be reached, or has no autoscaler; or nothing was applied yet.
        """
        return self._controller.run_autoscaler(arguments)

    def status(self) -> Mapping[str, object]:
        """What the autoscaler reports of itself, its pools, and the jobs that wait for nodes.

        Raises:
            ToolError: it does not answer.
        """
        return self._controller.autoscaler_status()
