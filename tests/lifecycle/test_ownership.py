"""A cluster's identity from its first apply to its destroy, in several folders: the real Terraform with the stand-in
provider, and the API of a local cloud that launches no containers. Hosts are not configured: that they keep nothing of
the identity is not a part of this.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import oci
import pytest

from gpucluster.cloud.clusters import Sighting
from gpucluster.cluster import Cluster
from gpucluster.errors import InputError, LockedError, OtherClusterError, ToolError
from gpucluster.events import Event, Sink
from gpucluster.handover.adoption import CONTROLLER, NETWORK
from gpucluster.lifecycle.ownership import Ownership
from gpucluster.lifecycle.provision import Consent
from gpucluster.lifecycle.run_lock import RunLock
from gpucluster.oci.run_lock import Holder
from gpucluster.oci.tags import LOCK
from gpucluster.spec import load
from gpucluster.terraform.plan import ResourceChange
from tests.addresses import free_range
from tests.localcloud.api_harness import Api, running
from tests.racing import race

pytestmark = pytest.mark.slow

NONE = Consent()
CLUSTER = """\
version: 1
name: demo
cloud: {{provider: local}}
network: {{vcn_cidr: {net}.0.0/16, public_subnet_cidr: {net}.0.0/24, private_subnet_cidr: {net}.1.0/24,
          ssh_allowed_cidrs: [127.0.0.0/8]{ids}}}
