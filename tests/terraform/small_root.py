"""A root that needs no provider, and an operator's machine that runs it with the real Terraform."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucluster.events import Event
from gpucluster.paths import ClusterPaths
from gpucluster.terraform import backends
from gpucluster.terraform.lock import StateLock
from gpucluster.terraform.plan import TerraformPlan
from gpucluster.terraform.runner import Terraform
from tests.terraform.state_doubles import StateDouble

PASSWORD = "sesame-opens-9f"


ROOT = """
variable "cluster_name" { type = string }
variable "note" {
  type    = string
  default = ""
}
variable "reads" {
  type    = string
  default = ""
}
resource "terraform_data" "network" { input = "${var.cluster_name} ${var.note}" }
resource "terraform_data" "slow" {
  count = var.reads == "" ? 0 : 1
  provisioner "local-exec" { command = "exec cat '${var.reads}'" }
}
resource "terraform_data" "secret" { input = sensitive("hush-hush-4711") }
variable "recorded" {
  type    = map(string)
  default = {}
}
output "identity" { value = { contract_version = 1, host_keys = var.recorded } }
output "cluster" { value = { name = var.cluster_name, contract_version = 1 } }
"""


ADDRESSES = ("terraform_data.network", "terraform_data.secret")


class Machine:
    """One operator's machine: a folder, and Terraform as a run of ours uses it."""

    def __init__(self, folder: Path, cluster: str = "demo") -> None:
        folder.mkdir(exist_ok=True)
        self.cluster = cluster
        self.paths = ClusterPaths.of(folder / "cluster.yml")
        self.paths.create()
        self.events: list[Event] = []

    def terraform(
        self, kind: str = "local", config: Mapping[str, Any] | None = None, lock: StateLock | None = None
    ) -> Terraform:
        backend = backends.desired(
            kind,
            config or {},
            cluster=self.cluster,
            local_file=self.paths.terraform_state,
            region="us-ashburn-1",
            authentication={"config_file_profile": "DEFAULT"},
        )
        program = Path(shutil.which("terraform") or "")
        waits: dict[str, Any] = {"lock_timeout": "0s", "lock_wait": 0}
        return Terraform(self.paths, program, {}, self.events.append, backend=backend, state_lock=lock, **waits)

    def plan(
        self, kind: str = "local", config: Mapping[str, Any] | None = None, **variables: Any
    ) -> tuple[Terraform, TerraformPlan]:
        """As a run does it."""
        terraform = self.terraform(kind, config)
        terraform.prepare()
        terraform.init()
        terraform.set_variables({"cluster_name": self.cluster, **variables})
        return terraform, terraform.plan()

    def apply(self, kind: str = "local", config: Mapping[str, Any] | None = None, **variables: Any) -> int:
        """As a run does it; returns the number of changes."""
        terraform, plan = self.plan(kind, config, **variables)
        terraform.apply(plan)
        return len(plan.changes)

    def copies(self) -> list[Path]:
        return sorted(self.paths.root.glob("terraform.tfstate.before-*"))

    def files(self) -> list[Path]:
        return [file for file in self.paths.root.rglob("*") if file.is_file() and not file.is_symlink()]


def http_config(double: StateDouble, name: str = "demo") -> dict[str, str]:
    return {"address": f"{double.url}/{name}", "lock_address": f"{double.url}/{name}"}


def s3_config(double: StateDouble) -> dict[str, Any]:
    return {"bucket": "states", "endpoint": double.url}
