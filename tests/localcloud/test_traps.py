"""The traps of OCI's images, and what gpucluster's user data does about each: real firewalls, chrony and cloud-init.

Each test shows that the trap holds without our answer, and that it does not with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from gpucluster.handover.user_data import BootSettings
from gpucluster.localcloud.image import traps
from gpucluster.localcloud.image.contents import contents_of
from tests.localcloud.boot_harness import Instance, World, a_world
from tests.waiting import wait_for

# Two hosts, which some of the tests boot again or change.
pytestmark = [pytest.mark.containers, pytest.mark.story]

FIREWALL, FIRST_BOOT = "/usr/local/sbin/gpucluster-firewall", "/usr/local/sbin/gpucluster-first-boot"
RULES = "/etc/iptables/rules.v4"
SLURMD = 6818
UNREACHABLE = "No route to host"
# Of a cluster with Kubernetes: no host has an address of it, and hosts forward to and from their pods.
PODS = "10.244.0.0/16"
# Not http.server: that asks DNS for its own name, which a pod without a cluster has not.
LISTENER = f"""python3 -c 'import signal, socket; s = socket.create_server(("", {SLURMD})); signal.pause()'"""
# The last numbers of the hosts' addresses, and what is added to them for the second ones.
UBUNTU, ORACLE, OUTSIDE = 20, 30, 200


@dataclass(frozen=True)
class Trapped:
    """Two hosts of one cluster, whose networks are the first half of the subnet. Each listens on slurmd's port.

    The second address of a host is outside of the cluster's networks.
    """

    world: World
    ubuntu: Instance
    oracle: Instance

    def address(self, host: int) -> str:
        return f"{self.world.subnet}.{host}"

    @property
    def networks(self) -> str:
        return self.address(0) + "/25"

    def prepare(self) -> None:
        """What is gone after a boot: the second addresses, and the listeners."""
        for node, host in ((self.ubuntu, UBUNTU), (self.oracle, ORACLE)):
            node.sh(f"ip address replace {self.address(host + OUTSIDE)}/24 dev eth0")
            node.listen("0.0.0.0", SLURMD)

    def to_ubuntu(self, source: int, port: int = SLURMD) -> str:
        return self.oracle.connect(self.address(UBUNTU), port, self.address(source))

    def to_oracle(self, source: int, port: int = SLURMD) -> str:
        return self.ubuntu.connect(self.address(ORACLE), port, self.address(source))


def pod(host: int) -> str:
    """The address of the pod of a host."""
    return f"10.244.{host}.2"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trapped]:
    home = tmp_path_factory.mktemp("home")
    with a_world(home) as world:
        machine = BootSettings("UTC", networks=(f"{world.subnet}.0/25", PODS))

        def boot(name: str, host: int, system: tuple[str, str]) -> Instance:
            contents = contents_of(*system, home / "images")
            made = world.boot(name, host, machine, contents=contents)
            assert made.errors() == []
            return made

        with ThreadPoolExecutor() as pool:
            ubuntu = pool.submit(boot, "ubuntu", UBUNTU, ("Canonical Ubuntu", "24.04"))
            oracle = pool.submit(boot, "oracle", ORACLE, ("Oracle Linux", "9"))
            made = Trapped(world, ubuntu.result(), oracle.result())
        made.prepare()
        yield made


def test_cloud_init_of_another_age_takes_the_user_data(hosts: Trapped) -> None:
    """Debian 12 has 22.4, which is older than that of any image that OCI offers."""
    assert hosts.oracle.sh("cloud-init --version").endswith(" 22.4.2")
    for host in (hosts.ubuntu, hosts.oracle):
        assert host.sh("cloud-init status") == "status: done"
        assert "WARNING" not in host.sh("grep -v 'Unable to disable SSH' /var/log/cloud-init.log")
        assert host.sh("systemctl --failed --no-legend") == ""


def test_rules_that_refuse_everything_let_the_cluster_through(hosts: Trapped) -> None:
    node = hosts.ubuntu
    assert hosts.to_ubuntu(ORACLE) == "connected"
    assert UNREACHABLE in hosts.to_ubuntu(ORACLE + OUTSIDE)
    assert hosts.to_ubuntu(ORACLE + OUTSIDE, port=22) == "connected"
    assert node.outcome("firewall") == ("open", f"to {hosts.networks} {PODS}: {RULES}")

    # Without our rules the trap holds, and the next run sets them again.
    node.sh(f"cp {RULES} /root/ours && sed -i '/comment gpucluster/d' {RULES} && netfilter-persistent reload")
    assert UNREACHABLE in hosts.to_ubuntu(ORACLE)
    node.sh(FIREWALL)
    assert hosts.to_ubuntu(ORACLE) == "connected"
    assert node.sh(f"diff /root/ours {RULES}") == ""


def test_the_rules_are_right_at_the_next_boot_and_written_once(hosts: Trapped) -> None:
    node = hosts.ubuntu
    before = node.sh(f"iptables -S; cat {RULES}")
    # What netfilter-persistent restores, before our unit or any daemon starts.
    node.sh(f"netfilter-persistent reload; {FIREWALL}; {FIREWALL}")
    assert node.sh(f"iptables -S; cat {RULES}") == before
    node.sh("systemctl disable gpucluster-firewall && rm /var/lib/cloud/scripts/per-boot/gpucluster")
    node.reboot()
    assert node.errors() == []
    assert node.sh(f"iptables -S; cat {RULES}") == before
    hosts.prepare()
    assert hosts.to_ubuntu(ORACLE) == "connected"


def test_the_chain_of_the_boot_volume_stays_as_it_is(hosts: Trapped) -> None:
    node = hosts.ubuntu
    original = (traps.FOLDER / "iptables" / "rootfs" / RULES.lstrip("/")).read_text().splitlines()
    chain = [line for line in original if "InstanceServices" in line]
    assert len(chain) > 10
    assert [line for line in node.sh(f"cat {RULES}").splitlines() if "InstanceServices" in line] == chain
    assert len(node.sh("iptables -S InstanceServices").splitlines()) == len(chain) - 1


@pytest.mark.parametrize("system", ["ubuntu", "oracle"])
def test_only_root_reaches_the_boot_volume(hosts: Trapped, system: str) -> None:
    node: Instance = getattr(hosts, system)
    assert node.reads_boot_volume("root") == "read"
    assert node.reads_boot_volume("nobody") == "refused"
    assert "reject" in node.sh("nft list chain inet gpucluster metadata")


def test_users_do_not_reach_the_boot_volume_without_firewalld(hosts: Trapped) -> None:
    node = hosts.oracle
    node.sh("systemctl stop firewalld")
    try:
        assert node.reads_boot_volume("nobody") == "refused"
        # Oracle's own rules end with it: without ours the trap holds.
        node.sh("nft delete table inet gpucluster")
        assert node.reads_boot_volume("nobody") == "read"
    finally:
        node.sh("systemctl start firewalld && gpucluster-metadata && gpucluster-firewall")
    node.sh("firewall-cmd --reload")
    assert node.reads_boot_volume("nobody") == "refused"


def test_a_firewalld_that_is_on_trusts_the_cluster_and_stays_on(hosts: Trapped) -> None:
    node = hosts.oracle
    assert hosts.to_oracle(UBUNTU) == "connected"
    assert hosts.to_oracle(UBUNTU + OUTSIDE) != "connected"
    assert hosts.to_oracle(UBUNTU + OUTSIDE, port=22) == "connected"
    assert node.outcome("firewall") == ("open", f"to {hosts.networks} {PODS}: firewalld")

    sources = "firewall-cmd --zone=trusted"
    node.sh(f"for when in '' --permanent; do {sources} $when --remove-source={hosts.networks}; done")
    assert hosts.to_oracle(UBUNTU) != "connected"
    node.sh(FIREWALL)
    assert hosts.to_oracle(UBUNTU) == "connected"

    # What others have put into the zone stays.
    node.sh(f"{sources} --permanent --add-source=192.0.2.0/24; {FIREWALL}; {FIREWALL}; firewall-cmd --reload")
    assert set(node.sh(f"{sources} --list-sources").split()) == {hosts.networks, PODS, "192.0.2.0/24"}
    assert node.sh("systemctl is-enabled firewalld; systemctl is-active firewalld").split() == ["enabled", "active"]


def test_pods_reach_each_other_and_hosts_through_both_firewalls(hosts: Trapped) -> None:
    """A pod is a network of its own behind an interface that no zone and no rule knows. The real network of pods wraps
    its packets between hosts; these go by routes, so that both firewalls see them."""
    places = ((hosts.ubuntu, UBUNTU, ORACLE), (hosts.oracle, ORACLE, UBUNTU))
    for node, host, other in places:
        node.sh(
            "ip netns add pod && ip link add cali0 type veth peer name eth0 netns pod && ip link set cali0 up"
            f" && ip address add 10.244.{host}.1/24 dev cali0 && ip -n pod address add {pod(host)}/24 dev eth0"
            f" && ip -n pod link set eth0 up && ip -n pod route add default via 10.244.{host}.1"
            f" && ip route add 10.244.{other}.0/24 via {hosts.address(other)}"
            f" && systemd-run --quiet --unit=pod ip netns exec pod {LISTENER}"
        )
    for node, _host, _other in places:
        wait_for("the pod listens", partial(node.sh, f"ip netns exec pod ss -Hltn sport = :{SLURMD}"), interval=0.1)

    def between_pods() -> list[str]:
        return [node.connect(pod(other), SLURMD, pod(host), namespace="pod") for node, host, other in places]

    # Interfaces that were just made may answer a moment later.
    wait_for("pods reach each other", lambda: between_pods() == ["connected"] * 2, interval=0.5, state=between_pods)
    for node, host, other in places:
        assert node.connect(pod(other), SLURMD, hosts.address(host)) == "connected"
        assert node.connect(hosts.address(other), SLURMD, pod(host), namespace="pod") == "connected"
    # The trap holds without the range of the pods: both refuse what they would forward.
    opened = hosts.ubuntu.sh("iptables -S FORWARD | grep gpucluster")
    hosts.ubuntu.sh(
        "iptables -S FORWARD | grep 10.244 | sed s/-A/-D/ | while read -r rule; do eval iptables $rule; done"
    )
    hosts.oracle.sh(f"firewall-cmd --zone=trusted --remove-source={PODS}")
    assert "connected" not in between_pods()
    for node, _host, _other in places:
        node.sh(FIREWALL)
    assert between_pods() == ["connected"] * 2
    assert hosts.ubuntu.sh("iptables -S FORWARD | grep gpucluster") == opened


def test_the_host_name_and_etc_hosts_are_kept_over_a_boot(hosts: Trapped) -> None:
    node = hosts.oracle
    line = f"{hosts.address(ORACLE)} compute-1"
    names = "hostname; cat /etc/hostname; tail -n 1 /etc/hosts"
    node.sh(f"hostnamectl set-hostname compute-1 && sed -i '/^{hosts.address(ORACLE)}/d' /etc/hosts")
    node.sh(f"echo {line} >> /etc/hosts")
    kept = ["compute-1", "compute-1", line]
    node.reboot()
    assert node.errors() == []
    assert node.sh(names).splitlines() == kept
    # firewalld's sources are there after this boot, too.
    hosts.prepare()
    assert hosts.to_oracle(UBUNTU) == "connected"

    node.sh("sed -i s/=2/=0/ /etc/oci-hostname.conf && systemctl restart oci-hostname")
    assert node.sh(names).splitlines() == ["oracle", "oracle", f"{hosts.address(ORACLE)} oracle"]
    node.sh(
        f"{FIRST_BOOT}; hostnamectl set-hostname compute-1; echo {line} >> /etc/hosts; systemctl restart oci-hostname"
    )
    assert node.sh(names).splitlines() == kept


def test_a_root_file_system_that_only_oracles_program_grows_is_grown(hosts: Trapped) -> None:
    assert hosts.oracle.sh("cat /var/lib/localcloud/root-gb") == "50"


@pytest.mark.parametrize("system", ["ubuntu", "oracle"])
def test_chrony_asks_the_time_server_of_the_cloud_through_the_rules(hosts: Trapped, system: str) -> None:
    node: Instance = getattr(hosts, system)
    wait_for("chrony has its source", lambda: "169.254.169.254" in node.sh("chronyc -n sources", status=None))

    def rule() -> list[str]:
        return node.sh("iptables -L -vnx | grep 'udp dpt:123'").split()

    wait_for("a question of chrony meets the rule that lets it out", lambda: int(rule()[0]) > 0, state=rule)
    assert rule()[2] == "ACCEPT"
    assert node.sh("systemctl is-enabled systemd-timesyncd 2>&1", status=None).endswith(
        ("not-found", "No such file or directory")
    )


def test_traps_are_named_in_the_image(hosts: Trapped, tmp_path: Path) -> None:
    for node, system in ((hosts.ubuntu, ("Canonical Ubuntu", "24.04")), (hosts.oracle, ("Oracle Linux", "9"))):
        assert node.sh("cat /etc/localcloud-traps").split() == list(contents_of(*system, tmp_path).traps)
