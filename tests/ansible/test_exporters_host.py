"""The role exporters on a booted host, with real systemd and the real node_exporter: they run, answer, and go.

What this does not prove: that systemd's IPAddressDeny refuses strangers (containers have no eBPF), GPUs, DCGM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.ansible.booted import Booted, booted
from tests.ansible.in_container import Played
from tests.ansible.render import GPU_POOL, INVENTORY
from tests.waiting import wait_for

pytestmark = pytest.mark.containers

TASKS: list[dict[str, Any]] = [
    {"import_role": {"name": "base", "tasks_from": "gather_facts"}},
    {
        "include_role": {"name": "{{ next_role }}"},
        "loop": "{{ ['exporters'] | select('in', roles_with_work) }}",
        "loop_control": {"loop_var": "next_role"},
    },
]
# The host has no network but its own.
VARIABLES = INVENTORY | {
    "monitoring_enabled": True,
    "monitoring_host_address": "127.0.0.1",
    "health_enabled": True,
    "slurm_hardware_emulated": True,
    "slurm_gpus_emulated": True,
}
ELSEWHERE = {
    "monitoring_host": "demo-login-1",
    "private_ip": "127.0.0.2",
    "autoscaler_policy": {"version": 1, "cluster": "demo"},
    "autoscaler_wheels": "/somewhere",
}
UNITS = ("gpucluster-exporter", "gpucluster-node-exporter")


def apply(node: Booted, **changes: Any) -> Played:
    return node.play(TASKS, VARIABLES | changes, name="demo-controller")


def page(node: Booted, address: str) -> str:
    ask = f"curl --silent --fail http://{address}/metrics"
    state = lambda: node.sh("systemctl list-units --failed; ss -Hltn", check=False)  # noqa: E731
    return wait_for(f"{address} answers", lambda: node.sh(ask, check=False), interval=0.2, state=state)


def metrics(node: Booted, port: int) -> dict[str, Any]:
    text = page(node, f"127.0.0.1:{port}")
    return {family.name: family for family in text_string_to_metric_families(text)}


def scraped(node: Booted, *names: str) -> dict[str, Any]:
    """The exporter's metrics, of a scrape for which these collectors were in time: a busy machine may be late."""
    found: dict[str, Any] = {}

    def in_time() -> bool:
        found.update(metrics(node, 9500))
        return up(found).items() >= dict.fromkeys(names, 1).items()

    # A second scrape within a second gets the page of the first.
    state = lambda: f"{up(found)}\n{node.sh('journalctl --no-pager | tail --lines=40')}"  # noqa: E731
    wait_for(f"{', '.join(names)} are in time", in_time, interval=1.5, state=state)
    return found


def up(found: dict[str, Any]) -> dict[str, float]:
    return {each.labels["collector"]: each.value for each in found["gpucluster_exporter_collector_up"].samples}


@pytest.fixture(scope="module")
def node() -> Iterator[Booted]:
    with booted() as host:
        host.install_agent()
        host.put("/run/gpucluster/jobs/12.json", json.dumps({"version": 1, "job_id": "12", "gpus": []}))
        host.put("/var/lib/gpucluster/health/metrics.prom", "gpucluster_health_shadow 0\n")
        host.sh("chmod 2751 /var/lib/gpucluster/health && systemctl enable --now prometheus-node-exporter")
        yield host


def test_exporters_run_answer_and_go(node: Booted) -> None:
    without = apply(node, monitoring_enabled=False)
    assert without.changed == 0
    assert "exporters" not in without.said, "a cluster without monitoring has no task for it"

    assert apply(node).changed == 1
    ours, system = scraped(node, "rdma", "network", "jobs"), metrics(node, 9100)
    assert [each.labels for each in ours["gpucluster_job_node"].samples] == [{"job_id": "12"}]
    assert up(ours) == {"rdma": 1, "network": 1, "jobs": 1}
    failed = {each.labels["collector"] for each in system["node_scrape_collector_success"].samples if not each.value}
    assert "systemd" not in failed, "an unprivileged exporter asks systemd for the states of units"
    states = [each.labels for each in system["node_systemd_unit_state"].samples if each.value]
    assert {"gpucluster-exporter.service", "gpucluster-node-exporter.service"} <= {
        each["name"] for each in states if each["state"] == "active"
    }
    users = node.sh(f"systemctl show --property=User {' '.join(UNITS)}").split()
    assert users == ["User=gpucluster-exporter"] * 2
    # The package's own listened on every address.
    package = node.sh("for ask in is-enabled is-active; do systemctl $ask prometheus-node-exporter; done", check=False)
    assert package.split() == ["disabled", "inactive"]
    # Of the health service.
    assert system["gpucluster_health_shadow"].samples[0].value == 0
    assert apply(node).changed == 0, "a second run changes nothing"

    # Prometheus is on another host now: a port of the private address leads it to the autoscaler's metrics.
    node.sh("mkdir -p /srv/page && echo 'gpucluster_nodes 7' > /srv/page/metrics")
    serve = "python3 -m http.server --bind 127.0.0.1 --directory /srv/page 9811"
    node.sh(f"systemd-run --quiet --unit page {serve}")
    assert apply(node, **ELSEWHERE).changed > 0
    assert page(node, "127.0.0.2:9811") == "gpucluster_nodes 7\n"
    assert apply(node, **ELSEWHERE).changed == 0
    assert apply(node).changed > 0
    assert node.sh("systemctl is-active gpucluster-autoscaler-metrics.socket", check=False).strip() == "inactive"

    assert apply(node, monitoring_enabled=False).changed > 0
    assert node.sh(f"systemctl is-active {' '.join(UNITS)}", check=False).split() == ["inactive", "inactive"]
    left = node.sh("ls /etc/systemd/system /var/lib/gpucluster /etc/systemd/system/multi-user.target.wants")
    assert "exporter" not in left
    assert "metrics" not in left.split()
    assert apply(node, monitoring_enabled=False).changed == 0


