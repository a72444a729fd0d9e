"""The role exporters: its units, with the real node_exporter where there is one, and who pays for it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpucluster.artifacts import catalogue
from gpucluster.dashboards import boards
from gpucluster.node_agent.exporter import __main__ as exporter
from gpucluster.node_agent.watch import __main__ as watch
from gpucluster.spec import load
from tests.addresses import free_port
from tests.agent_program import install
from tests.ansible.loading import ANSIBLE, read
from tests.ansible.render import CONTROLLER, ELASTIC, GPU_POOL, evaluate, render, variables
from tests.spec.spec_texts import KEY, OCI
from tests.waiting import PATIENCE_S, wait_for

ON: dict[str, Any] = {"monitoring_enabled": True, "monitoring_host_address": "10.0.0.2", "health_enabled": True}
NVIDIA = {**GPU_POOL, "gpu_vendor": "nvidia"}
UNITS = ("gpucluster-exporter.service", "gpucluster-node-exporter.service", "gpucluster-dcgm-exporter.service")


def known(
    host: str = "compute-1", *, dcgm: bool = False, system: str = "Debian-13", **inventory: Any
) -> dict[str, Any]:
    found = variables(ON | {"slurm_pools": [NVIDIA]} | inventory, role="exporters", host=host, system=system)
    if host != CONTROLLER:
        found["group_names"] = ["compute", "pool_compute"]
    found["ansible_facts"] = {**found["ansible_facts"], "gpucluster_nvidia": {"dcgm_exporter": dcgm}}
    return found


def command(unit: str, given: dict[str, Any]) -> list[str]:
    """The command line as systemd reads it: quotes, continued lines, and `$$` for `$`."""
    text = render("exporters", unit, given).replace("\\\n", " ")
    (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    assert not re.search(r"(?<!\$)\$(?!\$)", line), "systemd would put a variable there"
    return [word.replace("$$", "$") for word in shlex.split(line.partition("=")[2])]


@pytest.mark.parametrize("unit", UNITS)
def test_exporters_have_no_rights_and_answer_the_host_of_prometheus_only(unit: str) -> None:
    lines = set(render("exporters", unit, known()).splitlines())
    assert {
        "User=gpucluster-exporter", "NoNewPrivileges=yes", "CapabilityBoundingSet=", "ProtectSystem=strict",
        "IPAddressDeny=any", "Restart=always",
    } <= lines  # fmt: skip
    (allowed,) = [line for line in lines if line.startswith("IPAddressAllow=")]
    assert allowed in ("IPAddressAllow=10.0.0.2", "IPAddressAllow=10.0.0.2 localhost")
    assert ("localhost" in allowed) == ("dcgm" in unit)
    assert "ReadWritePaths= " not in lines


def test_no_unit_has_the_address_of_one_host() -> None:
    """A baked image boots on many."""
    for unit in UNITS:
        assert "10.0.1.2" not in render("exporters", unit, known())


@pytest.mark.parametrize(
    ("host", "changes", "gpu"),
    [
        ("compute-1", {}, True), ("compute-1", {"dcgm": True}, False), (CONTROLLER, {}, False),
        ("compute-1", {"slurm_hardware_emulated": True, "slurm_gpus_emulated": True}, False),
        ("compute-1", {"slurm_pools": [{**NVIDIA, "gpu_vendor": "amd"}]}, False),
        ("compute-1", {"slurm_pools": [{**NVIDIA, "gpu_vendor": None}]}, False),
    ],
)  # fmt: skip
def test_gpus_are_ours_where_no_dcgm_exporter_is(host: str, changes: dict[str, Any], gpu: bool) -> None:
    given = known(host, **changes)
    words = command(UNITS[0], given)
    collectors = words[words.index("--collectors") + 1].split(",")
    assert ("gpu" in collectors) == gpu
    assert set(collectors) <= set(exporter.COLLECTORS)
    assert ("PrivateDevices=no" in render("exporters", UNITS[0], given)) == gpu
    assert evaluate("{{ exporters_dcgm }}", given) == bool(changes.get("dcgm"))


def test_our_exporter_understands_its_command_line(tmp_path: Path) -> None:
    words = command(UNITS[0], known())
    options = exporter._parser().parse_args(words[2:])
    assert (options.command, options.listen, options.toward) == ("serve", ":9500", "10.0.0.2")
    assert options.allow == ["10.0.0.2"]


WATCH = "gpucluster-watch.service"


@pytest.mark.parametrize(
    ("host", "changes", "watched"),
    [
        ("compute-1", {}, True), ("compute-1", {"dcgm": True}, True), (CONTROLLER, {}, False),
        ("compute-1", {"slurm_enabled": False}, False), ("compute-1", {"slurm_gpus_emulated": True}, False),
        ("compute-1", {"slurm_hardware_emulated": True}, True),
        ("compute-1", {"slurm_pools": [{**NVIDIA, "gpu_vendor": "amd"}]}, False),
    ],
)  # fmt: skip
def test_jobs_are_watched_on_slurm_nodes_with_nvidia_gpus(host: str, changes: dict[str, Any], watched: bool) -> None:
    given = known(host, **changes)
    assert evaluate("{{ exporters_watch }}", given) == watched
    words = command(UNITS[0], given)
    assert ("watch" in words[words.index("--collectors") + 1].split(",")) == watched


def test_the_watcher_understands_its_command_line() -> None:
    given = known(exporters_hang_seconds=90, exporters_idle_seconds=600, exporters_silent_seconds=3600)
    options = watch.parser().parse_args(command(WATCH, given)[2:])
    assert (options.command, options.hang, options.idle, options.silent) == ("serve", 90.0, 600.0, 3600.0)
    options = watch.parser().parse_args(command(WATCH, known())[2:])
    assert (options.hang, options.idle, options.silent) == (180.0, 1800.0, None)
    assert str(options.file) == "/run/gpucluster-watch/jobs.json"
    assert "RuntimeDirectory=gpucluster-watch" in render("exporters", WATCH, given)


@pytest.mark.parametrize("hidden", [True, False])
def test_the_watcher_has_one_right_and_only_where_processes_are_hidden(hidden: bool) -> None:
    lines = render("exporters", WATCH, known(base_hide_processes=hidden)).splitlines()
    assert {"User=gpucluster-exporter", "NoNewPrivileges=yes", "ProtectSystem=strict", "IPAddressDeny=any"} <= set(
        lines
    )
    assert f"CapabilityBoundingSet={'CAP_SYS_PTRACE' if hidden else ''}" in lines
    assert ("AmbientCapabilities=CAP_SYS_PTRACE" in lines) == hidden
    assert ("SystemCallFilter=~ptrace process_vm_readv process_vm_writev" in lines) == hidden
    # systemd takes the last one.
    for name, value in (("ProtectProc", "default"), ("PrivateDevices", "no")):
        assert [line for line in lines if line.startswith(f"{name}=")][-1] == f"{name}={value}"


NAMESPACES = ("gpucluster-rdma-namespaces.socket", "gpucluster-rdma-namespaces@.service")
MOVES: dict[str, Any] = {
    "scheduler": "kubernetes", "kubernetes_rdma": "device", "slurm_pools": [{**NVIDIA, "rdma": True}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("host", "changes", "asked"),
    [
        ("compute-1", {}, True), (CONTROLLER, {}, False), ("compute-1", {"kubernetes_rdma": "host"}, False),
        ("compute-1", {"scheduler": "slurm"}, False), ("compute-1", {"slurm_hardware_emulated": True}, False),
        ("compute-1", {"slurm_pools": [{**NVIDIA, "rdma": False}]}, False),
    ],
)  # fmt: skip
def test_pods_are_looked_into_where_rdma_devices_move_into_them(
    host: str, changes: dict[str, Any], asked: bool
) -> None:
    given = known(host, **MOVES | changes)
    assert evaluate("{{ exporters_namespaces }}", given) == asked
    options = exporter._parser().parse_args(command(UNITS[0], given)[2:])
    assert bool(options.namespaces) == asked
    # The exporter itself never has the right.
    assert "CapabilityBoundingSet=" in render("exporters", UNITS[0], given).splitlines()


def test_what_looks_into_pods_has_one_right_no_network_and_ends() -> None:
    given = known(**MOVES)
    options = exporter._parser().parse_args(command(NAMESPACES[1], given)[2:])
    assert options.command == "namespaces"
    lines = render("exporters", NAMESPACES[1], given).splitlines()
    assert {
        "User=gpucluster-exporter", "CapabilityBoundingSet=CAP_SYS_ADMIN", "AmbientCapabilities=CAP_SYS_ADMIN",
        "NoNewPrivileges=yes", "ProtectSystem=strict", "IPAddressDeny=any", "StandardInput=socket",
    } <= set(lines)  # fmt: skip
    # An empty value takes back what was allowed before.
    families = [line for line in lines if line.startswith("RestrictAddressFamilies=")]
    assert families[-2:] == ["RestrictAddressFamilies=", "RestrictAddressFamilies=AF_UNIX"]
    socket = set(render("exporters", NAMESPACES[0], given).splitlines())
    asker = exporter._parser().parse_args(command(UNITS[0], given)[2:])
    assert {f"ListenSequentialPacket={asker.namespaces}", "SocketMode=0660", "Accept=yes"} <= socket
    assert "SocketGroup=gpucluster-exporter" in socket


REPORT = "gpucluster-watch-report.service"


@pytest.mark.parametrize(
    ("changes", "told"),
    [({}, True), ({"health_enabled": False}, False), ({"slurm_enabled": False}, False)],
)
def test_the_controller_is_told_where_its_health_service_runs(changes: dict[str, Any], told: bool) -> None:
    assert evaluate("{{ exporters_report }}", known("compute-1", **{"health_enabled": True, **changes})) == told


def test_what_tells_the_controller_is_root_without_a_right() -> None:
    options = watch.parser().parse_args(command(REPORT, known())[2:])
    assert (options.command, options.controller, options.port) == ("report", "10.0.0.2", 6823)
    lines = render("exporters", REPORT, known()).splitlines()
    # Root can't read the watcher's file without the group: it has lost the right to read everything.
    assert {"Group=gpucluster-exporter", "CapabilityBoundingSet=", "NoNewPrivileges=yes", "IPAddressDeny=any"} <= set(
        lines
    )
    assert not [line for line in lines if line.startswith("User=")]
    assert [line for line in lines if line.startswith("IPAddressAllow=")][-1].endswith(" 10.0.0.2")


STACKS: dict[str, Any] = {"health_enabled": True, "exporters_hang_stacks": True}


@pytest.mark.parametrize("home", ["/home", "/shared/home", None])
def test_stacks_give_it_the_rights_to_work_as_a_user_and_no_other(home: str | None) -> None:
    given = known("compute-1", **STACKS, home_mount_path=home)
    assert watch.parser().parse_args(command(REPORT, given)[2:]).stacks
    lines = render("exporters", REPORT, given).splitlines()
    assert "CapabilityBoundingSet=CAP_KILL CAP_SETGID CAP_SETUID" in lines
    assert "NoNewPrivileges=yes" in lines
    # systemd takes the last one; an empty one ends the list.
    for name, value in (("ProtectHome", "no"), ("InaccessiblePaths", ""), ("ProtectProc", "default")):
        assert [line for line in lines if line.startswith(f"{name}=")][-1] == f"{name}={value}"
    places = {"-/home", *([f"-{home}"] if home else [])}
    writable = next(line for line in lines if line.startswith("ReadWritePaths="))
    assert set(writable.partition("=")[2].split()) == places
    # No program of a home is run there.
    assert places <= set(next(line for line in lines if line.startswith("NoExecPaths=")).partition("=")[2].split())


@pytest.mark.parametrize(
    ("changes", "taken"),
    [({}, True), ({"exporters_hang_stacks": False}, False), ({"health_enabled": False}, False)],
)
def test_users_may_look_at_their_own_processes_only_where_stacks_are_taken(
    changes: dict[str, Any], taken: bool
) -> None:
    given = known("compute-1", **{**STACKS, **changes})
    task = read("roles/exporters/tasks/present.yml")[-1]
    # Files of templates are of no interest here.
    given |= {name: [] if name.endswith("_files") else value for name, value in task["vars"].items()}
    files, units = (evaluate(task["gpucluster_service"][key], given) for key in ("files", "units"))
    file = next(each for each in files if each["path"] == "/etc/sysctl.d/90-gpucluster-stacks.conf")
    assert file.get("content") == ("-kernel.yama.ptrace_scope = 0\n" if taken else None)
    assert file.get("absent", False) == (not taken)
    assert ("systemd-sysctl" in [unit["name"] for unit in units]) == taken
    assert ("--stacks" in command(REPORT, given)) == taken


def test_the_real_node_exporter_takes_its_command_line(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = shutil.which("prometheus-node-exporter")
    if program is None:
        pytest.skip("prometheus-node-exporter is not installed")
    (tmp_path / "health.prom").write_text("# TYPE gpucluster_health_shadow gauge\ngpucluster_health_shadow 0\n")
    port = free_port()
    given = known(CONTROLLER, monitoring_host_address="127.0.0.1", exporter_ports={"node": port})
    given |= {"agent_program": str(install(tmp_path / "bin")), "exporters_textfiles": str(tmp_path)}
    words = command(UNITS[1], given)
    log = tmp_path / "log"
    with log.open("w") as written:
        started = subprocess.Popen(words, env={"PATH": os.environ["PATH"]}, stderr=written)

    def page() -> str:
        assert started.poll() is None, log.read_text()
        text: str = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S).read().decode()
        return text

    try:
        text = wait_for("the exporter answers", page, ignore=urllib.error.URLError, state=log.read_text)
    finally:
        started.terminate()
        started.wait()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    collectors = {each.labels["collector"] for each in found["node_scrape_collector_success"].samples}
    assert collectors == set(evaluate("{{ exporters_node_collectors }}", given))
    assert found["gpucluster_health_shadow"].samples[0].value == 0
    assert {"node_cpu_seconds", "node_memory_MemAvailable_bytes", "node_network_receive_bytes"} <= set(found)


def test_only_the_controller_reads_the_metrics_of_the_health_service() -> None:
    def directory(host: str) -> bool:
        return any("textfile.directory" in word for word in command(UNITS[1], known(host)))

    assert directory(CONTROLLER)
    assert not directory("compute-1")
    # The same file as the health service writes.
    assert (
        read("roles/health/vars/main.yml")["health_folder"] + "/metrics.prom"
        == (read("roles/exporters/vars/main.yml")["exporters_health_metrics"])
    )


def test_a_system_without_a_package_runs_the_release() -> None:
    words = command(UNITS[1], known(system="OracleLinux-9"))
    assert "/opt/gpucluster/node_exporter/*/node_exporter" in words[2]
    assert "/usr/bin/prometheus-node-exporter" in command(UNITS[1], known())[2]
    packages = read("group_vars/all/packages.yml")["packages"]
    for system, lists in packages.items():
        assert bool(lists["node_exporter"]) == (read(f"vars/os/{system}.yml")["os_package_manager"] == "apt")


@pytest.mark.parametrize(
    ("enabled", "there", "work"), [(True, False, True), (False, True, True), (False, False, False)]
)
def test_who_pays(enabled: bool, there: bool, work: bool) -> None:
    given = known(monitoring_enabled=enabled)
    given["ansible_facts"]["gpucluster_host"] |= {"exporters": there}
    assert evaluate("{{ role_has_work.exporters }}", given) == work
    assert evaluate("{{ base_purposes.node_exporter }}", given | read("roles/base/vars/main.yml")) == enabled


def test_what_is_installed_is_removed() -> None:
    """Each path and unit of `present` is in `absent`, and the last of them shows that there is work."""
    given = known(CONTROLLER, dcgm=True)
    given["agent_files"] = []
    present, absent = read("roles/exporters/tasks/present.yml"), read("roles/exporters/tasks/absent.yml")
    task = present[-1]
    names = {
        name: value
        for name, value in task["vars"].items()
        if not name.endswith(("unit_files", "dcgm_files", "watch_files", "report_files", "namespaces_files"))
    }
    started = [
        *evaluate(task["vars"]["exporters_started"], given | names),
        evaluate(task["vars"]["exporters_dcgm_unit"], given),
        evaluate(task["vars"]["exporters_watch_unit"], given),
        evaluate(task["vars"]["exporters_report_unit"], given),
        evaluate(task["vars"]["exporters_namespaces_unit"], given),
        evaluate(task["vars"]["exporters_relay_unit"], given),
        # The socket starts it.
        {"name": "gpucluster-autoscaler-metrics"},
    ]
    stopped = [unit["name"] for unit in absent[0]["gpucluster_service"]["units"]]
    assert sorted(stopped) == sorted(unit["name"] for unit in started)
    removed = [each["path"] for each in evaluate(absent[-1]["gpucluster_service"]["files"], given)]
    assert removed[-1] == "/etc/systemd/system/gpucluster-exporter.service"
    assert set(evaluate("{{ exporters_units.values() | list }}", given)) <= set(removed)
    assert {"/etc/gpucluster/dcgm-fields.csv", "/var/lib/gpucluster/metrics", "/opt/gpucluster/node_exporter"} <= set(
        removed
    )


@pytest.mark.parametrize(
    ("image", "enabled", "files"),
    [
        ('{operating_system: Oracle Linux, version: "9"}', "true", 1),
        ("{ocid: ocid1.image.oc1.iad.x, login_user: opc}", "true", 1),
        ('{operating_system: Canonical Ubuntu, version: "24.04"}', "true", 0),
        ('{operating_system: Oracle Linux, version: "9"}', "false", 0),
    ],
)  # fmt: skip
def test_the_release_is_needed_where_a_system_has_no_package(
    image: str, enabled: str, files: int, tmp_path: Path
) -> None:
    text = OCI.replace("{ocid: ocid1.image.oc1.iad.example, login_user: ubuntu}", image)
    (tmp_path / "operator.pub").write_text(KEY)
    (tmp_path / "cluster.yml").write_text(f"{text}monitoring: {{enabled: {enabled}}}\n")
    needed = catalogue.needed_by(load(tmp_path / "cluster.yml"), hardware_emulated=False)
    found = [each for each in needed if each.component == "node_exporter"]
    assert len(found) == files
    assert all(each.format == "rpm" and each.checksums_url for each in found)


def test_every_host_runs_them_and_elastic_nodes_and_images_too() -> None:
    assert "exporters" in read("group_vars/all/cluster.yml")["node_software"]
    site = (ANSIBLE / "site.yml").read_text()
    assert "['slurm', 'kubernetes', 'people', 'health', 'exporters'" in site
    assert "(['exporters'] if inventory_hostname in login_nodes else node_software)" in site
    assert "node_software" in (ANSIBLE / "join.yml").read_text()
    assert "node_software" in (ANSIBLE / "bake.yml").read_text()


def test_the_units_of_packages_are_stopped() -> None:
    """They listen on every address."""
    given = known()
    assert evaluate("{{ exporters_foreign }}", given) == [
        {"name": "prometheus-node-exporter", "state": "stopped"},
        {"name": "nvidia-dcgm-exporter", "state": "stopped"},
    ]


def test_dcgm_s_exporter_is_installed_with_dcgm_where_there_is_monitoring() -> None:
    def packages(enabled: bool) -> Any:
        return evaluate(
            "{{ nvidia_packages.dnf.dcgm }}", variables(ON | {"monitoring_enabled": enabled}, role="nvidia")
        )

    assert packages(True) == ["datacenter-gpu-manager-4-core", "datacenter-gpu-manager-exporter"]
    assert packages(False) == ["datacenter-gpu-manager-4-core"]


def test_dcgm_s_fields_are_lines_of_three_parts() -> None:
    lines = (ANSIBLE / "roles/exporters/files/dcgm-fields.csv").read_text().splitlines()
    fields = [line.split(", ", 2) for line in lines if not line.startswith("#")]
    assert all(
        re.fullmatch(r"DCGM_FI_(DEV|PROF)_[A-Z_]+", name) and kind in ("gauge", "counter")
        for name, kind, _text in fields
    )
    assert len({name for name, _kind, _text in fields}) == len(fields)
    # What rules and dashboards ask for is recorded.
    rules = [file.read_text() for file in ANSIBLE.glob("roles/monitoring/files/rules/*.yml")]
    texts = [*rules, *boards.all_files().values()]
    asked = {name for text in texts for name in re.findall(r"\bDCGM_FI_[A-Z_]+[A-Z]\b", text)}
    assert asked
    assert asked <= {name for name, _kind, _text in fields}


def test_the_autoscalers_metrics_are_led_to_a_prometheus_on_another_host() -> None:
    """And to no other client; on the controller itself Prometheus asks the loopback device."""
    elsewhere = {"monitoring_host": "demo-login-1", "monitoring_host_address": "10.0.0.7", **ELASTIC}
    given = known(CONTROLLER, **elsewhere) | {"private_ip": "10.0.0.2"}
    assert evaluate("{{ exporters_relay }}", given) is True
    socket = set(render("exporters", "gpucluster-autoscaler-metrics.socket", given).splitlines())
    assert {"ListenStream=10.0.0.2:9811", "IPAddressDeny=any", "IPAddressAllow=10.0.0.7"} <= socket
    service = render("exporters", "gpucluster-autoscaler-metrics.service", given)
    assert "127.0.0.1:9811\n" in service
    assert "IPAddressAllow=10.0.0.7 localhost\n" in service
    for changes in ({"monitoring_host": CONTROLLER}, {"autoscaler_policy": None}):
        assert evaluate("{{ exporters_relay }}", known(CONTROLLER, **elsewhere | changes)) is False
