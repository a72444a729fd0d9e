"""Configure the hosts with Ansible."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gpucluster import handover
from gpucluster.artifacts.releases import ReleaseSet
from gpucluster.cloud.bastion import Bastion
from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.cloud.file_systems import FileSystems
from gpucluster.cloud.providers import CloudProvider
from gpucluster.configuration import content
from gpucluster.configuration.runner import Ansible, HostResult, PlaybookResult, write_inventory
from gpucluster.errors import ToolError
from gpucluster.events import Sink, info, warn
from gpucluster.handover import configuration_diff
from gpucluster.lifecycle import elastic_age, price_list
from gpucluster.lifecycle.downloads import Downloads
from gpucluster.lifecycle.hosts import Deployment
from gpucluster.lifecycle.verification import HostFacts
from gpucluster.oci.tags import UsersFiles
from gpucluster.operations.configuration_record import ConfigurationRecord
from gpucluster.operations.host_facts import FactsCollector
from gpucluster.operations.unchanged_hosts import Comparison, UnchangedHosts, Updated
from gpucluster.paths import ClusterPaths
from gpucluster.prices import PriceList
from gpucluster.spec import ClusterSpec, updates
from gpucluster.text import count, printable
from gpucluster.verdict.measurements import UNREACHABLE
from gpucluster.workspace.login_keys import LoginKeys
from gpucluster.workspace.run import Run

# Seconds for the controller to report how the hosts were configured last: the caller needs the answer.
_RECORD_TIMEOUT = 60.0


class Configuration:
    """The configuration of the hosts of one cluster.

    Args:
        version: of the package that runs.
        record: states on the controller how the hosts were configured last.
        ansible: makes the runner of our playbooks.
        facts: asks the hosts what they report.
        unchanged: asks the hosts whether they are as the last apply left them.
        bastion: opens the sessions of the Bastion service of the started cloud.
        file_systems, elastic: make the clients of the started cloud.
    """

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        paths: ClusterPaths,
        cloud: CloudProvider,
        login_keys: LoginKeys,
        downloads: Downloads,
        version: str,
        record: ConfigurationRecord,
        ansible: Callable[[], Ansible],
        facts: FactsCollector,
        unchanged: UnchangedHosts,
        bastion: Callable[[], Bastion],
        file_systems: Callable[[], FileSystems],
        elastic: Callable[[], ElasticInstances],
        on_event: Sink,
    ) -> None:
        self._spec = spec
        self._paths = paths
        self._cloud = cloud
        self._login_keys = login_keys
        self._downloads = downloads
        self._version = version
        self._record = record
        self._ansible = ansible
        self._facts = facts
        self._unchanged = unchanged
        self._bastion = bastion
        self._file_systems = file_systems
        self._elastic = elastic
        self._on_event = on_event

    def inventory(self, deployment: Deployment) -> dict[str, Any]:
        """The Ansible inventory of the whole cluster."""
        return handover.inventory(
            self._spec,
            deployment.outputs,
            deployment.members,
            person_keys=self._login_keys.public_keys(),
            operator_keys=self._cloud.authorized_keys(),
            hardware_emulated=self._cloud.hardware_emulated,
            autoscaling=self._autoscaling(deployment.outputs),
            software=self._downloads.release_files(),
        )

    def apply(
        self,
        deployment: Deployment,
        run: Run,
        *,
        before: Mapping[str, Any] | None = None,
        slurm_upgrade: bool = False,
        all_tasks: bool = False,
    ) -> PlaybookResult:
        """Configure each host for its role in the cluster.

        From now on users may reach the share. Where neither the inputs of the last complete run nor a host has changed
        since, only users and accounts are brought up to date, and Ansible does not start.

        Args:
            before: how the hosts were configured last; without it every task runs.
            slurm_upgrade: allow another release of Slurm than the hosts have.
            all_tasks: run every task, whatever has changed.

        Raises:
            AnsibleError: a task failed or a host can't be reached.
        """
        with run.phase("ansible"):
            inventory = self.inventory(deployment)
            file = write_inventory(self._paths, inventory)
            systems = self._file_systems()
            for ocid in deployment.outputs.file_system_ids:
                systems.note(ocid, UsersFiles.IN_USE)
            this = {
                **self.settings(deployment.outputs, {host.name: host.instance_id for host in deployment.hosts}),
                "run": run.id,
                "machine": socket.gethostname(),
                "fields": updates.recorded(self._spec),
            }
            elastic = self._elastic_nodes(deployment, str(this["content"]), before)
            if elastic:
                this[elastic_age.KEY] = elastic
            # Objects of Kubernetes change outside of files.
            compares = not (slurm_upgrade or all_tasks or self._spec.scheduler == "kubernetes")
            inputs = content.inputs(inventory) if compares else ""
            same = inputs and before and before.get("complete") is True and before.get("inputs") == inputs
            this["inputs"] = inputs
            result = self._update_unchanged(deployment, inputs) if same else None
            if result is None:
                # An apply that is interrupted from now on must not look like a complete one.
                self._record.write({**this, "complete": False, "time": _now()})
                variables: dict[str, Any] = {"slurm_upgrade": True} if slurm_upgrade else {}
                if inputs:
                    variables["applied_inputs"] = inputs
                result = self._ansible().run("site.yml", file, run_id=run.id, variables=variables)
            self._record.write({**this, "complete": True, "time": _now()})
            self._name_nodes_behind(elastic)
            return result

    def _update_unchanged(self, deployment: Deployment, inputs: str) -> PlaybookResult | None:
        """Bring users and accounts up to date if all hosts are as the last apply left them.

        Args:
            inputs: what this run works from.

        Returns:
            None if the tasks have to run.
        """
        controller, names = deployment.controller.name, [host.name for host in deployment.hosts]
        compared = self._unchanged.compare(names, inputs)
        self._report_differences(compared)
        if not compared.unchanged:
            return None
        updated = self._unchanged.update(controller, inputs)
        if updated.reason:
            info(self._on_event, "ansible", f"{controller} needs all tasks: {printable(updated.reason)}")
            return None
        left_out = "only users and accounts were updated (--all-tasks updates all)"
        info(self._on_event, "ansible", f"no host has changed since the last apply: {left_out}")
        for warning in updated.warnings:
            info(self._on_event, "people", f"{controller}: {printable(warning)}")
        ended = {name: HostResult(1, updated.changed if name == controller else 0, 0, 0) for name in names}
        return PlaybookResult(ended, {controller: {"gpucluster_login_keys": self._generated_keys(updated)}}, {})

    def _generated_keys(self, updated: Updated) -> dict[str, list[str]]:
        """The keys that the directory has of users with a generated key."""
        generated = {person.name for person in self._spec.users.people if person.generate_key}
        return {str(user["name"]): list(user["ssh_keys"]) for user in updated.users if user["name"] in generated}

    def _elastic_nodes(self, deployment: Deployment, roles: str, before: Mapping[str, Any] | None) -> dict[str, Any]:
        """What new nodes get from now on, by elastic pool, for the configuration record.

        Args:
            roles: the digest of the roles and programs that configure the hosts.
            before: the record, if it was read already.
        """
        fingerprints = {
            pool: f"{roles} {handover.node_fingerprint(self._spec, deployment.outputs, pool)}"
            for pool in self._spec.elastic_pools
        }
        if fingerprints and before is None:
            before = self._record.read(timeout=_RECORD_TIMEOUT)
        return elastic_age.recorded(before if fingerprints else None, fingerprints, time.time())

    def _report_differences(self, compared: Comparison) -> None:
        """Which hosts were not as the last apply left them."""
        for host, differing in compared.differing.items():
            if differing:
                names = ", ".join(map(printable, differing))
                info(self._on_event, "ansible", f"{host} was not as the last apply left it: {names}")

    def _name_nodes_behind(self, elastic: Mapping[str, Any]) -> None:
        """An elastic node is configured when it is new: nothing changes on those that are up."""
        if not any(each["since"] for each in elastic.values()):
            return
        nodes = elastic_age.behind(elastic, self._elastic().instances())
        if nodes:
            names = " ".join(nodes)
            verbs = "is up keeps its" if len(nodes) == 1 else "are up keep their"
            text = f"{count(len(nodes), 'elastic node')} that {verbs} earlier configuration until removed: "
            warn(self._on_event, "ansible", f"{text}{names}. To remove them now: gpucluster replace {names}")

    def upgrade_kubernetes(self, deployment: Deployment, run: Run, step: str, names: Collection[str] = ()) -> None:
        """One step of an upgrade of Kubernetes to the release of the spec.

        Args:
            step: "prepare", "control_plane" or "node": see ansible/upgrade_kubernetes.yml.
            names: the hosts that it is about; none: the controller and all nodes.

        Raises:
            AnsibleError: a task failed or a host can't be reached.
        """
        inventory = self.inventory(deployment)
        login = {host.name for host in deployment.outputs.login}
        about = names or [host.name for host in deployment.hosts if host.name not in login]
        upgrading = handover.upgrading_inventory(inventory, about)
        file = write_inventory(self._paths, upgrading, self._paths.ansible / "upgrading.yml")
        self._ansible().run(
            "upgrade_kubernetes.yml", file, run_id=f"{run.id}-{step}", variables={"kubernetes_upgrade": step}
        )

    def settings(self, outputs: handover.Outputs, hosts: Mapping[str, str]) -> dict[str, Any]:
        """How `apply` configures the hosts, for the configuration record and for a plan. Nothing is downloaded, and no
        key is generated.

        Args:
            outputs: of the last apply. Pools that are new have none yet.
            hosts: the OCIDs of the hosts, by name.
        """
        spec = self._spec
        new = {
            name: handover.PoolOutput("", pool.kind, pool.shape, "", None, None, None, None, ())
            for name, pool in spec.host_pools.items()
        }
        outputs = replace(outputs, pools={**new, **outputs.pools})
        inventory = self._read_only_inventory(outputs, {})
        return configuration_diff.record(
            gpucluster=self._version,
            content=content.digest(),
            settings=configuration_diff.settings(inventory["all"]["vars"], self._downloads.versions()),
            hosts=hosts,
        )

    def people(self, recorded: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The users of cluster.yml, for what the directory would change: without the keys of those whose key pair is
        not generated yet.

        Args:
            recorded: how the hosts were configured last. An older program there knows no `generated_key`.
        """
        unknown = () if recorded.get("content") == content.digest() else ("generated_key",)
        missing = self._login_keys.missing()
        described = handover.people(self._spec, self._login_keys.existing_public_keys())
        return [
            {
                key: value
                for key, value in person.items()
                if key not in unknown and (key != "ssh_keys" or person["name"] not in missing)
            }
            for person in described
        ]

    def new_key_pairs(self) -> tuple[str, ...]:
        """The users for whom `apply` would generate a key pair on this machine."""
        return self._login_keys.missing()

    @staticmethod
    def login_keys(deployment: Deployment, configured: PlaybookResult) -> dict[str, list[str]]:
        """All public keys that the directory has now of each user with a generated key."""
        facts = configured.facts.get(deployment.controller.name, {})
        return {name: list(keys) for name, keys in dict(facts.get("gpucluster_login_keys") or {}).items()}

    @staticmethod
    def host_facts(deployment: Deployment, reported: HostFacts) -> dict[str, Mapping[str, str]]:
        """What the controller has reported of the cluster's certificates and secrets, for Terraform's state.

        Raises:
            ToolError: it has reported nothing.
        """
        controller = deployment.controller.name
        facts = reported.get(controller, {})
        if "certificates" not in facts:
            why = facts.get(UNREACHABLE) or "it has sent no facts"
            raise ToolError(
                f"{controller} was configured, and does not answer any more: {why}",
                hint="Run it again: gpucluster apply",
            )
        return {name: dict(facts.get(name) or {}) for name in ("certificates", "secrets")}

    @staticmethod
    def physical_hosts(deployment: Deployment, reported: HostFacts, known: Mapping[str, str]) -> dict[str, str]:
        """The cloud's id of the physical host of each instance, by the instance's OCID, for Terraform's state.

        Args:
            known: what the state has: it holds for a host that has not reported it this time.
        """
        told = {host.instance_id: reported.get(host.name, {}).get("physical_host") for host in deployment.hosts}
        found = {ocid: str(host or known.get(ocid, "")) for ocid, host in told.items()}
        return {ocid: host for ocid, host in found.items() if host}

    def configured(self) -> bool:
        """Whether the last configuration of the hosts, by whatever machine, came to its end.

        Raises:
            ToolError: none has begun, or the controller can't be reached.
        """
        record = self._record.read(timeout=_RECORD_TIMEOUT)
        if record is None:
            raise ToolError("the hosts are not configured yet", hint="Run: gpucluster apply")
        return bool(record.get("complete"))

    def facts(self, deployment: Deployment, request: Mapping[str, Any]) -> HostFacts:
        """What the hosts report for a verdict. Those that can't be reached are named. It changes nothing.

        Args:
            request: what the verdict is about (`verdict.reports.request`).
        """
        self._bastion().renew()
        token = secrets.token_hex(16)
        return self._facts.collect(
            handover.collection(self._spec, deployment.outputs, deployment.members, request, token)
        )

    def _read_only_inventory(self, outputs: handover.Outputs, members: handover.Members) -> dict[str, Any]:
        """The inventory without what only a configuration needs: keys that would be generated, and release files."""
        return handover.inventory(
            self._spec,
            outputs,
            members,
            person_keys=self._login_keys.existing_public_keys(),
            operator_keys=self._cloud.authorized_keys(),
            hardware_emulated=self._cloud.hardware_emulated,
            autoscaling=self._authentication(outputs) if self._spec.asks_cloud else None,
            software=ReleaseSet(None, ()),
        )

    def _autoscaling(self, outputs: handover.Outputs) -> handover.Autoscaling | None:
        if not self._spec.asks_cloud:
            return None
        return handover.Autoscaling(
            self._cloud.controller_access(), _baked(outputs), self._downloads.wheels(), self._prices()
        )

    def _authentication(self, outputs: handover.Outputs) -> handover.Autoscaling:
        """Without the files for the controller, which are made for a run."""
        return handover.Autoscaling(self._cloud.controller_access(), _baked(outputs), prices=self._prices())

    def _prices(self) -> PriceList | None:
        """For budgets; without one, another list changes nothing on the controller."""
        budgets = [each.monthly_budget for each in self._spec.slurm.accounts.values()]
        return price_list.read(self._paths) if any(each is not None for each in budgets) else None


def _baked(outputs: handover.Outputs) -> frozenset[str]:
    return frozenset(pool for pool, output in outputs.pools.items() if output.baked_image_id)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
