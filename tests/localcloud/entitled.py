"""An instance that calls the API with the permissions of its policies: the controller of a cluster, for tests."""

from __future__ import annotations

import configparser
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from gpucluster.handover import iam
from gpucluster.localcloud.auth.credentials import instance_credentials
from gpucluster.spec import ClusterSpec, loads
from tests.localcloud.api_harness import Api

CLUSTER = """\
version: 1
name: {name}
cloud: {{provider: local}}
network:
  vcn_cidr: 10.77.0.0/16
  public_subnet_cidr: 10.77.0.0/24
  private_subnet_cidr: 10.77.4.0/22
  ssh_allowed_cidrs: [127.0.0.0/8]
pools:
  compute:
    shape: {shape}
    max_count: 4
"""


def elastic_cluster(name: str = "demo", shape: str = "BM.GPU4.8") -> ClusterSpec:
    """A spec with one elastic pool, and nothing else that needs permissions."""
    return loads(CLUSTER.format(name=name, shape=shape))


def generated(spec: ClusterSpec, api: Api, controller_id: str, compartment: str = "") -> iam.Policies:
    """The policies that gpucluster generates for it."""
    return iam.policies(spec, compartment_id=compartment or api.tenancy, controller_id=controller_id)


class Entitled:
    """An instance of `api` with its own key, dynamic group and policies.

    Args:
        config: where to put its OCI configuration file.
        compartment: which the policy is attached to.
    """

    def __init__(self, api: Api, instance_id: str, config: Path, *, name: str = "demo", compartment: str = "") -> None:
        self.api, self.id, self.config = api, instance_id, config
        self._name, self._compartment = f"gpucluster-{name}", compartment or api.tenancy
        self._policies: list[str] = []
        folder = instance_credentials(api.home, api.tenancy, instance_id)
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(folder / "config")
        parser["DEFAULT"]["key_file"] = str(folder / "key.pem")
        config.touch(0o600)
        with config.open("w") as stream:
            parser.write(stream)
        self.settings = dict(parser["DEFAULT"])

    def in_group(self, rule: str = "") -> Entitled:
        """Create the dynamic group; by default with the matching rule that gpucluster generates."""
        import oci

        details = oci.identity.models.CreateDynamicGroupDetails(
            compartment_id=self.api.tenancy,
            name=self._name,
            description="of a test",
            matching_rule=rule or f"instance.id = '{self.id}'",
        )
        self.group = self.api.identity.create_dynamic_group(details).data
        return self

    def allow(self, statements: Sequence[str]) -> None:
        """Grant exactly these permissions, in place of the earlier ones."""
        import oci

        models = oci.identity.models
        if self._policies and statements:
            self.api.identity.update_policy(self._policies[0], models.UpdatePolicyDetails(statements=list(statements)))
        elif self._policies:
            self.api.identity.delete_policy(self._policies.pop())
        elif statements:
            details = models.CreatePolicyDetails(
                compartment_id=self._compartment, name=self._name, description="of a test", statements=list(statements)
            )
            self._policies.append(self.api.identity.create_policy(details).data.id)

    def client(self, name: str) -> Any:
        """A client of the SDK that signs as the instance."""
        return self.api.client(name, **self.settings)

    @cached_property
    def compute(self) -> Any:
        return self.client("core.ComputeClient")

    @cached_property
    def management(self) -> Any:
        return self.client("core.ComputeManagementClient")

    @cached_property
    def network(self) -> Any:
        return self.client("core.VirtualNetworkClient")

    @cached_property
    def work(self) -> Any:
        return self.client("work_requests.WorkRequestClient")

    @cached_property
    def identity(self) -> Any:
        return self.client("identity.IdentityClient")
