"""Hosts are located from the cache, the state or the cloud's tags. The local cloud launches nothing here, so no host
answers; that ssh really reaches them is met in tests/e2e."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest

from gpucluster.cluster import Cluster
from gpucluster.errors import CloudError, InputError, TerraformError, ToolError
from gpucluster.lifecycle.ownership import Ownership
from gpucluster.spec import load
from gpucluster.ssh import Host
from gpucluster.terraform.runner import Terraform
from tests.localcloud.api_harness import Api, running
from tests.spec.spec_texts import APART_FROM_THE_DEMO
from tests.workspace.known_hosts import save_controller

pytestmark = pytest.mark.slow

_DAMAGED = ["", "{ half a fi", "[]", "7", '{"hosts": 1}', '{"hosts": [{"name": "a"}]}', '{"hosts": [7]}']


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A local cloud with the hosts of `demo` (one is elastic, one has ended), and a host of another cluster."""
    with running(tmp_path_factory.mktemp("locate") / "cloud") as api:
        subnet = api.subnet(api.vcn())

        def launch(name: str, cluster: str, public: bool = False, **own: str) -> Any:
            tags = {"gpucluster": cluster, **own}
            return api.launch(subnet, name, freeform_tags=tags, vnic={"assign_public_ip": public})

        launch("demo-controller", "demo", role="controller", public=True)
        launch("demo-login-10", "demo", role="login", public=True)
        launch("demo-login-2", "demo", role="login", public=True)
        launch("compute-1", "demo", role="compute", pool="compute")
        launch("compute-2", "demo", role="compute", pool="compute")
        launch("demo-cpu-e1", "demo", role="compute", pool="cpu", node="demo-cpu-e1")
        launch("other-controller", "other", role="controller")
        launch("alone-1", "alone", role="compute", pool="compute")
        ended = launch("old-controller", "demo", role="controller")
        api.compute.terminate_instance(ended.id)
        yield api


