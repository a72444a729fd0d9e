"""Adopt what the cloud has and no state knows: after a run that was killed, and after the state was lost.

Terraform writes a resource into its state when its create call has ended. Killed before that, it leaves a resource
that it does not know; the next plan would create it a second time. So before each plan the resources with the cluster's
tag are compared with the state, and Terraform imports what it lacks (docs/adr/0023-adoption.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from gpucluster.cloud.tagged_resources import TaggedResource, TaggedResources
from gpucluster.errors import OtherClusterError, TerraformError, ToolError
from gpucluster.events import Sink, info, warn
from gpucluster.handover import adoption
from gpucluster.handover.adoption import Findings
from gpucluster.oci import tags
from gpucluster.terraform.plan import ResourceChange, TerraformPlan
from gpucluster.terraform.runner import Terraform

RECOVER = "gpucluster state recover"
_DUPLICATE = "no state knows it, and the cluster has another one"


@dataclass(frozen=True)
class AdoptionSurvey:
    """What the cloud has of a cluster, compared with the state.

    Args:
        images: the images of the existing hosts whose selection is not in the state, as the variable `existing_images`
            takes them.
    """

    findings: Findings
    images: dict[str, str]


@dataclass(frozen=True)
class Recovered:
    """What `state recover` adopted.

    Args:
        adopted: each resource with address, kind, name and OCID.
        created: addresses of what was missing in the cloud and had to be made for the others.
        left: what has the cluster's tag and was not adopted.
    """

    adopted: tuple[dict[str, str], ...]
    created: tuple[str, ...]
    left: tuple[dict[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"command": "state recover", **asdict(self)}


class Adoption:
    """Compares the cloud with Terraform's state, and lets Terraform adopt what it lacks.

    Args:
        tagged: makes the client of the started cloud.
        identity: of the cluster; empty if it has none.
        named: the identity that the operator has named; empty if they have named none.
    """

    def __init__(
        self,
        cluster: str,
        tagged: Callable[[], TaggedResources],
        on_event: Sink,
        *,
        identity: Callable[[], str] = lambda: "",
        named: str = "",
    ) -> None:
        self._cluster = cluster
        self._tagged = tagged
        self._on_event = on_event
        self._identity = identity
        self._named = f" --cluster-id {named}" if named else ""

    def survey(self, terraform: Terraform) -> AdoptionSurvey:
        """Compare. Reads only.

        Raises:
            ToolError: the state is lost or not that of the cluster, two resources could be the same, or another
                cluster has this name.
            CloudError: the cloud refused.
        """
        survey = self._compare(terraform)
        if survey.findings.state_lost:
            hosts = sorted(str(each) for each in survey.findings.adopt.values() if each.kind == "instance")
            raise ToolError(
                f"Terraform's state is empty, and the cloud has this cluster: {', '.join(hosts) or 'its nodes'}",
                hint=f"If `state:` in cluster.yml is right, the state was lost. Run: {RECOVER}{self._named}",
            )
        if survey.findings.stale:
            listed = "\n".join(f"  {address} is {each.id} now" for address, each in survey.findings.stale.items())
            raise ToolError(
                f"Terraform's state is older than the cluster, which has other resources than it names:\n{listed}",
                hint=f"Run: {RECOVER}",
            )
        return survey

    def require_own(self, resources: Sequence[TaggedResource]) -> None:
        """Refuse resources that name another identity than the cluster's: they are of another cluster of this name.

        Raises:
            OtherClusterError: with these resources.
        """
        own = self._identity()
        others = [each for each in resources if tags.identity(each.tags) not in ("", own) and not each.ending]
        if others:
            listed = "\n".join(f"  {each} of {tags.identity(each.tags)} ({each.id})" for each in others)
            raise OtherClusterError(
                f"the cloud has resources of another cluster {self._cluster}; the identity of this one is "
                f"{own or 'not known'}:\n{listed}",
                hint="Choose another `name` in cluster.yml. See the clusters and their identities: gpucluster list",
            )

    def _compare(self, terraform: Terraform) -> AdoptionSurvey:
        tagged = self._tagged()
        # The state is read after the cloud: what another run creates in between is in it.
        resources = tagged.find()
        self.require_own(resources)
        entries = terraform.contents(damaged_is_empty=True).entries
        state = {entry.address: entry.id for entry in entries if not entry.deposed}
        adoption.require_one_cluster(resources, {entry.id for entry in entries}, self._cluster)
        variables = terraform.variables
        desired = adoption.desired(variables)
        findings = adoption.compare(desired, resources, state, [entry.id for entry in entries if entry.deposed])
        if not findings.adopt:
            return AdoptionSurvey(findings, {})
        images = adoption.existing_images(resources, variables["pools"], self._cluster)
        for address, each in findings.adopt.items():
            if each.kind == "instance_configuration" and f"pool/{each.pool}" not in images:
                images[f"pool/{each.pool}"] = tagged.image_of(findings.adopt[address].id)
        selected = {user for user in images if f'terraform_data.image["{user}"]' in state}
        return AdoptionSurvey(findings, {user: image for user, image in images.items() if user not in selected})

    @contextmanager
    def adopting(self, terraform: Terraform, survey: AdoptionSurvey) -> Iterator[None]:
        """Let the plans in this block adopt what was found, once it can be read as a whole.

        Raises:
            CloudError: an instance that an earlier run has launched does not run.
        """
        for address, each in survey.findings.adopt.items():
            info(self._on_event, "cluster", f"{each} exists and is in no state: it is adopted as {address} ({each.id})")
        for each in survey.findings.left:
            warn(self._on_event, "cluster", f"{each} has the cluster's tag and is in no state; it stays ({each.id})")
        self._tagged().wait_for_instances(survey.findings.adopt.values())
        with terraform.importing(adoption.import_ids(survey.findings.adopt)):
            yield

    def remove(self, survey: AdoptionSurvey) -> int:
        """Remove what a killed run made a second time, and parts of pools that cluster.yml does not ask for. Returns
        their number.

        Raises:
            CloudError: the cloud refused.
        """
        removable = survey.findings.removable
        for each in removable:
            message = f"{each} is removed: {_DUPLICATE}" if each in survey.findings.surplus else f"{each} is removed"
            info(self._on_event, "cluster", f"{message} ({each.id})")
        for each in self._tagged().remove(removable, leave_used=True) if removable else ():
            warn(self._on_event, "cluster", f"{each} stays: another resource still uses it ({each.id})")
        return len(removable)

    @staticmethod
    def nodes_to_remove(survey: AdoptionSurvey) -> list[str]:
        """The names of nodes that `remove` terminates and cluster.yml does not ask for: jobs may run there."""
        return [each.name for each in survey.findings.unwanted if each.kind == "instance" and each.pool]

    def removals(self, survey: AdoptionSurvey) -> tuple[ResourceChange, ...]:
        """What `remove` would do, for a plan."""
        return tuple(
            ResourceChange(
                f"{each} ({each.id})", "delete", "duplicate" if each in survey.findings.surplus else "unwanted"
            )
            for each in survey.findings.removable
        )

    def remove_untracked(self, terraform: Terraform) -> None:
        """Before a destroy: remove what no state knows and would keep Terraform from removing the rest. File systems
        stay, and so does what is still used.

        Raises:
            ToolError: another cluster has this name.
            CloudError: the cloud refused.
        """
        tagged = self._tagged()
        resources, known = tagged.find(), terraform.contents(damaged_is_empty=True).ids
        self.require_own(resources)
        adoption.require_one_cluster(resources, known, self._cluster)
        untracked = adoption.untracked(resources, known)
        tagged.remove([each for each in untracked if each.kind not in ("file_system", "volume")], leave_used=True)

    def recover(self, terraform: Terraform, set_images: Callable[[dict[str, str]], None]) -> Recovered:
        """Put everything that the cloud has into the state, and change nothing else.

        Args:
            set_images: writes the variables again, with these existing images.

        Raises:
            ToolError: two resources could be the same.
            TerraformError: Terraform refused; what was adopted until then is in the state.
        """
        survey = self._compare(terraform)
        findings = survey.findings
        if findings.stale:
            terraform.remove_from_state(sorted(findings.stale))
            info(self._on_event, "cluster", f"out of the state, as they are gone: {', '.join(sorted(findings.stale))}")
        adopt = {**findings.adopt, **findings.stale}
        created: tuple[str, ...] = ()
        if adopt:
            self._tagged().wait_for_instances(adopt.values())
            set_images(survey.images)
            with terraform.importing(adoption.import_ids(adopt), unchanged=True):
                plan = self._importing_plan(terraform, sorted(adopt))
                created = tuple(change.address for change in plan.changes if _creates(change))
                terraform.apply(plan)
        adopted = tuple({"address": address, **_named(each)} for address, each in adopt.items())
        rest = (*findings.removable, *findings.left)
        return Recovered(adopted, created, tuple(_named(each) for each in rest))

    @staticmethod
    def _importing_plan(terraform: Terraform, addresses: Sequence[str]) -> TerraformPlan:
        """A plan that only adopts. What is missing in the cloud is left to the next apply, but for that without which
        the rest can't be."""
        plan = terraform.plan()
        if any(_creates(change) for change in plan.changes):
            plan = terraform.plan(only=addresses)
        lost = [change.address for change in plan.changes if change.action in ("delete", "replace")]
        if lost:
            plan.file.unlink(missing_ok=True)
            raise TerraformError(
                f"to adopt the cluster would change it: {', '.join(lost)}",
                hint="Use the cluster.yml of the last apply, then run the same command again",
            )
        return plan


def _creates(change: ResourceChange) -> bool:
    """Whether something is made in the cloud."""
    return change.action == "create" and not any(kind in change.address for kind in adoption.NOT_ADOPTED)


def _named(each: TaggedResource) -> dict[str, str]:
    return {"kind": each.kind, "name": each.name, "id": each.id}
