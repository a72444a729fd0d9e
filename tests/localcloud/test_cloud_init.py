"""The user data of gpucluster, run by real cloud-init in instances of the local cloud.

Drives are loop devices; RDMA interfaces are veth pairs with the names of the hardware. A stripe over several drives
needs a kernel with device-mapper, which this machine's kernel may lack: that test has an emulated machine, with the
instances' image as its root. Neither systemd nor cloud-init run there, only the script.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import yaml

from gpucluster import process
from gpucluster.handover.user_data import BootSettings, LocalDiskSettings, RdmaAddressing, user_data
from gpucluster.localcloud.image.contents import DEBIAN_13, Contents
from gpucluster.node_agent.interpreter import PYTHON
from tests.containers import base_image
from tests.localcloud import emulated_machine
from tests.localcloud.boot_harness import Instance, World, a_world
from tests.localcloud.emulated_machine import EmulatedMachine
from tests.loop_drives import blank_drive, blank_file
from tests.waiting import PATIENCE_S, wait_for

# Instances are shared, and each test finds what the ones before it have left.
pytestmark = [pytest.mark.containers, pytest.mark.story]

PATH = "/mnt/localdisk"
DISK, RDMA = "/usr/local/sbin/gpucluster-local-disk", "/usr/local/sbin/gpucluster-rdma-addresses"
# In the order in which they are loaded.
MODULES = ("dm-mod", "libcrc32c", "xfs")
# What the script and the test use of the image.
PROGRAMS = (
    "/etc/lvm awk blkid cat chmod grep lsblk lvcreate lvm lvs mkdir mkfs.xfs mount perl pvs rm sed sh sleep sync"
    " systemd-detect-virt tail tr umount vgchange vgcreate wc wipefs"
)
INTERFACES = ("enp12s0f0", "enp12s0f1", "enp209s0f1")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(tmp_path_factory.mktemp("home")) as made:
        yield made


Drive = Callable[[], str]


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drive]:
    """Makes blank drives: loop devices, which end after the instances (this fixture is asked for before `world`)."""
    with ExitStack() as drives:
        yield lambda: drives.enter_context(blank_drive(tmp_path_factory.mktemp("drive")))


@dataclass(frozen=True)
class Good:
    instance: Instance
    drive: str
    rdma: RdmaAddressing

    @property
    def subnet(self) -> str:
        return self.rdma.private_subnet_cidr


@pytest.fixture(scope="module")
def good(drive: Drive, world: World) -> Good:
    """A node with one blank drive, and without RDMA hardware as yet."""
    blank = drive()
    rdma = RdmaAddressing(INTERFACES, f"{world.subnet}.0/24", "192.168.0.0/16")
    machine = BootSettings("Asia/Tokyo", LocalDiskSettings(PATH, 1, devices=blank), rdma, (f"{world.subnet}.0/24",))
    return Good(world.boot("good", 20, machine, (blank,)), blank, rdma)


def test_the_first_boot_ends_without_an_error(good: Good) -> None:
    node = good.instance
    assert node.errors() == []
    assert node.sh("cloud-init status") == "status: done"
    assert node.sh("date +%Z; readlink /etc/localtime") == "JST\n/usr/share/zoneinfo/Asia/Tokyo"
    assert node.sh("cloud-init schema --config-file /var/lib/cloud/instance/user-data.txt").startswith("Valid schema")
    assert node.sh(f"readlink {PYTHON}; {PYTHON} -V").startswith("/usr/bin/python3.13\nPython 3.13.")
    assert node.sh("systemctl --failed --no-legend") == ""


def test_users_reach_neither_the_boot_volume_nor_the_metadata_service(good: Good) -> None:
    node = good.instance
    assert node.errors() == []
    assert node.outcome("firewall") == ("open", f"to {good.subnet}: nothing refuses them")
    assert node.outcome("metadata") == ("closed", "to all users but 0")
    assert_guarded(node)
    # Without the rules the attack succeeds.
    node.sh("systemctl stop gpucluster-metadata && nft delete table inet gpucluster")
    assert node.reads_boot_volume("nobody") == "read"
    node.sh("systemctl start gpucluster-metadata")
    assert_guarded(node)
    # Twice is once, and a firewall's own rules are its own.
    node.sh("gpucluster-metadata && gpucluster-firewall")
    assert node.sh("nft list ruleset | grep -c '^table'") == "1"


def assert_guarded(node: Instance) -> None:
    for address, port in (("169.254.0.2", 3260), ("169.254.169.254", 80)):
        assert node.reaches("root", address, port) == "connected"
        assert node.reaches("nobody", address, port) == "refused"


def assert_guarded_before_a_login(node: Instance) -> None:
    assert_guarded(node)
    others = node.sh("systemctl show -P InactiveExitTimestampMonotonic basic.target ssh systemd-user-sessions").split()
    ended = int(node.sh("systemctl show -P ActiveEnterTimestampMonotonic gpucluster-metadata"))
    assert 0 < ended <= min(int(stamp) for stamp in others if stamp != "0")


def test_a_system_whose_own_python_is_too_old_gets_the_link_to_a_newer_one(world: World) -> None:
    node = world.boot("old", 22, BootSettings("UTC"), contents=Contents(DEBIAN_13.suite, ("old-python",)))
    assert node.errors() == []
    assert node.sh(f"python3 -V; {PYTHON} -V").startswith("Python 3.6.8\nPython 3.13.")
    assert node.sh("systemctl --failed --no-legend") == ""


def test_cloud_init_looks_for_room_below_the_root_file_system(good: Good) -> None:
    """It finds none: the root of a container is not a partition. That a partition grows is a matter of cloud-init."""
    node = good.instance
    assert node.errors() == []
    node.sh("sed -i s/level=INFO/level=DEBUG/ /etc/cloud/cloud.cfg")
    for module, found in {"growpart": "'/' SKIPPED", "resizefs": "cannot resize: dev=overlay"}.items():
        node.sh(f"cloud-init single --name {module} --frequency always")
        assert found in node.sh("cat /var/log/cloud-init.log")


def test_the_drive_is_made_once_and_what_is_on_it_stays(good: Good) -> None:
    node, device = good.instance, good.drive
    assert node.errors() == []
    assert node.sh(f"findmnt -no FSTYPE,SOURCE {PATH}").split() == ["xfs", device]
    assert "noatime" in node.sh(f"findmnt -no OPTIONS {PATH}")
    assert node.sh(f"blkid -p -o value -s LABEL {device}") == "localscratch"
    assert node.outcome("local-disk")[0] == "mounted"
    # Writable for all users, except for the directory that root creates before any user can.
    assert node.sh(f"stat -c %u:%a {PATH} {PATH}/containers").split() == ["0:1777", "0:755"]
    entry = f"LABEL=localscratch {PATH} xfs defaults,noatime,nofail 0 0"
    assert node.sh(f"grep -c '^{entry}$' /etc/fstab") == "1"
    born = node.fingerprint(device)
    node.sh(f"echo precious > {PATH}/marker")

    node.sh(DISK)
    node.sh(f"umount {PATH} && {DISK} && {DISK}")
    assert node.sh(f"cat {PATH}/marker") == "precious"

    node.reboot()
    assert node.errors() == []
    assert node.sh(f"cat {PATH}/marker") == "precious"
    assert node.fingerprint(device) == born
    assert node.sh(f"grep -c {PATH} /etc/fstab") == "1"
    assert node.sh("systemctl is-enabled gpucluster-local-disk") == "enabled"
    # The other service that matters before any user can log in, at the same boot.
    assert_guarded_before_a_login(node)


def test_a_drive_that_came_back_blank_is_formatted_again(good: Good) -> None:
    node, device = good.instance, good.drive
    assert node.errors() == []
    born = node.fingerprint(device)
    # In its own mount namespace, like many services. As on a real machine, it does not keep the drive busy.
    node.sh("systemd-run --quiet --property=PrivateMounts=yes sleep infinity")
    node.sh(f"umount {PATH} && wipefs --all --quiet {device}")
    node.reboot()
    assert node.errors() == []
    assert node.outcome("local-disk")[0] == "mounted"
    assert node.fingerprint(device) not in ("", born)
    assert node.sh(f"ls -A {PATH}") == "containers"


def test_another_file_system_at_the_mount_point_is_told(good: Good) -> None:
    node = good.instance
    assert node.errors() == []
    node.sh(f"umount {PATH} && mount -t tmpfs other {PATH}")
    assert "other is mounted at /mnt/localdisk" in node.sh(DISK, status=1)
    node.sh(f"umount {PATH} && {DISK}")


def test_rdma_interfaces_get_their_addresses(good: Good) -> None:
    node, rdma = good.instance, good.rdma
    assert node.errors() == []
    host = node.sh("hostname -I").split()[0]
    # This script does not report missing drives: `verify` knows which hardware is required.
    assert node.outcome("rdma-addresses") == (
        "absent",
        f"none of the 3 RDMA interfaces is there: {' '.join(INTERFACES)}",
    )

    for name in INTERFACES[:2]:
        node.sh(f"ip link add {name} type veth peer name {name[3:]}p")
    told = node.sh(RDMA, status=1)
    assert "of 3 RDMA interfaces these are not there: enp209s0f1" in told

    node.sh("ip link add enp209s0f1 type veth peer name 209p && ip address add 10.224.0.9/12 dev enp209s0f1")
    node.sh(f"{RDMA} && {RDMA}")
    for index, name in enumerate(INTERFACES[:2]):
        assert node.sh(f"ip -4 -o address show dev {name} | awk '{{print $4}}'") == str(rdma.address(index, host))
        assert node.sh(f"cd /proc/sys/net/ipv4/conf/{name} && cat rp_filter arp_ignore arp_announce").split() == list(
            "221"
        )
        assert node.sh(f"ip -6 address show dev {name}") == ""
    assert node.sh("ip -4 -o address show dev enp209s0f1 | awk '{print $4}'") == "10.224.0.9/12"
    assert node.sh("ip -4 route show default").count("default") == 1
    state, words = node.outcome("rdma-addresses")
    assert (state, "2 of 3, 1 with addresses of others" in words) == ("addressed", True)


def test_systemd_networkd_is_told_the_same_addresses(good: Good) -> None:
    node = good.instance
    assert node.errors() == []
    host = node.sh("hostname -I").split()[0]
    for name in INTERFACES:
        node.sh(f"ip link delete {name} 2> /dev/null; ip link add {name} type veth peer name {name[3:]}p")
        node.sh(f"ip link set dev {name[3:]}p up")
    node.sh("systemctl start systemd-networkd")
    try:
        node.sh(RDMA)
        assert node.outcome("rdma-addresses")[1].endswith("kept by: networkd")
        # As on a disk that another host has used.
        first = f"/etc/systemd/network/60-gpucluster-{INTERFACES[0]}.network"
        node.sh(f"sed -i s/^Address.*/Address=192.168.0.200/ {first} && networkctl reload")
        node.sh(f"ip address flush dev {INTERFACES[0]} && ip address add 192.168.0.200/24 dev {INTERFACES[0]}")
        node.sh(RDMA)
        for index, name in enumerate(INTERFACES):
            node.sh(f"ip address flush dev {name} && networkctl reconfigure {name}")
            wanted, shown = str(good.rdma.address(index, host)), f"ip -4 -o address show dev {name}"
            wait_for(
                f"networkd gives {name} its address",
                partial(_prints, node, f"{shown} | awk '{{print $4}}'", wanted),
                interval=0.2,
                state=partial(node.sh, f"networkctl status {name}", status=None),
            )
    finally:
        node.sh("systemctl stop systemd-networkd.socket systemd-networkd; rm -f /etc/systemd/network/60-gpucluster-*")


@dataclass(frozen=True)
class Pair:
    instance: Instance
    foreign: str
    blank: str

    @property
    def both(self) -> str:
        return f"{self.foreign} {self.blank}"


@pytest.fixture(scope="module")
def pair(drive: Drive, world: World) -> Pair:
    """A node that boots with two drives, one of them with foreign swap space."""
    foreign, blank = drive(), drive()
    process.run(["mkswap", "--label", "precious", foreign])
    machine = BootSettings("UTC", LocalDiskSettings(PATH, 2, devices=f"{foreign} {blank}"))
    return Pair(world.boot("pair", 21, machine, (foreign, blank)), foreign, blank)


def test_what_is_not_blank_is_left_alone_and_told(pair: Pair) -> None:
    node = pair.instance
    errors = node.errors()
    assert len(errors) == 1
    assert "1 failures (gpucluster)" in errors[0]
    words = node.sh("cat /run/gpucluster/boot-errors")
    assert f"not blank, so left alone: {pair.foreign} (swap)" in words
    assert "wipefs" in words
    assert node.sh(f"blkid -p -o value -s LABEL {pair.foreign}") == "precious"
    assert node.sh(f"wipefs {pair.blank}") == ""
    assert PATH not in node.sh("cat /etc/fstab")


@pytest.fixture
def blanks(pair: Pair) -> Iterator[Pair]:
    """That node after its administrator made both drives blank; they are made blank again afterwards."""
    pair.instance.errors()
    pair.instance.sh(f"wipefs --all --quiet {pair.both}")
    yield pair
    pair.instance.sh(f"umount {PATH}; vgremove --force --yes nvme; rm -f /etc/lvm/lvmlocal.conf", status=None)
    pair.instance.sh(f"wipefs --all --quiet {pair.both}")


def test_several_drives_need_device_mapper(blanks: Pair) -> None:
    if _has_device_mapper():
        pytest.skip("this kernel has device-mapper")
    assert "this kernel has no device-mapper; nothing was changed" in blanks.instance.sh(DISK, status=1)
    assert blanks.instance.sh(f"wipefs {blanks.both}") == ""


def test_lvm_takes_the_stripe_over_all_drives_and_keeps_one_that_is_there(blanks: Pair) -> None:
    """What LVM writes on the drives. There is no volume, because LVM may not use device-mapper here."""
    node = blanks.instance
    node.sh("echo 'global { activation = 0 }' > /etc/lvm/lvmlocal.conf")
    node.sh(f". /etc/gpucluster/node.conf && . {DISK} && run vgcreate nvme {blanks.both} && make_volume 2")
    layout = "lvs --noheadings -o lv_name,stripes,devices nvme 2> /dev/null"
    assert node.sh(layout).split() == ["localscratch", "2", f"{blanks.foreign}(0),{blanks.blank}(0)"]
    assert node.sh("vgs --noheadings -o free_count nvme 2> /dev/null") == "0"

    written = "vgs --noheadings -o vg_uuid,vg_seqno nvme 2> /dev/null"
    before = node.sh(written)
    assert "nothing was changed" in node.sh(DISK, status=1)
    assert node.sh(written) == before


def test_several_drives_become_one_file_system(blanks: Pair) -> None:
    if not _has_device_mapper():
        pytest.skip("NOT RUN: this kernel has no device-mapper, so no file system was made over several drives")
    node, volume = blanks.instance, "/dev/nvme/localscratch"
    # Containers have no udev, so LVM itself creates the files in /dev.
    node.sh("echo 'activation { udev_sync = 0 udev_rules = 0 }' > /etc/lvm/lvmlocal.conf")
    node.sh(DISK)
    assert node.sh("lvs --noheadings -o stripes nvme/localscratch") == "2"
    born = node.fingerprint(volume)
    node.sh(f"echo precious > {PATH}/marker")
    node.sh(f"umount {PATH} && vgchange --activate n nvme && {DISK} && {DISK}")
    assert node.sh(f"cat {PATH}/marker") == "precious"
    assert node.fingerprint(volume) == born


# There is no udev, and no program that loads a module; 313 is finit_module(2).
INIT = f"""\
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs devtmpfs /dev; mount -t tmpfs tmpfs /run
exec > /dev/ttyS0 2>&1
for module in {" ".join(MODULES)}; do
  perl -e 'open(my $file, "<", $ARGV[0]); syscall(313, fileno($file), my $none = "", 0) == 0 or die $!' /$module.ko
