"""What of a cluster is not as cluster.yml, the state and the last apply have it. It changes nothing.

The cloud is compared by Terraform (a plan that only refreshes), and by the cluster's tags, for what no state knows.
cluster.yml is compared as a plan compares it. Hosts, Slurm and the directory answer themselves: one command over ssh
for each host, all at the same time, while Terraform runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from gpucluster import handover
from gpucluster.artifacts import agent_archive
from gpucluster.cloud.bastion import Bastion
from gpucluster.cloud.tagged_resources import TaggedResource
from gpucluster.drift import hosts as answers_of_hosts
from gpucluster.drift import resources
from gpucluster.drift.model import APPLY, Area, DriftFinding, DriftReport, Unseen, ordered
from gpucluster.errors import GpuClusterError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.handover.configuration_diff import NOT_KNOWN, ConfigurationDifference
from gpucluster.handover.names import elastic_names, elastic_prefix
from gpucluster.lifecycle.hosts import Deployment, HostConnections
from gpucluster.lifecycle.plan import ClusterPlan, Planning
from gpucluster.lifecycle.provision import Provisioning
from gpucluster.operations.host_facts import FactsOfHosts
from gpucluster.operations.host_programs import ask_hosts
from gpucluster.operations.inquiry import Inquiry
from gpucluster.spec import ClusterSpec
from gpucluster.ssh import SshClient
from gpucluster.terraform.runner import Terraform
from gpucluster.verdict.measurements import UNREACHABLE
from gpucluster.workspace.run import Run

_TASK = "Look for drift of the host"
# Seconds for one host; the controller asks Slurm, the directory and the accounting meanwhile.
_HOST_SECONDS = 120.0
_ELASTIC = "files, packages and services of elastic nodes are not compared: each start makes them again"
# What a plan does not know, in the words of `Planning`.
_NOT_KNOWN = (NOT_KNOWN, "they are not known")
_ACTIONS = {
    "create": "is missing",
    "delete": "exists",
    "replace": "differs",
    "update": "differs",
    "import": "no state has it",
}

Found = DriftFinding | Unseen


class DriftDetection:
    """Looks for the drift of one cluster.

    Args:
        tagged: lists what has the cluster's tags.
        ssh_client: makes the client that reaches the hosts.
        bastion: opens sessions of the Bastion service.
    """

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        provisioning: Provisioning,
        planning: Planning,
        hosts: HostConnections,
        tagged: Callable[[], tuple[TaggedResource, ...]],
        ssh_client: Callable[[], SshClient],
        bastion: Callable[[], Bastion],
        on_event: Sink,
    ) -> None:
        self._spec = spec
        self._provisioning = provisioning
        self._planning = planning
        self._hosts = hosts
        self._tagged = tagged
        self._ssh_client = ssh_client
        self._bastion = bastion
        self._on_event = on_event

    def look(self, run: Run) -> DriftReport:
        """Compare everything. What could not be compared is in the report, with the reason.

        Raises:
            GpuClusterError: see `errors`: Terraform or the cloud refused, or the state can't be read.
        """
        terraform = self._provisioning.prepare(run, only_look=True)
        with run.phase("hosts"):
            deployment = self._hosts.look()
            self._bastion().renew()
        asked = Inquiry(lambda: self._ask(deployment))
        found = [*self._cloud(run, terraform)]
        answer = asked.answer(time.monotonic() + _HOST_SECONDS * 2)
        if answer.value is None:
            found.append(Unseen(Area.HOSTS, "", answer.error))
        answers = answer.value or {}
        found += answers_of_hosts.read(answers)
        present = {host.name for host in deployment.hosts}
        found += [
            Unseen(Area.HOSTS, name, "the cloud has no host of this name that runs")
            for name in _permanent(self._spec)
            if name not in present
        ]
        return DriftReport(
            findings=ordered(each for each in found if isinstance(each, DriftFinding)),
            unseen=tuple(dict.fromkeys(each for each in found if isinstance(each, Unseen))),
            hosts=tuple(host for host, each in answers.items() if UNREACHABLE not in each),
            remarks=(_ELASTIC,) if self._spec.elastic_pools else (),
        )

    def _ask(self, deployment: Deployment) -> FactsOfHosts:
        controller = deployment.controller.name
        requests = {host.name: {"cluster": host.name == controller} for host in deployment.hosts}
        answers = ask_hosts(self._ssh_client(), agent_archive.drift_program(), requests, _HOST_SECONDS)
        for name, answer in answers.items():
            status = "unreachable" if UNREACHABLE in answer else "ok"
            text = str(answer.get(UNREACHABLE, ""))
            self._on_event(Event(EventKind.TASK, _TASK, status, text, data={"host": name}))
        return answers

    def _cloud(self, run: Run, terraform: Terraform) -> Iterator[Found]:
        changed: set[str] = set()
        with run.phase("drift"):
            drift = terraform.drift()
            for each in resources.changed(drift):
                changed.add(each.where)
                yield each
            tagged = self._tagged()
            yield from resources.instances(tagged)
            names = {
                f"{elastic_prefix(pool)}{number}"
                for pool, spec in self._spec.elastic_pools.items()
                for number in range(1, elastic_names(spec) + 1)
            }
            yield from resources.elastic(tagged, self._spec.elastic_pools, names)
        try:
            with run.phase("survey"):
                yield from resources.unknown(self._provisioning.survey(terraform).findings)
            plan = self._planning.of(run, terraform)
        except GpuClusterError as error:
            yield Unseen(Area.FILE, "", f"{error.what}. {error.hint or ''}".strip())
            return
        yield from _of_plan(plan, changed)


def _permanent(spec: ClusterSpec) -> tuple[str, ...]:
    """The names of the permanent hosts that cluster.yml asks for."""
    nodes = (name for pool, machine in spec.pools.items() for name in handover.permanent_names(pool, machine))
    return (*handover.login_names(spec), *nodes)


def _of_plan(plan: ClusterPlan, changed: set[str]) -> Iterator[Found]:
    """What cluster.yml has and the cluster has not, or otherwise.

    Args:
        changed: the addresses of resources whose drift is reported already.
    """
    for key in plan.fields or ():
        yield DriftFinding(Area.FILE, "key", "cluster.yml", key.path, str(key.after), str(key.before))
    hosts = plan.hosts
    for pool, names in {**hosts.pools, handover.LOGIN: hosts.login}.items():
        for action, expected, seen in (
            ("added", "a host", "no host"),
            ("removed", "no host", "a host"),
            ("replaced", "as cluster.yml describes it", "a host that has to be replaced"),
            ("rebooted", "as cluster.yml describes it", "a host that has to be rebooted"),
        ):
            for name in getattr(names, action):
                yield DriftFinding(Area.FILE, "host", name, "" if pool == handover.LOGIN else pool, expected, seen)
    for change in plan.changes:
        # What else has changed outside is said with its values; what has to follow has no value of its own.
        if change.internal or change.address in changed or change.adopts:
            continue
        what = ", ".join(change.changed or change.forced_by)
        seen = _ACTIONS.get(change.action, change.action)
        expected = "no such resource" if change.action == "delete" else "as cluster.yml describes it"
        yield DriftFinding(Area.FILE, "resource", change.address, what, expected, seen)
    yield from map(_of_configuration, plan.configuration)


def _of_configuration(difference: ConfigurationDifference) -> Found:
    if difference.what.startswith(_NOT_KNOWN):
        return Unseen(Area.DIRECTORY if difference.subject == "users" else Area.FILE, "", difference.what)
    area = Area.DIRECTORY if difference.subject == "users" else Area.FILE
    if difference.action == "configure" or (difference.before is None and difference.after is None):
        expected = {"add": "is there", "remove": "is not there"}.get(difference.action, "as cluster.yml describes it")
        seen = {"add": "missing", "remove": "there"}.get(difference.action, "otherwise")
        return DriftFinding(area, difference.action, difference.subject, difference.what, expected, seen)
    return DriftFinding(
        area, "setting", difference.subject, difference.what, str(difference.after), str(difference.before), APPLY
    )
