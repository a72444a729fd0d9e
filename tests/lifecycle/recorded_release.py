"""What a release stores of a cluster: recorded once, as an example that later releases have to read, and restored.

    python -m tests.lifecycle.recorded_release FOLDER

writes FOLDER (`releases/<version>` here) with the files of `.gpucluster/` that have a format, and with the local cloud
that they belong to (`cloud.sql`, and `engine.json` with its instances), without any key. The cluster is that of
`releases/cluster.yml`, made by what `apply` does until the resources exist: the real Terraform, the stand-in provider,
and a local cloud that launches nothing. Hosts do not exist: what an apply records of them has invented values. Run it
in the tree of the release (CONTRIBUTING.md).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpucluster import __version__, handover
from gpucluster.cluster import Cluster
from gpucluster.events import Event
from gpucluster.lifecycle.provision import Consent
from gpucluster.paths import ClusterPaths
from gpucluster.spec import load
from gpucluster.ssh import Host
from gpucluster.terraform.runner import Terraform
from gpucluster.workspace.run import Run
from gpucluster.workspace.saved_state import SavedState
from tests.localcloud.api_harness import Api, running

RELEASES = Path(__file__).parent / "releases"
CLUSTER_YML = RELEASES / "cluster.yml"
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB1E6PLv0Cl2Pm8hH0sX3lJ3rXnU8YbTq9Z1vC4dA5nE"
#: The files of `.gpucluster/` that are recorded, beside the run log.
FILES = (
    "terraform.tfstate",
    "backend.json",
    "identity.json",
    "hosts.json",
    "compartment",
    "release.json",
    "terraform/cluster/terraform.tfvars.json",
)
#: The local cloud of an example: its database, and the records of the engine that launches nothing.
_CLOUD, _ENGINE = "cloud.sql", "engine.json"
#: In examples, in the place of folders and names of the machine that has recorded them.
_FOLDER, _HOME, _MACHINE, _ORIGIN = "/home/ann/demo", "/home/ann/cloud", "workstation", "ann@workstation:/srv/demo"


class Site:
    """A cluster in a folder, whose hosts do not exist."""

    def __init__(self, folder: Path, api: Api, release: str = __version__) -> None:
        self.api, self.release = api, release
        self.events: list[Event] = []
        self.paths = ClusterPaths.of(folder / "cluster.yml")
        self.saved = SavedState(self.paths)
        self.cluster = Cluster(load(folder / "cluster.yml"), on_event=self.events.append)

    def apply(self) -> None:
        """What apply does until the resources exist, and what it stores of the hosts afterwards."""
        with self.run("apply") as run:
            terraform = self.prepared(run)
            phases = self.cluster._parts.phases
            self.cluster._parts.identity.ownership.save()
            phases.provisioning.apply(terraform, run, Consent())
            made = handover.Outputs.parse(terraform.outputs())
            members = [made.controller, *made.login, *(one for pool in made.pools.values() for one in pool.instances)]
            host_keys = {one.id: HOST_KEY for one in members}
            phases.provisioning.record(terraform, host_keys=host_keys, secrets={"munge": "1"})
            hosts = [Host(name=one.name, address=one.private_ip, user="debian", instance_id=one.id) for one in members]
            self.saved.save_hosts(hosts, {members[0].id})

    @contextmanager
    def run(self, command: str) -> Iterator[Run]:
        """A run that holds the cluster."""
        with self.cluster._parts.identity.runs.run(command, prepares=True) as run:
            yield run

    def prepared(self, run: Run, **options: Any) -> Terraform:
        """Terraform, after all that comes before a plan."""
        return self.cluster._parts.phases.provisioning.prepare(run, **options)

    def outputs(self) -> dict[str, Any]:
        """Those of Terraform."""
        return dict(self.cluster._parts.identity.ownership.outputs())

    def instances(self) -> dict[str, str]:
        """The OCIDs of the hosts that stand, by name."""
        listed = self.api.compute.list_instances(self.api.tenancy).data
        return {str(one.display_name): str(one.id) for one in listed if one.lifecycle_state == "RUNNING"}


@contextmanager
def restored(example: Path, scratch: Path) -> Iterator[Site]:
    """Make the cluster of an example stand again. GPUCLUSTER_HOME has to be `scratch/cloud`.

    Args:
        scratch: an empty folder.
    """
    home, folder = scratch / "cloud", scratch / "demo"
    for file in example.rglob("*"):
        if file.is_file() and file.name not in (_CLOUD, _ENGINE):
            target = folder / ".gpucluster" / file.relative_to(example)
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            target.write_text(file.read_text().replace(_FOLDER, str(folder)))
    shutil.copy(CLUSTER_YML, folder)
    home.mkdir(mode=0o700)
    database = sqlite3.connect(home / "cloud.db")
    database.executescript((example / _CLOUD).read_text().replace(_HOME, str(home)))
    database.close()
    for name, text in json.loads((example / _ENGINE).read_text()).items():
        (home / "null" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "null" / name).write_text(text)
    with running(home) as api:
        yield Site(folder, api, example.name)


def as_of_format_1(state: dict[str, Any]) -> dict[str, Any]:
    """A state of Terraform with the outputs that 0.1.0 stores. Those of a cluster that has nothing it does not know."""
    added = {
        "cluster": ("shares", "standby", "state_volume_id"),
        "identity": ("release", "physical_hosts", "reported_hosts"),
    }
    outputs = {}
    for name, left_out in added.items():
        output = state["outputs"][name]
        kept = {key: value for key, value in output["value"].items() if key not in left_out}
        kinds = {key: kind for key, kind in output["type"][1].items() if key not in left_out}
        if name == "cluster":
            kept["pools"] = {pool: _without_rack(values) for pool, values in kept["pools"].items()}
            of_pools = {pool: ["object", _without_rack(of_pool)] for pool, (_, of_pool) in kinds["pools"][1].items()}
            kinds["pools"] = ["object", of_pools]
        outputs[name] = {"value": {**kept, "contract_version": 1}, "type": ["object", kinds]}
    return {**state, "serial": state["serial"] + 1, "outputs": outputs}


def _without_rack(pool: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in pool.items() if key != "gpu_memory_cluster_id"}


def record(target: Path) -> None:
    """Build the cluster, and write what this release stores of it."""
    with tempfile.TemporaryDirectory(prefix="gpucluster-") as name:
        home, folder = Path(name) / "cloud", Path(name) / "demo"
        os.environ["GPUCLUSTER_HOME"] = str(home)
        folder.mkdir()
        shutil.copy(CLUSTER_YML, folder)
        with running(home) as api:
            site = Site(folder, api)
            site.apply()
            if __version__ != "0.1.0":  # `apply` stores it when hosts are to be launched
                from gpucluster.formats import CLUSTER_FORMAT
                from gpucluster.workspace.saved_state import SavedRelease

                site.saved.release = SavedRelease(CLUSTER_FORMAT, __version__)
        origin = json.loads((site.paths.root / "identity.json").read_text())["origin"]
        private = {
            origin: _ORIGIN,
            str(folder): _FOLDER,
            str(home): _HOME,
            f'"{socket.gethostname()}"': f'"{_MACHINE}"',
        }

        def write(file: str, text: str) -> None:
            for here, there in private.items():
                text = text.replace(here, there)
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            (target / file).write_text(text)

        for file in (*FILES, *(str(each.relative_to(site.paths.root)) for each in site.paths.runs.glob("*.json"))):
            if (site.paths.root / file).exists():
                write(file, (site.paths.root / file).read_text())
        write(_CLOUD, _dump(home))
        records = {str(each.relative_to(home / "null")): each.read_text() for each in (home / "null").glob("*/*")}
        write(_ENGINE, json.dumps(records, indent=1, sort_keys=True) + "\n")


def _dump(home: Path) -> str:
    """The local cloud as SQL. It makes another key at its next start, and forgets tokens of repeated requests."""
    database = sqlite3.connect(home / "cloud.db")
    database.execute("DELETE FROM setting WHERE key IN ('public_key', 'port')")
    database.execute("DELETE FROM retry")
    database.commit()
    text = "\n".join(database.iterdump())
    database.close()
    return text + "\n"


if __name__ == "__main__":
    os.umask(0o022)
    record(Path(sys.argv[1]))
