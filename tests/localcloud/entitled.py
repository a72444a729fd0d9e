"""An instance that calls the API with the permissions of its policies: the controller of a cluster, for tests."""

from __future__ import annotations

import configparser
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import oci
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from gpucluster.handover import iam
from gpucluster.localcloud.state.region import REGION
from gpucluster.localcloud.state.tenancy import PUBLIC_KEY_FILE, fingerprint, load_public_key
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


def key_of_an_earlier_release(home: Path, tenancy: str, instance_id: str) -> dict[str, str]:
    """Give an instance a key as releases before the metadata service did. Returns the settings of an SDK client.

    The local cloud still accepts such a key. For policies it is the same as an instance principal.
    """
    folder = home / "credentials" / "instances" / instance_id
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key_file, public_file = folder / "key.pem", folder / PUBLIC_KEY_FILE
    if not key_file.exists():
        key = generate_private_key(public_exponent=65537, key_size=2048)
        key_file.touch(0o600)
        key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        public_file.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    public = load_public_key(public_file.read_text(), str(public_file))
    return {
        "user": instance_id,
        "fingerprint": fingerprint(public),
        "tenancy": tenancy,
        "region": REGION,
        "key_file": str(key_file),
    }


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
        self.settings = key_of_an_earlier_release(api.home, api.tenancy, instance_id)
        parser = configparser.ConfigParser(interpolation=None)
        parser["DEFAULT"] = self.settings
        config.touch(0o600)
        with config.open("w") as stream:
            parser.write(stream)

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
        return self.api.client(name, timeout=None, **self.settings)

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


def new_compartment(api: Api, name: str) -> str:
    details = oci.identity.models.CreateCompartmentDetails(compartment_id=api.tenancy, name=name, description="d")
    return str(api.identity.create_compartment(details).data.id)
