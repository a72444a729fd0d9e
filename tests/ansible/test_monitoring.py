"""The role monitoring: its configuration as the real promtool reads it, its units, and the monitor's settings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpucluster.artifacts import catalogue
from gpucluster.controller.monitor import settings as monitor
from gpucluster.spec import load
from tests.ansible.loading import ANSIBLE, read
from tests.ansible.render import CONTROLLER, ELASTIC, GPU_POOL, evaluate, host_facts, render, render_slurm, variables
from tests.ansible.test_templates import settings
from tests.spec.spec_texts import KEY, OCI

ROLE = ANSIBLE / "roles" / "monitoring"
ON: dict[str, Any] = {
    "monitoring_enabled": True, "monitoring_host": CONTROLLER, "monitoring_retention_days": 7,
    "monitoring_retention_gb": 3, "monitoring_slurm_interval": 45, "monitoring_alertmanager_file": None,
    "monitoring_grafana": False,
}  # fmt: skip
UNITS = ("gpucluster-monitor.service", "gpucluster-prometheus.service", "gpucluster-alertmanager.service")
NEWER: dict[str, Any] = {"facts": host_facts(slurm="26.05.3")}


def known(*, facts: Any = None, system: str = "Debian-13", **inventory: Any) -> dict[str, Any]:
    found = variables(ON | inventory, role="monitoring", facts=facts, system=system)
    # As Ansible evaluates them; the lookup of templates is the role's own.
    rules = sorted(str(file) for file in (ROLE / "files" / "rules").glob("*.yml"))
    return found | {"monitoring_rules": rules, "role_path": str(ROLE)}


def scrapes(given: dict[str, Any]) -> dict[str, Any]:
    content = yaml.safe_load(render("monitoring", "prometheus.yml", given))
    return {each["job_name"]: each for each in content["scrape_configs"]}


@pytest.mark.parametrize(
    "given",
    [
        known(),
        known(slurm_enabled=False),
        known(**ELASTIC),
        known(**ELASTIC, monitoring_alertmanager_file="/some/where.yml", slurm_private=False, **NEWER),
    ],
    ids=["usual", "without Slurm", "elastic", "all"],
)
def test_promtool_accepts_the_configuration(given: dict[str, Any], tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("this machine has no promtool")
    text = render("monitoring", "prometheus.yml", given).replace("/etc/gpucluster/prometheus", str(tmp_path))
    (tmp_path / "prometheus.yml").write_text(text)
    for file in (ROLE / "files" / "rules").glob("*.yml"):
        (tmp_path / f"rules-{file.name}").write_text(file.read_text())
    done = subprocess.run(
        [promtool, "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(yaml.safe_load(text)["rule_files"]) == len(list((ROLE / "files" / "rules").glob("*.yml"))) > 0


def test_every_scrape_has_limits_and_what_is_on_this_host_is_asked_on_the_loopback_device() -> None:
    found = scrapes(known(**ELASTIC, monitoring_alertmanager_file="/a.yml", slurm_private=False, **NEWER))
    for job in found.values():
        assert {"sample_limit", "label_limit", "label_value_length_limit"} <= set(job), job
        for static in job.get("static_configs", ()):
            assert static["targets"][0].startswith("127.0.0.1:")
            assert static["labels"] == {"node": CONTROLLER}
    assert set(found) == {
        "prometheus", "node", "own", "dcgm", "slurm", "autoscaler", "alertmanager", "slurmctld-jobs", "slurmctld-nodes",
        "slurmctld-partitions", "slurmctld-scheduler", "slurmctld-jobs-users-accts",
    }  # fmt: skip
    assert (found["slurm"]["scrape_interval"], found["slurmctld-jobs"]["scrape_interval"]) == ("45s", "60s")


@pytest.mark.parametrize(("scheduler", "there"), [("slurm", True), ("kubernetes", True), ("none", False)])
def test_the_autoscaler_is_scraped_with_each_scheduler_that_has_one(scheduler: str, there: bool) -> None:
    inventory = {**ELASTIC, "scheduler": scheduler, "slurm_enabled": scheduler == "slurm"}
    assert ("autoscaler" in scrapes(known(**inventory))) == there


def test_slurmctld_has_metrics_of_its_own_where_it_can_and_users_see_all_jobs() -> None:
    public = {"monitoring_enabled": True, "slurm_private": False}
    newer = render_slurm(public, facts=host_facts(slurm="25.11.1"))["slurm.conf"]
    assert settings(newer)["MetricsType"] == "metrics/openmetrics"
    for inventory, version in (
        (public, "24.11.5"),
        (public | {"slurm_private": True}, "26.05.3"),
        (public | {"monitoring_enabled": False}, "26.05.3"),
    ):
        assert "MetricsType" not in settings(render_slurm(inventory, facts=host_facts(slurm=version))["slurm.conf"])
    assert "slurmctld-jobs" not in scrapes(known(slurm_private=True, **NEWER))
    assert "slurmctld-jobs" not in scrapes(known(slurm_private=False))


@pytest.mark.parametrize("unit", UNITS)
def test_services_have_no_rights_and_give_way_to_slurm(unit: str) -> None:
    text = render("monitoring", unit, known())
    lines = set(text.splitlines())
    assert {
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "ProtectSystem=strict",
        "Restart=always",
        "CPUWeight=20",
    } <= lines
    assert any(line.startswith("MemoryMax=") for line in lines)
    (user,) = [line for line in lines if line.startswith("User=")]
    assert user == ("User=slurm" if "monitor.service" in unit else "User=prometheus")
    assert "0.0.0.0" not in text


def test_prometheus_has_limits_of_time_and_size_and_listens_on_the_loopback_device() -> None:
    text = render("monitoring", "gpucluster-prometheus.service", known())
    for words in ("retention.time=7d", "retention.size=3GB", "web.listen-address=127.0.0.1:9090"):
        assert words in text
    assert "User=prometheus" in render("monitoring", "gpucluster-monitor.service", known(slurm_enabled=False))


def test_releases_are_used_where_the_distribution_has_no_packages() -> None:
    files = [
        {"component": name, "version": "3.5.0", "file": f"{name}-3.5.0.linux-amd64.tar.gz", "format": "rpm"}
        for name in ("prometheus", "alertmanager")
    ]
    given = known(system="OracleLinux-9", software_files=files)
    text = render("monitoring", "gpucluster-prometheus.service", given)
    assert "ExecStart=/opt/gpucluster/prometheus/prometheus-3.5.0.linux-amd64/prometheus " in text
    assert evaluate(given["monitoring_promtool"], given).endswith("linux-amd64/promtool")
    assert "ExecStart=/usr/bin/prometheus " in render("monitoring", "gpucluster-prometheus.service", known())


@pytest.mark.parametrize(
    ("image", "more", "expected"),
    [
        ('Oracle Linux, version: "9"', "", {"prometheus"}),
        ('Oracle Linux, version: "9"', "  alertmanager_file: operator.pub\n", {"prometheus", "alertmanager"}),
        ('Canonical Ubuntu, version: "24.04"', "", set()),
    ],
)
def test_releases_are_fetched_only_for_controllers_that_need_them(
    image: str, more: str, expected: set[str], tmp_path: Path
) -> None:
    text = OCI.replace('Canonical Ubuntu, version: "24.04"', image)
    assert image in text
    (tmp_path / "cluster.yml").write_text(text + f"monitoring:\n  enabled: true\n{more}")
    (tmp_path / "operator.pub").write_text(KEY + "\n")
    found = {each.component for each in catalogue.needed_by(load(tmp_path / "cluster.yml"), hardware_emulated=False)}
    assert found & {"prometheus", "alertmanager"} == expected


def monitor_settings(given: dict[str, Any], tmp_path: Path) -> monitor.MonitorSettings:
    """What the role writes, as the monitor reads it."""
    simple = ("slurm", "autoscaler", "interval", "jobs", "optional")
    raw = {
        **evaluate({key: given["monitoring_settings"][key] for key in simple}, given),
        "hosts": json.loads(render("monitoring", "hosts.json", given)),
        "elastic": json.loads(render("monitoring", "elastic.json", given)),
    }
    assert set(raw) == set(given["monitoring_settings"])
    (tmp_path / "monitor.json").write_text(json.dumps(raw))
    return monitor.MonitorSettings.load(tmp_path / "monitor.json")


def test_the_monitor_reads_its_settings(tmp_path: Path) -> None:
    pool = {**GPU_POOL, "gpu_vendor": "nvidia", "elastic_nodes": "compute-e[1-6]"}
    found = monitor_settings(known(slurm_pools=[pool]), tmp_path)
    assert found.jobs == {"own": 9500, "node": 9100, "dcgm": 9400}
    assert (found.slurm, found.interval, found.optional) == (True, 45.0, frozenset({"dcgm"}))
    hosts = {host.name: host for host in found.hosts}
    assert hosts[CONTROLLER] == monitor.ScrapedHost(CONTROLLER, "10.0.0.2", "", "", ("node", "own"))
    assert hosts["compute-1"] == monitor.ScrapedHost(
        "compute-1", "10.0.1.2", "compute", pool["shape"], ("node", "own", "dcgm")
    )
    assert found.elastic["compute"] == monitor.ElasticPool("compute-e[1-6]", pool["shape"], ("node", "own", "dcgm"))
    assert not found.autoscaler
    on_kubernetes = monitor_settings(known(slurm_pools=[pool], scheduler="kubernetes", slurm_enabled=False), tmp_path)
    assert (on_kubernetes.slurm, on_kubernetes.autoscaler) == (False, True)
    emulated = monitor_settings(
        known(slurm_pools=[pool], slurm_hardware_emulated=True, slurm_gpus_emulated=True), tmp_path
    )
    assert "dcgm" not in emulated.elastic["compute"].jobs


def test_passwords_of_receivers_are_for_prometheus_account_only_and_never_printed() -> None:
    (task,) = [task for task in read("roles/monitoring/tasks/present.yml") if task["name"].startswith("Configure")]
    (file,) = [each for each in task["vars"]["monitoring_alert_files"] if each["path"].endswith("/alertmanager.yml")]
    assert (file["mode"], file["owner"], file["secret"]) == ("0640", "root", True)
    (trial,) = [each for each in task["gpucluster_service"]["trials"] if "amtool" in str(each["command"])]
    assert "> /dev/null 2>&1" in trial["command"][2]


def test_what_prometheus_has_recorded_stays_when_monitoring_is_off() -> None:
    text = (ROLE / "tasks" / "absent.yml").read_text()
    assert "monitoring_records" not in text
    (task,) = [task for task in read("roles/monitoring/tasks/absent.yml") if task["name"] == "Remove the monitoring"]
    # The fact that there is something to remove comes from this unit: it goes last.
    assert task["gpucluster_service"]["files"][-1]["path"] == "{{ monitoring_units.monitor }}"


# --- on a login node -----

LOGIN = "demo-login-1"
ON_LOGIN: dict[str, Any] = {"monitoring_host": LOGIN, "monitoring_host_address": "10.0.0.7"}


def on_login(**inventory: Any) -> dict[str, Any]:
    """What a login node knows that runs Prometheus."""
    found = known(**ON_LOGIN | inventory)
    found["groups"] = {**found["groups"], "login": [LOGIN]}
    return found | {"inventory_hostname": LOGIN}


def test_only_the_host_of_prometheus_has_it_and_the_one_before_removes_it() -> None:
    before = host_facts() | {"monitoring": True, "nvidia_gpus": 0, "autoscaler": False, "software": False}
    fresh = before | {"monitoring": False}
    for facts, host, work, here in (
        (fresh, LOGIN, True, True),
        (before, CONTROLLER, True, False),
        (fresh, CONTROLLER, False, False),
        (fresh, "compute-1", False, False),
    ):
        given = on_login(facts=facts) | {"inventory_hostname": host}
        found = evaluate(
            {"work": given["role_has_work"]["monitoring"], "here": given["monitoring_is_here"]}, given
        )  # fmt: skip
        assert found == {"work": work, "here": here}, host
        purposes = evaluate("{{ base_purposes.prometheus }}", given | read("roles/base/vars/main.yml"))
        assert purposes == here
    (first,) = [task for task in read("roles/monitoring/tasks/main.yml") if task["name"].startswith("Run the")]
    for host, file in ((LOGIN, "present.yml"), (CONTROLLER, "absent.yml")):
        given = on_login() | {"inventory_hostname": host}
        assert evaluate(first["ansible.builtin.include_tasks"], given) == file


def test_what_only_the_controller_has_is_scraped_there() -> None:
    found = scrapes(on_login(**ELASTIC, slurm_private=False, monitoring_alertmanager_file="/a.yml", **NEWER))
    for name, job in found.items():
        for static in job.get("static_configs", ()):
            at_controller = name == "autoscaler" or name.startswith("slurmctld")
            assert static["targets"][0].startswith("10.0.0.2:" if at_controller else "127.0.0.1:"), name
            assert static["labels"] == {"node": CONTROLLER if at_controller else LOGIN}, name


@pytest.mark.parametrize("unit", UNITS)
def test_where_users_log_in_nothing_starts_before_they_are_kept_out(unit: str) -> None:
    wanted = "Requires=gpucluster-monitoring-access.service"
    assert wanted in render("monitoring", unit, on_login()).splitlines()
    # Without login nodes they log in to the controller.
    assert wanted in render("monitoring", unit, known()).splitlines()
    assert wanted not in render("monitoring", unit, known() | {"login_nodes": [LOGIN]}).splitlines()


_TRIES = """
import os, socket, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
listening = [socket.create_server(("127.0.0.1", port)) for port in (9090, 22)]
subprocess.run(["nft", "-f", sys.argv[1]], check=True)
for user in (0, 65534):
    if user: os.setuid(user)
    for port in (9090, 22):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            print(user, port, "in")
        except OSError as error:
            print(user, port, type(error).__name__)
