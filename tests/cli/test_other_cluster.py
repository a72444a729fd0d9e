"""Every command, tried from a folder that is not the cluster's: with the API of a local cloud that launches no
containers, and the real command line. The list of commands is click's, so that a new one must state what it is.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import oci
import pytest
from click.testing import CliRunner, Result

from gpucluster.cli import cli
from gpucluster.cli.base import Context, Root
from gpucluster.paths import ClusterPaths
from gpucluster.workspace.saved_state import SavedIdentity, SavedState
from tests.localcloud.api_harness import Api, running
from tests.spec.spec_texts import LOCAL
from tests.terraform.state_doubles import serving
from tests.workspace.known_hosts import save_controller

pytestmark = pytest.mark.slow

ID = "0123456789abcdef"
ORIGIN = "ada@build-3:/srv/demo"
#: They change a cluster, or give access to it; with the words that they need.
CHANGES: Mapping[str, tuple[str, ...]] = {
    "apply": (),
    "autoscaler pause": ("why",),
    "autoscaler resume": (),
    "controller replace": (),
    "controller failover": (),
    "destroy": ("--delete-data",),
    "group add": ("lab",),
    "group add-member": ("lab", "alice"),
    "group remove": ("lab",),
    "group remove-member": ("lab", "alice"),
    "image bake": ("cpu",),
    "image import": ("docker://alpine",),
    "image remove": ("alpine",),
    "job cancel": ("7",),
    "job prepare": ("data", "--from", "cluster.yml"),
    "job submit": ("mpi_allreduce", "--user", "alice", "--pool", "cpu"),
    "kubeconfig": (),
    "kubernetes certificates": ("--renew",),
    "kubernetes compact": (),
    "kubernetes upgrade": (),
    "plan": (),  # it changes nothing, but it would show another cluster's resources as this one's
    "replace": ("compute-1",),
    "restore": ("cluster.yml",),
    "rollout": (),
    "rotate": ("munge",),
    "slurm upgrade": (),
    "token": ("alice",),
    "state recover": (),
    "state unlock": ("0a1b2c3d",),
    "user add": ("bob",),
    "user disable": ("alice",),
    "user edit": ("alice", "--shell", "/bin/sh"),
    "user enable": ("alice",),
    "user import": ("people.yml",),
    "user key": ("bob", "--replace"),
    "user remove": ("alice",),
    "verify": ("--fix",),
}
#: They read a cluster; `ssh`, `cp` and `kubectl` pass on what the operator types.
READS: Mapping[str, tuple[str, ...]] = {
    "autoscaler explain": ("7",),
    "autoscaler plan": ("--dry-run",),
    "autoscaler status": (),
    "backup": (),
    "cp": (":/etc/hostname", "."),
    "dashboard": (),
    "cost": (),
    "drift": (),
    "exposure": (),
    "image list": (),
    "group list": (),
    "inventory": (),
    "job list": (),
    "job logs": ("7",),
    "job report": ("7",),
    "job status": ("7",),
    "job wait": ("7",),
    "kubectl": ("get", "nodes"),
    "kubernetes status": (),
    "output": (),
    "policies": (),
    "preflight": (),
    "software lock-provider": (),
    "ssh": (),
    "status": (),
    "support-bundle": (),
    "user list": (),
    "user show": ("alice",),
}
#: They are about files, this machine, or all clusters of a compartment.
WITHOUT_A_CLUSTER = frozenset(
    {
        "autoscaler simulate", "init", "job judge", "job render", "job show", "job templates", "kubernetes images",
        "kubernetes queues", "kubernetes values", "list", "local env", "local start", "local status", "local stop",
        "logs", "export orm", "migrate orm", "runs", "schema", "software fetch", "software list", "software lock",
        "validate",
    }
)  # fmt: skip
FOR_KUBERNETES = frozenset({"kubeconfig", "kubectl"})
FOR_REST = frozenset({"token"})


def cluster_text(command: str) -> str:
    """The cluster.yml that a command is tried with: one that has what the command is about."""
    text = f"{LOCAL}containers: {{runtimes: [enroot]}}\n"
    if command in FOR_KUBERNETES or command.startswith("kubernetes "):
        return text.partition("\nslurm:")[0] + "\nscheduler: kubernetes\n"
    return text.replace("\nslurm:\n", "\nslurm:\n  rest: true\n") if command in FOR_REST else text


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    inner = command.all_commands() if isinstance(command, Root) else command.commands
    for name, each in inner.items():
        yield from _commands(each, (*path, name))


def test_each_command_states_whether_it_changes_a_cluster() -> None:
    known = [*CHANGES, *READS, *WITHOUT_A_CLUSTER]
    assert sorted(_commands(cli)) == sorted(known), "a new command belongs to one of these lists"


def _build(api: Api, name: str, tags: Mapping[str, str]) -> str:
    """What a cluster has in the cloud, as far as it shows whose it is: a network, a controller. Returns its OCID."""
    core = oci.core.models
    common: dict[str, Any] = {"compartment_id": api.tenancy, "freeform_tags": {"gpucluster": name, **tags}}
    vcn = api.network.create_vcn(core.CreateVcnDetails(cidr_blocks=["10.161.0.0/16"], **common)).data
    subnet = api.network.create_subnet(
        core.CreateSubnetDetails(vcn_id=vcn.id, cidr_block="10.161.0.0/24", **common)
    ).data
    details = core.LaunchInstanceDetails(
        shape="BM.GPU4.8",
        display_name=f"{name}-controller",
        availability_domain=api.domain,
        source_details=core.InstanceSourceViaImageDetails(image_id=api.compute.list_images(api.tenancy).data[0].id),
        create_vnic_details=core.CreateVnicDetails(subnet_id=subnet.id),
        **{**common, "freeform_tags": {**common["freeform_tags"], "role": "controller"}},
    )
    launched = api.compute.launch_instance(details).data.id
    # Tests compare its state with what it was before.
    return str(api.wait(api.compute.get_instance, launched, "RUNNING").id)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("home") / "cloud") as api:
        _build(api, "demo", {"gpucluster-id": ID, "gpucluster-from": ORIGIN})
        api.legacy = _build(api, "older", {})  # type: ignore[attr-defined]
        yield api


def _write(folder: Path, command: str = "", *, name: str = "demo") -> None:
    text = cluster_text(command).replace("name: demo", f"name: {name}", 1)
    (folder / "cluster.yml").write_text(text)
    (folder / "people.yml").write_text("- {name: bob}\n")


@pytest.fixture
def folder(cloud: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose cluster.yml has the name of a cluster that was built elsewhere."""
    monkeypatch.setenv("GPUCLUSTER_HOME", str(cloud.home))
    monkeypatch.chdir(tmp_path)
    _write(tmp_path)
    return tmp_path


