"""What apply records of the configuration, and when. Ansible, the cloud and the controller are doubles."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucluster import handover
from gpucluster.artifacts.releases import ReleaseSet
from gpucluster.cloud.elastic_instances import ElasticInstance
from gpucluster.cloud.providers import ControllerAccess
from gpucluster.configuration.runner import PlaybookResult
from gpucluster.errors import AnsibleError, ToolError
from gpucluster.events import Event, ignore
from gpucluster.handover.configuration_diff import differences
from gpucluster.lifecycle import elastic_age
from gpucluster.lifecycle.configure import Configuration
from gpucluster.lifecycle.hosts import Deployment
from gpucluster.operations.unchanged_hosts import Comparison, Updated
from gpucluster.paths import ClusterPaths
from gpucluster.spec import load
from gpucluster.ssh import public_key
from gpucluster.verdict.measurements import UNREACHABLE
from gpucluster.workspace.login_keys import LoginKeys
from gpucluster.workspace.run import Run

GOLDEN = Path(__file__).parents[1] / "golden"
PLAYBOOK = "site.yml"


@dataclass
class Steps:
    """What was done, in order: a double of Ansible, of the record, and of what `Configuration` needs of the cloud."""

    ends: Callable[[], PlaybookResult] = lambda: PlaybookResult({}, {}, {})
    done: list[Any] = field(default_factory=list)
    hardware_emulated: bool = False
    nodes: tuple[ElasticInstance, ...] = ()
    events: list[Event] = field(default_factory=list)
    inputs: list[object] = field(default_factory=list)
    reasons: Mapping[str, str] = field(default_factory=dict)
    differing: Mapping[str, Sequence[str]] = field(default_factory=dict)
    updated: Updated = field(default_factory=lambda: Updated(""))

    def authorized_keys(self) -> tuple[str, ...]:
        return ("ssh-ed25519 AAAAoperator",)

    def compare(self, hosts: Sequence[str], inputs: str) -> Comparison:
        self.done.append(("compare", inputs))
        return Comparison({host: self.reasons.get(host, "") for host in hosts}, self.differing)

    def update(self, _controller: str, inputs: str) -> Updated:
        self.done.append(("update", inputs))
        return self.updated

    def run(self, playbook: str, _inventory: Path, *, run_id: str, variables: Mapping[str, object]) -> PlaybookResult:
        assert set(variables) <= {"applied_inputs"}, "an upgrade of Slurm was not asked for"
        self.inputs.append(variables.get("applied_inputs"))
        self.done.append(playbook)
        return self.ends()

    def write(self, record: Mapping[str, Any]) -> None:
        self.done.append(record)

    def read(self, *, timeout: float) -> Mapping[str, Any] | None:
        return next((each for each in reversed(self.done) if isinstance(each, dict)), None)

    def instances(self) -> tuple[ElasticInstance, ...]:
        return self.nodes

    def controller_access(self) -> ControllerAccess:
        return ControllerAccess({"method": "instance_principal"})

    def release_files(self) -> ReleaseSet:
        return ReleaseSet(Path("/elsewhere"), ())

    def wheels(self) -> Path:
        return Path("/elsewhere")

    def versions(self) -> dict[str, str]:
        return {"enroot": "4"}


def _configuration(
    folder: Path, steps: Any, in_state: Mapping[str, str] | None = None, case: str = "oci_three_kinds"
) -> Configuration:
    shutil.copytree(GOLDEN / case, folder, dirs_exist_ok=True)
    spec = load(folder / "cluster.yml")
    paths = ClusterPaths.of(spec.file)
    paths.create()
    keys = LoginKeys(spec, paths, lambda: in_state or {})
    nothing: Any = SimpleNamespace(note=lambda *_: None)
    return Configuration(
        spec=spec, paths=paths, cloud=steps, login_keys=keys, downloads=steps, version="0.1", record=steps,
        ansible=lambda: steps, facts=steps, unchanged=steps, bastion=lambda: pytest.fail("no bastion"),
        file_systems=lambda: nothing, elastic=lambda: steps, on_event=steps.events.append,
    )  # fmt: skip


def _deployment(configuration: Configuration) -> Deployment:
    outputs = handover.Outputs.parse(json.loads((configuration._spec.file.parent / "outputs.json").read_text()))
    return Deployment.of(configuration._spec, outputs, lambda *_: ())


def _run(configuration: Configuration) -> Run:
    return Run("apply", configuration._paths, ignore)


def test_the_record_is_incomplete_while_ansible_runs_and_complete_when_all_of_it_has_succeeded(tmp_path: Path) -> None:
    steps = Steps()
    configuration = _configuration(tmp_path, steps)
    deployment = _deployment(configuration)
    configuration.apply(deployment, _run(configuration))
    begun, playbook, ended = steps.done
    assert (begun["complete"], playbook, ended["complete"]) == (False, PLAYBOOK, True)
    assert ended["hosts"] == {host.name: host.instance_id for host in deployment.hosts}
    # The next plan, and that of another machine, find no difference.
    now = configuration.settings(deployment.outputs, ended["hosts"])
    assert differences(json.loads(json.dumps(ended)), now) == ()
    assert "/elsewhere" not in json.dumps(ended)


@pytest.mark.parametrize("error", [AnsibleError("a task failed"), KeyboardInterrupt()])
def test_an_apply_that_is_interrupted_in_ansible_leaves_no_complete_record(
    tmp_path: Path, error: BaseException
) -> None:
    def ends() -> PlaybookResult:
        raise error

    steps = Steps(ends)
    configuration = _configuration(tmp_path, steps)
    with pytest.raises(type(error)):
        configuration.apply(_deployment(configuration), _run(configuration))
    assert [step if isinstance(step, str) else step["complete"] for step in steps.done] == [False, PLAYBOOK]


def test_ansible_does_not_begin_where_the_record_can_not_be_written(tmp_path: Path) -> None:
    class NoDisk(Steps):
        def write(self, record: Mapping[str, Any]) -> None:
            raise ToolError("no space left")

    steps = NoDisk()
    configuration = _configuration(tmp_path, steps)
    with pytest.raises(ToolError):
        configuration.apply(_deployment(configuration), _run(configuration))
    assert steps.done == []


def test_elastic_nodes_that_an_apply_did_not_change_are_named_until_they_are_gone(tmp_path: Path) -> None:
    steps = Steps()
    configuration = _configuration(tmp_path, steps)
    deployment = _deployment(configuration)

    def apply() -> list[str]:
        steps.events.clear()
        configuration.apply(deployment, _run(configuration))
        return [each.message for each in steps.events]

    began = time.time()
    assert apply() == []
    old = ElasticInstance("ocid1.old", "h100-elastic-e1", "h100-elastic", "RUNNING", created=began)
    baking = ElasticInstance("ocid1.bake", "bake", "h100-elastic", "RUNNING", builder=True, created=began)
    steps.nodes = (old, baking)
    assert apply() == [], "nothing has changed"
    object.__setattr__(configuration._spec.checks, "off", ("gpu_clocks",))
    said = "1 elastic node that is up keeps its earlier configuration until removed: h100-elastic-e1. "
    assert apply() == [f"{said}To remove them now: gpucluster replace h100-elastic-e1"]
    assert len(apply()) == 1, "it is still up"
    steps.nodes = (replace(old, created=time.time()),)
    assert apply() == [], "it is a new one"


def _again(configuration: Configuration, steps: Steps, **changed: Any) -> list[str]:
    """An apply after a complete one, whose record is `changed`: what it did beside the record."""
    deployment = _deployment(configuration)
    configuration.apply(deployment, _run(configuration))
    before = {**(steps.read(timeout=1) or {}), **changed}
    steps.done.clear()
    configuration.apply(deployment, _run(configuration), before=before)
    return [step if isinstance(step, str) else step[0] for step in steps.done if not isinstance(step, dict)]


def test_ansible_does_not_start_where_no_host_has_changed(tmp_path: Path) -> None:
    steps = Steps(updated=Updated("", 1, warnings=["a\x1bb"]))
    configuration = _configuration(tmp_path, steps)
    assert _again(configuration, steps) == ["compare", "update"]
    assert [record["complete"] for record in steps.done if isinstance(record, dict)] == [True]
    said = [each.message for each in steps.events]
    assert "no host has changed since the last apply" in said[0]
    assert said[1].startswith("controller: ") or ": a" in said[1]
    assert "\x1b" not in said[1]


@pytest.mark.parametrize("changed", [{"complete": False}, {"inputs": "others"}, {"inputs": ""}, {"complete": "yes"}])
def test_hosts_are_not_asked_where_the_record_shows_that_they_were_configured_otherwise(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    steps = Steps()
    assert _again(_configuration(tmp_path, steps), steps, **changed) == [PLAYBOOK]


def test_an_apply_reports_what_was_not_as_the_last_one_left_it(tmp_path: Path) -> None:
    differing = {"h100-1": ["file /etc/a\x1b[2J", "unit b"], "h100-2": []}
    steps = Steps(reasons={"h100-1": "the host has changed"}, differing=differing)
    configuration = _configuration(tmp_path, steps)
    name = _deployment(configuration).hosts[-1].name
    steps.reasons = {name: "the host has changed"}
    assert _again(configuration, steps) == ["compare", PLAYBOOK]
    assert [record["complete"] for record in steps.done if isinstance(record, dict)] == [False, True]
    (said,) = [each.message for each in steps.events]
    assert said.startswith("h100-1 was not as the last apply left it: file /etc/a")
    assert said.endswith(", unit b")
    assert "\x1b" not in said


def test_all_tasks_run_where_users_and_accounts_can_not_be_updated(tmp_path: Path) -> None:
    steps = Steps(updated=Updated("accounts in Slurm: no line is like default"))
    configuration = _configuration(tmp_path, steps)
    assert _again(configuration, steps) == ["compare", "update", PLAYBOOK]
    (said,) = [each.message for each in steps.events]
    assert "needs all tasks: accounts in Slurm: no line is like default" in said


def test_keys_that_another_machine_has_generated_are_known_without_ansible(tmp_path: Path) -> None:
    steps = Steps()
    configuration = _configuration(tmp_path, steps, case="local_demo")
    (generated,) = [person.name for person in configuration._spec.users.people if person.generate_key]
    users = [{"name": generated, "ssh_keys": ["there"]}, {"name": "other", "ssh_keys": ["own"]}]
    steps.updated = Updated("", users=users)
    deployment = _deployment(configuration)
    configuration.apply(deployment, _run(configuration))
    result = configuration.apply(deployment, _run(configuration), before=steps.read(timeout=1))
    assert configuration.login_keys(deployment, result) == {generated: ["there"]}


def test_tasks_are_left_out_only_where_an_apply_may(tmp_path: Path) -> None:
    steps = Steps()
    configuration = _configuration(tmp_path, steps)
    deployment = _deployment(configuration)
    configuration.apply(deployment, _run(configuration))
    before = steps.read(timeout=1)
    configuration.apply(deployment, _run(configuration), before=before, all_tasks=True)
    assert steps.inputs[0]
    assert steps.inputs[1:] == [None]


def test_what_the_state_gets_is_what_hosts_have_reported(tmp_path: Path) -> None:
    configuration = _configuration(tmp_path, Steps())
    deployment = _deployment(configuration)
    controller, *others = deployment.hosts
    certificates = {"directory": "pem", "ssh": "key"}
    reported: dict[str, dict[str, Any]] = {
        controller.name: {"certificates": certificates, "secrets": {"munge": "ab"}, "physical_host": "here"},
        **{host.name: {UNREACHABLE: "it gave no answer"} for host in others},
    }
    assert configuration.host_facts(deployment, reported) == {"certificates": certificates, "secrets": {"munge": "ab"}}
    known = {host.instance_id: "before" for host in deployment.hosts}
    now = configuration.physical_hosts(deployment, reported, known)
    assert now == {**known, controller.instance_id: "here"}


@pytest.mark.parametrize("reported", [{UNREACHABLE: "it gave no answer"}, {}, {"hostname": "x"}])
def test_the_state_keeps_what_it_has_where_the_controller_has_reported_nothing(
    tmp_path: Path, reported: dict[str, str]
) -> None:
    configuration = _configuration(tmp_path, Steps())
    deployment = _deployment(configuration)
    with pytest.raises(ToolError, match="does not answer any more"):
        configuration.host_facts(deployment, {deployment.controller.name: reported})


def test_a_record_without_nodes_accuses_none() -> None:
    assert elastic_age.recorded({"complete": True}, {"a": "x"}, 7.0) == {"a": {"fingerprint": "x", "since": 0}}
    assert elastic_age.recorded({"elastic_nodes": 3}, {"a": "x"}, 7.0) == {"a": {"fingerprint": "x", "since": 0}}
    node = ElasticInstance("ocid1", "a-e1", "a", "RUNNING")
    assert elastic_age.behind({"a": {"fingerprint": "x", "since": 7.0}}, [node]) == [], "the cloud says no time"


def test_a_pool_that_has_no_resources_yet_is_compared_as_well(tmp_path: Path) -> None:
    configuration = _configuration(tmp_path, Steps())
    outputs = _deployment(configuration).outputs
    before = {**configuration.settings(outputs, {}), "complete": True}
    fewer = handover.Outputs(**{**vars(outputs), "pools": {}})
    assert configuration.settings(fewer, {})["settings"]["slurm_pools"] == before["settings"]["slurm_pools"]
    found = [each.what for each in differences(before, configuration.settings(fewer, {}))]
    assert "pools.h100-elastic.instance_configuration_id" in found


def test_a_plan_generates_no_key_pair(tmp_path: Path) -> None:
    configuration = _configuration(tmp_path, Steps(), case="local_demo")
    generated = [person.name for person in configuration._spec.users.people if person.generate_key]
    assert generated
    assert configuration.new_key_pairs() == tuple(generated)
    configuration.settings(_deployment(configuration).outputs, {})
    assert all("ssh_keys" not in person for person in configuration.people({}) if person["name"] in generated)
    assert not list((tmp_path / ".gpucluster" / "ssh").iterdir())
    elsewhere = _configuration(tmp_path, Steps(), dict.fromkeys(generated, "ssh-ed25519 AAAA there"), case="local_demo")
    assert elsewhere.new_key_pairs() == ()
    (described,) = [person for person in elsewhere.people({}) if person["name"] == generated[0]]
    assert described["ssh_keys"] == ["ssh-ed25519 AAAA there"]
    # The program of an earlier release on the controller knows no such argument.
    assert "generated_key" not in described
    known = elsewhere.people(elsewhere.settings(_deployment(elsewhere).outputs, {}))
    assert [person["generated_key"] for person in known if person["name"] == generated[0]] == described["ssh_keys"]


def test_a_key_pair_of_this_machine_is_known(tmp_path: Path) -> None:
    configuration = _configuration(tmp_path, Steps(), case="local_demo")
    keys = configuration._login_keys
    name = configuration.new_key_pairs()[0]
    assert keys.public_keys()[name][-1] == public_key(keys.private_key(name))
    assert name not in configuration.new_key_pairs()
    assert keys.existing_public_keys() == keys.public_keys()
