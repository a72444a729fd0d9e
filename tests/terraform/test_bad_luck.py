"""Bad luck, one case each: what the operator is told, that the next apply goes on from there, that nothing is left.

The product's own Terraform class and root, the stand-in provider and a local cloud that launches nothing; its faults
play what a real cloud does. One cluster is built for all cases; each leaves it as it found it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpucluster import process
from gpucluster.errors import TerraformError
from gpucluster.events import Event
from gpucluster.workspace import leftovers
from gpucluster.workspace import run as runs
from gpucluster.workspace.run_log import read_runs
from tests.terraform.conftest import LocalCloud
from tests.terraform.site_harness import CPU, Site
from tests.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.story]

REQUEST_ID = re.compile(r"opc-request-id (\S+/)?[0-9A-F]{32}\b")
ELASTIC = {"kind": "compute_cluster", "count": 0, "max_count": 2}


@pytest.fixture(scope="module")
def site(
    cloud: LocalCloud, terraform_environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A controller, its network and the home; at the end all of it must go."""
    made = Site(cloud, terraform_environment, tmp_path_factory.mktemp("bad") / "luck", "badluck")
    try:
        made.apply()
        yield made
    finally:
        cloud.faults()
        made.destroy()
    assert made.tagged().find() == ()


@contextmanager
def told(*words: str, again: str = "gpucluster apply", request_id: bool = True) -> Iterator[list[TerraformError]]:
    """The block must fail with a message that names resource, cause, request id and the next command."""
    caught: list[TerraformError] = []
    with pytest.raises(TerraformError) as error:
        yield caught
    text = str(error.value)
    for word in words:
        assert word in text, text
    assert again in error.value.hint, text
    assert not request_id or REQUEST_ID.search(text), text
    assert error.value.exit_code == 1
    assert "Suggestion" not in text
    assert len(text) < 2000, text
    log = Path(error.value.hint.rpartition(": ")[2])
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.read_text().strip()
    caught.append(error.value)


REFUSALS: tuple[tuple[Mapping[str, Any], tuple[str, ...]], ...] = (
    ({"message": "Out of host capacity."}, ("no free host", "500 InternalError", "availability_domain")),
    (
        {"status": 400, "code": "QuotaExceeded", "message": "You have reached your compartment's quota."},
        ("limit or quota", "compartment's quota", "400 QuotaExceeded", "gpucluster preflight"),
    ),
    ({"status": 429}, ("too many requests", "429 TooManyRequests", "Wait some minutes")),
    ({"status": 404}, ("may not do this", "404 NotAuthorizedOrNotFound", "gpucluster policies")),
)


def test_a_launch_is_refused_for_one_reason_after_the_other(site: Site) -> None:
    site.workspace.pool("cpu", **CPU)
    terraform, plan = site.plan()
    for fault, words in REFUSALS:
        site.cloud.faults({"operation": "LaunchInstance", **fault})
        with told('module.pool["cpu"]', "the instance cpu-1 of the pool cpu", "LaunchInstance", *words):
            terraform.apply(plan)
        plan = terraform.plan()
    site.cloud.faults({"operation": "BootInstance", "message": "Out of host capacity."})
    with told("the instance cpu-1 of the pool cpu", "no free host", "opc-request-id ocid1.", request_id=False):
        terraform.apply(plan)
    site.converges()
    assert len(site.nodes("cpu")) == 1, "what came to nothing was replaced"


def test_a_429_storm_passes_by_itself(site: Site) -> None:
    site.workspace.pool("storm", **CPU)
    site.cloud.faults({"operation": "*", "rate": 15})
    assert site.apply() > 0
    site.cloud.faults()
    _, plan = site.plan()
    assert plan.changes == ()


def test_a_token_expires_in_the_middle(site: Site) -> None:
    site.workspace.pool("late", **ELASTIC)
    terraform, plan = site.plan()
    site.cloud.faults({"operation": "*", "after": 4, "status": 401})
    with told("does not accept the credentials", "401 NotAuthenticated", "oci session refresh") as caught:
        terraform.apply(plan)
    assert {diagnosis.cause for diagnosis in caught[0].diagnoses} == {"credentials"}
    site.converges()


