"""Which faults are of the hardware, what the evidence has, and which physical hosts came back.

The cloud is a double: how it answers to the tag is in tests/cloud/test_host_reports.py.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, cast

import pytest

from gpucluster.cloud.host_reports import HostReport, HostReports
from gpucluster.errors import InputError
from gpucluster.events import Event
from gpucluster.lifecycle.host_reports import (
    HostFault,
    HostReporting,
    ReportedHost,
    fault_of_findings,
    fault_of_reason,
    fault_of_report,
    returned,
)
from gpucluster.node_agent.checks.model import Finding, Status
from gpucluster.node_agent.checks.refusals import NVIDIA_SMI
from gpucluster.node_agent.rules.reasons import CHANGED, FAILED_CHECKS, FOR_A_PERSON, RETURNED, of_checks
from gpucluster.paths import ClusterPaths
from gpucluster.spec import loads
from gpucluster.workspace import evidence
from tests.spec.spec_texts import LOCAL

SPEC = loads(LOCAL, "cluster.yml")
ECC = Finding("gpu_ecc", "compute-1", Status.FAIL, "3 uncorrectable errors on GPU 4", {"4": 3})
MOUNT = Finding("mounts", "compute-1", Status.FAIL, "/home does not answer")
NO_DRIVER = Finding("gpu_count", "compute-1", Status.FAIL, f"{NVIDIA_SMI[9]}; nvidia-smi ended with status 9")
LOST = Finding("gpu_count", "compute-1", Status.FAIL, f"{NVIDIA_SMI[15]}; nvidia-smi ended with status 15")


# --- faults -----


@pytest.mark.parametrize(
    ("findings", "bad"),
    [([ECC], True), ([MOUNT, ECC], True), ([LOST], True), ([MOUNT], False), ([NO_DRIVER], False), ([], False)],
)
def test_only_checks_of_the_hardware_show_a_bad_host(findings: list[Finding], bad: bool) -> None:
    fault = fault_of_findings(findings)
    assert (fault is not None) is bad
    for again in (True, False):
        reason = of_checks([(each.check, each.message) for each in findings], again=again)
        assert (fault_of_reason(reason) is not None) is bad, reason
        assert (fault_of_reason(f"{RETURNED} {reason}") is not None) is bad
    if fault:
        assert "gpu_" in fault.reason
        assert fault.findings == tuple(findings)


@pytest.mark.parametrize(
    "reason", ["none", "", CHANGED, "loud fan", f"{FAILED_CHECKS} mounts: no gpu_ecc here", FOR_A_PERSON]
)
def test_a_reason_of_others_shows_no_fault(reason: str) -> None:
    assert fault_of_reason(reason) is None


def test_what_an_operator_reports_is_a_fault_also_when_the_host_comes_back() -> None:
    fault = fault_of_report('does not answer,\n"machine check"')
    assert fault.reason == "an operator reports: does not answer, 'machine check'"
    assert fault_of_reason(f"{RETURNED} {fault.reason}") == fault
    assert fault_of_reason(fault.reason.partition(": ")[2]) is None
    with pytest.raises(InputError, match="is empty"):
        fault_of_report(" \n")


def test_all_checks_of_a_reason_are_read_also_where_they_share_a_message() -> None:
    assert fault_of_reason(f"{FAILED_CHECKS} mounts, gpu_ecc: bad; services: down")
    assert fault_of_reason(f"{FAILED_CHECKS} mounts: bad; drives: 7 of 8")
    assert not fault_of_reason(f"{FAILED_CHECKS} mounts: bad drives")


# --- the record -----


def test_a_record_comes_back_as_it_was_and_what_is_none_is_left_out() -> None:
    record = ReportedHost("compute-1", "ocid1.a", "gpu_ecc: 3", "2026-11-29T08:00:00+00:00", ("ocid1.b",))
    assert ReportedHost.parse(record.to_json()) == record
    for text in ("", "[]", "{}", "{", '{"node": 1}', json.dumps({**json.loads(record.to_json()), "proven": [1]})):
        assert ReportedHost.parse(text) is None


def test_a_host_that_came_back_is_seen_until_its_checks_have_passed() -> None:
    record = ReportedHost("compute-1", "ocid1.old", "gpu_ecc: 3", "now")
    reported = {"host-1": record.to_json(), "damaged": "{"}
    names = {"ocid1.new": "compute-2", "ocid1.other": "compute-3", "ocid1.unknown": "compute-4", "ocid1.d": "compute-5"}
    physical = {"ocid1.new": "host-1", "ocid1.other": "host-2", "ocid1.d": "damaged"}
    assert returned(reported, physical, names) == {"compute-2": record}
    proven = ReportedHost("compute-1", "ocid1.old", "gpu_ecc: 3", "now", ("ocid1.new",))
    assert returned({"host-1": proven.to_json()}, physical, names) == {}
    assert returned(reported, {"ocid1.old": "host-1"}, {"ocid1.old": "compute-1"}) == {}, "it was not replaced yet"


# --- reports -----


class CloudDouble:
    """Stands for the client: remembers what was reported, and whether the evidence was there by then."""

    def __init__(self, folder: Path, answer: HostReport) -> None:
        self._folder, self._answer = folder, answer
        self.reported: list[tuple[str, str, int]] = []

    def report(self, ocid: str, name: str) -> HostReport:
        self.reported.append((ocid, name, len(list(self._folder.glob("*.json")))))
        return self._answer


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    made = ClusterPaths.of(tmp_path / "cluster.yml")
    made.create()
    return made


def _report(paths: ClusterPaths, answer: HostReport, faults: dict[str, HostFault]) -> tuple[CloudDouble, list[Event]]:
    events: list[Event] = []
    cloud = CloudDouble(paths.host_reports, answer)
    reporting = HostReporting(spec=SPEC, paths=paths, reports=lambda: cast(HostReports, cloud), on_event=events.append)
    instances = {"compute-1": "ocid1.one", "compute-2": "ocid1.two"}
    reporting.report(faults, instances, {"ocid1.one": "host-1"})
    return cloud, events


def _content(paths: ClusterPaths) -> dict[str, Any]:
    (file,) = paths.host_reports.glob("*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    read: dict[str, Any] = json.loads(file.read_text())
    return read


def test_the_evidence_is_written_before_the_report_and_names_what_oracle_needs(paths: ClusterPaths) -> None:
    instance = {"id": "ocid1.one", "availability_domain": "AD-1", "shape": "BM.GPU.H100.8"}
    fault = fault_of_findings([ECC])
    assert fault is not None
    cloud, events = _report(paths, HostReport(True, instance=instance), {"compute-1": fault})
    assert cloud.reported == [("ocid1.one", "compute-1", 1)]
    content = _content(paths)
    assert content["physical_host"] == "host-1"
    assert content["instance"] == instance
    assert content["findings"] == [ECC.to_dict()]
    assert content["tag"] == {
        "name": "ComputeInstanceHostActions.CustomerReportedHostStatus=unhealthy", "reported": True, "why": "",
    }  # fmt: skip
    assert [each.status for each in events] != ["warning"]
    assert "is reported to Oracle" in events[-1].message
    assert str(paths.host_reports) in events[-1].message


def test_without_a_fault_or_an_instance_nothing_is_reported(paths: ClusterPaths) -> None:
    cloud, events = _report(paths, HostReport(True), {})
    assert (cloud.reported, events) == ([], [])
    cloud, _events = _report(paths, HostReport(True), {"compute-9": HostFault("gpu_ecc: 3")})
    assert cloud.reported == []
    assert not paths.host_reports.exists()


def test_a_refusal_is_a_warning_with_what_comes_next(paths: ClusterPaths) -> None:
    answer = HostReport(False, why="400 no namespace", next="an administrator makes it")
    _cloud, events = _report(paths, answer, {"compute-1": HostFault("gpu_ecc: 3")})
    (event,) = events
    assert event.status == "warning"
    for words in ("400 no namespace", "replaced nevertheless", "an administrator makes it", "support request"):
        assert words in event.message
    assert _content(paths)["tag"]["reported"] is False


def test_one_that_was_reported_already_is_stated(paths: ClusterPaths) -> None:
    _cloud, events = _report(paths, HostReport(True, before=True), {"compute-1": HostFault("gpu_ecc: 3")})
    assert "was reported to Oracle already" in events[-1].message


def test_what_the_last_check_has_found_is_in_the_evidence_and_no_secret_and_no_user(paths: ClusterPaths) -> None:
    other = {**ECC.to_dict(), "subject": "compute-2"}
    passed = {**ECC.to_dict(), "status": "pass"}
    facts = {"user_ids": {"alice": "2001:2001"}, "agent_check": {"output": "password=hunter22hunter22", "took": 1}}
    found = {"results": [ECC.to_dict(), other, passed], "facts": {"compute-1": facts, "compute-2": facts}}
    evidence.keep(paths, "20261129T080000Z-verify", found)
    _report(paths, HostReport(True), {"compute-1": HostFault(f"{FAILED_CHECKS} gpu_ecc: token=abcdefabcdef123456")})
    content = _content(paths)
    assert content["findings"] == [ECC.to_dict()]
    assert content["facts"]["agent_check"]["took"] == 1
    text = json.dumps(content)
    assert not any(words in text for words in ("hunter22", "abcdefabcdef123456", "alice"))


def test_what_is_remembered_is_by_the_id_of_the_host_where_it_is_known(paths: ClusterPaths) -> None:
    reporting = HostReporting(spec=SPEC, paths=paths, reports=lambda: cast(HostReports, None), on_event=lambda _: None)
    faults = {"compute-1": HostFault("gpu_ecc: 3"), "compute-2": HostFault("drives: 7")}
    instances = {"compute-1": "ocid1.one", "compute-2": "ocid1.two", "compute-3": "ocid1.three"}
    kept = reporting.remember(faults, instances, {"ocid1.one": "host-1", "ocid1.three": "host-3"})
    assert kept.keys() == {"host-1"}
    record = ReportedHost.parse(kept["host-1"])
    assert record is not None
    assert (record.node, record.instance, record.reason, record.proven) == ("compute-1", "ocid1.one", "gpu_ecc: 3", ())
