"""Real instances: they boot, cloud-init runs, ssh answers, shares can be mounted, and nothing is left behind."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gpucluster import process
from gpucluster.errors import CloudError
from gpucluster.localcloud.engine import containers, shares
from gpucluster.localcloud.engine.containers import ContainerLaunch
from gpucluster.localcloud.engine.protocol import mac_address
from gpucluster.localcloud.image.base_image import ensure_image
from gpucluster.localcloud.podman.command import probe
from tests.containers import free_network
from tests.waiting import PATIENCE_S, wait_for

# Each test finds the instances as the ones before it have left them, and the last one ends them.
pytestmark = [pytest.mark.containers, pytest.mark.story]

USER_DATA = b"""\
#cloud-config
write_files:
  - path: /etc/from-user-data
    content: hello
runcmd:
  - [sh, -c, 'hostname > /var/lib/from-runcmd']
growpart:
  mode: auto
"""
SERVER = 9


@dataclass(frozen=True)
class World:
    """A network with two instances, `one` with a public address."""

    prefix: str
    home: Path
    subnet: str
    key: Path
    image: str

    @property
    def label(self) -> str:
        return f"gpucluster.home={self.home}"

    def ip(self, host: int) -> str:
        return f"{self.subnet}.{host}"

    def name(self, short: str) -> str:
        return f"{self.prefix}-{short}"

    def request(self, short: str, host: int) -> ContainerLaunch:
        return ContainerLaunch(
            name=self.name(short),
            hostname=short,
            image=self.image,
            network=self.prefix,
            ip=self.ip(host),
            user_data=USER_DATA,
            metadata={"user_data_of": short},
            ssh_authorized_keys=(self.key.with_suffix(".pub").read_text(),),
            labels={"gpucluster.home": str(self.home), "gpucluster.ocid": f"ocid1.instance.local..{short}"},
            exports_dir=self.home / "exports" / "vcn",
            home=self.home,
        )

    def sh(self, short: str, script: str, *, status: int = 0) -> str:
        done = process.run(["podman", "exec", self.name(short), "sh", "-c", script], check=False, timeout=PATIENCE_S)
        assert done.returncode == status, done
        return (done.stdout + done.stderr if status else done.stdout).strip()

    def ssh(self, address: str, command: str) -> str:
        argv = ["ssh", "-F", "none", "-i", str(self.key), "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]
        argv += ["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", f"debian@{address}", command]
        return process.run(argv, timeout=PATIENCE_S).stdout.strip()

    def booted(self, short: str, address: str) -> str:
        """Wait for sshd, then for cloud-init's status."""
        wait_for(f"sshd answers at {address}", lambda: _answers(address), interval=0.1)
        # cloud-init prints a dot for each check that was too early.
        return self.sh(short, "cloud-init status --wait").lstrip(".")


def _answers(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=PATIENCE_S) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    problems = probe()
    assert problems == [], "this host can't run containers: " + "; ".join(problems)
    home = tmp_path_factory.mktemp("home")
    image = ensure_image(home).reference
    key = home / "key"
    process.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)])
    prefix = f"gctest-{secrets.token_hex(4)}"
    with ExitStack() as stack:
        subnet = stack.enter_context(free_network(prefix, {"gpucluster.home": str(home)}))
        stack.callback(_remove_all, home, prefix)
        made = World(prefix, home, subnet, key, image)
        exports = home / "exports" / "vcn"
        (exports / "share").mkdir(parents=True)
        (exports / "index.json").write_text(json.dumps({made.ip(SERVER): {"/mnt/home": "share"}}))
        with ThreadPoolExecutor() as pool:
            list(pool.map(containers.launch, [made.request("one", 2), made.request("two", 3)]))
        assert made.booted("one", made.ip(2)) == "status: done"
        assert made.booted("two", made.ip(3)) == "status: done"
        yield made


def _remove_all(home: Path, prefix: str) -> None:
    for machine in containers.listing(f"gpucluster.home={home}"):
        containers.terminate(machine.name, home)
    containers.remove_image(f"localhost/{prefix}:latest")


def test_user_data_is_run_by_real_cloud_init(world: World) -> None:
    assert world.sh("one", "cat /etc/from-user-data /var/lib/from-runcmd") == "helloone"
    assert world.sh("one", "cloud-init query instance_id") == "ocid1.instance.local..one"
    assert world.sh("one", "cloud-init query ds.meta_data.metadata.user_data_of") == "one"
    assert world.sh("one", "systemctl is-system-running --wait") == "running"