def test_a_configuration_that_is_in_use_stays_until_its_user_goes(site: Site) -> None:
    site.workspace.pool("gpu", **ELASTIC)
    site.apply()
    cluster = site.terraform().outputs()["cluster"]
    configuration = cluster["pools"]["gpu"]["instance_configuration_id"]
    domain, subnet = cluster["availability_domain"], cluster["private_subnet_id"]
    body = {
        "compartmentId": site.cloud.credentials.tenancy,
        "instanceConfigurationId": configuration,
        "placementConfigurations": [{"availabilityDomain": domain, "primarySubnetId": subnet}],
        "size": 0,
    }
    user = site.cloud.client.call("POST", "/20160918/instancePools", body=body).body["id"]
    del site.workspace.variables["pools"]["gpu"]
    with told(
        'module.pool["gpu"].oci_core_instance_configuration', "still uses it", "DeleteInstanceConfiguration: 409"
    ):
        site.apply()
    site.cloud.client.call("DELETE", f"/20160918/instancePools/{user}")
    site.converges()


def test_what_was_deleted_behind_our_back_is_made_again(site: Site) -> None:
    site.workspace.pool("gone", **CPU)
    site.workspace.pool("bare", **ELASTIC)
    site.apply()
    (node,) = site.nodes("gone")
    configuration = site.terraform().outputs()["cluster"]["pools"]["bare"]["instance_configuration_id"]
    (rules,) = [
        one for one in site.cloud.standing("/20160918/securityLists", site.name) if one["ingressSecurityRules"]
    ][:1]
    site.cloud.client.call("DELETE", f"/20160918/instances/{node}")
    site.cloud.wait("/20160918/instances", node, "TERMINATED")
    site.cloud.client.call("DELETE", f"/20160918/instanceConfigurations/{configuration}")
    site.cloud.client.call("PUT", f"/20160918/securityLists/{rules['id']}", body={"ingressSecurityRules": []})
    site.converges()
    assert len(site.nodes("gone")) == 1
    again = site.cloud.client.call("GET", f"/20160918/securityLists/{rules['id']}").body
    assert len(again["ingressSecurityRules"]) == len(rules["ingressSecurityRules"])


def test_what_is_deleted_between_plan_and_apply_is_named(site: Site) -> None:
    site.workspace.pool("short", **CPU)
    site.apply()
    site.workspace.variables["freeform_tags"]["changed"] = "yes"
    terraform, plan = site.plan()
    site.cloud.faults({"operation": "UpdateInstance", "status": 404})
    with told("oci_core_instance", "outside of Terraform", "UpdateInstance: 404 NotAuthorizedOrNotFound"):
        terraform.apply(plan)
    site.cloud.faults()
    (node,) = site.nodes("short")
    site.cloud.client.call("DELETE", f"/20160918/instances/{node}")
    site.cloud.wait("/20160918/instances", node, "TERMINATED")
    site.converges()


def test_a_service_that_does_not_answer_is_named(site: Site) -> None:
    terraform = site.terraform({"GPUCLUSTER_LOCAL_ENDPOINT": "http://127.0.0.1:9"})
    with told("can't be reached", "127.0.0.1:9", request_id=False):
        terraform.plan()


def test_a_provider_that_can_not_start_is_named(site: Site, tmp_path: Path) -> None:
    rc = Path(site.environment["TF_CLI_CONFIG_FILE"])
    plugins = rc.parent / "plugins"
    shutil.copytree(plugins, tmp_path / "plugins", symlinks=True)
    (tmp_path / "plugins" / "launch").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "rc").write_text(rc.read_text().replace(str(plugins), str(tmp_path / "plugins")))
    terraform = site.terraform({"TF_CLI_CONFIG_FILE": str(tmp_path / "rc")})
    shutil.rmtree(site.paths.terraform / "cluster" / ".terraform")
    with told("could not start the provider", "rm -r .gpucluster", request_id=False):
        terraform.init()
        terraform.plan()
    shutil.rmtree(site.paths.terraform / "cluster" / ".terraform")  # as the message states
    site.terraform().init()