"""


def test_the_kernel_lets_users_reach_nothing_of_it(tmp_path: Path) -> None:
    """In a network namespace of its own: Prometheus' port, and another one."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("nft", "ip", "unshare"))):
        pytest.skip("it needs root, nft, ip and unshare")
    text = render("monitoring", "access.nft", on_login())
    accounts = "root, prometheus, slurm, gpucluster-grafana, debian"
    assert f"{{ {accounts} }}" in text
    file = tmp_path / "access.nft"
    # This machine has root alone.
    file.write_text(text.replace(accounts, "root"))
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", _TRIES, file], capture_output=True, text=True, check=False
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("this machine allows no network namespace")
    assert done.stdout.splitlines() == ["0 9090 in", "0 22 in", "65534 9090 ConnectionRefusedError", "65534 22 in"], (
        done.stderr
    )


def test_with_kubernetes_permanent_hosts_are_scraped_and_nothing_asks_slurm() -> None:
    given = known(slurm_enabled=False, scheduler="kubernetes")
    assert set(scrapes(given)) == {"prometheus", "node", "own", "dcgm"}
    unit = render("monitoring", "gpucluster-monitor.service", given)
    assert "slurmctld" not in unit
    assert "munge" not in unit
    assert "User=prometheus" in unit
    hosts = json.loads(render("monitoring", "hosts.json", given))
    assert {each["name"]: each["pool"] for each in hosts}["compute-1"] == "compute"