done
{DISK} && echo precious >> {PATH}/marker
[ "$(grep -c precious {PATH}/marker)" != 1 ] || {{ umount {PATH} && {DISK}; }}
echo "uuid=$(blkid -p -o value -s UUID /dev/nvme/localscratch) markers=$(grep -c precious {PATH}/marker)" \
    "stripes=$(lvs --noheadings -o stripes nvme | tr -d ' ') slaves=$(echo /sys/class/block/dm-0/slaves/* | wc -w)" \
    "mounted=$(awk '$2 == "{PATH}" {{ print $1, $3 }}' /proc/mounts)" \\
    "entries=$(grep -c LABEL=localscratch /etc/fstab)" > /dev/ttyS1
cat /run/gpucluster/local-disk > /dev/ttyS1
umount {PATH}; vgchange --activate n nvme > /dev/null; mount -o remount,ro /; sync
echo b > /proc/sysrq-trigger
sleep 600
"""


@dataclass(frozen=True)
class Striped:
    """An emulated machine with four drives."""

    machine: EmulatedMachine

    def boot(self) -> tuple[dict[str, str], str]:
        """Boot, run the script, at the first boot once more, end. Returns facts and the script's last outcome."""
        facts, _newline, outcome = self.machine.run("/init-test").strip().partition("\n")
        return dict(re.findall(r"(\w+)=(.*?)(?= \w+=|$)", facts)), outcome