def _run(*words: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(cli, list(words), input=answer)


def _json(*words: str) -> tuple[int, dict[str, Any]]:
    done = _run("--output", "json", *words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, json.loads(done.stdout.splitlines()[-1])["data"]


def _everything(api: Api) -> set[tuple[str, str, str]]:
    """What the cloud has: OCIDs with their states and tags."""
    listed = [
        *api.network.list_vcns(compartment_id=api.tenancy).data,
        *api.network.list_subnets(compartment_id=api.tenancy).data,
        *api.compute.list_instances(api.tenancy).data,
    ]
    return {(str(each.id), str(each.lifecycle_state), str(sorted(each.freeform_tags.items()))) for each in listed}


def _state(file: Path, name: str, tags: Mapping[str, str], ocid: str = "ocid1.vcn.local..gone") -> None:
    attributes = {"id": ocid, "freeform_tags": {"gpucluster": name, **tags}}
    resource = {"mode": "managed", "type": "oci_core_vcn", "name": "this", "instances": [{"attributes": attributes}]}
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"version": 4, "serial": 1, "lineage": "x", "outputs": {}, "resources": [resource]}))


@pytest.mark.parametrize("command", sorted(CHANGES))
def test_a_folder_without_state_changes_no_cluster_of_this_name(command: str, folder: Path, cloud: Api) -> None:
    _write(folder, command)
    before = _everything(cloud)
    code, said = _json(*command.split(), *CHANGES[command])
    assert (code, said["error"]) == (2, "OtherClusterError"), said
    for fact in (ID, "10.161.0.0/16", "10.77.0.0/16", ORIGIN, "demo-controller", "created"):
        assert fact in said["what"]
    assert said["hint"].index("choose another `name`") < said["hint"].index(f"--cluster-id {ID}")
    assert said["cluster_id"] == ID
    assert _everything(cloud) == before


