"""`verify` from what the hosts report to the files that it leaves. Nothing here asks a host: see tests/e2e."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from gpucluster import handover
from gpucluster.cloud.members import PoolMember
from gpucluster.errors import InputError, ToolError, VerifyError
from gpucluster.events import Event, ignore
from gpucluster.lifecycle.hosts import Deployment
from gpucluster.lifecycle.verification import HostFacts, Verification, VerifyRequest, in_junit
from gpucluster.node_agent.checks.model import Finding, Profile, Status
from gpucluster.paths import ClusterPaths, write_whole
from gpucluster.spec import ClusterSpec, load
from gpucluster.verdict.expectation import Level
from gpucluster.verdict.measurements import UNREACHABLE
from gpucluster.workspace import run_log
from gpucluster.workspace.run import Run
from gpucluster.workspace.run_log import RunLog, RunStatus
from tests.verdict import samples

CASE = Path(__file__).parents[1] / "golden" / "local_demo"
SECRET = "hunter2-Zq8"


class Site:
    """The demo's cluster, with the facts that its hosts report when all is well."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(CASE, folder, dirs_exist_ok=True)
        self.spec: ClusterSpec = load(folder / "cluster.yml")
        outputs = handover.Outputs.parse(json.loads((folder / "outputs.json").read_text()))
        self.deployment = Deployment.of(self.spec, outputs, _members)
        self.paths = ClusterPaths.of(self.spec.file)
        self.paths.create()
        self.events: list[Event] = []
        self.asked: list[Mapping[str, Any]] = []
        self.unreachable: dict[str, str] = {}
        self.facts = self._facts()
        self.log: list[Run] = []

    @property
    def nodes(self) -> list[str]:
        return [node.name for nodes in self.deployment.members.values() for node in nodes]

    def _facts(self) -> dict[str, dict[str, Any]]:
        people = handover.primary_gids(self.spec)
        known = {
            "user_ids": {name: f"{10001 + place}:{gid}" for place, (name, gid) in enumerate(people.items())},
            "user_groups": {name: ["people"] for name in people},
            "local_disk": {"mounted": False, "state": "absent", "words": "no drive", "path": "/mnt/localdisk"},
            "rdma_addresses": {"state": "absent", "words": "none"},
            "rdma_place": {"known": False, "island": "", "network_block": "", "local_block": ""},
        }
        facts = {host.name: {**samples.host(host.name), **known} for host in self.deployment.hosts}
        members = {pool: [node.name for node in nodes] for pool, nodes in self.deployment.members.items()}
        facts[self.deployment.controller.name] |= {
            "accounting": True,
            "jobs_waiting": [],
            "switches": [],
            "sinfo": [
                {"node": node, "state": "idle", "partition": pool, "reason": ""}
                for pool, nodes in members.items()
                for node in nodes
            ],
            "srun": [
                {"partition": pool, "ran": True, "nodes": nodes[:2], "user": "alice", "error": ""}
                for pool, nodes in members.items()
            ],
            "container_steps": [{"pool": pool, "seen": nodes, "missed": {}} for pool, nodes in members.items()],
        }
        return facts

    def collect(self, _deployment: Deployment, request: Mapping[str, Any]) -> HostFacts:
        self.asked.append(request)
        profile = Profile(request["profile"])
        reports = {host: samples.agent_check(_report(host, profile)) for host in self.facts}
        facts = {host: {"agent_check": reports[host], **found} for host, found in self.facts.items()}
        return {**facts, **{host: {UNREACHABLE: why} for host, why in self.unreachable.items()}}

    def verify(self, request: VerifyRequest = VerifyRequest(), measurement: Any = None) -> Any:  # noqa: B008
        cloud: Any = SimpleNamespace(hardware_emulated=True)
        verification = Verification(
            spec=self.spec,
            paths=self.paths,
            cloud=cloud,
            facts=self.collect,
            measurement=measurement or Measurement(),
            on_event=self.events.append,
        )
        run = Run("verify", self.paths, ignore)
        self.log.append(run)
        with in_junit(request.junit, self.spec.name) as final:
            verdict = verification.run(self.deployment, run, request=request)
            final(verdict)
        return verdict

    def evidence(self) -> Path:
        return self.paths.runs / self.log[-1].id / "evidence.json"