def test_the_watcher_of_jobs_and_what_reports_its_words_run(node: Booted) -> None:
    units = ("gpucluster-watch", "gpucluster-watch-report")
    apply_to_node = {
        "slurm_hardware_emulated": False,
        "slurm_gpus_emulated": False,
        "gpucluster_hosts": INVENTORY["gpucluster_hosts"],
    }
    node.play(TASKS, VARIABLES | apply_to_node, name="compute-1")
    seen = "/run/gpucluster-watch/jobs.json"
    wait_for("the watcher has looked", lambda: node.sh(f"cat {seen} 2>/dev/null", check=False))
    assert node.sh(f"systemctl is-active {' '.join(units)}", check=False).split() == ["active", "active"]
    shown = node.sh(f"systemctl show --property=NRestarts,User {' '.join(units)}").split()
    assert shown == ["NRestarts=0", "User=gpucluster-exporter", "NRestarts=0", "User="]
    # Root without any capability reads the watcher's file by its group, as the unit does.
    facts: dict[str, str] = {}

    def without_rights() -> bool:
        # systemd takes them from the process before it becomes the program; the unit is active before that.
        status = "cat /proc/$(systemctl show --property=MainPID --value gpucluster-watch-report)/status"
        facts.update(dict(line.split(":", 1) for line in node.sh(status).splitlines()))
        return (facts["Uid"].split()[0], int(facts["CapEff"], 16)) == ("0", 0)

    wait_for("the program is root without any capability", without_rights, state=lambda: facts)
    group = facts["Gid"].split()[0]
    as_unit = f"setpriv --reuid=0 --regid={group} --clear-groups --bounding-set=-all --inh-caps=-all"
    assert '"jobs":[]' in node.sh(f"{as_unit} cat {seen}")
    assert node.play(TASKS, VARIABLES | apply_to_node, name="compute-1").changed == 0

    node.play(TASKS, VARIABLES | apply_to_node | {"monitoring_enabled": False}, name="compute-1")
    assert node.sh(f"systemctl is-active {' '.join(units)}", check=False).split() == ["inactive", "inactive"]
    assert "watch" not in node.sh("ls /etc/systemd/system /etc/systemd/system/multi-user.target.wants")


def test_the_exporter_without_rights_gets_sys_of_a_pod(node: Booted) -> None:
    """Real: systemd's socket and sandbox, the kernel's namespaces. The pod is a namespace that `ip netns` keeps."""
    given = VARIABLES | {
        "gpucluster_hosts": INVENTORY["gpucluster_hosts"], "slurm_hardware_emulated": False,
        "slurm_gpus_emulated": False, "scheduler": "kubernetes",
        "kubernetes_rdma": "device", "slurm_pools": [GPU_POOL | {"rdma": True}],
    }  # fmt: skip
    node.play(TASKS, given, name="compute-1")
    scraped(node, "rdma")
    # It appears in the mounts of a service that runs already, and the answer to a question is complete.
    node.sh("ip netns add pod")
    try:
        asked = "journalctl --quiet --unit 'gpucluster-rdma-namespaces@*'"

        def answered() -> bool:
            page(node, "127.0.0.1:9500")
            return bool(node.sh(asked, check=False))

        wait_for("the exporter has asked", answered, interval=1.5)
        scraped(node, "rdma", "network")
        # A socket of the namespace is passed, and the kernel tells a service in its sandbox that the mount is gone.
        node.put("/srv/held.py", HELD)
        node.sh("chmod 644 /srv/held.py; rm -f /run/held")
        node.sh(
            "systemd-run --unit=held --property=User=gpucluster-exporter --property=ProtectSystem=strict "
            "--property=PrivateTmp=yes --property=RestrictAddressFamilies='AF_UNIX AF_INET' "
            "--setenv=PYTHONPATH=/usr/local/bin/gpucluster-agent python3 /srv/held.py"
        )
        held = "journalctl --quiet --output=cat --unit=held"
        wait_for("the service has the socket", lambda: "holds 1" in node.sh(held, check=False))
        (said,) = [line for line in node.sh(held).splitlines() if line.startswith("holds 1")]
        _holds, _number, process, folder = said.split()
        sysfs = f"ls /proc/{process}/fd/{folder}/class/net"
        assert "lo" in node.sh(sysfs)
        node.sh("ip netns delete pod")
        wait_for("the namespace has ended", lambda: node.sh(sysfs).strip() == "")
    finally:
        node.sh("systemctl stop held; ip netns delete pod", check=False)
    assert node.play(TASKS, given, name="compute-1").changed == 0
    node.play(TASKS, given | {"kubernetes_rdma": "host"}, name="compute-1")
    assert "rdma-namespaces" not in node.sh("ls /etc/systemd/system /etc/systemd/system/sockets.target.wants; ls /run")


# It looks at the mounts until it has an answer, which on a busy machine comes too late for one question. What ends the
# namespace after that is the thread that the kernel wakes.
HELD = """\
import os, signal
from gpucluster.node_agent.exporter.namespaces import Namespaces
held = Namespaces("/run/gpucluster-rdma-namespaces.sock", keeps=lambda sysfs: True)
while not (held.folders() and held._sockets):
    pass
(sysfs,) = held.folders().values()
print("holds", len(held._sockets), os.getpid(), os.path.basename(sysfs), flush=True)
signal.pause()
"""
