"""The timer that renews the certificates of a control plane."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.ansible.loading import ANSIBLE, read
from tests.ansible.render import render_file

NAME = "gpucluster-kubernetes-certificates"


def _unit(kind: str, program: str) -> str:
    known = {"gpucluster_name": "demo", "agent_program": program}
    return render_file(ANSIBLE / "roles/kubernetes/templates" / f"{NAME}.{kind}.j2", known)


def test_systemd_accepts_the_units_and_they_run_the_program_that_renews(tmp_path: Path) -> None:
    files = []
    for kind in ("service", "timer"):
        files.append(tmp_path / f"{NAME}.{kind}")
        files[-1].write_text(_unit(kind, "/bin/true"))
    try:
        argv = ["systemd-analyze", "--man=no", "verify", *map(str, files)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no systemd-analyze here")
    said = [line for line in done.stderr.splitlines() if NAME in line]
    assert said == []
    assert "ExecStart=/usr/bin/agent kubernetes renew" in _unit("service", "/usr/bin/agent")
    assert "Persistent=true" in _unit("timer", "")


def test_apply_renews_as_well_and_reports_when_it_did() -> None:
    service, renew = read("roles/kubernetes/tasks/certificates.yml")
    assert [each["name"] for each in service["gpucluster_service"]["units"]] == [f"{NAME}.timer"]
    assert renew["ansible.builtin.command"]["argv"][1:] == ["kubernetes", "renew"]
    assert "renewed" in renew["changed_when"]
