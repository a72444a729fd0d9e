"""The files that the roles write, for fictitious clusters."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ansible.loading import read
from tests.ansible.render import (
    CONTROLLER,
    ELASTIC,
    EMPTY_POOL,
    GPU_POOL,
    evaluate,
    host_facts,
    render,
    render_slurm,
    variables,
)


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def settings(text: str) -> dict[str, str]:
    plain = [line for line in lines(text) if not line.startswith(("NodeName", "PartitionName"))]
    return dict(line.partition("=")[::2] for line in plain)


def test_a_pool_is_a_partition_with_its_nodes() -> None:
    found = lines(render_slurm()["slurm.conf"])
    assert (
        "NodeName=compute-1,compute-2 Sockets=2 CoresPerSocket=32 ThreadsPerCore=2 RealMemory=2000000 Gres=gpu:a100:8"
        in found
    )
    share = "DefMemPerCPU=15625 DefCpuPerGPU=16 DefaultTime=1440 MaxTime=10080"
    assert f"PartitionName=compute Nodes=compute-1,compute-2 Default=YES {share}" in found


def test_a_pool_without_nodes_is_an_empty_partition() -> None:
    found = [line for line in lines(render_slurm()["slurm.conf"]) if "elastic" in line]
    assert found == ['PartitionName=elastic Nodes="" Default=NO DefMemPerCPU=3750 DefaultTime=1440 MaxTime=10080']


def test_no_line_lacks_its_value() -> None:
    for name, text in render_slurm({"slurm_accounting": False}).items():
        assert [line for line in lines(text) if line.endswith("=")] == [], name


def test_real_gpus_have_device_files_and_emulated_ones_stand_ins() -> None:
    real = render_slurm()["gres.conf"]
    assert "Name=gpu Type=a100 File=/dev/nvidia0,/dev/nvidia1," in real
    emulated = render_slurm({"slurm_hardware_emulated": True, "slurm_gpus_emulated": True})
    assert "File=/var/lib/gpucluster/emulated-gpus/gpu[0-7]" in emulated["gres.conf"]
    assert settings(emulated["slurm.conf"])["SlurmdParameters"] == "config_overrides"
    assert "SlurmdParameters" not in settings(render_slurm()["slurm.conf"])


def test_gpus_of_a_machine_have_links_that_slurmd_makes_before_it_starts() -> None:
    links = ["/run/gpucluster/mig/gpu00", "/run/gpucluster/mig/gpu01"]
    given = {
        "slurm_hardware_emulated": True,
        "slurm_pools": [
            {**pool, "gpus": 2, "gpu_device_files": links} if pool["gpus"] else pool
            for pool in variables(role="slurm")["slurm_pools"]
        ],
    }
    files = render_slurm(given, facts=host_facts(cgroups=True))
    assert f"File={','.join(links)}" in files["gres.conf"]
    assert settings(files["cgroup.conf"])["ConstrainDevices"] == "yes"
    assert settings(files["slurm.conf"])["SlurmdParameters"] == "config_overrides"
    assert settings(files["slurm.conf"])["TaskPlugin"] == "task/cgroup"

    def starts(changes: dict[str, Any]) -> bool:
        known = variables({**given, **changes}, role="slurm") | {"group_names": ["compute", "pool_compute"]}
        return "gpucluster-agent gpu-links" in render("slurm", "slurmd.service", known)

    assert starts({})
    assert not starts({"slurm_gpus_emulated": True})
    assert not starts({"slurm_hardware_emulated": False})


@pytest.mark.parametrize(
    ("cgroups", "emulated", "track", "task"),
    [
        (True, False, "proctrack/cgroup", "task/cgroup,task/affinity"),
        (True, True, "proctrack/cgroup", "task/cgroup"),
        (False, False, "proctrack/linuxproc", "task/affinity"),
        (False, True, "proctrack/linuxproc", "task/none"),
    ],
)
def test_cgroups_are_used_where_every_node_has_them(cgroups: bool, emulated: bool, track: str, task: str) -> None:
    files = render_slurm(
        {"slurm_hardware_emulated": emulated, "slurm_gpus_emulated": emulated}, facts=host_facts(cgroups=cgroups)
    )
    found = settings(files["slurm.conf"])
    assert (found["ProctrackType"], found["TaskPlugin"]) == (track, task)
    assert ("ConstrainRAMSpace=yes" in files["cgroup.conf"]) is cgroups


def test_one_node_without_cgroups_decides_for_all() -> None:
    known = variables(role="slurm", facts=host_facts(cgroups=True))
    poor = {"ansible_facts": {"gpucluster_host": host_facts(cgroups=False)}, "inventory_hostname": "compute-2"}
    known["hostvars"] = known["hostvars"] | {"compute-2": poor}
    assert settings(render("slurm", "slurm.conf", known))["ProctrackType"] == "proctrack/linuxproc"


def test_a_node_that_did_not_answer_decides_nothing() -> None:
    known = variables(role="slurm", facts=host_facts(cgroups=True))
    known["hostvars"] = known["hostvars"] | {"compute-2": {"ansible_facts": {}}}
    assert settings(render("slurm", "slurm.conf", known))["ProctrackType"] == "proctrack/cgroup"


@pytest.mark.parametrize(
    ("version", "plugin"), [("22.05.8", "cgroup/v1"), ("23.11.4", "disabled"), ("25.11.1", "disabled")]
)
def test_the_plugin_without_cgroups_depends_on_the_version(version: str, plugin: str) -> None:
    assert settings(render_slurm(facts=host_facts(slurm=version))["cgroup.conf"]) == {"CgroupPlugin": plugin}


@pytest.mark.parametrize(
    ("version", "prolog", "kept"),
    [("22.05.8", "/usr/local/lib/gpucluster/prolog-slurm", True), ("23.11.4", "prolog-gpucluster", False)],
)
def test_nodes_have_the_prolog_that_slurm_does_not_send(version: str, prolog: str, kept: bool) -> None:
    """Before 23.11 slurmd found no file, drained its node for a "Prolog error", and Slurm powered it down."""
    known = variables({"containers_runtimes": ["enroot"]}, role="slurm", facts=host_facts(slurm=version))
    assert settings(render("slurm", "slurm.conf", known))["Prolog"] == prolog
    (task,) = read("roles/slurm/tasks/node.yml")
    (file,) = [item for item in task["vars"]["slurm_node_files"] if "slurm_prolog_of_node" in item]
    found = evaluate(file.replace("lookup('gpucluster_template', 'prolog.sh.j2')", "'text'"), known)
    assert found["path"] == "/usr/local/lib/gpucluster/prolog-slurm"
    assert (found.get("mode"), found.get("absent", False)) == (("0755", False) if kept else (None, True))


def test_extra_config_overrides_adds_and_removes() -> None:
    extra = {"SlurmdTimeout": 120, "MessageTimeout": None, "SchedulerParameters": ["bf_continue", "defer"]}
    found = settings(render_slurm({"slurm_extra_config": extra})["slurm.conf"])
    assert found["SlurmdTimeout"] == "120"
    assert found["SchedulerParameters"] == "nohold_on_prolog_fail,bf_continue,defer"
    assert "MessageTimeout" not in found


def test_without_accounting_nothing_speaks_of_it() -> None:
    assert not [key for key in settings(render_slurm({"slurm_accounting": False})["slurm.conf"]) if "Accounting" in key]


def test_a_pool_with_fewer_cores_than_gpus_still_gives_one() -> None:
    small = GPU_POOL | {"node": GPU_POOL["node"] | {"Sockets": 1, "CoresPerSocket": 4, "ThreadsPerCore": 1}}
    found = render_slurm({"slurm_pools": [small, EMPTY_POOL]})["slurm.conf"]
    assert "DefCpuPerGPU=1" in found


def test_stand_ins_are_those_of_the_own_pool() -> None:
    known = variables(role="slurm", host="compute-1") | {"slurm_own_gpus": 3}
    found = yaml.safe_load(render("slurm", "emulated_gpus.yml", known))
    assert [item["path"].rpartition("/")[2] for item in found] == ["gpu0", "gpu1", "gpu2"]
    assert yaml.safe_load(render("slurm", "emulated_gpus.yml", known | {"slurm_own_gpus": 0})) == []


def test_limits_are_raised_only_where_they_can_be() -> None:
    assert "* - memlock unlimited" in render("base", "limits.conf", variables(role="base"))
    poor: dict[str, Any] = host_facts() | {"can_raise_limits": False}
    assert lines(render("base", "limits.conf", variables(role="base", facts=poor))) == []


def test_every_host_knows_every_host_s_name_and_key() -> None:
    known = variables(role="base")
    assert lines(render("base", "hosts", known)) == [
        "10.0.0.2 demo-controller",
        "10.0.1.2 compute-1",
        "10.0.1.3 compute-2",
    ]
    assert lines(render("base", "ssh_known_hosts", known))[:2] == [
        "@cert-authority * ssh-ed25519 AAAAauthority",
        "demo-controller,10.0.0.2 ssh-ed25519 AAAAhost",
    ]


def sshd(known: dict[str, Any], user: str) -> dict[str, str]:
    """What sshd.conf states for a user, by the rule that the first value counts and a Match block goes before it."""
    found: dict[str, str] = {}
    own: dict[str, str] = {}
    here = True
    for line in lines(render("base", "sshd.conf", known)):
        word, value = line.split(None, 1)
        if word == "Match":
            here = value == "all" or user in value.removeprefix("User ").split(",")
        elif line.startswith(" "):
            own |= {word: value} if here else {}
        else:
            found.setdefault(word, value)
    return found | own


def test_nodes_accept_users_of_other_hosts_and_the_controller_does_not() -> None:
    node, controller = variables(role="base", host="compute-1"), variables(role="base")
    assert sshd(node, "bob")["HostbasedAuthentication"] == "yes"
    assert sshd(controller, "bob")["HostbasedAuthentication"] == "no"
    login = variables(role="base", host="login-1")
    login["groups"]["login"] = ["login-1"]
    assert sshd(login, "bob")["HostbasedAuthentication"] == "no"
    # Operators of each host: another host does not authenticate them, nor does a file that it could write.
    for own in ("root", "debian", "admin2"):
        assert sshd(node, own)["HostbasedAuthentication"] == "no"
    # A user could bring a key for any host of the cluster in files of their home.
    assert sshd(node, "bob")["IgnoreUserKnownHosts"] == sshd(node, "bob")["IgnoreRhosts"] == "yes"


def test_users_keys_are_not_read_from_homes_that_nodes_write() -> None:
    for host in (CONTROLLER, "compute-1"):
        known = variables(role="base", host=host)
        assert sshd(known, "bob")["AuthorizedKeysFile"] == "none"
        # Keys of the host's own users are on its own disk.
        for own in ("root", "debian", "admin2"):
            assert sshd(known, own)["AuthorizedKeysFile"].startswith(".ssh/authorized_keys")
        opened = variables({"users_keys_in_homes": True}, role="base", host=host)
        assert "AuthorizedKeysFile" not in sshd(opened, "bob")
    alone = sshd(variables({"home_mount_path": None}, role="base"), "alice")
    assert "AuthorizedKeysCommand" not in alone
    assert "AuthorizedKeysFile" not in alone


def test_every_host_that_may_come_is_named() -> None:
    known = variables(ELASTIC | {"private_subnet_domain_name": DOMAIN}, role="base")
    named = lines(render("base", "shosts.equiv", known))
    assert named[:3] == ["demo-controller", "compute-1", "compute-2"]
    assert {"elastic-e1", f"elastic-e4.{DOMAIN}", "second-e6"} <= set(named)
    assert len(named) == 3 + 2 * 16


def test_the_ca_knows_hosts_by_address() -> None:
    known = variables(ELASTIC, role="base")
    old = {"name": "b", "address": "10.0.0.3"}
    known["gpucluster_hosts"] = [{"name": "a", "address": "10.0.0.2", "id": "ocid1.a"}, old]
    assert json.loads(render("base", "host_names.json", known)) == {
        "hosts": {"10.0.0.2": ["a", "ocid1.a"], "10.0.0.3": ["b"]},
        "elastic": ["compute-e[1-6]", "second-e[1-6]", "elastic-e[1-4]"],
        "domain": known["private_subnet_domain_name"] or "",
    }


DOMAIN = "private.demo.oraclevcn.com"


@pytest.mark.parametrize(
    ("domain", "host", "reached", "checked"),
    [
        (DOMAIN, "compute-e1", f"compute-e1.{DOMAIN}", False),
        (DOMAIN, f"compute-e1.{DOMAIN}", f"compute-e1.{DOMAIN}", False),
        # It is in no DNS: the name may resolve by other means.
        (DOMAIN, "compute-e2", "compute-e2", False),
        (DOMAIN, "compute-1", "compute-1", True),
        ("", "compute-e1", "compute-e1", False),
        (None, "compute-e1", "compute-e1", False),
    ],
)
def test_ssh_finds_elastic_nodes_in_the_domain_of_their_subnet(
    domain: str | None, host: str, reached: str, checked: bool, tmp_path: Path
) -> None:
    known = variables(ELASTIC | {"private_subnet_domain_name": domain}, role="base")
    (tmp_path / "config").write_text(f"Host compute-e1\n    User me\n{render('base', 'ssh_elastic', known)}")
    # ssh asks with a dot at the end; DNS removes it, a hosts file does not.
    names = [f"{name}.{DOMAIN}." for name in ("compute-e1", "compute-1")]
    (tmp_path / "hosts").write_text(f"127.0.0.9 {' '.join(names)}\n")
    script = 'mount --bind "$1/hosts" /etc/hosts && exec ssh -F "$1/config" -G -- "$2"'
    argv = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(tmp_path), host]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert found["hostname"] == reached
    # Never trusted at first sight: see test_host_certificates.
    assert (found["stricthostkeychecking"] == "true") is not checked
    # Settings for the name as typed also hold for the longer one.
    assert (found["user"] == "me") is (host == "compute-e1")
    assert (found["userknownhostsfile"] != "/dev/null") is checked


def test_slurmd_restarts_for_a_new_configuration() -> None:
    known = variables(role="slurm", host="compute-1")
    old = render("slurm", "slurmd.env", known)
    known["hostvars"] = known["hostvars"] | {"demo-controller": {"slurm_config": {"slurm.conf": "ClusterName=demo"}}}
    assert render("slurm", "slurmd.env", known) != old