controller: {{shape: VM.Standard.E5.Flex, ocpus: 1, memory_gb: 8}}
pools: {{cpu: {{shape: VM.Standard.E5.Flex, ocpus: 1, memory_gb: 8, count: 1, max_count: 2}}}}
users: {{people: []}}
"""


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed")
    with running(tmp_path / "cloud") as api:
        monkeypatch.setenv("GPUCLUSTER_HOME", str(api.home))
        yield api


@pytest.fixture
def net() -> Iterator[str]:
    """The first two numbers of a range that nothing on this machine uses."""
    with free_range() as prefix:
        yield prefix


class Folder:
    """A folder with the default cluster.yml."""

    def __init__(self, path: Path, net: str, ids: str = "") -> None:
        path.mkdir()
        self.path = path
        (path / "cluster.yml").write_text(CLUSTER.format(net=net, ids=ids))
        self.events: list[Event] = []
        self.on_event: Sink = self.events.append

    def cluster(self, cluster_id: str = "") -> Cluster:
        return Cluster(load(self.path / "cluster.yml"), on_event=self.on_event, cluster_id=cluster_id)

    def build(self, cluster_id: str = "", consent: Consent = NONE) -> int:
        """What apply does until the resources exist. Returns the number of changes."""
        cluster = self.cluster(cluster_id)
        parts = cluster._parts
        with parts.identity.runs.run("apply", prepares=True) as run:
            terraform = parts.phases.provisioning.prepare(run)
            parts.identity.ownership.save()
            changes = parts.phases.provisioning.apply(terraform, run, consent)
            assert parts.identity.run_lock._held, "others see that hosts are configured now, also at the first apply"
            return changes.total()

    def changes(self) -> list[tuple[str, str]]:
        """What Terraform would change now, by address."""
        plan = self.cluster().plan(preflight=False)
        return sorted((change.address.rpartition(".module.")[2], change.action) for change in plan.changes)

    def identity(self) -> dict[str, Any]:
        return dict(self.cluster()._parts.identity.ownership.outputs()["identity"])


def _tagged(api: Api) -> dict[str, dict[str, str]]:
    """The tags of everything that shows whose it is, by OCID."""
    listed = [
        *api.network.list_vcns(compartment_id=api.tenancy).data,
        *api.network.list_subnets(compartment_id=api.tenancy).data,
        *api.compute.list_instances(api.tenancy).data,
        *api.files.list_file_systems(api.tenancy, api.domain).data,
    ]
    standing = [each for each in listed if each.lifecycle_state not in ("TERMINATED", "DELETED")]
    return {str(each.id): dict(each.freeform_tags) for each in standing}


def test_an_identity_from_the_first_apply_to_the_destroy(api: Api, net: str, tmp_path: Path) -> None:
    ours, theirs = Folder(tmp_path / "ours", net), Folder(tmp_path / "theirs", net)
    assert ours.build() > 0
    identity = ours.identity()
    tags = _tagged(api)
    assert len(identity["id"]) == 16
    assert {each["gpucluster-id"] for each in tags.values()} == {identity["id"]}
    assert identity["origin"].endswith(str(ours.path))
    assert [each["gpucluster-from"] for each in tags.values() if each["role"] == "controller"] == [identity["origin"]]
    assert ours.changes() == []

    # While a run holds the cluster, its tag is not a change to Terraform; the run of another machine is refused.
    assert not any(LOCK in each for each in tags.values()), "the first run has ended"
    (vcn,) = api.network.list_vcns(compartment_id=api.tenancy).data
    own = Holder("0a1b2c3d", "2026-01-02T03:04:05+00:00", "apply", identity["origin"])
    for held in (replace(own, origin="ada@build-3:/srv/demo"), own):
        marked = {**vcn.freeform_tags, LOCK: held.text()}
        api.network.update_vcn(vcn.id, oci.core.models.UpdateVcnDetails(freeform_tags=marked))
        if held != own:
            with pytest.raises(LockedError, match="ada@build-3"):
                ours.build()
    ours.cluster()._parts.identity.saved.lock_id = own.id
    assert ours.changes() == []
    assert _tagged(api)[vcn.id] == marked
    assert ours.build() == 0
    assert _tagged(api) == tags

    # Another folder: refused, and what it knows of ours changes nothing.
    for act in (theirs.build, theirs.cluster().destroy, theirs.cluster().state.recover):
        with pytest.raises(OtherClusterError, match=identity["id"]) as refused:
            act()
        assert identity["origin"] in str(refused.value)
    assert _tagged(api) == tags

    # The state is lost. This folder knows the identity; without it, it has to be named.
    state = ours.cluster().paths.terraform_state
    state.unlink()
    with pytest.raises(ToolError, match=r"state is empty.*gpucluster state recover"):
        ours.build()
    assert len(ours.cluster().state.recover().adopted) > 5
    assert {action for _, action in ours.changes()} <= {"update"}, "arguments that no API returns"
    shutil.rmtree(ours.cluster().paths.root)
    with pytest.raises(OtherClusterError, match="this folder has no state of it"):
        ours.cluster().state.recover()
    with pytest.raises(ToolError, match=f"gpucluster state recover --cluster-id {identity['id']}"):
        ours.build(identity["id"])
    ours.cluster(identity["id"]).state.recover()
    assert ours.identity() == identity
    assert _tagged(api) == tags
    ours.build()
    assert ours.identity() == identity
    assert ours.changes() == []

    # Who names it may destroy it from anywhere; then the name is free, and the next cluster is another one.
    theirs.cluster(identity["id"]).destroy()
    assert theirs.cluster().contents().empty
    theirs.build()
    assert theirs.identity()["id"] != identity["id"]
    with pytest.raises(OtherClusterError, match="this folder's cluster has the identity"):
        ours.cluster().destroy(delete_data=True)
    theirs.cluster().destroy()


def test_a_cluster_without_an_identity_gets_an_identity_by_apply(
    api: Api, net: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = Folder(tmp_path / "ours", net), Folder(tmp_path / "theirs", net)
    with monkeypatch.context() as earlier:
        earlier.setattr(Ownership, "claim", lambda *_args, **_options: None)
        ours.build()
        assert ours.changes() == []
    assert ours.identity()["id"] == ""
    before = _tagged(api)
    assert not any("gpucluster-id" in each for each in before.values())
    with pytest.raises(OtherClusterError, match=r"identity +none") as refused:
        theirs.cluster().destroy(delete_data=True)
    (controller,) = (ocid for ocid, each in before.items() if each["role"] == "controller")
    assert refused.value.cluster_id == controller

    actions = dict(ours.changes())
    replaced = [address for address, action in actions.items() if action not in ("update",)]
    assert [address for address in replaced if "instance_configuration" not in address] == []
    ours.build()
    identity, tags = ours.identity(), _tagged(api)
    assert tags.keys() == before.keys()
    assert {each["gpucluster-id"] for each in tags.values()} == {identity["id"]}
    assert identity["origin"] == "", "who has built it is not known"
    assert ours.changes() == []
    # Its controller's OCID is not a name any more.
    with pytest.raises(OtherClusterError, match=identity["id"]):
        theirs.cluster(controller).destroy(delete_data=True)


def test_a_cluster_of_which_not_all_is_left_belongs_to_its_folder(api: Api, net: str, tmp_path: Path) -> None:
    ours, theirs = Folder(tmp_path / "ours", net), Folder(tmp_path / "theirs", net)
    ours.build()

    # Only the files, as after a destroy that kept them: the network is made first, and carries the lock of the run.
    cluster = ours.cluster()
    with cluster._parts.identity.runs.run("destroy") as run:
        terraform = cluster._parts.phases.provisioning.prepare(run, to_build=False, keep_variables=True)
        terraform.apply(terraform.plan(destroy=True, only=(NETWORK,)))
    kinds = {ocid.split(".")[1] for ocid in _tagged(api)}
    assert kinds == {"filesystem"}
    (files,) = _tagged(api)
    ours.build()
    assert files in _tagged(api)

    # No host, and no state yet, as after a first apply that was killed: no other folder may adopt it.
    ours.cluster().paths.terraform_state.unlink()
    for each in api.compute.list_instances(api.tenancy, lifecycle_state="RUNNING").data:
        api.compute.terminate_instance(each.id)
        api.wait(api.compute.get_instance, each.id, "TERMINATED")  # its name is in use until then
    for act in (theirs.build, theirs.cluster().destroy):
        with pytest.raises(OtherClusterError, match="hosts          none"):
            act()
    assert ours.build() > 0
    assert ours.changes() == []


def _existing(api: Api, net: str, *, dns: bool) -> str:
    """An existing network. Returns its part of cluster.yml."""
    vcn = api.vcn(f"{net}.0.0/16", "theirs")
    subnets = {
        name: api.subnet(
            vcn, f"{net}.{number}.0/24", dns_label=name if dns else None, prohibit_public_ip_on_vnic=name == "private"
        )
        for number, name in enumerate(("public", "private"))
    }
    named = "".join(f", {name}_subnet_id: {subnet.id}" for name, subnet in subnets.items())
    return f", vcn_id: {vcn.id}{named}"


THERE, LATER = "the other one is there", "the other one comes later"


@pytest.mark.parametrize(
    ("network", "ours_is_first"),
    [
        pytest.param("own", True, id=THERE),
        pytest.param("own", False, id=LATER),
        pytest.param("existing", True, id=f"existing network, {THERE}"),
        pytest.param("existing", False, id=f"existing network, {LATER}"),
        pytest.param("existing, with DNS", True, id=f"existing network with DNS, {THERE}"),
    ],
)
def test_of_two_first_applies_at_once_one_makes_the_cluster(
    api: Api, net: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours_is_first: bool, network: str
) -> None:
    """Both have found no cluster of this name. The one whose network is older goes on; in an existing one, the one
    whose controller is older. With DNS a subnet takes no second host of a name.
    """
    ids = "" if network == "own" else _existing(api, net, dns=network.endswith("DNS"))
    kept = _tagged(api)
    ours, theirs = Folder(tmp_path / "ours", net, ids), Folder(tmp_path / "theirs", net, ids)
    # Where the other run is meanwhile: it has looked, and made nothing; or it has made its network or controller.
    moment = "claim" if ours_is_first else "hold"
    act = getattr(Ownership, moment)
    first, second = (ours, theirs) if ours_is_first else (theirs, ours)
    refused: list[OtherClusterError] = []

    def meanwhile(self: Ownership, **options: Any) -> None:
        monkeypatch.setattr(Ownership, moment, act)
        if ours_is_first:
            ours.build()
        else:
            with pytest.raises(OtherClusterError) as found:
                ours.build()
            refused.append(found.value)
        act(self, **options)

    monkeypatch.setattr(Ownership, moment, meanwhile)
    if ours_is_first:
        with pytest.raises(OtherClusterError) as found:
            theirs.build()
        refused.append(found.value)
    else:
        theirs.build()
    identity = first.identity()["id"]
    made = {ocid: tags for ocid, tags in _tagged(api).items() if ocid not in kept}
    assert {each["gpucluster-id"] for each in made.values()} == {identity}
    assert {ocid: tags for ocid, tags in _tagged(api).items() if ocid in kept} == kept
    assert first.changes() == []
    assert identity in str(refused[0])
    assert "choose another `name`" in str(refused[0].hint)
    rest = second.cluster()
    assert not rest.paths.terraform_state.exists() or not rest._parts.identity.ownership.outputs()
    # The name is what has to change.
    file = second.path / "cluster.yml"
    file.write_text(file.read_text().replace("name: demo", "name: other"))
    assert (NETWORK if network == "own" else CONTROLLER, "create") in {
        (change.address, change.action) for change in second.cluster().plan(preflight=False).changes
    }
    assert second.cluster().contents().empty


# A first apply of another process, until the resources exist.
RACER = """
import sys
from gpucluster.cluster import Cluster
from gpucluster.errors import OtherClusterError
from gpucluster.lifecycle.provision import Consent
from gpucluster.spec import load
cluster = Cluster(load(sys.argv[1]))
with cluster._parts.identity.runs.run("apply", prepares=True) as run:
    terraform = cluster._parts.phases.provisioning.prepare(run)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        cluster._parts.phases.provisioning.apply(terraform, run, Consent())
    except OtherClusterError:
        print("refused")
    else:
        print("made", cluster._parts.identity.ownership.id)