@pytest.fixture
def cluster(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A machine that has cluster.yml and the credentials, and nothing else."""
    monkeypatch.setenv("GPUCLUSTER_HOME", str(api.home))
    (tmp_path / "cluster.yml").write_text(APART_FROM_THE_DEMO)
    return Cluster(load(tmp_path / "cluster.yml"))


def _named(cluster: Cluster, api: Api) -> Cluster:
    """The same on a machine whose operator names the cluster."""
    (controller,) = (
        each.id
        for each in api.compute.list_instances(api.tenancy).data
        if each.freeform_tags.get("gpucluster") == "demo"
        and each.freeform_tags.get("role") == "controller"
        and each.lifecycle_state == "RUNNING"
    )
    return Cluster(cluster.spec, cluster_id=controller)


def _configured(cluster: Cluster) -> list[str]:
    config = (cluster.paths.ssh / "config").read_text()
    return [line.removeprefix("Host ") for line in config.splitlines() if line.startswith("Host ")]


def test_without_folder_and_state_the_hosts_are_found_by_their_tags(cluster: Cluster) -> None:
    assert cluster.hosts.ssh_argv(None, ["true"])[-3:] == ["demo-controller", "--", "true"]
    assert _configured(cluster) == [
        "demo-controller", "demo-login-2 login", "demo-login-10", "compute-1", "compute-2", "*",
    ]  # fmt: skip
    assert cluster.hosts.ssh_argv("compute-2")[-1] == "compute-2"
    assert cluster.paths.root.stat().st_mode & 0o77 == 0


@pytest.mark.parametrize("content", _DAMAGED)
def test_a_damaged_cache_is_written_again(cluster: Cluster, content: str) -> None:
    cluster.hosts.ssh_argv()
    good = (cluster.paths.root / "hosts.json").read_text()
    (cluster.paths.root / "hosts.json").write_text(content)
    cluster.hosts.ssh_argv()
    assert (cluster.paths.root / "hosts.json").read_text() == good


def test_the_state_goes_before_the_tags_and_the_cache_before_both(
    cluster: Cluster, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = json.loads((Path(__file__).parents[1] / "golden" / "local_demo" / "outputs.json").read_text())
    outputs["cluster"]["controller"]["name"] = "by-state"
    del outputs["cluster"]["pools"]["compute"]
    monkeypatch.setattr(Ownership, "outputs", lambda _: outputs)
    fresh = Cluster(cluster.spec)
    assert fresh.hosts.ssh_argv()[-1] == "by-state"
    monkeypatch.setattr(Ownership, "outputs", lambda _: pytest.fail("the cache was not used"))
    assert Cluster(cluster.spec).hosts.ssh_argv()[-1] == "by-state"
    shutil.rmtree(cluster.paths.ssh)  # hosts.json alone reaches no host
    monkeypatch.setattr(Ownership, "outputs", lambda _: {})
    assert Cluster(cluster.spec).hosts.ssh_argv()[-1] == "demo-controller"


def test_a_cluster_that_was_built_again_elsewhere_is_found_when_ssh_reaches_no_host(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_controller(tmp_path, "old-controller")
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    # A double of ssh: only the new controller answers.
    ssh.write_text("""#!/bin/sh
case "$*" in *demo-controller*) echo '{"result": {"groups": []}}';; *) exit 255;; esac
""")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(ssh.parent), prepend=":")
    assert cluster.groups.list() == ()
    assert cluster.hosts.ssh_argv()[-1] == "demo-controller"


def test_a_state_that_cannot_be_read_hides_no_cluster(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(_: Ownership) -> Any:
        raise ToolError("the state can't be read")

    monkeypatch.setattr(Ownership, "outputs", unreadable)
    assert Cluster(cluster.spec).hosts.ssh_argv()[-1] == "demo-controller"
    (cluster.spec.file).write_text(APART_FROM_THE_DEMO.replace("name: demo", "name: never"))
    shutil.rmtree(cluster.paths.root)
    with pytest.raises(ToolError, match="the state can't be read"):
        Cluster(load(cluster.spec.file)).hosts.ssh_argv()


def test_another_compartment_is_refused_by_the_state_on_a_machine_that_knows_nothing(
    cluster: Cluster, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = {"identity": {"contract_version": 1, "compartment_id": "ocid1.compartment.oc1..elsewhere"}}
    monkeypatch.setattr(Terraform, "outputs", lambda _: outputs)
    with pytest.raises(InputError, match=r"was built in another compartment: ocid1\.compartment\.oc1\.\.elsewhere"):
        _named(cluster, api).plan(preflight=False)
    assert not (cluster.paths.root / "compartment").exists()


def test_another_region_is_refused(cluster: Cluster, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = {"cluster": {"contract_version": 1, "compartment_id": api.tenancy, "region": "us-ashburn-1"}}
    monkeypatch.setattr(Terraform, "outputs", lambda _: outputs)
    with pytest.raises(InputError, match=r"was built in another region: us-ashburn-1, and not local-1"):
        _named(cluster, api).plan(preflight=False)


def test_another_compartment_of_elastic_nodes_is_refused_while_some_run_in_the_present_one(
    cluster: Cluster, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = {"cluster": {"contract_version": 1, "compartment_id": api.tenancy}}
    monkeypatch.setattr(Terraform, "outputs", lambda _: outputs)
    assert cluster.spec.file
    cluster.spec.file.write_text(APART_FROM_THE_DEMO + "iam: {elastic_compartment: create}\n")
    moved = _named(Cluster(load(cluster.spec.file)), api)
    for command in (lambda: moved.plan(preflight=False), moved.destroy):
        with pytest.raises(InputError, match=r"changed while elastic nodes run in the present .*: demo-cpu-e1\."):
            command()
    # The other way round: no setting any more, and nodes in a compartment that only the state names.
    details = oci.identity.models.CreateCompartmentDetails(compartment_id=api.tenancy, name="own", description="own")
    outputs["cluster"]["elastic_compartment_id"] = place = api.identity.create_compartment(details).data.id
    api.launch(
        api.subnet(api.vcn("10.78.0.0/16"), "10.78.0.0/24", dns_label="moved"),
        "gpu-e1",
        compartment_id=place,
        freeform_tags={"gpucluster": "demo", "pool": "gpu", "node": "gpu-e1"},
    )
    with pytest.raises(InputError, match="gpu-e1"):
        _named(cluster, api).plan(preflight=False)


@pytest.mark.parametrize("content", ["", "no state\n", "[]"])
def test_a_damaged_state_is_not_an_empty_cluster(cluster: Cluster, content: str) -> None:
    cluster.paths.create()
    cluster.paths.terraform_state.write_text(content)
    for act in (cluster.plan, cluster.destroy, cluster.state.outputs):
        with pytest.raises(TerraformError, match="is damaged") as caught:
            act()
        assert "gpucluster state recover" in caught.value.hint
    assert cluster.paths.terraform_state.read_text() == content
    assert cluster.hosts.ssh_argv()[-1] == "demo-controller"


def test_a_damaged_state_of_nothing_is_set_aside(cluster: Cluster) -> None:
    cluster.spec.file.write_text(APART_FROM_THE_DEMO.replace("name: demo", "name: never"))
    cluster.paths.create()
    cluster.paths.terraform_state.write_text("")
    assert Cluster(load(cluster.spec.file)).plan(preflight=False).changes
    assert [file.read_text() for file in cluster.paths.root.glob("terraform.tfstate.damaged-*")] == [""]


def test_without_its_state_a_cluster_has_no_inventory(cluster: Cluster) -> None:
    for ask in (cluster.hosts.inventory, cluster.state.outputs):
        with pytest.raises(ToolError, match="this folder has no state of it") as caught:
            ask()
        assert "gpucluster state recover" in caught.value.hint


def test_where_nothing_exists_the_local_cloud_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCLUSTER_HOME", str(tmp_path / "home"))
    (tmp_path / "cluster.yml").write_text(APART_FROM_THE_DEMO)
    cluster = Cluster(load(tmp_path / "cluster.yml"))
    with pytest.raises(ToolError, match="there is no cluster yet"):
        cluster.hosts.ssh_argv()
    assert cluster.status().state == "absent"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.yml"]


def test_two_controllers_are_not_guessed_between(cluster: Cluster, api: Api) -> None:
    subnet = oci.pagination.list_call_get_all_results(api.network.list_subnets, api.tenancy).data[0]
    second = api.launch(subnet, "second", freeform_tags={"gpucluster": "demo", "role": "controller"})
    try:
        with pytest.raises(CloudError, match="2 controllers") as caught:
            cluster.hosts.ssh_argv()
        assert second.id in caught.value.where
    finally:
        api.compute.terminate_instance(second.id)


def test_the_nodes_of_a_cluster_without_a_controller_are_reached_directly(
    cluster: Cluster, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster._parts.connections.locator.nodes_alone() == ()  # it has a controller
    (tmp_path / "cluster.yml").write_text(APART_FROM_THE_DEMO.replace("name: demo", "name: alone"))
    alone = Cluster(load(tmp_path / "cluster.yml"))
    assert alone._parts.connections.locator.locate() == ()
    (node,) = alone._parts.connections.locator.nodes_alone()
    assert (node.name, node.address.startswith("10.77.")) == ("alone-1", True)
    assert "ProxyCommand" not in (alone.paths.ssh / "config").read_text()


def test_to_reach_the_nodes_alone_does_not_hide_the_controller_from_the_next_command(
    cluster: Cluster, api: Api, tmp_path: Path
) -> None:
    (tmp_path / "cluster.yml").write_text(APART_FROM_THE_DEMO.replace("name: demo", "name: alone"))
    alone = Cluster(load(tmp_path / "cluster.yml"))
    stopped = Host("alone-controller", "10.39.0.9", "debian", "ocid1.instance.test..stopped")
    alone._parts.identity.saved.save_hosts([stopped], set())
    alone._parts.programs.ssh().write([stopped])
    assert alone._parts.connections.locator.locate() == alone._parts.identity.saved.hosts() != ()
    assert alone._parts.connections.locator.nodes_alone() != ()
    assert alone._parts.identity.saved.hosts() == ()
