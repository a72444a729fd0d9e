"""Verify a cluster: collect the reports of hosts, judge them, and keep the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gpucluster import handover
from gpucluster.artifacts.catalogue import slurm_version
from gpucluster.cloud.providers import CloudProvider
from gpucluster.errors import GpuClusterError, InputError, VerifyError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.handover import user_data
from gpucluster.handover.kubernetes import (
    node_names,
    offers_functions,
    pod_needs,
    pool_variables,
    system_manifests,
)
from gpucluster.kubernetes.labels import gpus_of_pods
from gpucluster.lifecycle.hosts import Deployment
from gpucluster.node_agent.checks.model import Finding, Status
from gpucluster.node_agent.rules.scrubbing import scrubbed
from gpucluster.paths import ClusterPaths, fault_of, write_whole
from gpucluster.spec import ClusterSpec
from gpucluster.verdict import junit, reports
from gpucluster.verdict.expectation import Expectation, KubernetesExpectation, Level, chosen, narrowed
from gpucluster.verdict.registry import host_checks
from gpucluster.verdict.verdict import Verdict, judge
from gpucluster.workspace import evidence
from gpucluster.workspace.run import Run

#: By host, what it has reported, or why it could not be asked.
HostFacts = Mapping[str, Mapping[str, Any]]
#: The checks that mean nothing for a node that is drained for its checks.
OF_NODES_IN_SERVICE = frozenset({"node_state", "job", "container_steps"})


@dataclass(frozen=True)
class VerifyRequest:
    """What to verify, and how much.

    Args:
        pools: their nodes only; all pools without any.
        nodes: only these, as Slurm's hostlist; all nodes without any.
        junit: where to write the results as JUnit XML.
        record_baseline: what jobs measure at level full becomes what later measurements are compared with.
        leave_out: the names of checks that mean nothing for these nodes now.
        measured: at level full, jobs measure the nodes. Nodes that take none can be checked without.
    """

    level: Level = Level.QUICK
    pools: Sequence[str] = ()
    nodes: str = ""
    junit: Path | None = None
    record_baseline: bool = False
    leave_out: frozenset[str] = frozenset()
    measured: bool = True

    def check(self, spec: ClusterSpec) -> None:
        """Whether it fits to cluster.yml.

        Raises:
            InputError: there is no such pool or node, or nothing is measured to record.
        """
        if self.record_baseline and self.level is not Level.FULL:
            raise InputError("only level full measures a baseline", hint="Run: gpucluster verify --level full")
        chosen(
            {name: handover.permanent_names(name, pool) for name, pool in spec.pools.items()}, self.pools, self.nodes
        )

    def check_file(self) -> None:
        """Whether the results can be written where they are asked for.

        Raises:
            InputError: they can't.
        """
        if self.junit is None:
            return
        if self.junit.exists() and not self.junit.is_file():
            raise InputError("not a file", where=str(self.junit), hint="Name a file")
        if not self.junit.absolute().parent.is_dir():
            hint = "Make it, or name another file"
            raise InputError("there is no such folder", where=str(self.junit.parent), hint=hint)


def level_of(name: Level | str) -> Level:
    """The level of this name.

    Raises:
        InputError: there is none.
    """
    try:
        return Level(name)
    except ValueError:
        raise InputError(f"there is no level {name}", hint=f"Levels: {', '.join(Level)}") from None


class MeasurementRunner(Protocol):
    """Runs jobs that measure nodes and the network between them."""

    def run(
        self,
        nodes_by_pool: Mapping[str, Sequence[str]],
        level: str,
        *,
        keep: Callable[[str, str], None],
        record_baseline: bool,
    ) -> Sequence[Finding]:
        """Measure these nodes. What could not be measured is a finding that is unknown.

        Args:
            keep: is called with the name and the text of each output.
            record_baseline: what is reached becomes what later measurements are compared with.

        Raises:
            GpuClusterError: it can't run at all.
        """


class Verification:
    """Checks whether one cluster is as its spec describes.

    Args:
        facts: collects what the hosts of a deployment report, for what a verdict is about (`verdict.reports.request`).
        measurement: measures the nodes, at level full.
    """

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        paths: ClusterPaths,
        cloud: CloudProvider,
        facts: Callable[[Deployment, Mapping[str, Any]], HostFacts],
        measurement: MeasurementRunner,
        on_event: Sink,
    ) -> None:
        self._spec = spec
        self._paths = paths
        self._cloud = cloud
        self._facts = facts
        self._measurement = measurement
        self._on_event = on_event

    def collect(self, deployment: Deployment, run: Run) -> HostFacts:
        """What the hosts report at the end of an `apply`; `run` judges it."""
        with run.phase("verify"):
            return self._facts(deployment, reports.request(self._expectation(deployment, Level.QUICK)))

    def run(
        self,
        deployment: Deployment,
        run: Run,
        collected: HostFacts | None = None,
        request: VerifyRequest = VerifyRequest(),
    ) -> Verdict:
        """Check the facts of the hosts, and what they have found themselves.

        Args:
            collected: what `collect` has returned; None: they are collected now.

        Raises:
            VerifyError: a check failed or could not run.
        """
        with run.phase("verify"):
            expected = narrowed(self._expectation(deployment, request.level), request.pools, request.nodes)
            facts = collected or self._facts(deployment, reports.request(expected))
            verdict = judge(expected, facts, request.level, self._measured(expected, run, request))
            if request.leave_out:
                left = tuple(each for each in verdict.results if each.check not in request.leave_out)
                verdict = replace(verdict, results=left)
            file = evidence.keep(self._paths, run.id, self._evidence(run, verdict, facts))
            verdict = replace(verdict, evidence=str(file))
            self._announce(verdict)
            if not verdict.passed:
                raise failed(verdict)
        return verdict

    def verdict(
        self,
        deployment: Deployment,
        run: Run,
        request: VerifyRequest = VerifyRequest(),
        collected: HostFacts | None = None,
    ) -> Verdict:
        """The same, where a verdict that did not pass is not an error."""
        try:
            return self.run(deployment, run, collected, request)
        except VerifyError as error:
            verdict: Verdict = error.verdict
            return verdict

    def _measured(self, expected: Expectation, run: Run, request: VerifyRequest) -> Sequence[Finding]:
        if not request.measured:
            return ()
        return self._measurement.run(
            expected.pools,
            request.level.value,
            keep=lambda name, text: evidence.keep_output(self._paths, run.id, name, text),
            record_baseline=request.record_baseline,
        )

    @staticmethod
    def _evidence(run: Run, verdict: Verdict, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Everything that the verdict was made of, without secrets."""
        raw: dict[str, Any] = scrubbed(
            {
                "run": run.id,
                "level": verdict.level.value,
                "results": [result.to_dict() for result in verdict.results],
                "facts": facts,
            }
        )
        return raw

    def _announce(self, verdict: Verdict) -> None:
        for line in verdict.lines():
            data = {"check": line.check, "scope": line.scope}
            self._on_event(Event(EventKind.CHECK, line.name, line.status, line.message, data=data))

    def _expectation(self, deployment: Deployment, level: Level) -> Expectation:
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
            directory_groups=handover.directory_groups(spec),
            home_mount_path=spec.storage.home.mount_path if spec.storage.home.enabled else None,
            scheduler=spec.scheduler,
            slurm_version=slurm_version(spec),
            rest=spec.slurm.enabled and spec.slurm.rest,
            today=datetime.now(UTC).date(),
            kubernetes=self._of_kubernetes(deployment),
            containers="enroot" in spec.containers.runtimes,
            accounting=spec.slurm.enabled and spec.slurm.accounting,
            autoscaler=bool(spec.elastic_pools),
            monitoring=spec.monitoring.enabled,
            partitions={name: pool.partition for name, pool in spec.pools.items()},
            local_drives={host: machine.local_disk.count for host, machine in machines.items() if machine.local_disk},
            rdma_addressed=[host for host, machine in machines.items() if machine.rdma],
            rdma_places=handover.rdma_nodes(spec, deployment.members) if spec.slurm.enabled else [],
            hardware_emulated=self._cloud.hardware_emulated,
            login=[node.name for node in outputs.login],
            operators=spec.users.privilege_group,
            # An agent without checks of its own has nothing to report.
            profile=level.profile if host_checks(level.profile) else None,
        )

    def _of_kubernetes(self, deployment: Deployment) -> KubernetesExpectation | None:
        spec = self._spec
        if spec.scheduler != "kubernetes":
            return None
        pools = spec.pools.items()
        emulated = self._cloud.hardware_emulated
        objects = system_manifests(spec, hardware_emulated=emulated)
        variables = {
            name: pool_variables(spec, name, pool, deployment.outputs, hardware_emulated=emulated)
            for name, pool in pools
        }
        return KubernetesExpectation(
            release=spec.kubernetes.release,
            labels={name: of_pool["kubernetes_node_labels"] for name, of_pool in variables.items()},
            taints={name: of_pool["kubernetes_node_taints"] for name, of_pool in variables.items()},
            gpus={
                node.name: gpus_of_pods(spec.pools[name].hardware, spec.pools[name].mig_parts)
                for name, nodes in deployment.members.items()
                for node in nodes
                if spec.pools[name].hardware.has_nvidia_gpus
            },
            claims=bool(spec.claiming_pools),
            rdma={
                node.name: spec.pools[name].hardware.rdma_devices
                for name, nodes in deployment.members.items()
                for node in nodes
                if spec.pools[name].uses_rdma
            },
            pod_rdma={
                name: pod_needs(spec, pool, hardware_emulated=emulated) for name, pool in pools if pool.uses_rdma
            },
            names=node_names(spec, deployment.members),
            functions={
                node.name: len(spec.pools[name].hardware.rdma_devices)
                for name, nodes in deployment.members.items()
                for node in nodes
                if offers_functions(spec, spec.pools[name])
            },
            daemonsets=_names(objects, "DaemonSet"),
            attachments=_names(objects, "NetworkAttachmentDefinition"),
            managed={name: pool.count for name, pool in pools if pool.managed},
            control_plane=spec.kubernetes.control_plane,
        )