def test_ssh(world: World) -> None:
    assert world.ssh(world.ip(2), "hostname; sudo id -u") == "one\n0"


def test_each_instance_is_itself(world: World) -> None:
    for fact in ("cat /etc/machine-id", "cat /etc/ssh/ssh_host_ed25519_key.pub", "hostname"):
        assert world.sh("one", fact) != world.sh("two", fact)
    assert world.sh("two", "getent ahostsv4 two | head -n1 | cut -d' ' -f1") == world.ip(3)


def test_disks_of_the_host_are_out_of_sight(world: World) -> None:
    assert world.sh("one", "find /dev -type b") == ""
    assert "Operation not permitted" in world.sh("one", "mknod /root/disk b 8 0 && cat /root/disk", status=1)


def test_the_kernel_s_settings_are_read_only_but_those_of_its_own_network(world: World) -> None:
    def write_again(setting: str) -> str:
        # The same value: nothing changes, where it is possible.
        return world.sh("one", f"cat /proc/sys/{setting} | tee /proc/sys/{setting} > /dev/null 2>&1; echo $?")

    world.sh("one", "mount | grep ' on /proc/sys ' | grep -w ro")
    assert write_again("vm/swappiness") == "1"
    assert write_again("net/ipv4/ip_forward") == "0"
    # Containers without root mount a /proc of their own.
    assert world.sh("one", "unshare --user --map-root-user --pid --fork --mount-proc ls /proc | grep -c '^[0-9]'")
    world.sh("one", "setpriv --reuid=nobody --clear-groups ls /dev/.lxc", status=2)


def test_what_a_kubelet_sets_stays_in_the_instance(world: World) -> None:
    below = Path("/proc/sys/kernel/panic").read_text()
    world.sh("one", "echo 77 > /proc/sys/kernel/panic && echo 7 > /proc/sys/vm/overcommit_memory")
    assert world.sh("one", "cat /proc/sys/kernel/panic /proc/sys/vm/overcommit_memory") == "77\n7"
    assert world.sh("two", "cat /proc/sys/kernel/panic") == below.strip()
    assert Path("/proc/sys/kernel/panic").read_text() == below


def test_control_groups_are_the_instance_s_own_and_can_be_made(world: World) -> None:
    world.sh("one", "systemd-run --quiet --unit=of-one sleep 300")
    assert world.sh("one", "find /sys/fs/cgroup -name of-one.service")
    assert world.sh("two", "find /sys/fs/cgroup -name of-one.service") == ""
    world.sh("one", "systemctl stop of-one")
    # Version 1 has a hierarchy for each controller.
    world.sh("one", "cd /sys/fs/cgroup; [ ! -d pids ] || cd pids; mkdir inner && rmdir inner")


def test_containers_of_an_instance_have_layers_and_a_kernel_log(world: World) -> None:
    layers = "cd /var/lib/containerd && mkdir a b c d && mount -t overlay -o lowerdir=a,upperdir=b,workdir=c none d"
    world.sh("one", f"{layers} && umount d && rm -r a b c d && ! stat -f -c %T /var/lib/kubelet | grep overlay")
    world.sh("one", "dd if=/dev/kmsg of=/dev/null bs=8192 count=1 iflag=nonblock")
    assert "not permitted" in world.sh("one", "echo a line > /dev/kmsg", status=2)


def test_services_of_the_roles_are_installed_and_off(world: World) -> None:
    units = "munge slurmctld slurmd slurmdbd mariadb slapd sssd nfs-blkmap rpcbind"
    states = world.sh("one", f"systemctl is-enabled {units}", status=1)
    assert set(states.split()) == {"disabled"}
    assert world.sh("one", "test ! -e /etc/munge/munge.key && systemctl --failed --no-legend") == ""
    assert world.sh("one", "systemctl start mariadb && systemctl is-active mariadb; systemctl stop mariadb") == "active"


def test_user_data_is_readable_by_its_owner_only(world: World) -> None:
    seed = world.home / "instances" / world.name("one") / "seed"
    assert (seed / "user-data").stat().st_mode & 0o777 == 0o600
    assert seed.stat().st_mode & 0o777 == 0o700