"""


@pytest.mark.parametrize("existing", [False, True], ids=["own network", "existing network"])
def test_of_first_applies_of_several_processes_exactly_one_goes_on(
    api: Api, net: str, tmp_path: Path, existing: bool
) -> None:
    ids = _existing(api, net, dns=False) if existing else ""
    kept = _tagged(api)
    files = [Folder(tmp_path / name, net, ids).path / "cluster.yml" for name in "abc"]
    # All have found that nothing has this name.
    said = race(RACER, [[str(file)] for file in files])
    assert sorted(text.split()[0] for text in said) == ["made", "refused", "refused"]
    (identity,) = (text.split()[1] for text in said if text.startswith("made"))
    made = {ocid: tags for ocid, tags in _tagged(api).items() if ocid not in kept}
    assert {each["gpucluster-id"] for each in made.values()} == {identity}
    assert sum(each["role"] == "controller" for each in made.values()) == 1


def test_the_first_one_waits_until_the_other_has_removed_what_it_made(
    api: Api, net: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run is a double: its network is made when ours holds the cluster, and removed when ours waits."""
    ours, hold = Folder(tmp_path / "ours", net), Ownership.hold
    made: list[str] = []

    def meanwhile(self: Ownership) -> None:
        monkeypatch.setattr(Ownership, "hold", hold)
        details = oci.core.models.CreateVcnDetails(
            cidr_blocks=["10.161.0.0/16"],
            compartment_id=api.tenancy,
            freeform_tags={"gpucluster": "demo", "gpucluster-id": "f" * 16, "role": "network"},
        )
        made.append(api.network.create_vcn(details).data.id)
        hold(self)

    def removes(event: Event) -> None:
        if "begun a cluster of this name later" in event.message:
            api.network.delete_vcn(made.pop())

    monkeypatch.setattr(Ownership, "hold", meanwhile)
    ours.on_event = removes
    ours.build()
    assert made == [], "nobody was waited for"
    assert {each["gpucluster-id"] for each in _tagged(api).values()} == {ours.identity()["id"]}


