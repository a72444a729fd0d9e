"""User data: the same bytes for the same spec, within OCI's limit, and scripts that compute what Python reports."""

from __future__ import annotations

import configparser
import ipaddress
import re
import shlex
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpucluster import shapes
from gpucluster.errors import InputError
from gpucluster.handover.user_data import (
    MAX_BYTES,
    BootSettings,
    LocalDiskSettings,
    RdmaAddressing,
    boot_settings,
    user_data,
)
from gpucluster.paths import ansible_dir
from gpucluster.spec import ClusterSpec, loads
from gpucluster.systems import host_python
from tests.examples import examples
from tests.spec.spec_texts import LOCAL

pytestmark = pytest.mark.slow

FILES = Path(str(resources.files("gpucluster").joinpath("handover", "user_data_files")))
ROLE_BASE = ansible_dir() / "roles" / "base"
FIREWALL, METADATA = (ROLE_BASE / "files" / f"gpucluster-{name}" for name in ("firewall", "metadata"))
SCRIPTS = [*sorted(FILES.glob("*.sh")), *sorted((FILES.parents[1]).glob("*.sh")), FIREWALL, METADATA]
INTERFACES = shapes.get("BM.GPU4.8").rdma_interfaces
FULL = BootSettings(
    "Asia/Tokyo",
    LocalDiskSettings("/mnt/localdisk", 4),
    RdmaAddressing(INTERFACES, "10.0.1.0/24", "192.168.0.0/16"),
    ("10.0.0.0/24", "10.0.1.0/24"),
)


def files(machine: BootSettings) -> dict[str, Any]:
    return {file["path"]: file for file in yaml.safe_load(user_data(machine))["write_files"]}


def shell(script: str, *, code: str, data: str = "") -> str:
    """Run code after the functions of a script were read in."""
    text = f"{data}\n. {FILES / script}\n{code}"
    return subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True).stdout.strip()


def test_the_whole_document() -> None:
    text = user_data(FULL)
    assert text.startswith("#cloud-config\n")
    assert len(text.encode()) <= MAX_BYTES
    assert text == user_data(FULL)
    document = yaml.safe_load(text)
    assert document["timezone"] == "Asia/Tokyo"
    assert document["growpart"]["devices"] == ["/"]
    assert document["resize_rootfs"] is True
    # It would ask for the package index at each first boot.
    assert "packages" not in document
    assert set(files(FULL)) == {
        "/etc/gpucluster/node.conf",
        "/etc/gpucluster/firewall.conf",
        "/usr/local/sbin/gpucluster-firewall",
        "/etc/systemd/system/gpucluster-firewall.service",
        "/usr/local/sbin/gpucluster-metadata",
        "/etc/systemd/system/gpucluster-metadata.service",
        "/usr/local/sbin/gpucluster-first-boot",
        "/usr/local/sbin/gpucluster-python",
        "/usr/local/sbin/gpucluster-local-disk",
        "/usr/local/sbin/gpucluster-rdma-addresses",
        "/etc/systemd/system/gpucluster-local-disk.service",
        "/etc/systemd/system/gpucluster-rdma-addresses.service",
        "/var/lib/cloud/scripts/per-boot/gpucluster",
    }
    assert document["runcmd"] == [["/usr/local/sbin/gpucluster-first-boot"]]


def test_what_is_written_is_the_script_without_comments_and_indentation() -> None:
    written = files(FULL)["/usr/local/sbin/gpucluster-local-disk"]
    source = (FILES / "local-disk.sh").read_text().splitlines()
    code = [line.strip() for line in source if line.strip() and not line.lstrip().startswith("#")]
    lines = written["content"].splitlines()
    assert lines[0] == "#!/bin/sh"
    assert lines[1:] == code
    assert written["permissions"] == "0755"
    for file in files(FULL).values():
        if file["content"].startswith("#!"):
            subprocess.run(["sh", "-n"], input=file["content"], text=True, check=True)


def test_a_machine_gets_only_what_it_needs() -> None:
    plain = files(BootSettings("UTC"))
    assert [path for path in plain if "local-disk" in path or "rdma" in path] == []
    assert [path for path in plain if "firewall" in path] == []
    assert set(shlex.split(plain["/etc/gpucluster/node.conf"]["content"])) == {
        f"python={' '.join(host_python.arguments())}"
    }