def _report(host: str, profile: Profile) -> str:
    return json.dumps(samples.report(host, profile).to_dict())


def _members(pool: str, _network: str, _names: Any) -> Any:
    given = json.loads((CASE / "members.json").read_text())
    return [PoolMember(**member) for member in given[pool]]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_good_cluster_passes_and_leaves_its_evidence(site: Site) -> None:
    verdict = site.verify()
    assert (verdict.status, set(verdict.hosts.values())) == ("pass", {"pass"}), verdict.problems
    assert verdict.evidence == str(site.evidence())
    kept = json.loads(site.evidence().read_text())
    assert set(kept["facts"]) == set(site.facts)
    assert len(kept["results"]) == len(verdict.results)
    checks = [event for event in site.events if event.kind == "check"]
    answer = {event.name: event.message for event in checks}["hosts answer"]
    assert answer == f"{len(site.facts)} of {len(site.facts)} hosts"


def test_the_evidence_is_private_and_has_no_secret(site: Site) -> None:
    site.facts[site.nodes[0]]["output"] = json.dumps({"environment": {"HF_TOKEN": SECRET}})
    site.facts[site.nodes[0]]["secrets"] = {"munge": SECRET}
    site.verify()
    assert SECRET not in site.evidence().read_text()
    assert site.evidence().stat().st_mode & 0o777 == 0o600
    assert site.evidence().parent.stat().st_mode & 0o777 == 0o700


def test_a_failure_names_the_check_the_host_what_to_do_and_the_evidence(site: Site) -> None:
    bad = site.nodes[0]
    site.facts[bad]["firewall"] = {"state": "failed", "words": "no nft"}
    with pytest.raises(VerifyError) as error:
        site.verify()
    text = str(error.value)
    assert f"firewalls are open to the cluster's hosts: {bad}: no nft\n    See `journalctl" in text
    assert f"hosts: {bad} fail, {len(site.facts) - 1} hosts pass" in text
    assert str(site.evidence()) in text
    assert (error.value.verdict.status, error.value.verdict.hosts[bad]) == ("fail", "fail")
    assert json.loads(site.evidence().read_text())["facts"][bad]["firewall"]["words"] == "no nft"


def test_a_host_that_can_not_be_reached_is_unknown_and_the_others_are_judged(site: Site) -> None:
    gone = site.nodes[0]
    site.facts.pop(gone)
    site.unreachable = {gone: "connection timed out"}
    with pytest.raises(VerifyError) as error:
        site.verify()
    verdict = error.value.verdict
    assert verdict.hosts[gone] == "unknown"
    assert {status for host, status in verdict.hosts.items() if host != gone} == {"pass"}
    assert "unreachable: connection timed out" in str(error.value)
    assert "fail" not in {result.status for result in verdict.results}


def test_a_filter_narrows_what_is_collected_and_what_is_judged(site: Site) -> None:
    one = site.nodes[0]
    for run in site.facts[site.deployment.controller.name]["srun"]:
        run["nodes"] = [one]
    verdict = site.verify(VerifyRequest(nodes=one))
    assert list(verdict.hosts) == [one]
    assert site.asked[-1]["nodes"] == [one]


@pytest.mark.parametrize("good", [True, False])
def test_the_junit_file_is_written_also_when_checks_fail(site: Site, tmp_path: Path, good: bool) -> None:
    if not good:
        site.facts[site.nodes[0]]["firewall"] = {"state": "failed", "words": "no nft"}
    file = tmp_path / "verify.xml"
    file.write_text("of an earlier run")
    try:
        site.verify(VerifyRequest(junit=file))
    except VerifyError:
        assert not good
    assert ET.parse(file).getroot().attrib["failures"] == ("0" if good else "1")
    # Its readers are others than ours, and no half of a file is ever there.
    assert file.stat().st_mode & 0o777 == 0o644
    assert [other.name for other in tmp_path.glob(".verify.xml*")] == []


