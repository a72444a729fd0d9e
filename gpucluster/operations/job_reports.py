"""Reports of jobs: what the controller knows of a job, and what Prometheus measured while it ran."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from gpucluster.errors import InputError, ToolError
from gpucluster.handover.names import monitoring_host
from gpucluster.jobs.report import facts
from gpucluster.jobs.report.build import JobReport, build, request
from gpucluster.jobs.report.queries import means, request_now
from gpucluster.jobs.report.summary import watched
from gpucluster.node_agent import bounded
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.schedulers import require_slurm
from gpucluster.spec import ClusterSpec
from gpucluster.text import printable

_MONITOR = "sudo -n /usr/local/bin/gpucluster-agent monitor"
# Seconds: accounting and Prometheus may be busy. Both have limits of their own on the controller.
_TIMEOUT = 120.0
# The same for a hint, which keeps another answer waiting.
_SHORT_TIMEOUT = 15.0
_REFUSED = 2


class JobReports:
    """Reports of the jobs of one cluster, which needs Slurm."""

    def __init__(self, spec: ClusterSpec, controller: ControllerConnection) -> None:
        self._spec = spec
        self._controller = controller
        self._monitoring_host = monitoring_host(spec)

    def report(self, job: str, *, anonymous: bool = False) -> JobReport:
        """The report of a job. Without Prometheus it has no series, and states so.

        Args:
            job: its number, or that of a task of an array as 12_3.
            anonymous: without the names of users and accounts.

        Raises:
            InputError: Slurm knows no such job, or the cluster has no Slurm.
            ToolError: the controller does not answer.
        """
        require_slurm(self._spec, "job report", kubernetes="See its pods: gpucluster ssh -- sudo kubectl get pods -A")
        known = facts.read(self._ask(f"jobs -- {shlex.quote(job)}", ""), anonymous=anonymous)
        queries = request(known)
        answer: Mapping[str, Any] = {}
        if queries:
            try:
                answer = self._ask("query", json.dumps({"queries": queries}), host=self._monitoring_host)
            except ToolError as error:
                answer = {"prometheus": False, "why": error.what}
        return build(known, facts.without_addresses(answer))

    def watched(self, job: str) -> tuple[str, ...]:
        """What the watcher of the nodes reports about a job that runs: hung, straggling, or with GPUs without a
        process.

        Empty where it reports nothing, and where Prometheus does not answer: it is a hint beside another answer.
        """
        try:
            request = json.dumps({"queries": request_now(job)})
            response = self._ask("query", request, host=self._monitoring_host, timeout=_SHORT_TIMEOUT)
        except (InputError, ToolError):
            return ()
        answer = facts.without_addresses(response)
        results = answer.get("results")
        return tuple(each.text for each in watched(means(results if isinstance(results, dict) else {})))

    def _ask(self, words: str, text: str, *, host: str | None = None, timeout: float = _TIMEOUT) -> Mapping[str, Any]:
        result = self._controller.ask(f"{_MONITOR} {words}", host=host, text=text, timeout=timeout)
        try:
            document = bounded.loads(result.stdout)
            if not isinstance(document, dict):
                raise ValueError("no object")
        except ValueError:
            if result.returncode == _REFUSED and "usage:" in result.stderr:
                raise ToolError(
                    "the controller's program knows no reports of jobs: it is of another version than this one",
                    hint="Run: gpucluster apply",
                ) from None
            lines = [printable(line) for line in result.stderr.strip().splitlines()[-2:]] or [
                f"status {result.returncode}"
            ]
            what = lines[0].removeprefix("gpucluster-agent monitor: ")
            hint = lines[1] if len(lines) > 1 else ""
            if result.returncode == _REFUSED:
                raise InputError(what, hint=hint) from None
            message = f"the controller does not report the job: {what}"
            raise ToolError(message, hint=hint or "Run: gpucluster apply") from None
        return document