def test_in_an_existing_network_nothing_is_made_before_the_controller_is_held(
    api: Api, net: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Folder(tmp_path / "ours", net, _existing(api, net, dns=False))
    take, kept = RunLock.take, _tagged(api)
    seen: list[dict[str, dict[str, str]]] = []

    def noting(self: RunLock, found: Sequence[Sighting], **options: Any) -> None:
        take(self, found, **options)
        seen.append({ocid: tags for ocid, tags in _tagged(api).items() if ocid not in kept})

    monkeypatch.setattr(RunLock, "take", noting)
    asked: list[tuple[str, str]] = []

    def refuse(changes: Sequence[ResourceChange]) -> None:
        asked.extend((each.address, each.action) for each in changes)
        raise InputError("nothing was changed")

    ours.build(consent=Consent(confirm=refuse))
    assert asked == [], "a first apply changes nothing that stands"
    before, held = seen[0], list(seen[-1].values())
    assert before == {}
    assert [each["role"] for each in held] == ["controller"]
    assert LOCK in held[0]
    assert ours.changes() == []
    assert not any(LOCK in each for each in _tagged(api).values())

    # Where the controller is replaced, the new one carries the lock from then on.
    (before_id,) = (ocid for ocid, tags in _tagged(api).items() if tags.get("role") == "controller")
    state = ours.cluster().paths.terraform_state
    content = json.loads(state.read_text())
    (controller,) = (each for each in content["resources"] if each.get("module") == "module.controller"
                     and each["type"] == "oci_core_instance")  # fmt: skip
    controller["instances"][0]["status"] = "tainted"
    state.write_text(json.dumps(content))
    standing = _tagged(api)
    with pytest.raises(InputError, match="nothing was changed"):
        ours.build(consent=Consent(replace_nodes=True, confirm=refuse))
    assert ("module.controller.oci_core_instance.this", "replace") in [(each.partition("[")[0], a) for each, a in asked]
    assert _tagged(api) == standing
    ours.build(consent=Consent(replace_nodes=True))
    ((after_id, after),) = ((ocid, tags) for ocid, tags in seen[-1].items() if tags["role"] == "controller")
    assert after_id != before_id
    assert LOCK in after
    assert not any(LOCK in each for each in _tagged(api).values())
    assert ours.changes() == []
    assert {ocid: tags for ocid, tags in _tagged(api).items() if ocid in kept} == kept

    # Without its controller and its state it is not a new cluster: nothing is made.
    state.unlink()
    api.compute.terminate_instance(after_id)
    api.wait(api.compute.get_instance, after_id, "TERMINATED")
    left = _tagged(api)
    with pytest.raises(ToolError, match=r"state is empty.*gpucluster state recover"):
        ours.build()
    assert _tagged(api) == left