def test_a_proxy_is_not_asked_for_the_local_cloud(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    _, plan = site.plan()
    assert not plan.destroy
    assert site.tagged().find()


# Killed

FINISHES = "Terraform finishes what it has begun"


def _killed(
    site: Site, victim: str, point: str, number: signal.Signals = signal.SIGKILL, *, release: str = ""
) -> tuple[int, str]:
    """Run, and send a signal when the output has come to a point; returns the status and what is reported from there.

    Args:
        release: when this is reported after the signal, the faults are taken away that held the cloud.
    """
    with site.begin() as run:
        assert run.stdout is not None
        said = []
        for line in run.stdout:
            said.append(line)
            if point in line:
                os.kill(site.terraform_pid() if victim == "terraform" else run.pid, number)
                break
        else:
            raise AssertionError("".join(said))
        rest = ""
        for line in run.stdout:
            rest += line
            if release and release in line:
                site.cloud.faults()
    assert run.returncode != 0, rest
    return run.returncode, rest


def _standing(site: Site) -> dict[str, int]:
    """The number of resources in the cloud, by collection."""
    collections = ("/20160918/vcns", "/20160918/subnets", "/20160918/instances", "/20171215/fileSystems")
    return {collection: len(site.ids(collection)) for collection in collections}


def _in_state(site: Site) -> dict[str, int]:
    """The same, but what the state has."""
    types = [
        each["type"]
        for each in json.loads(site.paths.terraform_state.read_text())["resources"]
        if each["mode"] == "managed"
        for _ in each["instances"]
    ]
    names = ("oci_core_vcn", "oci_core_subnet", "oci_core_instance", "oci_file_storage_file_system")
    return dict(zip(_standing(site), map(types.count, names), strict=True))


def test_terraform_and_then_gpucluster_are_killed_half_way(
    cloud: LocalCloud, terraform_environment: Mapping[str, str], tmp_path: Path
) -> None:
    site = Site(cloud, terraform_environment, tmp_path / "site", "killed")
    cloud.faults({"operation": "GetSubnet", "until_removed": True})  # it comes no further before it is killed
    _, said = _killed(site, "terraform", "oci_core_subnet")
    cloud.faults({"operation": "BootInstance", "until_removed": True})  # it waits for it when it is interrupted
    assert "TerraformError" in said
    assert "signal 9" in said
    assert "gpucluster apply" in said
    creating = "oci_core_instance.this creating"
    status, said = _killed(site, "gpucluster", creating, signal.SIGHUP, release=FINISHES)
    assert status == 130, said
    assert FINISHES in said
    assert "Interrupted apply was interrupted" in said
    cloud.faults()
    assert _in_state(site) == _standing(site)
    last = read_runs(site.paths).last
    assert last is not None
    assert last["status"] == "interrupted"
    with site.begin() as done:
        assert done.stdout is not None
        said = done.stdout.read()
    assert done.returncode == 0, said
    _, plan = site.plan()
    assert plan.changes == ()
    assert _standing(site) == _in_state(site) == dict(zip(_standing(site), (1, 2, 1, 1), strict=True))
    site.destroy()
    left = site.tagged()
    left.remove(left.find())
    assert left.find() == ()


def test_terraform_finishes_its_work_when_gpucluster_is_killed(site: Site) -> None:
    site.workspace.pool("alone", **CPU)
    site.cloud.faults({"operation": "BootInstance", "until_removed": True})
    status, _ = _killed(site, "gpucluster", 'module.instance["alone-1"].oci_core_instance.this creating')
    assert status == -signal.SIGKILL
    mark = ("GPUCLUSTER_CLUSTER", str(site.paths.root))
    assert process.pids_with_variable(*mark), "it still waits for the instance"
    site.cloud.faults()
    wait_for("Terraform has ended", lambda: not process.pids_with_variable(*mark), interval=0.1)
    assert site.nodes("alone")
    assert _in_state(site) == _standing(site)
    written = sorted(site.paths.runs.glob("*-terraform-apply.jsonl"))[-1]
    assert written.stat().st_mode & 0o777 == 0o600
    assert '"type":"change_summary"' in written.read_text().splitlines()[-2]
    del site.workspace.variables["pools"]["alone"]
    site.cloud.faults({"operation": "EndInstance", "until_removed": True})
    status, said = _killed(site, "gpucluster", "deleting", signal.SIGTERM, release=FINISHES)
    assert status == 130, said
    site.cloud.faults()
    site.apply()
    _, plan = site.plan()
    assert plan.changes == ()


def _providers(site: Site) -> set[str]:
    """The pids of the cluster's providers."""
    found = set()
    for pid in process.pids_with_variable("GPUCLUSTER_CLUSTER", str(site.paths.root)):
        with suppress(OSError):  # it has ended meanwhile
            if b"gpucluster.localcloud.provider" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(str(pid))
    return found


def test_the_next_run_waits_for_the_terraform_of_a_killed_one(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told to stop, once, and its provider is not: what the provider has begun is in the state afterwards."""
    monkeypatch.setattr("gpucluster.workspace.leftovers.end", partial(leftovers.end, timeout=3 * PATIENCE_S))
    site.workspace.pool("left", **CPU)
    site.cloud.faults({"operation": "BootInstance", "until_removed": True})
    _killed(site, "gpucluster", 'module.instance["left-1"].oci_core_instance.this creating')
    provider = _providers(site)
    assert provider
    told = site.paths.interrupts
    before = told.read_text() if told.exists() else ""

    def release_when_it_was_told() -> None:
        wait_for("Terraform was told to stop", lambda: told.exists() and told.read_text() not in ("", before))
        site.cloud.faults()

    events: list[Event] = []
    with ThreadPoolExecutor(1) as pool:
        released = pool.submit(release_when_it_was_told)
        with runs.run("apply", site.paths, events.append):
            assert _in_state(site) == _standing(site)
        released.result()
    assert {event.name for event in events} == {"leftovers"}
    assert told.read_text().count("\n") < 3
    assert not provider & {line.partition(":")[0] for line in told.read_text().splitlines()}
    site.apply()
    assert len(site.nodes("left")) == 1
    _, plan = site.plan()
    assert plan.changes == ()


# Secrets


def test_nothing_that_is_printed_holds_a_secret(site: Site) -> None:
    """Events and errors are all that the reporters print, but for outputs."""
    site.workspace.variables["freeform_tags"]["printed"] = "yes"
    terraform, plan = site.plan()
    site.cloud.faults({"operation": "Update*", "status": 400, "code": "InvalidParameter", "message": "No."})
    with told("refuses a setting") as caught:
        terraform.apply(plan)
    site.converges()
    printed = json.dumps([event.to_dict() for event in site.events], default=str) + str(caught[0])
    printed += json.dumps(site.terraform().outputs())
    state = json.loads(site.paths.terraform_state.read_text())
    key = site.cloud.credentials.key_file.read_text()
    secrets = {line for line in key.splitlines() if len(line) > 20 and "KEY" not in line} | _sensitive_values(state)
    assert len(secrets) > 10
    assert not [secret for secret in secrets if secret in printed]
    assert [name for name, output in state["outputs"].items() if output.get("sensitive")] == []
    for file in site.paths.root.rglob("*"):
        if file.is_file() and not file.is_symlink():
            assert not [line for line in key.splitlines() if len(line) > 20 and line.encode() in file.read_bytes()], (
                file
            )


def _sensitive_values(state: Mapping[str, Any]) -> set[str]:
    """The values of a state that Terraform marks as sensitive."""
    found = set()
    for resource in state["resources"]:
        for instance in resource["instances"]:
            for path in instance.get("sensitive_attributes", ()):
                value: Any = instance["attributes"]
                for step in path:
                    value = value[step["value"]]
                found.add(str(value))
    return found


# The end: this takes the cluster away; a case that comes after it builds it again


def test_a_mount_target_of_others_holds_the_subnet(site: Site) -> None:
    site.cloud.faults()
    site.apply()
    cluster = site.terraform().outputs()["cluster"]
    body = {
        "availabilityDomain": cluster["availability_domain"],
        "compartmentId": site.cloud.credentials.tenancy,
        "displayName": "of-others",
        "subnetId": cluster["private_subnet_id"],
    }
    target = site.cloud.client.call("POST", "/20171215/mountTargets", body=body).body["id"]
    site.cloud.wait("/20171215/mountTargets", target, "ACTIVE")
    look = f"private-ip list --subnet-id {cluster['private_subnet_id']}"
    words = ("oci_core_subnet.private", "the subnet private", "still uses it", "DeleteSubnet: 409", "VNIC ocid1.", look)
    with told(*words, again="gpucluster destroy"):
        site.destroy()
    standing = [one["id"] for one in site.cloud.standing("/20171215/mountTargets")]
    assert target in standing, "it is not ours"
    site.cloud.client.call("DELETE", f"/20171215/mountTargets/{target}")
    site.destroy()
    assert site.terraform().addresses() == ()
    assert site.tagged().find() == ()
