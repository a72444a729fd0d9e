"""A local cloud that launches nothing, and working copies of the root that Terraform runs in."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpucluster.localcloud.provider import installation
from gpucluster.localcloud.provider.rest import ApiCredentials, RestClient
from gpucluster.localcloud.state.region import AVAILABILITY_DOMAINS
from gpucluster.paths import terraform_dir
from tests.terraform.small_root import PASSWORD, ROOT, Machine
from tests.waiting import PATIENCE_S, wait_for

# What Terraform makes, by the collections of the API; the rest comes and goes with these.
COLLECTIONS = (
    "/20160918/vcns",
    "/20160918/subnets",
    "/20160918/internetGateways",
    "/20160918/natGateways",
    "/20160918/serviceGateways",
    "/20160918/routeTables",
    "/20160918/securityLists",
    "/20160918/instances",
    "/20160918/instanceConfigurations",
    "/20160918/instancePools",
    "/20160918/clusterNetworks",
    "/20160918/computeClusters",
    "/20160918/computeGpuMemoryClusters",
    "/20171215/fileSystems",
    "/20171215/mountTargets",
    "/20171215/exports",
    "/20180222/clusters",
    "/20180222/nodePools",
    "/20210331/bastions",
    "/20160918/appCatalogSubscriptions",
)
ZONED = ("/20171215/fileSystems", "/20171215/mountTargets")
DEBIAN = {"operating_system": "Debian", "version": "13"}
RDMA_PLUGINS = ["Compute HPC RDMA Authentication", "Compute HPC RDMA Auto-Configuration"]


@dataclass
class LocalCloud:
    """A running server; `client` calls it as Terraform's provider does."""

    home: Path
    endpoint: str
    credentials: ApiCredentials
    region: str
    client: RestClient

    @classmethod
    def at(cls, home: Path) -> LocalCloud:
        """The server that runs in this folder."""
        config = configparser.ConfigParser()
        config.read(home / "credentials" / "config")
        values = config["DEFAULT"]
        credentials = ApiCredentials(values["tenancy"], values["user"], values["fingerprint"], Path(values["key_file"]))
        endpoint = json.loads((home / "endpoint.json").read_text())["endpoint"]
        return cls(home, endpoint, credentials, values["region"], RestClient(endpoint, credentials))

    @property
    def environment(self) -> dict[str, str]:
        """What Terraform needs to reach it."""
        return {
            "GPUCLUSTER_LOCAL_ENDPOINT": self.endpoint,
            "OCI_TENANCY_OCID": self.credentials.tenancy,
            "OCI_USER_OCID": self.credentials.user,
            "OCI_FINGERPRINT": self.credentials.fingerprint,
            "OCI_PRIVATE_KEY_PATH": str(self.credentials.key_file),
            "OCI_REGION": self.region,
            "GOGC": "400",  # as the product sets it with this provider
        }

    def standing(self, collection: str, tag: str = "", compartment: str = "") -> list[dict[str, Any]]:
        """What exists now in a collection, of one cluster if `tag` names it; in the root unless another is named."""
        zones = AVAILABILITY_DOMAINS if collection in ZONED else ("",)
        return [
            item
            for zone in zones
            for item in self.client.items(
                collection,
                {
                    "compartmentId": compartment or self.credentials.tenancy,
                    **({"availabilityDomain": zone} if zone else {}),
                },
            )
            if item.get("lifecycleState", "") not in ("TERMINATED", "DELETED")
            and tag in ("", item.get("freeformTags", {}).get("gpucluster"))
        ]

    def image(self, name: str) -> str:
        """OCID of an image, by its display name."""
        query = {"compartmentId": self.credentials.tenancy, "displayName": name}
        (found,) = self.client.items("/20160918/images", query)
        return str(found["id"])

    def remains(self) -> dict[str, list[str]]:
        """Display names of all that exists, by collection."""
        found = {
            name: [str(item.get("displayName") or item.get("name")) for item in self.standing(name)]
            for name in COLLECTIONS
        }
        return {name: names for name, names in found.items() if names}

    def faults(self, *faults: Mapping[str, Any]) -> None:
        """Make operations fail; none clears."""
        part = self.home / "faults.part"  # the server reads the file at every request: never a half of it
        part.write_text(json.dumps(faults))
        part.replace(self.home / "faults.json")

    def wait(self, collection: str, ocid: str, state: str) -> None:
        """Until a resource has a state."""
        path = f"{collection}/{ocid}"

        def body() -> dict[str, Any]:
            return dict(self.client.call("GET", path).body)

        wait_for(f"{ocid} is {state}", lambda: body()["lifecycleState"] == state, interval=0.1, state=body)


