"""Grafana in the role monitoring: its configuration, its unit, and what it reads.

Grafana itself is not here: a double (tests/doubles/grafana) reads the files and prints what it found. How Grafana draws
the dashboards is not proved.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.plugins.loader import lookup_loader

from gpucluster.artifacts.catalogue import needed_by
from gpucluster.dashboards import addresses, boards
from gpucluster.operations import dashboard
from gpucluster.spec import loads
from tests.addresses import free_port
from tests.ansible.loading import read, tasks_of
from tests.ansible.render import evaluate, render, variables
from tests.doubles.grafana import release
from tests.spec.spec_texts import LOCAL
from tests.waiting import PATIENCE_S, wait_for

DOUBLE = release.PROGRAM
ON = {"monitoring_enabled": True, "monitoring_grafana": True}


def known(**others: Any) -> dict[str, Any]:
    return {**variables(ON, role="monitoring"), **others}


def files(given: dict[str, Any]) -> list[dict[str, Any]]:
    """What the task writes, apart from the dashboards and the unit."""
    task = next(task for task in tasks_of(read("roles/monitoring/tasks/grafana.yml")) if "vars" in task)
    values = {**given, **task["vars"]}
    # These are templates, whose lookup needs the role's folder.
    own = [file for file in task["vars"]["monitoring_grafana_own_files"] if "gpucluster_template" not in str(file)]
    found: list[dict[str, Any]] = evaluate(own, values)
    return found


def test_the_port_and_the_password_are_where_the_command_looks() -> None:
    assert f"http_port = {addresses.GRAFANA_PORT}" in render("monitoring", "grafana.ini", known()).splitlines()
    assert known()["monitoring_grafana_password_file"] == dashboard.PASSWORD_FILE


def test_it_listens_on_the_loopback_device_and_needs_a_password() -> None:
    found = render("monitoring", "grafana.ini", known()).splitlines()
    assert "http_addr = 127.0.0.1" in found
    assert found[found.index("[auth.anonymous]") + 1] == "enabled = false"
    # The password is in no file that others read.
    assert f"admin_password = $__file{{{dashboard.PASSWORD_FILE}}}" in found


def test_the_unit_is_confined() -> None:
    found = render("monitoring", "gpucluster-grafana.service", known()).splitlines()
    assert {
        "User=gpucluster-grafana", "NoNewPrivileges=yes", "CapabilityBoundingSet=", "ProtectSystem=strict",
        "ReadWritePaths=-/var/lib/gpucluster/grafana", "IPAddressDeny=any", "IPAddressAllow=localhost", "UMask=0077",
    } <= set(found)  # fmt: skip


def test_the_folder_of_the_password_is_grafanas_alone() -> None:
    (folder,) = [file for file in files(known()) if file["path"] == str(Path(dashboard.PASSWORD_FILE).parent)]
    assert (folder["mode"], folder["owner"]) == ("0700", "gpucluster-grafana")


@pytest.mark.parametrize(
    ("section", "needed"),
    [
        ("monitoring: {enabled: true, grafana: true}", True),
        ("monitoring: {enabled: true}", False),
        ("monitoring: {enabled: false, grafana: true}", False),
    ],
)
def test_the_release_is_needed_where_grafana_runs(section: str, needed: bool) -> None:
    found = needed_by(loads(f"{LOCAL}\n{section}\n", "cluster.yml"), hardware_emulated=True)
    names = [each.file for each in found if each.component == "grafana"]
    assert names == ([f"grafana-{release.VERSION}.linux-amd64.tar.gz"] if needed else [])


# --- the double reads what Grafana would read -----


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of the double that reads the rendered files, and the file with the password."""
    port = free_port()
    etc, records, bundle = tmp_path / "etc", tmp_path / "records", tmp_path / "bundle"
    password = records / "admin-password"
    given = known(
        monitoring_grafana_folder=str(etc), monitoring_grafana_records=str(records),
        monitoring_grafana_bundle=str(bundle), monitoring_grafana_password_file=str(password),
        monitoring_grafana_port=port,
    )  # fmt: skip
    for file in files(given):
        if file.get("directory"):
            Path(file["path"]).mkdir(parents=True)
        else:
            Path(file["path"]).write_text(file["content"])
    (etc / "grafana.ini").write_text(render("monitoring", "grafana.ini", given))
    for file in lookup_loader.get("gpucluster_dashboards").run([str(etc / "dashboards")]):
        Path(file["path"]).write_text(file["content"])
    (bundle / "grafana-x" / "bin").mkdir(parents=True)
    (bundle / "grafana-x" / "bin" / "grafana").symlink_to(DOUBLE)
    unit = render("monitoring", "gpucluster-grafana.service", given)
    shell = {key: re.search(rf"^{key}=/bin/sh -c '(.*)'$", unit, re.MULTILINE) for key in ("ExecStartPre", "ExecStart")}
    before, start = (found[1].replace("$$", "$") for found in shell.values() if found)
    for _ in range(2):  # the second start keeps the password
        subprocess.run(["sh", "-c", before], check=True)
        kept = password.read_text()
    child = subprocess.Popen(["sh", "-c", start])
    try:
        wait_for("the double answers", lambda: child.poll() is not None or _answers(port), ignore=OSError)
        assert child.poll() is None
        assert password.read_text() == kept
        yield f"http://127.0.0.1:{port}", password
    finally:
        child.terminate()
        child.wait()


def _answers(port: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=PATIENCE_S):
        return True


def ask(url: str, password: str) -> Any:
    token = base64.b64encode(f"admin:{password}".encode()).decode()
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {token}"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def test_dashboards_and_the_data_source_are_provisioned(served: tuple[str, Path]) -> None:
    url, file = served
    assert os.stat(file).st_mode & 0o777 == 0o600
    password = file.read_text().strip()
    assert len(password) == 24
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask(f"{url}/api/search", "admin")
    found = {board["uid"] for board in ask(f"{url}/api/search", password)}
    assert found == {board["uid"] for board in boards.all_dashboards().values()}
    (source,) = ask(f"{url}/api/datasources", password)
    assert (source["type"], source["isDefault"], source["access"]) == ("prometheus", True, "proxy")
    assert source["url"] == "http://127.0.0.1:9090"
    assert ask(f"{url}/api/dashboards/home", password)["dashboard"]["uid"] == boards.CLUSTER
