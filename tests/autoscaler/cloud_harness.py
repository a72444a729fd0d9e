"""A policy, and an `OciCloud`, for a real server of the local cloud with the null engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpucluster.autoscaler.daemon.oci import OciCloud
from gpucluster.autoscaler.policy import Authentication, Policy, PolicyLimits, PoolPolicy
from tests.localcloud.api_harness import GPU_SHAPE, Api

CLUSTER = "demo"
TAGS = {"gpucluster": CLUSTER, "role": "compute", "pool": "compute"}


class Site:
    """The network and the instance configuration that Terraform would have made, and the policy that names them.

    The API is asked with the operator's key; test_policies_enforced.py does it as a controller.

    Args:
        compartment: where all is made but the network, which is in `network`; by default the tenancy's root.
        launch: more details of new nodes.
    """

    def __init__(
        self,
        api: Api,
        *,
        baked: bool = True,
        max_nodes: int = 16,
        compartment: str = "",
        network: str = "",
        **launch: Any,
    ) -> None:
        import oci

        self.api = api
        models = oci.core.models
        compartment = compartment or api.tenancy
        self.subnet = api.subnet(api.vcn(), compartment_id=network or compartment)
        self.configuration = api.configuration(
            compartment_id=compartment,
            freeform_tags=TAGS,
            **launch,
            create_vnic_details=models.InstanceConfigurationCreateVnicDetails(
                assign_public_ip=False, subnet_id=self.subnet.id
            ),
        )
        details = models.CreateComputeClusterDetails(availability_domain=api.domain, compartment_id=compartment)
        self.compute_cluster = api.compute.create_compute_cluster(details).data
        pool = PoolPolicy(
            name="compute",
            partition="compute",
            prefix="compute-e",
            names=2 * max_nodes + 2,
            max_nodes=max_nodes,
            shape=GPU_SHAPE,
            availability_domain=api.domain,
            instance_configuration_id=self.configuration.id,
            compute_cluster_id=self.compute_cluster.id,
            baked=baked,
        )
        self.policy = Policy(
            cluster=CLUSTER,
            compartment_id=compartment,
            region="local-1",
            authentication=Authentication(
                "api_key", config_file=str(api.home / "credentials" / "config"), endpoint=api.endpoint
            ),
            pools={"compute": pool},
            limits=PolicyLimits(max_nodes=max_nodes),
            prices={GPU_SHAPE: 10.0},
        )

    def cloud(self, **options: Any) -> OciCloud:
        return OciCloud(self.policy, **options)

    def faults(self, *faults: dict[str, Any]) -> None:
        self.api.faults(*faults)

    def elastic(self) -> list[Any]:
        """The live instances with a tag `node`, from the API itself."""
        found = self.api.compute.list_instances(self.api.tenancy, limit=1000).data
        return [one for one in found if "node" in one.freeform_tags and one.lifecycle_state != "TERMINATED"]

    def remove_elastic(self) -> None:
        """Terminate the elastic instances, and wait until they are gone."""
        left = self.elastic()
        for one in left:
            # One that ends already may be gone at any moment, and the API then refuses to terminate it.
            if one.lifecycle_state != "TERMINATING":
                self.api.compute.terminate_instance(one.id)
        for one in left:
            self.api.wait(self.api.compute.get_instance, one.id, "TERMINATED")

    def write_policy(self, file: Path) -> Path:
        """The file that the daemon reads."""
        pool = self.policy.pools["compute"]
        names = ("partition", "prefix", "names", "max_nodes", "shape", "availability_domain",
                 "instance_configuration_id", "compute_cluster_id", "baked")  # fmt: skip
        authentication = self.policy.authentication
        raw = {
            "version": 1,
            "cluster": CLUSTER,
            "compartment_id": self.policy.compartment_id,
            "region": self.policy.region,
            "authentication": {
                "method": "api_key",
                "config_file": authentication.config_file,
                "endpoint": authentication.endpoint,
            },
            "pools": {"compute": {name: getattr(pool, name) for name in names}},
            "limits": {"max_nodes": pool.max_nodes},
            "prices": dict(self.policy.prices),
        }
        file.write_text(json.dumps(raw))
        return file