@pytest.mark.parametrize("error", [ToolError("no answer", hint="Look at it"), KeyboardInterrupt()])
def test_the_junit_file_reports_why_nothing_was_checked(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def collect(*_: object) -> HostFacts:
        raise error

    monkeypatch.setattr(site, "collect", collect)
    file = tmp_path / "verify.xml"
    with pytest.raises(type(error)):
        site.verify(VerifyRequest(junit=file))
    root = ET.parse(file).getroot()
    assert (root.attrib["tests"], root.attrib["errors"], root.attrib["failures"]) == ("1", "1", "0")
    told = root.findall(".//error")[0].attrib["message"]
    assert ("no answer. Look at it" in told) if isinstance(error, ToolError) else ("interrupted" in told)


def test_an_existing_file_stays_when_the_new_one_can_not_be_written(tmp_path: Path) -> None:
    file = tmp_path / "verify.xml"
    file.write_text("of an earlier run")
    with pytest.raises(UnicodeEncodeError):
        write_whole(file, "half of it\ud800", mode=0o644)
    assert [other.name for other in tmp_path.iterdir()] == ["verify.xml"]
    assert file.read_text() == "of an earlier run"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (VerifyRequest(pools=["comptue"]), "there is no pool comptue. Did you mean compute?"),
        (VerifyRequest(nodes="compute-99"), "there is no node compute-99. Did you mean compute-"),
        (VerifyRequest(junit=Path("/nonexistent/verify.xml")), "there is no such folder"),
        (VerifyRequest(junit=Path("/")), "not a file"),
        (VerifyRequest(junit=Path("/dev/null")), "not a file"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_before_anything_is_done(
    site: Site, request_: VerifyRequest, message: str
) -> None:
    check = request_.check_file if request_.junit else partial(request_.check, site.spec)
    with pytest.raises(InputError, match=re.escape(message)):
        check()


class Measurement:
    """A double of the jobs: at level full it finds what it is told. It does not prove that they run."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def run(self, nodes_by_pool: Any, level: str, *, keep: Any, record_baseline: bool) -> list[Finding]:
        self.asked.append((dict(nodes_by_pool), level, record_baseline))
        if level != "full":
            return []
        keep("../compute-0001-nccl.txt", "busbw 71")
        return [Finding("nccl_node", nodes_by_pool["compute"][0], Status.FAIL, "slow")]


def test_level_full_also_measures_and_level_quick_does_not(site: Site) -> None:
    measurement = Measurement()
    assert site.verify(measurement=measurement).status == "pass"
    request = VerifyRequest(level=Level.FULL, nodes="compute-2", record_baseline=True)
    for run in site.facts[site.deployment.controller.name]["srun"]:
        run["nodes"] = ["compute-2"]
    with pytest.raises(VerifyError, match="slow") as error:
        site.verify(request, measurement)
    assert [asked[1:] for asked in measurement.asked] == [("quick", False), ("full", True)]
    assert measurement.asked[1][0] == {"compute": ["compute-2"]}
    verdict = error.value.verdict
    assert (verdict.level, [each.check for each in verdict.problems]) == ("full", ["nccl_node"])
    output = site.evidence().with_name("compute-0001-nccl.txt")
    assert (output.read_text(), output.stat().st_mode & 0o777) == ("busbw 71", 0o600)


def test_evidence_goes_with_the_log_of_its_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "MAX_RUNS", 3)
    site.verify()
    site.log[-1].close(RunStatus.SUCCESS)
    # Logs of one second have no order among them: this one is older.
    written, folder = site.evidence().parent, site.paths.runs / "20200101T000000-abcdef"
    written.rename(folder)
    written.with_suffix(".json").rename(folder.with_suffix(".json"))
    for _ in range(4):
        RunLog(site.paths, "verify").close(RunStatus.SUCCESS)
    assert not folder.exists()
    assert not folder.with_suffix(".json").exists()