def test_share_is_the_same_on_two_instances(world: World) -> None:
    source = f"{world.ip(SERVER)}:/mnt/home"
    for short in ("one", "two"):
        world.sh(short, f"mkdir -p /mnt/nfs && mount -t nfs -o vers=4.2,nconnect=4,noatime {source} /mnt/nfs")
    world.sh("one", "echo shared > /mnt/nfs/file")
    assert world.sh("two", "cat /mnt/nfs/file") == "shared"
    assert "read-only" in world.sh("two", "mount -o remount,ro /mnt/nfs -t nfs; touch /mnt/nfs/file", status=1).lower()
    world.sh("one", "touch /mnt/nfs/file && umount /mnt/nfs")
    world.sh("two", "umount /mnt/nfs && test ! -e /mnt/nfs/file")


def test_a_share_without_write_access_is_read_only_where_it_is_mounted(world: World) -> None:
    exports = world.home / "exports" / "vcn"
    mount = f"mkdir -p '/mnt/n s' && mount -t nfs -o nosuid {world.ip(SERVER)}:/mnt/home '/mnt/n s'"
    world.sh("one", mount)
    # A service in a sandbox has mounts of its own.
    world.sh("one", "systemd-run --quiet --unit=apart --property=PrivateTmp=yes --property=Type=exec sleep infinity")
    write = {"": "touch '/mnt/n s/f'", "apart": "nsenter -m -t $(systemctl show -P MainPID apart) touch '/mnt/n s/f'"}
    shares.set_writable(exports / "share", writable=False)
    for command in write.values():
        assert "Read-only file system" in world.sh("one", command, status=1)
    (exports / "read-only.json").write_text(json.dumps({world.ip(SERVER): ["/mnt/home"]}))
    try:
        for command in (f"{mount} && touch '/mnt/n s/f'", "mount -o remount,rw '/mnt/n s' -t nfs; touch '/mnt/n s/f'"):
            assert "Read-only file system" in world.sh("two", command, status=1)
    finally:
        (exports / "read-only.json").unlink()
    shares.set_writable(exports / "share", writable=True)
    for command in write.values():
        world.sh("one", command)
    assert "nosuid" in world.sh("one", "findmnt -no OPTIONS '/mnt/n s'")
    # A file that is open for writing keeps its mount writable, and nothing fails.
    world.sh("two", "(exec 3> '/mnt/n s/f' && exec sleep infinity) > /dev/null 2>&1 & echo $! > /run/writer")
    opened = "[ ! -e /proc/$(cat /run/writer)/fd/3 ] || echo yes"
    wait_for("the file is open", lambda: world.sh("two", opened))
    shares.set_writable(exports / "share", writable=False)
    world.sh("two", "kill $(cat /run/writer)")
    # Until the kernel has ended the process, its open file keeps the mount busy.
    wait_for("the writer has ended", lambda: world.sh("two", "[ -e /proc/$(cat /run/writer) ] || echo yes"))
    world.sh("two", "rm '/mnt/n s/f' && umount '/mnt/n s'")
    world.sh("one", "systemctl stop apart; umount '/mnt/n s'")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("{0}:/other /mnt", "mount.nfs: mounting {0}:/other failed, reason given by server: No such file or directory"),
        ("{0}:/mnt/home/../.. /mnt", "reason given by server: No such file or directory"),
        ("{1}:/mnt/home /mnt", "mount.nfs: Connection timed out for {1}:/mnt/home"),
        ("-o nconect=4 {0}:/mnt/home /mnt", "mount.nfs: an incorrect mount option was specified"),
        ("{0}:/mnt/home /nowhere", "mount point"),
    ],
)
def test_wrong_mounts_fail_as_with_real_nfs(world: World, arguments: str, words: str) -> None:
    addresses = (world.ip(SERVER), world.ip(SERVER + 1))
    said = world.sh("one", "mount -t nfs " + arguments.format(*addresses), status=32)
    assert words.format(*addresses) in said


def test_fstab_is_mounted_at_boot_and_the_disk_survives_a_stop(world: World) -> None:
    two = world.name("two")
    line = f"{world.ip(SERVER)}:/mnt/home /mnt/home nfs vers=4.2,_netdev 0 0"
    world.sh("two", f"mkdir -p /mnt/home && echo '{line}' >> /etc/fstab && echo kept > /mnt/home/below && sync")
    identity = world.sh("two", "cat /etc/ssh/ssh_host_ed25519_key.pub")
    containers.stop(two)
    containers.stop(two)
    assert containers.state(two) == "stopped"
    assert {machine.name: machine.state for machine in containers.listing(world.label)}[two] == "stopped"
    containers.start(two)
    containers.start(two)
    assert world.booted("two", world.ip(3)) == "status: done"
    assert world.sh("two", "systemctl is-active mnt-home.mount") == "active"
    assert world.sh("two", "test -e /mnt/home/file && umount /mnt/home && cat /mnt/home/below") == "kept"
    assert world.sh("two", "systemctl start mnt-home.mount && mountpoint -q /mnt/home && echo yes") == "yes"
    assert world.sh("two", "cat /etc/ssh/ssh_host_ed25519_key.pub") == identity