@dataclass(frozen=True)
class Ran:
    """What a command of Terraform printed."""

    code: int
    text: str
    events: tuple[Mapping[str, Any], ...]

    @property
    def changes(self) -> list[tuple[str, str]]:
        """Address and action of each planned change."""
        return sorted(
            (event["change"]["resource"]["addr"], event["change"]["action"])
            for event in self.events
            if event["type"] == "planned_change" and event["change"]["action"] not in ("noop", "read")
        )

    @property
    def errors(self) -> str:
        """All errors, in full."""
        found = [event["diagnostic"] for event in self.events if event["type"] == "diagnostic"]
        return "\n".join(
            f"{item['summary']}\n{item.get('detail', '')}" for item in found if item["severity"] == "error"
        )


@dataclass
class Workspace:
    """A copy of the root with its variables."""

    folder: Path
    environment: Mapping[str, str]
    variables: dict[str, Any] = field(default_factory=dict)

    def run(self, *arguments: str, check: bool = True) -> Ran:
        """Run terraform; with `check` a failure is the test's."""
        self.write()
        done = subprocess.run(
            ["terraform", *arguments],
            cwd=self.folder,
            env=dict(self.environment),
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        events = tuple(json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"@'))
        ran = Ran(done.returncode, done.stdout + done.stderr, events)
        if check:
            assert done.returncode == 0, ran.errors or ran.text
        return ran

    def write(self) -> None:
        """Put the variables where Terraform reads them."""
        (self.folder / "terraform.tfvars.json").write_text(json.dumps(self.variables))

    def plan(self, *, check: bool = True) -> Ran:
        """Plan, with events."""
        return self.run("plan", "-json", "-input=false", check=check)

    def apply(self, *, check: bool = True) -> Ran:
        """Apply, with events."""
        return self.run("apply", "-json", "-auto-approve", "-input=false", check=check)

    def destroy(self) -> Ran:
        """Destroy, with events."""
        return self.run("destroy", "-json", "-auto-approve", "-input=false")

    def output(self, name: str = "cluster") -> dict[str, Any]:
        """An output."""
        value: dict[str, Any] = json.loads(self.run("output", "-json", name).text)
        return value

    def pool(self, name: str = "compute", **changes: Any) -> None:
        """Add or change a pool, and its `image`; by default two permanent RDMA nodes of Debian."""
        images, user = self.variables["images"], f"pool/{name}"
        images[user] = changes.pop("image", images.get(user, DEBIAN))
        default = {
            "kind": "cluster_network",
            "shape": "BM.GPU4.8",
            "count": 2,
            "max_count": 2,
            "boot_volume_gb": 256,
            "boot_volume_vpus_per_gb": 10,
            "rdma": True,
            "rdma_plugins": RDMA_PLUGINS,
        }
        pool = {**self.variables["pools"].get(name, default), **changes}
        if "node_names" not in changes:
            pool["node_names"] = [f"{name}-{number}" for number in range(1, pool["count"] + 1)]
        self.variables["pools"][name] = pool


@pytest.fixture(scope="session")
def terraform() -> str:
    """Path of the program."""
    found = shutil.which("terraform")
    if found is None:
        pytest.skip("terraform is not installed")
    return found


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    """A server with the engine that launches nothing."""
    home = tmp_path_factory.mktemp("cloud")
    log = (home / "test.log").open("w")
    server = subprocess.Popen(
        [sys.executable, "-m", "gpucluster.localcloud.server", "--home", str(home), "--engine", "null"],
        stdout=log,
        stderr=log,
    )
    try:
        wait_for("the server starts or ends", lambda: (home / "endpoint.json").exists() or server.poll() is not None)
        assert server.poll() is None, (home / "test.log").read_text()
        yield LocalCloud.at(home)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=PATIENCE_S)
        log.close()


@pytest.fixture(scope="session")
def terraform_environment(terraform: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of Terraform with the stand-in provider installed, and nothing of the user's.

    Its temporary folder is its own: other tests run at the same time. The path of a socket in it must be short.
    """
    folder = tmp_path_factory.mktemp("provider")
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    environment |= {
        "TMPDIR": tempfile.mkdtemp(prefix="gpucluster-tf-"),
        "TF_IN_AUTOMATION": "1",
        "CHECKPOINT_DISABLE": "1",
        "TF_CLI_CONFIG_FILE": str(folder / "terraform.rc"),
    }
    root = _copy_of_the_root(folder / "probe")
    (folder / "terraform.rc").write_text(installation.cli_config(folder / "plugins"))
    for command in ("get", "providers"):
        listed = subprocess.run(
            [terraform, command], cwd=root, env=environment, capture_output=True, text=True, check=True
        ).stdout
    (address,) = set(re.findall(r"provider\[(.+/oracle/oci)\]", listed))
    installation.install(folder / "plugins", address)
    yield environment
    shutil.rmtree(environment["TMPDIR"], ignore_errors=True)


@pytest.fixture
def new_workspace(
    cloud: LocalCloud, terraform_environment: Mapping[str, str], tmp_path: Path
) -> Iterator[Callable[[str], Workspace]]:
    """Makes initialised working copies of the root, each with a controller and no pool; destroys what they made."""
    made: list[Workspace] = []

    def make(name: str) -> Workspace:
        folder = _copy_of_the_root(tmp_path / name)
        workspace = Workspace(folder, {**terraform_environment, **cloud.environment}, cluster_variables(cloud, name))
        workspace.run("init", "-input=false")
        made.append(workspace)
        return workspace

    yield make
    cloud.faults()
    for workspace in made:
        if (workspace.folder / "terraform.tfstate").exists():
            # What is gone already is not a fault; to look for it first takes a third of the time.
            workspace.run("destroy", "-json", "-auto-approve", "-input=false", "-refresh=false")


@pytest.fixture
def workspace(new_workspace: Callable[[str], Workspace]) -> Workspace:
    """One working copy."""
    return new_workspace("demo")


def cluster_variables(cloud: LocalCloud, name: str) -> dict[str, Any]:
    """A cluster of a controller alone."""
    return {
        "cluster_name": name,
        "region": cloud.region,
        "home_region": cloud.region,
        "tenancy_id": cloud.credentials.tenancy,
        "compartment_id": cloud.credentials.tenancy,
        "ssh_authorized_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 operator"],
        "network": {
            "vcn_cidr": "10.0.0.0/16",
            "public_subnet_cidr": "10.0.0.0/24",
            "private_subnet_cidr": "10.0.1.0/24",
            "ssh_allowed_cidrs": ["203.0.113.0/24", "198.51.100.7/32"],
            "dns_label": name,
        },
        "controller": {
            "shape": "VM.Standard.E5.Flex",
            "ocpus": 4,
            "memory_gb": 32,
            "boot_volume_gb": 256,
            "boot_volume_vpus_per_gb": 10,
        },
        "images": {"controller": DEBIAN, "login": DEBIAN},
        "home": {"export_path": "/mnt/home"},
        "pools": {},
        "freeform_tags": {"gpucluster": name},
    }


_NOT_COPIED = shutil.ignore_patterns(".terraform*", "*.tfstate*", "*.tfvars*")


def _copy_of_the_root(folder: Path) -> Path:
    shutil.copytree(terraform_dir(), folder, ignore=_NOT_COPIED)
    return folder / "cluster"


@pytest.fixture
def small_root(tmp_path: Path, terraform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root of small_root.py in place of ours, and what its backends ask of the environment."""
    root = tmp_path / "root" / "cluster"
    root.mkdir(parents=True)
    (root / "main.tf").write_text(ROOT)
    monkeypatch.setattr("gpucluster.terraform.runner.terraform_dir", lambda: tmp_path / "root")
    # The places for states run in this process.
    monkeypatch.setattr("gpucluster.terraform.lock._HOLDER_TIMEOUT", PATIENCE_S)
    monkeypatch.setenv("TF_HTTP_USERNAME", "gpucluster")
    monkeypatch.setenv("TF_HTTP_PASSWORD", PASSWORD)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PASSWORD)
    for name in ("TF_HTTP_ADDRESS", "AWS_PROFILE", "AWS_CA_BUNDLE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "here")