@pytest.mark.parametrize("command", sorted(CHANGES))
def test_a_folder_of_another_identity_changes_no_cluster_of_this_name(command: str, folder: Path, cloud: Api) -> None:
    _write(folder, command)
    _state(folder / ".gpucluster" / "terraform.tfstate", "demo", {"gpucluster-id": "f" * 16})
    before = _everything(cloud)
    for named in ((), ("--cluster-id", ID)):
        code, said = _json(*command.split(), *CHANGES[command], *named)
        assert (code, said["error"]) == (2, "OtherClusterError"), said
        assert "f" * 16 in said["what"]
    assert _everything(cloud) == before


@pytest.mark.parametrize("command", sorted({**CHANGES, **READS}))
def test_no_command_works_in_a_folder_whose_state_has_another_name(command: str, folder: Path, cloud: Api) -> None:
    words = {**CHANGES, **READS}[command]
    _write(folder, command, name="renamed")
    _state(folder / ".gpucluster" / "terraform.tfstate", "before", {})
    before = _everything(cloud)
    code, said = _json(*command.split(), *words)
    assert (code, said["error"]) == (2, "OtherClusterError"), said
    assert said["what"] == "this folder's state is of the cluster before, and cluster.yml names renamed"
    assert "write `name: before` again" in said["hint"]
    assert _everything(cloud) == before


@pytest.mark.parametrize("command", ["ssh", "status", "output", "user list"])
def test_a_command_that_reads_notices_another_name_in_a_remote_state(command: str, folder: Path) -> None:
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed")
    values: dict[str, dict[str, Any]] = {
        "cluster": {"contract_version": 1, "name": "before"},
        "identity": {"contract_version": 1, "name": "before", "id": ID},
    }
    outputs = {
        name: {
            "value": value,
            "type": ["object", {key: "number" if key == "contract_version" else "string" for key in value}],
        }
        for name, value in values.items()
    }
    content = {"version": 4, "serial": 1, "lineage": "x", "outputs": outputs, "resources": []}
    content["terraform_version"] = "1.5.0"
    with serving() as double:
        double.objects["/state"] = json.dumps(content).encode()
        _write(folder, name="renamed")
        with (folder / "cluster.yml").open("a") as file:
            file.write(f"state: {{backend: http, config: {{address: '{double.url}/state'}}}}\n")
        # What the last run has saved of the hosts is of the cluster with the other name.
        save_controller(folder, "before-controller")
        saved = SavedState(ClusterPaths(folder / ".gpucluster"))
        saved.identity = SavedIdentity("before", ID)
        assert saved.hosts()
        code, said = _json(*command.split())
    what = "this folder's state is of the cluster before, and cluster.yml names renamed"
    if command == "status":
        # It shows what it knows, and reports what it does not.
        assert what in json.dumps(said)
        assert "before-controller" not in json.dumps(said)
        return
    assert (code, said["error"], said["what"]) == (2, "OtherClusterError", what), said


def test_a_wrong_identity_does_not_count_as_consent(folder: Path, cloud: Api) -> None:
    before = _everything(cloud)
    for named in ("f" * 16, "demo", "*"):
        code, said = _json("destroy", "--delete-data", "--cluster-id", named)
        assert (code, said["error"]) == (2, "OtherClusterError")
        assert ID in said["what"]
    assert _everything(cloud) == before


def test_a_cluster_without_an_identity_is_named_by_its_controller(folder: Path, cloud: Api) -> None:
    _write(folder, name="older")
    code, said = _json("user", "remove", "alice")
    assert (code, said["error"]) == (2, "OtherClusterError")
    assert re.search(r"^  identity +none$", said["what"], re.M)
    assert said["cluster_id"] == cloud.legacy  # type: ignore[attr-defined]
    # Named, it is asked; nothing answers at this address.
    code, said = _json("autoscaler", "pause", "why", "--cluster-id", ID)
    assert (code, said["error"]) == (2, "OtherClusterError")


def test_recover_shows_the_facts_on_a_terminal_and_wants_the_identity(
    folder: Path, cloud: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Context, "can_ask", property(lambda self: self.interactive))
    for answer in ("\n", "demo\n", "yes\n"):
        refused = _run("state", "recover", answer=answer)
        assert refused.exit_code == 2
        assert ORIGIN in refused.stderr
        assert "choose another `name`" in refused.stderr
    assert not (folder / ".gpucluster" / "terraform.tfstate").exists()


def test_destroy_asks_nothing_on_a_terminal_of_another_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "can_ask", property(lambda self: self.interactive))
    refused = _run("destroy", answer="demo\n")
    assert refused.exit_code == 2
    assert "that is not known to be yours" in refused.stderr