def test_listing_names_the_instances_of_this_home(world: World) -> None:
    found = {machine.name: machine for machine in containers.listing(world.label)}
    assert {world.name("one"), world.name("two")} <= set(found)
    assert found[world.name("one")].labels["gpucluster.ocid"] == "ocid1.instance.local..one"
    assert found[world.name("one")].state == containers.state(world.name("one")) == "running"
    assert containers.networks(world.label) == [world.prefix]


def unused_volumes() -> set[str]:
    """Volumes of Podman that belong to no container."""
    listed = process.run(["podman", "volume", "ls", "--quiet", "--filter=dangling=true"])
    return set(listed.stdout.split())


def test_image_of_an_instance_makes_new_instances(world: World) -> None:
    world.sh("one", "echo baked > /etc/baked; echo kept apart > /var/lib/containerd/layer")
    image = f"localhost/{world.prefix}:latest"
    before = unused_volumes()
    containers.commit(world.name("one"), image)
    # Of the container in between, to which an image with volumes gives new ones. Others come and go on this machine.
    wait_for("no volume is left", lambda: not unused_volumes() - before, state=lambda: str(unused_volumes() - before))
    assert sorted(machine.name for machine in containers.listing(world.label)) == [world.name("one"), world.name("two")]
    containers.launch(replace(world.request("three", 4), image=image))
    assert world.booted("three", world.ip(4)) == "status: done"
    assert world.sh("three", "cat /etc/baked; cat /var/lib/from-runcmd; hostname") == "baked\nthree\nthree"
    for fact in ("cat /etc/machine-id", "cat /etc/ssh/ssh_host_ed25519_key.pub", "cat /etc/hosts"):
        assert world.sh("three", fact) != world.sh("one", fact)
    world.sh("three", "test ! -e /var/lib/containerd/layer")
    containers.terminate(world.name("three"))
    containers.remove_image(image)
    containers.remove_image(image)
    assert process.run(["podman", "image", "exists", image], check=False).returncode == 1


def test_launch_that_fails_leaves_nothing(world: World) -> None:
    request = replace(world.request("four", 5), image="localhost/no-such-image:latest")
    with pytest.raises(CloudError, match=f"{world.name('four')} did not start"):
        containers.launch(request)
    assert containers.state(request.name) == "absent"
    assert not (world.home / "instances" / request.name).exists()


def test_the_gateway_keeps_its_hardware_address(world: World) -> None:
    bridge, gateway = containers._bridge(world.prefix)
    of_the_bridge = Path("/sys/class/net", bridge, "address")
    assert of_the_bridge.read_text().strip() == mac_address(gateway)
    ports = [entry.name for entry in Path("/sys/class/net", bridge, "brif").iterdir()]
    # by default it would be the lowest of these
    assert of_the_bridge.read_text() not in [Path("/sys/class/net", port, "address").read_text() for port in ports]


def test_network_can_be_asked_for_twice_but_not_be_moved(world: World) -> None:
    containers.create_network(world.prefix, f"{world.subnet}.0/24", {})
    with pytest.raises(CloudError, match="could not be created"):
        containers.create_network(world.prefix, f"{world.subnet.removesuffix('.0')}.1.0/24", {})
    with pytest.raises(CloudError, match="Terminate its instances first"):
        containers.remove_network(world.prefix)


def test_terminate_leaves_nothing(world: World) -> None:
    """The last test of this module: it ends the world."""
    for short in ("one", "two", "one"):
        containers.terminate(world.name(short), world.home)
    containers.remove_network(world.prefix)
    containers.remove_network(world.prefix)
    assert containers.state(world.name("one")) == "absent"
    assert containers.listing(world.label) == []
    assert containers.networks(world.label) == []
    assert list((world.home / "instances").iterdir()) == []
    assert (world.home / "exports" / "vcn" / "share" / "file").read_text() == "shared\n"
    rules = process.run(["iptables-save"]).stdout
    assert f"{world.subnet}." not in rules
    assert f"{world.subnet}." not in process.run(["ip", "-4", "address"]).stdout
