"""A controller whose autoscaler sends requests with the real SDK."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oci.core import models

from tests.localcloud.api_harness import Api
from tests.localcloud.entitled import Entitled, elastic_cluster, generated

TAGS = {"gpucluster": "demo", "role": "compute", "pool": "gpu"}


class Controller(Entitled):
    """A controller with the permissions of its autoscaler, and two more for these tests."""

    def __init__(self, api: Api, subnet: Any, config: Path) -> None:
        own = api.launch(subnet, "controller").id
        super().__init__(api, own, config)
        self.in_group()
        wanted = generated(elastic_cluster(), api, own)
        who = f"Allow dynamic-group {wanted.subject} to"
        more = ("manage compute-capacity-reports", "manage console-histories")
        self.allow([*(one.text for one in wanted.controller), *(f"{who} {right} in tenancy" for right in more)])

    def launch(self, configuration: Any, node: str, generation: int = 1, **more: Any) -> Any:
        details = models.InstanceConfigurationLaunchInstanceDetails(
            display_name=node,
            freeform_tags={**TAGS, "node": node, "generation": str(generation)},
            create_vnic_details=models.InstanceConfigurationCreateVnicDetails(hostname_label=node),
            **more,
        )
        return self.management.launch_instance_configuration(
            configuration.id,
            models.ComputeInstanceDetails(launch_details=details),
            opc_retry_token=f"{node}-{generation}",
        )
