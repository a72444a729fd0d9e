"""Clusters of earlier releases in the hands of this one: the real Terraform with the stand-in provider, and the API of
a local cloud that launches no containers.

What releases have stored of a cluster is in `releases/` (see `recorded_release`). Hosts do not exist: that jobs run on
while another release configures their hosts is in tests/e2e/test_changes.py.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster import __version__, formats, handover
from gpucluster.errors import NewerReleaseError
from gpucluster.lifecycle.provision import Consent
from gpucluster.terraform.plan import TerraformPlan
from gpucluster.workspace.saved_state import SavedRelease
from tests.lifecycle.recorded_release import RELEASES, Site, as_of_format_1, restored

pytestmark = pytest.mark.slow

#: Without that of the release that is made from this tree: it would prove nothing.
FOLDERS = sorted(folder for folder in RELEASES.iterdir() if folder.is_dir() and folder.name != __version__)
HOSTS = {"demo-controller", "demo-login-1", "cpu-1", "cpu-2"}
#: What an upgrade may change. What new nodes get (their first boot, and the operator's key) is in an instance
#: configuration, and the nodes that stand keep theirs; a release may need other rights.
MAY_CHANGE = {
    ("oci_core_instance_configuration", "replace"),
    ("oci_core_cluster_network", "update"),
    ("oci_identity_policy", "update"),
    ("terraform_data", "update"),
}


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed")
    monkeypatch.setenv("GPUCLUSTER_HOME", str(tmp_path / "cloud"))
    with restored(request.param, tmp_path) as found:
        assert len(found.instances()) == len(HOSTS) + 2  # those of the cluster network have names of the cloud
        assert found.instances().keys() > HOSTS
        yield found


def actions(plan: TerraformPlan) -> set[tuple[str, str]]:
    """The kinds of resources that a plan changes, with the action."""
    return {(re.sub(r"\[[^]]*\]", "", change.address).split(".")[-2], change.action) for change in plan.changes}


def test_an_apply_of_this_release_touches_no_host_and_stores_its_format(site: Site) -> None:
    hosts, release = site.instances(), site.outputs()["identity"].get("release", formats.RELEASE_OF_FORMAT_1)
    provisioning = site.cluster._parts.phases.provisioning
    with site.run("apply") as run:
        terraform = site.prepared(run)
        plan, scaling = provisioning.plan(terraform)
        assert [event.message for event in site.events if "upgrades it" in event.message] == [
            f"gpucluster {release} has applied this cluster last, and this is {__version__}: `gpucluster apply` "
            "upgrades it (docs/how-to/upgrade-gpucluster.md)"
        ]
        assert actions(plan) <= MAY_CHANGE
        assert (scaling.replacements, scaling.controller, scaling.names("removed", "rebooted")) == ((), "", [])
        assert scaling.staying.keys() > HOSTS
        provisioning.apply(terraform, run, Consent())
        outputs = terraform.outputs()
        assert outputs["cluster"]["contract_version"] == formats.CLUSTER_FORMAT
        assert outputs["identity"]["contract_version"] == formats.CLUSTER_FORMAT
        assert outputs["identity"]["release"] == __version__
        known = handover.Identity.parse(outputs)
        assert known.recorded["secrets"] == {"munge": "1"}
        assert known.login_keys.keys() == {"bob"}
        # What only this release stores can be written without another apply.
        provisioning.record(terraform, physical_hosts={hosts["demo-controller"]: "host-1"})
    with site.run("apply") as run:
        terraform = site.prepared(run)
        again = provisioning.plan(terraform)[0]
        assert (again.changes, again.changes_outputs) == ((), False)
        # A newer release with the same format has applied it meanwhile, from another machine.
        terraform.set_output("identity", {**terraform.outputs()["identity"], "release": "9.1.0"})
    with site.run("apply") as run:
        site.prepared(run)
    # Tests of whole clusters begin with such a state: it has what 0.1.0 stores.
    now = as_of_format_1(json.loads(site.paths.terraform_state.read_text()))
    first = json.loads((RELEASES / formats.RELEASE_OF_FORMAT_1 / "terraform.tfstate").read_text())["outputs"]
    assert {name: output["type"] for name, output in now["outputs"].items()} == {
        name: output["type"] for name, output in first.items()
    }
    assert any("an apply would take its programs and settings back" in event.message for event in site.events)
    assert site.instances() == hosts


def test_a_destroy_of_this_release_works_from_the_variables_of_that_one(site: Site) -> None:
    with site.run("destroy") as run:
        terraform = site.prepared(run, keep_variables=True)
        plan = terraform.plan(destroy=True)
        assert {change.address for change in plan.changes if change.action == "delete"} == set(terraform.addresses())
        terraform.apply(plan)
    assert site.instances() == {}


def test_the_saved_files_are_read(site: Site) -> None:
    saved = site.saved
    assert saved.identity is not None
    assert (saved.identity.name, saved.identity.origin) == ("demo", "ann@workstation:/srv/demo")
    assert [(host.name, bool(host.booted)) for host in saved.hosts()][:2] == [
        ("demo-controller", True), ("demo-login-1", False),
    ]  # fmt: skip
    assert saved.compartment == site.api.tenancy
    assert saved.release.format <= formats.CLUSTER_FORMAT
    # A command that needs no state names the release, too.
    ownership = site.cluster._parts.identity.ownership
    ownership.require(state=False)
    ownership.require(state=False)
    assert [event.message.partition(" has applied")[0] for event in site.events] == [f"gpucluster {site.release}"]
    assert json.loads(next(site.paths.runs.glob("*.json")).read_text())["command"] == "apply"


def test_a_folder_and_a_state_of_a_newer_release_are_left_alone(site: Site) -> None:
    newer = formats.CLUSTER_FORMAT + 1
    file = site.paths.terraform_state
    stored, hosts = file.read_text(), site.instances()
    state = json.loads(stored)
    state["outputs"]["identity"]["value"] |= {"contract_version": newer, "release": "9.1.0"}
    changed = json.dumps(state)
    for folder, text in ((SavedRelease(newer, "9.1.0"), stored), (SavedRelease(1), changed)):
        site.saved.release = folder
        file.write_text(text)
        before = _contents(site)
        for command in ("apply", "destroy"):
            with pytest.raises(NewerReleaseError, match=r"gpucluster 9\.1\.0"), site.run(command) as run:
                site.prepared(run)
        assert _contents(site) == before
    assert site.instances() == hosts


def _contents(site: Site) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in site.paths.root.rglob("*") if path.is_file()}
