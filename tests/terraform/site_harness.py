"""A cluster of the product's own Terraform, without hosts: it plans and applies as gpucluster does, and can be killed.

The product's Terraform class, root and adoption, the stand-in provider, and a local cloud that launches nothing. It
does not prove what the real provider does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import oci

from gpucluster import process
from gpucluster.cloud.client import CloudAccess
from gpucluster.cloud.tagged_resources import TaggedResources
from gpucluster.errors import GpuClusterError
from gpucluster.events import Event
from gpucluster.lifecycle.adoption import Adoption, Recovered
from gpucluster.paths import ClusterPaths
from gpucluster.terraform.plan import TerraformPlan
from gpucluster.terraform.runner import Terraform
from gpucluster.workspace import run as runs
from tests.terraform.conftest import LocalCloud, Workspace, cluster_variables
from tests.waiting import wait_for

CPU = {
    "kind": "instances",
    "shape": "VM.Standard.E5.Flex",
    "ocpus": 1,
    "memory_gb": 8,
    "count": 1,
    "max_count": 1,
    "rdma": False,
    "rdma_plugins": [],
}


class Site:
    """A cluster in a folder. Another process may work on the same one."""

    def __init__(self, cloud: LocalCloud, environment: Mapping[str, str], folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.cloud = cloud
        self.name = name
        self.folder = folder
        self.paths = ClusterPaths.of(folder / "cluster.yml")
        self.paths.create()
        self.environment = {**environment, **cloud.environment, **runs.environment(self.paths)}
        self.events: list[Event] = []
        self.workspace = Workspace(folder, {}, cluster_variables(cloud, name))
        # gpucluster writes all of them.
        self.workspace.variables["network"]["access"] = "public"
        self.workspace.variables["home"]["enabled"] = True
        self.adoption = Adoption(name, self.tagged, self.events.append)

    @property
    def elastic(self) -> str:
        """OCID of the compartment of elastic nodes; empty: the cluster's."""
        return str((self.workspace.variables.get("elastic_compartment") or {}).get("ocid", ""))

    def tagged(self) -> TaggedResources:
        config = oci.config.from_file(str(self.cloud.home / "credentials" / "config"))
        access = CloudAccess(config, self.cloud.endpoint, self.cloud.credentials.tenancy, elastic=self.elastic)
        return TaggedResources(access, self.name, self.events.append)

    def terraform(self, environment: Mapping[str, str] | None = None) -> Terraform:
        program = Path(shutil.which("terraform") or "")
        made = Terraform(self.paths, program, {**self.environment, **(environment or {})}, self.events.append)
        made.prepare()
        return made

    def prepared(self) -> Terraform:
        terraform = self.terraform()
        if not (self.paths.terraform / "cluster" / ".terraform").exists():
            terraform.init()
        terraform.set_variables(self.workspace.variables)
        terraform.restore_state()  # as each run does: a kill may have hit Terraform while it wrote
        return terraform

    def plan(self, *, destroy: bool = False) -> tuple[Terraform, TerraformPlan]:
        """What is left to do for Terraform alone."""
        terraform = self.prepared()
        return terraform, terraform.plan(destroy=destroy)

    def apply(self) -> int:
        """Returns the number of changes."""
        terraform = self.prepared()
        survey = self.adoption.survey(terraform)
        self.set_images(terraform, survey.images)
        self.adoption.remove(survey)
        with self.adoption.adopting(terraform, survey):
            plan = terraform.plan()
        terraform.apply(plan)
        return len(plan.changes)

    def recover(self) -> Recovered:
        terraform = self.prepared()
        return self.adoption.recover(terraform, lambda images: self.set_images(terraform, images))

    def set_images(self, terraform: Terraform, images: Mapping[str, str]) -> None:
        terraform.set_variables({**self.workspace.variables, "existing_images": images})

    def destroy(self) -> None:
        terraform = self.prepared()
        self.adoption.remove_untracked(terraform)
        terraform.apply(terraform.plan(destroy=True))

    def converges(self) -> None:
        """The next apply goes on from here, and then there is nothing to do."""
        self.cloud.faults()
        assert self.apply() > 0
        _, plan = self.plan()
        assert plan.changes == ()

    def ids(self, collection: str) -> list[str]:
        return [str(one["id"]) for one in self.standing(collection)]

    def standing(self, collection: str) -> list[dict[str, Any]]:
        """What exists of this cluster in a collection, in both compartments."""
        found = self.cloud.standing(collection, self.name)
        return [*found, *(self.cloud.standing(collection, self.name, self.elastic) if self.elastic else [])]

    def nodes(self, pool: str) -> list[str]:
        """OCIDs of the instances of a pool."""
        standing = self.standing("/20160918/instances")
        return [str(one["id"]) for one in standing if one["freeformTags"].get("pool") == pool]

    # A run of its own, which can be killed

    def begin(self) -> subprocess.Popen[str]:
        """Apply in another process, which holds the cluster and ends what a killed one left running."""
        asked = {
            "home": str(self.cloud.home),
            "environment": dict(self.environment),
            "folder": str(self.folder),
            "name": self.name,
            "variables": self.workspace.variables,
        }
        argv = [sys.executable, "-m", "tests.terraform.site_harness", json.dumps(asked)]
        root = Path(__file__).parents[2]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=root)

    def killed_terraform(self, moment: Callable[[], bool]) -> str:
        """Apply, and kill Terraform with its provider when something is true; returns what is reported."""
        with self.begin() as run:
            wait_for("the moment to kill has come", lambda: run.poll() is not None or moment())
            assert run.stdout is not None
            assert run.poll() is None, run.stdout.read()
            os.kill(self.terraform_pid(), signal.SIGKILL)
            said = run.stdout.read()
        assert run.returncode != 0, said
        return said

    def terraform_pid(self) -> int:
        """The pid of the running terraform itself, not of its provider."""
        for pid in process.pids_with_variable("GPUCLUSTER_CLUSTER", str(self.paths.root)):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if Path(os.fsdecode(words[0])).name == "terraform" and b"apply" in words:
                return pid
        raise AssertionError("terraform does not run")


def _main(asked: Mapping[str, Any]) -> None:
    site = Site(LocalCloud.at(Path(asked["home"])), asked["environment"], Path(asked["folder"]), asked["name"])
    site.workspace.variables = asked["variables"]

    class Said(list[Event]):
        def append(self, event: Event) -> None:
            print(event.name, event.status, event.message, flush=True)

    site.events = Said()
    site.adoption = Adoption(site.name, site.tagged, site.events.append)
    try:
        with runs.run("apply", site.paths, site.events.append):
            site.apply()
    except GpuClusterError as error:
        print(type(error).__name__, error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
