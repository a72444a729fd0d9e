"""The probe runs the host's own checks within their time, and reports what came of it and when."""

from __future__ import annotations

import json
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gpucluster.node_agent.checks.expected import PATH, parse
from gpucluster.node_agent.checks.model import HostReport, Profile
from gpucluster.verdict import reports
from tests.ansible.loading import load
from tests.ansible.render import evaluate, variables

GOLDEN = Path(__file__).parents[1] / "golden"
probe = load("library/gpucluster_probe.py")


class Module:
    """A double of AnsibleModule that runs programs as it does."""

    @staticmethod
    def run_command(argv: list[str]) -> tuple[int, str, str]:
        import subprocess

        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr


def _program(folder: Path, code: str) -> dict[str, Any]:
    """A double of gpucluster-agent: a program that does this."""
    file = folder / "agent"
    file.write_text(f"#!{sys.executable}\nimport sys, time, json\n{code}\n")
    file.chmod(0o755)
    return {"program": str(file), "profile": "quick", "seconds": 600, "alone": False}


def _check(checks: dict[str, Any]) -> Any:
    return json.loads(json.dumps(probe.agent_check(Module, checks)))


def test_a_report_of_now_is_accepted_with_the_arguments_that_the_agent_has(tmp_path: Path) -> None:
    report = HostReport("n1", Profile.QUICK, 0.0, 0.1, "b00t", ()).to_dict()
    code = (
        'assert sys.argv[1:] == ["check", "--profile", "quick", "--output", "json"], sys.argv\n'
        f"print(json.dumps({{**{report!r}, 'started': time.time()}}))\nsys.exit(3)"
    )
    found = _check(_program(tmp_path, code))
    assert found["exit_status"] == 3
    assert reports.read(found, "n1", Profile.QUICK).boot_id == "b00t"


def test_a_program_that_hangs_is_ended_whatever_it_does_with_signals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "KILL_SECONDS", 1)
    code = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('{', flush=True)\ntime.sleep(600)"
    found = _check({**_program(tmp_path, code), "seconds": 1})
    with pytest.raises(reports.ReportError, match="no report within"):
        reports.read(found, "n1", Profile.QUICK)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("sys.exit('/etc/gpucluster/checks.json does not state what this host should have')", "does not state what"),
        ("sys.stderr.write('usage: gpucluster-agent [--version] COMMAND ...\\n'); sys.exit(2)", "gpucluster apply"),
        ("print('[' + '1,' * (1 << 20))", "cut off or damaged"),
    ],
)
def test_what_the_program_prints_instead_is_passed_on(tmp_path: Path, code: str, reason: str) -> None:
    found = _check(_program(tmp_path, code))
    assert len(found["output"]) <= probe.REPORT_BYTES
    with pytest.raises(reports.ReportError, match=reason):
        reports.read(found, "n1", Profile.QUICK)


def test_a_host_without_the_agent_has_no_report(tmp_path: Path) -> None:
    found = _check({"program": str(tmp_path / "none"), "profile": "quick", "seconds": 5, "alone": False})
    with pytest.raises(reports.ReportError, match=r"none.*No such file"):
        reports.read(found, "n1", Profile.QUICK)


def test_checks_that_need_the_node_leave_jobs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = {**_program(tmp_path, "sys.exit('they ran')"), "profile": "full", "alone": True}
    monkeypatch.setattr(probe, "runs_jobs", lambda: True)
    found = _check(checks)
    with pytest.raises(reports.ReportError, match="jobs run on it"):
        reports.read(found, "n1", Profile.FULL)
    monkeypatch.setattr(probe, "runs_jobs", lambda: False)
    assert "they ran" in _check(checks)["error"]
    assert "they ran" in _check({**checks, "alone": False})["error"]


def test_what_a_host_should_have_is_written_as_the_agent_reads_it() -> None:
    groups = json.loads((GOLDEN / "local_demo" / "inventory.json").read_text())["all"]["children"]
    given = groups["controller"]["vars"]["node_expectation"]
    (file,) = evaluate("{{ checks_files }}", variables({"node_expectation": given}, role="base"))
    assert file["path"] == PATH
    assert parse(file["content"]).to_dict() == given


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("assert sys.argv[1:] == ['versions']\nprint('{\"system\": \"debian-12\", \"installed\": []}')",
         {"system": "debian-12", "installed": []}),
        ("sys.stderr.write('usage: gpucluster-agent [--version] COMMAND ...\\n'); sys.exit(2)", None),
        ("print('no json')", None),
    ],
)  # fmt: skip
def test_versions_are_what_the_agent_says_and_nothing_where_it_is_too_old(
    tmp_path: Path, code: str, found: dict[str, Any] | None
) -> None:
    assert probe.versions(Module, _program(tmp_path, code)["program"]) == found


class Metadata(BaseHTTPRequestHandler):
    """A double of the metadata service. Its documents are those that Oracle's own programs read."""

    answer: ClassVar[tuple[int, bytes]] = (200, b"{}")
    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        status, body = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (200, '{"id": "ab12", "rackId": "r"}', "ab12"),
        (200, '{"id": "ab12", "rdmaTopologyData": {"customerHostId": "ocid1.computebaremetalhost.oc1.iad.x"}}',
         "ocid1.computebaremetalhost.oc1.iad.x"),
        (200, '{"id": "ab12", "rdmaTopologyData": null}', "ab12"),
        (200, '{"rackId": "r"}', ""), (200, '{"id": 7}', ""), (200, '{"id": "a b\\n"}', ""), (200, "[]", ""),
        (200, "no json", ""), (404, "", ""), (500, "{}", ""),
    ],
)  # fmt: skip
def test_the_physical_host_is_what_the_metadata_service_reports(
    status: int, body: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Metadata.answer, Metadata.asked[:] = (status, body.encode()), []
    server = HTTPServer(("127.0.0.1", 0), Metadata)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(probe, "HOST_URL", f"http://127.0.0.1:{server.server_address[1]}/opc/v2/host/")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    try:
        assert probe.physical_host() == found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert Metadata.asked == [("/opc/v2/host/", "Bearer Oracle")]


def test_without_a_metadata_service_no_physical_host_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setattr(probe, "HOST_URL", f"http://127.0.0.1:{port}/opc/v2/host/")
    assert probe.physical_host() == ""
