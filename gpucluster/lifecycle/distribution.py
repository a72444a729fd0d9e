"""Hosts whose new image OCI does not put in the place of the old one: they are launched again.

OCI replaces the boot volume of an instance with an image of the same distribution only, and with none of the
marketplace (docs.oracle.com, "Replacing a Boot Volume"). Terraform does not know that, and plans an update in place
for every image.
"""

from __future__ import annotations

import http
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from gpucluster.cloud.client import CloudAccess, all_pages, refusals, unless_refused
from gpucluster.handover.adoption import STANDBY
from gpucluster.lifecycle.resize import is_controller, is_host, pool_of
from gpucluster.spec import ClusterSpec
from gpucluster.spec.sections.machines import Image
from gpucluster.terraform.plan import TerraformPlan
from gpucluster.terraform.runner import Terraform

_SOURCE = "source_details.source_id"


class HasAccess(Protocol):
    """A cloud that can be asked."""

    def access(self) -> CloudAccess:
        """Credentials and endpoint."""


class Distributions:
    """Plans that know the distributions of the images that the hosts of a cluster have and get.

    Args:
        cloud: it is asked only about a plan that gives a host another image.
    """

    def __init__(self, spec: ClusterSpec, cloud: HasAccess) -> None:
        self._spec = spec
        self._cloud = cloud
        # By OCID and by display name: many hosts have one image.
        self._systems: dict[str, str] = {}

    def plan(self, terraform: Terraform, recreate: Sequence[str] = (), *, with_values: bool = False) -> TerraformPlan:
        """Terraform's plan, in which a host is launched again where OCI would refuse its new image in its place.

        Args:
            recreate: the addresses that are launched again anyway.
            with_values: as for `Terraform.plan`.

        Raises:
            LockedError: another run holds the state.
            TerraformError: Terraform refused.
            CloudError: the cloud refused to tell.
        """
        plan = terraform.plan(recreate=recreate, with_values=with_values)
        reasons = self.refused(plan)
        if not reasons:
            return plan
        plan.file.unlink(missing_ok=True)
        return _with_reasons(terraform.plan(recreate=(*recreate, *reasons), with_values=with_values), reasons)

    def refused(self, plan: TerraformPlan) -> dict[str, str]:
        """Why OCI would refuse the new image of a host in its place, by the host's address in Terraform. An image
        whose distribution is not known is left to OCI.

        Raises:
            CloudError: the cloud refused to tell.
        """
        reasons = {}
        for change in plan.changes:
            is_instance = is_host(change.address) or change.address == STANDBY
            if change.action == "update" and is_instance and _SOURCE in change.values:
                why = self._why(str(change.values[_SOURCE][0]), self._desired(change.address))
                if why:
                    reasons[change.address] = why
        return reasons

    def _desired(self, address: str) -> Image:
        if pool := pool_of(address):
            return self._spec.pools[pool].image
        if is_controller(address) or address == STANDBY:
            return self._spec.controller.image
        return self._spec.login.image

    def _why(self, image: str, desired: Image) -> str:
        if desired.listing is not None:
            return "its new image is of the marketplace, which OCI puts on a new instance only"
        before, after = self._of(image), self._of_desired(desired)
        if not before or not after or before == after:
            return ""
        return f"it has {before}, and its new image has {after}, which OCI puts on a new instance only"

    def _of(self, ocid: str) -> str:
        """The operating system of an image, without its version; empty where it can't be read."""
        if ocid not in self._systems:
            with refusals(f"reading image {ocid}"):
                found = unless_refused(lambda: self._compute().get_image(ocid), http.HTTPStatus.NOT_FOUND)
            self._systems[ocid] = "" if found is None else str(found.data.operating_system)
        return self._systems[ocid]

    def _of_desired(self, desired: Image) -> str:
        """That of the image that Terraform will select. Its OCID may not be known before it is selected."""
        if desired.ocid is not None:
            return self._of(desired.ocid)
        if desired.operating_system is not None:
            return desired.operating_system
        name = str(desired.name)
        if name not in self._systems:
            with refusals(f"looking for image {name}"):
                compartment = self._cloud.access().compartment_id
                named = all_pages(self._compute().list_images, compartment, display_name=name)
            systems = {str(image.operating_system) for image in named}
            self._systems[name] = systems.pop() if len(systems) == 1 else ""
        return self._systems[name]

    def _compute(self) -> Any:
        return self._cloud.access().client("core", "ComputeClient")


def _with_reasons(plan: TerraformPlan, reasons: Mapping[str, str]) -> TerraformPlan:
    """The plan, with these reasons at its replacements: Terraform gives "requested" for what it was told to replace."""
    changes = (
        replace(change, reason=reasons[change.address])
        if change.action == "replace" and change.address in reasons
        else change
        for change in plan.changes
    )
    return replace(plan, changes=tuple(changes))