@pytest.fixture
def striped(tmp_path: Path) -> Iterator[Striped]:
    image, kernel, name = base_image(), emulated_machine.kernel(), f"gcinit-{secrets.token_hex(4)}"
    drives = tuple(tmp_path / f"drive{number}" for number in range(1, 5))
    for drive in drives:
        blank_file(drive)
    try:
        process.run(["podman", "create", f"--name={name}", "--network=none", "--pull=never", image])
        root = Path(process.run(["podman", "mount", name]).stdout.strip())
        # The boot volume is an NVMe drive as well here, and on OCI it is not.
        settings = LocalDiskSettings(PATH, 4, devices="/dev/nvme[1-4]n1")
        document = yaml.safe_load(user_data(BootSettings("UTC", settings)))
        written = {file["path"]: file["content"] for file in document["write_files"]}
        written |= {
            "/init-test": INIT,
            "/etc/fstab": "",
            "/etc/lvm/lvmlocal.conf": "activation { udev_sync = 0 udev_rules = 0 }\n",
        }
        modules = {f"/{name}.ko": kernel.module(name) for name in MODULES}
        emulated_machine.make_disk(root, tmp_path / "disk", PROGRAMS.split(), {**written, **modules})
        yield Striped(EmulatedMachine(kernel, tmp_path / "disk", drives))
    finally:
        process.run(["podman", "rm", "--force", "--volumes", "--time=0", name], check=False)


@pytest.mark.timeout(20 * PATIENCE_S)  # three boots
@pytest.mark.xdist_group("emulated-machine")
def test_four_drives_become_one_file_system_that_outlives_a_reboot(striped: Striped) -> None:
    first, outcome = striped.boot()
    assert (first["stripes"], first["slaves"], first["markers"]) == ("4", "4", "1")
    assert first["mounted"] == "/dev/mapper/nvme-localscratch xfs"
    assert outcome == f"mounted\n/dev/nvme/localscratch at {PATH}, drives: 4 of 4"
    assert first["entries"] == "1"

    second, outcome = striped.boot()
    assert second == {**first, "markers": "2"}
    assert outcome.startswith("mounted")

    # The data on all four drives is lost; even so, a script must not decide that.
    lost = striped.machine.drives[0]
    blank_file(lost)
    third, outcome = striped.boot()
    assert (third["mounted"], outcome.partition("\n")[0]) == ("", "failed")
    assert "nvme" in outcome
    assert not any(lost.read_bytes()[: 2**20])


def _prints(node: Instance, script: str, wanted: str) -> bool:
    return node.sh(script) == wanted


def _has_device_mapper() -> bool:
    return "device-mapper" in Path("/proc/misc").read_text()
