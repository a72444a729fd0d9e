"""The reader of maintenance: which services a controller has with and without elastic pools, and its settings.

It does not prove that the service does its work: tests/e2e/test_elastic.py does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpucluster.autoscaler.daemon.maintenance import CONFIG_FILE, ReaderSettings
from gpucluster.controller.health.settings import HealthSettings
from gpucluster.controller.maintenance.events import EVENTS, FOLDER, REQUESTS
from tests.ansible.loading import read
from tests.ansible.render import ELASTIC, evaluate, host_facts, render, variables

GOLDEN = Path(__file__).parents[1] / "golden"
ELASTIC_POLICY = {"autoscaler_policy": {"version": 1}}
READER = {"autoscaler_maintenance": {"version": 1}}
NEITHER = {"autoscaler_policy": None, "autoscaler_maintenance": None}
(_PROGRAMS, PRESENT) = read("roles/autoscaler/tasks/present.yml")
(STOPPED, REMOVED, _RIGHTS) = read("roles/autoscaler/tasks/absent.yml")
RUN_BY_THE_AUTOSCALER = ["gpucluster-join", "gpucluster-autoscaler"]


def known(more: dict[str, Any], *units: str) -> dict[str, Any]:
    facts = {**host_facts(), "autoscaler": "autoscaler" in units, "maintenance": "maintenance" in units}
    return variables({**ELASTIC, **NEITHER, **more}, role="autoscaler", facts=facts)


@pytest.mark.parametrize(
    ("inventory", "units"),
    [
        (ELASTIC_POLICY, RUN_BY_THE_AUTOSCALER),
        (READER, ["gpucluster-maintenance"]),
        ({**ELASTIC_POLICY, **READER}, [*RUN_BY_THE_AUTOSCALER, "gpucluster-maintenance"]),
    ],
)
def test_each_service_runs_where_it_is_needed(inventory: dict[str, Any], units: list[str]) -> None:
    names = known(inventory) | {key: PRESENT["vars"][key] for key in PRESENT["vars"] if key.endswith("_units")}
    names |= {key: PRESENT["vars"][key] for key in ("autoscaler_unit", "autoscaler_join_unit")}
    found = evaluate(PRESENT["gpucluster_service"]["units"], names)
    assert [each["name"] for each in found] == units


@pytest.mark.parametrize(
    ("inventory", "there", "stopped", "removed"),
    [
        ({}, ("autoscaler",), {"gpucluster-autoscaler", "gpucluster-join"}, {"/opt/gpucluster/venv"}),
        ({}, ("maintenance",), {"gpucluster-maintenance"}, {"/opt/gpucluster/venv", str(CONFIG_FILE)}),
        (READER, ("autoscaler", "maintenance"), {"gpucluster-autoscaler", "gpucluster-join"}, set()),
        (ELASTIC_POLICY, ("autoscaler", "maintenance"), {"gpucluster-maintenance"}, {str(CONFIG_FILE)}),
        ({**ELASTIC_POLICY, **READER}, ("autoscaler", "maintenance"), set(), set()),
    ],
)
def test_what_one_of_them_needs_stays(
    inventory: dict[str, Any], there: tuple[str, ...], stopped: set[str], removed: set[str]
) -> None:
    names = known(inventory, *there) | REMOVED["vars"]
    units = evaluate(STOPPED["gpucluster_service"]["units"], names)
    assert {each["name"] for each in units if each["state"] == "stopped"} == stopped
    files = {each["path"] for each in evaluate(REMOVED["gpucluster_service"]["files"], names)}
    assert removed <= files
    assert ("/opt/gpucluster/venv" in files) == ("/opt/gpucluster/venv" in removed)


def test_the_reader_reads_the_settings_that_handover_and_role_make(tmp_path: Path) -> None:
    inventory = json.loads((GOLDEN / "oci_three_kinds" / "inventory.json").read_text())["all"]["vars"]
    names = known(inventory)
    names["groups"] = {"controller": [inventory["gpucluster_hosts"][0]["name"]]}
    (entry,) = [
        each
        for each in PRESENT["vars"]["autoscaler_reader_files"]
        if each["path"] == "{{ autoscaler_maintenance_settings }}"
    ]
    content = evaluate(entry["content"].replace(" | to_nice_json }}\n", " }}"), names)
    file = tmp_path / "maintenance.json"
    file.write_text(json.dumps(content))
    settings = ReaderSettings.load(file)
    assert settings.elastic
    assert {role for _, role in settings.hosts.values()} >= {"controller", "node"}
    assert len(settings.hosts) == len(inventory["gpucluster_hosts"])


def test_the_two_services_share_one_folder_and_write_apart() -> None:
    reader = render("autoscaler", "gpucluster-maintenance.service", known(READER))
    assert "User=gpucluster" in reader
    assert f"ReadWritePaths=-{FOLDER / EVENTS.parent}" in reader.splitlines()
    health = {**ELASTIC, "health_maintenance": {"early": True}}
    unit = render("health", "gpucluster-health.service", variables(health, role="health"))
    (line,) = [each for each in unit.splitlines() if each.startswith("ReadWritePaths=")]
    assert f"-{FOLDER / REQUESTS.parent}" in line


@pytest.mark.parametrize(("setting", "early"), [({"early": True}, True), ({"early": False}, False), (None, None)])
def test_the_health_service_reads_its_part(tmp_path: Path, setting: Any, early: bool | None) -> None:
    content = evaluate("{{ health_settings }}", variables({**ELASTIC, "health_maintenance": setting}, role="health"))
    file = tmp_path / "health.json"
    file.write_text(json.dumps(content))
    settings = HealthSettings.load(file).maintenance
    assert (settings.early if settings is not None else None) is early
