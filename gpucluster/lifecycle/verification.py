"""Verify a cluster: collect what hosts say, judge it, and keep the evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpucluster import handover
from gpucluster.cloud.providers import CloudProvider
from gpucluster.configuration.runner import PlaybookResult
from gpucluster.errors import VerifyError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.handover import user_data
from gpucluster.lifecycle.hosts import Deployment
from gpucluster.spec import ClusterSpec
from gpucluster.verdict.expectation import Expectation, Level
from gpucluster.verdict.verdict import Verdict, judge
from gpucluster.workspace.run import Run


class Verification:
    """Checks whether one cluster is as its spec says.

    Args:
        collect: runs a playbook that only reads, on the hosts that were configured last.
    """

    def __init__(
        self, spec: ClusterSpec, cloud: CloudProvider, collect: Callable[[str, Run], PlaybookResult], on_event: Sink
    ) -> None:
        self._spec = spec
        self._cloud = cloud
        self._collect = collect
        self._on_event = on_event

    def run(self, deployment: Deployment, run: Run, collected: PlaybookResult | None = None) -> Verdict:
        """Check the facts of the hosts.

        Args:
            collected: the playbook that has collected them; None: they are collected now.

        Raises:
            VerifyError: a check failed or could not run.
        """
        with run.phase("verify"):
            expected = self._expectation(deployment)
            facts = facts_of(collected or self._collect("verify.yml", run))
            verdict = judge(expected, facts, Level.QUICK)
            self._announce(verdict)
            if not verdict.passed:
                raise failed(verdict)
        return verdict

    def _announce(self, verdict: Verdict) -> None:
        for line in verdict.lines():
            data = {"check": line.check, "scope": line.scope}
            self._on_event(Event(EventKind.CHECK, line.name, line.status, line.message, data=data))

    def _expectation(self, deployment: Deployment) -> Expectation:
        spec = self._spec
        outputs = deployment.outputs
        machines = {outputs.controller.name: user_data.boot_settings(spec, spec.controller)}
        machines |= {node.name: user_data.boot_settings(spec, spec.login) for node in outputs.login}
        machines |= {
            node.name: user_data.boot_settings(spec, spec.pools[pool])
            for pool, nodes in deployment.members.items()
            for node in nodes
        }
        return Expectation(
            controller=outputs.controller.name,
            hosts=[host.name for host in deployment.hosts],
            pools={name: [node.name for node in nodes] for name, nodes in deployment.members.items()},
            people=handover.primary_gids(spec),
            home_mount_path=spec.storage.home.mount_path if spec.storage.home.enabled else None,
            scheduler=spec.slurm.enabled,
            containers="enroot" in spec.containers.runtimes,
            accounting=spec.slurm.enabled and spec.slurm.accounting,
            autoscaler=bool(spec.elastic_pools),
            partitions={name: pool.partition for name, pool in spec.pools.items()},
            local_drives={host: machine.local_disk.count for host, machine in machines.items() if machine.local_disk},
            rdma_addressed=[host for host, machine in machines.items() if machine.rdma],
            hardware_emulated=self._cloud.hardware_emulated,
            login=[node.name for node in outputs.login],
            operators=spec.users.privilege_group,
        )


def failed(verdict: Verdict) -> VerifyError:
    """The error for a cluster that did not pass: what failed, with what to do about it."""
    problems = [line for line in verdict.lines() if line.status in ("fail", "unknown")]
    lines = [f"  {line.name}: {line.message}\n    {line.remedy}" for line in problems]
    if not problems:
        lines = ["  no check could be made"]
    return VerifyError(
        "these checks did not pass:\n" + "\n".join(lines),
        hint="Fix the cause, then run: gpucluster verify",
        verdict=verdict,
    )


def facts_of(collected: PlaybookResult) -> dict[str, dict[str, Any]]:
    """What verify.yml collected, by host; a host without facts is left out."""
    facts: Mapping[str, Mapping[str, Any]] = collected.facts
    found = {host: dict(values.get("gpucluster_facts") or {}) for host, values in facts.items()}
    return {host: fact for host, fact in found.items() if fact}