def _names(objects: Sequence[Mapping[str, Any]], kind: str) -> tuple[str, ...]:
    return tuple(str(each["metadata"]["name"]) for each in objects if each["kind"] == kind)


def failed(verdict: Verdict) -> VerifyError:
    """The error for a cluster that did not pass: what failed, with what to do about it."""
    problems = [line for line in verdict.lines() if line.status in (Status.FAIL, Status.UNKNOWN)]
    lines = [f"  {line.name}: {line.message}\n    {line.remedy}" for line in problems]
    lines = lines or ["  nothing was checked"]
    lines += [f"hosts: {verdict.hosts_text}", f"evidence: {verdict.evidence}"]
    return VerifyError(
        "\n".join(["these checks did not pass:", *lines]),
        hint="Fix the cause, then run: gpucluster verify",
        verdict=verdict,
    )


@contextmanager
def in_junit(file: Path | None, cluster: str) -> Iterator[Callable[[Verdict], None]]:
    """Write the verdict of what is done meanwhile into a file, whatever happens: where there is none, why.

    Args:
        file: None writes nothing.
        cluster: its name, or that of its folder while the name is not known.

    Yields:
        a function that takes the verdict if there is no error.
    """
    began = datetime.now(UTC)

    def write(document: Callable[..., str], subject: Verdict | str) -> None:
        if file is not None:
            time, seconds = f"{began:%Y-%m-%dT%H:%M:%S}", (datetime.now(UTC) - began).total_seconds()
            text = document(subject, cluster, time=time, seconds=seconds)
            write_whole(file.resolve(), text, mode=0o644)  # for the pipeline's own readers; it has no secret

    try:
        yield partial(write, junit.document)
    except VerifyError as error:
        write(junit.document, error.verdict)
        raise
    except (Exception, KeyboardInterrupt) as error:
        write(junit.failed_document, f"the cluster was not checked: {_why(error)}")
        raise


def _why(error: BaseException) -> str:
    if isinstance(error, OSError):
        error = fault_of(error) or error
    if isinstance(error, GpuClusterError):
        return str(error)
    return "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