def test_the_data_are_words_of_the_shell() -> None:
    disk = LocalDiskSettings("/mnt/a b", 2, devices="/dev/x $(reboot) '")
    text = files(BootSettings("UTC", disk))["/etc/gpucluster/node.conf"]["content"]
    values = dict(word.split("=", 1) for word in shlex.split(text))
    assert (values["local_disk_mount_path"], values["local_disk_devices"]) == ("/mnt/a b", disk.devices)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script: Path) -> None:
    beside_python = Path(sys.executable).with_name("shellcheck")
    program = str(beside_python) if beside_python.exists() else shutil.which("shellcheck")
    if program is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([program, "--shell=sh", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# addresses


def test_addresses_are_those_of_the_seed() -> None:
    rdma = FULL.rdma
    assert rdma is not None
    assert [str(rdma.address(index, "10.0.1.77")) for index in (0, 1, 15)] == [
        "192.168.0.77/24", "192.168.1.77/24", "192.168.15.77/24",
    ]  # fmt: skip


@st.composite
def subnets(draw: st.DrawFn) -> tuple[RdmaAddressing, str]:
    prefix = draw(st.integers(20, 30))
    address = draw(st.integers(2**24, 2**32 - 2**24))
    subnet = ipaddress.IPv4Network((address, prefix), strict=False)
    space = ipaddress.IPv4Network((draw(st.integers(2**24, 2**32 - 2**24)), draw(st.integers(8, 16))), strict=False)
    host = subnet.network_address + draw(st.integers(1, subnet.num_addresses - 2))
    return RdmaAddressing(INTERFACES, str(subnet), str(space)), str(host)


@given(subnets())
@examples(60)
def test_the_shell_computes_the_same_addresses(case: tuple[RdmaAddressing, str]) -> None:
    rdma, host = case
    wanted = [rdma.address(index, host) for index in range(len(INTERFACES))]
    space, subnet = ipaddress.IPv4Network(rdma.rdma_cidr), ipaddress.IPv4Network(rdma.private_subnet_cidr)
    assert all(address.ip in space for address in wanted)
    assert len({address.network for address in wanted}) == len(INTERFACES)
    assert {int(address.ip) - int(address.network.network_address) for address in wanted} == {
        int(ipaddress.IPv4Address(host)) - int(subnet.network_address)
    }
    code = f"for index in $(seq 0 {len(INTERFACES) - 1}); do address $index {host}; done; inside {host} && echo inside"
    data = f"private_subnet={subnet} rdma_cidr={space}"
    told = shell("rdma-addresses.sh", code=code, data=data).split()
    assert told == [*(str(address.ip) for address in wanted), "inside"]
    for stranger in (subnet.network_address - 1, subnet.broadcast_address + 1):
        assert shell("rdma-addresses.sh", code=f"inside {stranger} || echo out", data=data) == "out"


def test_a_range_that_is_too_small_is_refused() -> None:
    # 16 times 4096 addresses just fit; one bit more does not.
    RdmaAddressing(INTERFACES, "10.0.16.0/20", "192.168.0.0/16")
    with pytest.raises(InputError, match=r"rdma_cidr 192\.168\.0\.0/16 is too small") as caught:
        RdmaAddressing(INTERFACES, "10.0.32.0/19", "192.168.0.0/16")
    assert "larger rdma_cidr" in caught.value.hint


@pytest.mark.parametrize("shape", [shape for shape in shapes.catalogue().values() if shape.rdma_interfaces])
def test_interfaces_of_a_shape_are_one_for_each_device(shape: shapes.Shape) -> None:
    assert len(set(shape.rdma_interfaces)) == len(shape.rdma_devices)


def test_an_interface_with_another_name_is_found_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "0000:d1:00.1" / "net" / "rdma15").mkdir(parents=True)
    text = (FILES / "rdma-addresses.sh").read_text().replace("/sys/bus/pci/devices", str(tmp_path))
    (tmp_path / "script").write_text(text)
    found = subprocess.run(
        ["sh", "-c", f". {tmp_path}/script; interface enp209s0f1; interface enp209s0f0; interface eth7; interface lo"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.split() == ["rdma15", "lo"]


def kept_by(manager: str) -> tuple[str, str, str]:
    """File, rights and text that a network manager is given. `write` is a double: it shows what it is told to write."""
    double = 'write() { echo "$1 ${2:-600}"; cat; }; nmcli() { :; }'
    told = shell("rdma-addresses.sh", code=f"{double}\nkeep {manager} enp12s0f1 192.168.1.7/24")
    place, _newline, text = told.partition("\n")
    return (*place.split(), text)  # type: ignore[return-value]


def test_each_manager_of_networks_is_told_in_its_own_words() -> None:
    file, mode, text = kept_by("NetworkManager")
    assert (file, mode) == ("/etc/NetworkManager/system-connections/gpucluster-enp12s0f1.nmconnection", "600")
    profile = configparser.ConfigParser()
    profile.read_string(text)
    assert profile["connection"]["interface-name"] == "enp12s0f1"
    assert dict(profile["ipv4"]) == {"method": "manual", "address1": "192.168.1.7/24", "never-default": "true"}
    assert profile["ipv6"]["method"] == "disabled"

    file, mode, text = kept_by("netplan")
    assert (file, mode) == ("/etc/netplan/60-gpucluster-enp12s0f1.yaml", "600")
    interface = yaml.safe_load(text)["network"]["ethernets"]["enp12s0f1"]
    assert (interface["addresses"], interface["dhcp4"], interface["link-local"]) == (["192.168.1.7/24"], False, [])

    file, _mode, text = kept_by("ifcfg")
    assert file == "/etc/sysconfig/network-scripts/ifcfg-enp12s0f1"
    values = dict(line.split("=") for line in text.splitlines())
    assert (values["IPADDR"], values["PREFIX"], values["DEFROUTE"]) == ("192.168.1.7", "24", "no")


# from a spec


def spec(**pool: Any) -> ClusterSpec:
    raw = yaml.safe_load(LOCAL)
    raw["pools"] = {"gpu": {"shape": "BM.GPU4.8", "count": 1, **pool}}
    raw["software"] = {"timezone": "Asia/Tokyo"}
    raw["slurm"].pop("extra_config", None)
    return loads(yaml.safe_dump(raw))


def test_a_pool_gets_the_drives_of_its_shape_and_the_controller_none() -> None:
    desired = spec()
    node, controller = boot_settings(desired, desired.pools["gpu"]), boot_settings(desired, desired.controller)
    assert (node.local_disk, controller.local_disk) == (LocalDiskSettings("/mnt/localdisk", 4), None)
    assert node.timezone == controller.timezone == "Asia/Tokyo"


def test_the_firewall_is_opened_to_the_networks_of_the_cluster_and_no_others() -> None:
    network = spec().network
    subnets = (str(network.public_subnet_cidr), network.private_subnet_cidr)
    without, fixed, plugin = spec(rdma=False), spec(rdma_addressing="cloud-init"), spec()
    assert boot_settings(without, without.controller).networks == subnets
    assert boot_settings(without, without.login).networks == subnets
    assert boot_settings(fixed, fixed.controller).networks == (*subnets, network.rdma_cidr)
    # The range of the agent's plugin.
    assert boot_settings(plugin, plugin.pools["gpu"]).networks == (*subnets, "10.224.0.0/12")


@pytest.mark.parametrize("name", ["firewall", "metadata"])
def test_the_role_keeps_the_files_as_user_data_writes_them(name: str) -> None:
    networks = ("10.0.0.0/24", "10.0.1.0/24")
    (task,) = [
        task
        for path in (ROLE_BASE / "tasks").glob("*.yml")
        for task in yaml.safe_load(path.read_text())
        if f"base_{name}_files" in task.get("vars", {})
    ]
    written = files(BootSettings("UTC", networks=networks))
    kept = {file["path"]: file for file in task["vars"][f"base_{name}_files"]}
    assert set(kept) == {path for path in written if name in path}
    environment = jinja2.Environment(keep_trailing_newline=True)
    environment.filters["regex_replace"] = lambda text, regexp, new: re.sub(regexp, new, text)
    environment.globals["lookup"] = lambda _kind, name, rstrip: (ROLE_BASE / "files" / name).read_text()
    for path, file in kept.items():
        text = environment.from_string(file["content"]).render(base_trusted_networks=networks)
        assert (text, file.get("mode")) == (written[path]["content"], written[path].get("permissions"))


ACCOUNTS = """\
root:x:0:0::/root:/bin/sh
daemon:x:1:1::/:/bin/false
gpucluster:x:995:995::/:/bin/false
oracle-cloud-agent:x:996:993::/:/bin/false
alice:x:1001:1001::/home/alice:/bin/sh
ocarun:x:20000:20000::/home/ocarun:/bin/sh
snap_daemon:x:584788:584788::/:/bin/false
"""


def test_no_user_reaches_the_metadata_service_by_the_name_of_an_agent(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text(ACCOUNTS)
    code = f'. {METADATA}; awk() {{ set -- "$1" "$2" "$3" "$4" {tmp_path}/passwd; command awk "$@"; }}; allowed'
    done = subprocess.run(["sh", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0,995,996,584788\n"


def test_the_addresses_of_the_metadata_service_are_those_that_the_sdk_asks() -> None:
    from oci.auth.signers import InstancePrincipalsSecurityTokenSigner

    rules = METADATA.read_text()
    assert f"ip daddr {InstancePrincipalsSecurityTokenSigner.IMDS_IPV4_HOST} tcp dport 80 " in rules
    assert f"ip6 daddr {InstancePrincipalsSecurityTokenSigner.IMDS_IPV6_HOST} tcp dport 80 " in rules


def test_the_autoscalers_user_is_among_those_who_reach_the_metadata_service() -> None:
    variables = yaml.safe_load((ROLE_BASE.parent / "autoscaler" / "vars" / "main.yml").read_text())
    assert f" {variables['autoscaler_user']} " in METADATA.read_text()


def test_addresses_are_given_where_they_are_wanted_from_us() -> None:
    desired = spec(rdma_addressing="cloud-init")
    rdma = boot_settings(desired, desired.pools["gpu"]).rdma
    assert rdma is not None
    assert (rdma.interfaces, rdma.rdma_cidr) == (INTERFACES, "192.168.0.0/16")
    assert rdma.private_subnet_cidr == desired.network.private_subnet_cidr
    without = spec(rdma=False)
    assert boot_settings(without, without.pools["gpu"]).rdma is None
