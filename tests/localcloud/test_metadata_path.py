"""The way from an instance to 169.254.169.254: the rules of the packet filter, and real containers."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import oci
import pytest

from gpucluster.localcloud.engine import link_local
from gpucluster.localcloud.engine.link_local import set_paths, table_name
from gpucluster.localcloud.engine.protocol import NetworkListeners
from gpucluster.paths import ansible_dir
from tests.addresses import free_range
from tests.ansible.render import render
from tests.containers import need_containers
from tests.localcloud.api_harness import Api, running
from tests.waiting import PATIENCE_S, wait_for

ADDRESS = "169.254.169.254"
# The server is killed in the middle, and the network goes at the end.
pytestmark = pytest.mark.story


# --- real containers -----


def host(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def tables() -> str:
    return host("nft", "list", "tables")


def nowhere() -> str:
    """An address that no network of this machine has (RFC 2544), and most likely no other test; with another digit it
    is one as well."""
    return f"198.18.{secrets.randbelow(256)}.{1 + secrets.randbelow(24)}"


def no_bridge() -> str:
    """The name of an interface that does not exist, and is in no other rules."""
    return f"none{secrets.token_hex(4)}"


class Site:
    """A local cloud with an instance, and commands in it."""

    def __init__(self, api: Api, net: str) -> None:
        self.gateway = f"{net}.9.1"
        self.api = api
        self.table = table_name(api.home)
        vcn = api.vcn(f"{net}.9.0/25")
        self.subnet = api.subnet(vcn, f"{net}.9.0/26")
        self.other = api.subnet(vcn, f"{net}.9.64/26", dns_label="other")
        self.instance = api.launch(self.subnet, "one")
        [self.container] = host("podman", "ps", "--filter", f"label=gpucluster.home={api.home}", "--format",
                                "{{.Names}}").split()  # fmt: skip

    def address(self, instance: Any) -> str:
        attachment = self.api.compute.list_vnic_attachments(self.api.tenancy, instance_id=instance.id).data[0]
        return str(self.api.network.get_vnic(attachment.vnic_id).data.private_ip)

    def end(self, instance: Any) -> None:
        self.api.compute.terminate_instance(instance.id)
        self.api.wait(self.api.compute.get_instance, instance.id, "TERMINATED")

    def try_(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["podman", "exec", self.container, *argv], capture_output=True, text=True, check=False)

    def sh(self, command: str) -> str:
        done = self.try_("sh", "-c", command)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def found(self, command: str) -> str:
        """The first address that a command finds for a name. It fails after ten seconds without an answer."""
        return wait_for(f"{command} finds an address", lambda: self.try_("sh", "-c", command).stdout.split()[:1])[0]

    def ask(self, path: str, *, user: str = "root", at: str = ADDRESS, prefix: str = "") -> str:
        """The instance's answer, or why there is none.

        Args:
            prefix: of the command in the instance.
        """
        program = (
            "import urllib.request as u\n"
            f"r = u.Request('http://{at}/opc/v2/{path}', headers={{'Authorization': 'Bearer Oracle'}})\n"
            f"try: print(u.build_opener(u.ProxyHandler({{}})).open(r, timeout={PATIENCE_S}).read().decode())\n"
            "except OSError as e: print('failed:', e)\n"
        )
        return self.sh(f'{prefix}setpriv --reuid={user} --regid=nogroup --clear-groups python3 -c "{program}"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    need_containers()
    home = tmp_path_factory.mktemp("metadata") / "cloud"
    with free_range() as net, running(home, "podman") as api:
        yield Site(api, net)


@pytest.mark.containers
def test_an_instance_reaches_the_service_and_only_so(site: Site) -> None:
    before = (host("ip", "address"), host("ip", "route", "show", "table", "all"))
    # The way there is made while the first instance is launched.
    wait_for("the metadata service answers", lambda: site.ask("instance/id") == site.instance.id)
    assert ADDRESS not in "".join(before), "the host's own addresses and routes stay as they are"
    rule = next(line for line in host("nft", "list", "table", "ip", site.table).splitlines() if "dport 80 " in line)
    gateway, _, port = rule.split(" dnat to ")[1].partition(":")
    assert "failed" in site.ask("instance/id", at=f"{gateway}:{port}"), "past a firewall that guards the address"
    # Nothing else of the host's own link-local network is reached, such as the metadata service of a host on a cloud.
    assert "failed" in site.ask("instance/id", at=f"{ADDRESS}:8080")
    assert "failed" in site.ask("instance/id", at="169.254.0.2:80")


@pytest.mark.containers
def test_instances_find_each_other_by_name_while_others_begin_and_end(site: Site) -> None:
    """Podman's own name server loses names while containers begin and end."""
    two = site.api.launch(site.subnet, "two")
    ask = "setpriv --reuid=nobody --regid=nogroup --clear-groups getent ahostsv4"
    for name in ("two", f"two.{site.subnet.subnet_domain_name}"):
        assert site.found(f"{ask} {name}") == site.address(two)
    assert site.sh("cat /etc/resolv.conf").split() == ["search", site.subnet.subnet_domain_name, "nameserver", ADDRESS]
    # Asked all the time, while two more begin and end. A name that is lost is refused at once; whom a busy server does
    # not answer gives up after ten seconds (resolv.conf(5): two attempts of five).
    told = f"{{ began=$(date +%s); {ask} two > /dev/null || [ $(($(date +%s) - began)) -ge 9 ] || echo $each; }}"
    lost = f"for each in $(seq 100000); do [ -e /run/enough ] && exit; {told}; done"
    pid = [*("podman", "exec", site.container), "sh", "-c", lost]
    with subprocess.Popen(pid, stdout=subprocess.PIPE, text=True) as asking:
        try:
            for number in range(2):
                site.end(site.api.launch(site.subnet, f"brief{number}"))
        finally:
            site.sh("touch /run/enough")
        assert asking.communicate(timeout=PATIENCE_S)[0] == ""
    site.end(two)
    assert site.try_("getent", "ahostsv4", "two").returncode != 0


@pytest.mark.containers
def test_ssh_finds_a_node_of_another_subnet_that_the_resolver_does_not(site: Site) -> None:
    """OCI's resolver searches the domain of a host's own subnet only. The controller is in another than its nodes."""
    node, config = site.api.launch(site.other, "node"), "/root/ssh_elastic"
    domain = site.other.subnet_domain_name
    assert site.try_("getent", "hosts", "node").returncode == 2
    assert site.found(f"getent hosts node.{domain}") == site.address(node)

    def ssh(domain: str) -> str:
        known = {"base_elastic_patterns": ["node*"], "private_subnet_domain_name": domain}
        site.sh(f"cat > {config} <<'END'\n{render('base', 'ssh_elastic', known)}\nEND")
        return site.try_("ssh", "-F", config, "-o", "BatchMode=yes", "node", "true").stderr

    assert "Could not resolve hostname" in ssh("")
    # It answers, and no CA has certified its key.
    wait_for("the node's sshd answers", lambda: "Host key verification failed" in ssh(domain))
    site.end(node)


@pytest.mark.containers
def test_only_root_and_the_autoscalers_user_get_the_identity(site: Site) -> None:
    """The attack: for the cloud, who has this key is the controller. A container has a network of its own."""
    site.sh("useradd --system gpucluster; useradd --uid 20000 mallory; " + A_CONTAINER)
    in_container = "ip netns exec box "
    everybody = ("root", "gpucluster", "mallory", "nobody")

    def refused() -> list[str]:
        answers = {user: site.ask("identity/key.pem", user=user) for user in everybody}
        answers["container"] = site.ask("identity/key.pem", prefix=in_container)
        assert all("PRIVATE KEY" in answer or answer.startswith("failed: ") for answer in answers.values())
        return [name for name, answer in answers.items() if answer.startswith("failed: ")]

    assert refused() == [], "without the rules the attack succeeds"
    rules = (ansible_dir() / "roles" / "base" / "files" / "gpucluster-metadata").read_text()
    site.sh(f"cat > /root/gpucluster-metadata <<'OF_THE_ROLE'\n{rules}\nOF_THE_ROLE\nsh /root/gpucluster-metadata")
    assert refused() == ["mallory", "nobody", "container"]
    assert site.found(f"{in_container} getent -s dns ahosts one.{site.subnet.subnet_domain_name}"), "names stay"
    site.sh("nft delete table inet gpucluster; ip netns delete box")


# What Docker's bridge is: the host forwards, and translates the address.
A_CONTAINER = """
ip netns add box && ip link add box0 type veth peer name eth0 netns box && ip address add 10.77.0.1/24 dev box0 &&
ip link set box0 up && ip -n box address add 10.77.0.2/24 dev eth0 && ip -n box link set eth0 up &&
ip -n box route add default via 10.77.0.1 && echo 1 > /proc/sys/net/ipv4/ip_forward &&
iptables -w -t nat -A POSTROUTING -s 10.77.0.0/24 -j MASQUERADE"""


@pytest.mark.containers
def test_the_sdk_signs_as_the_instance_from_inside_it(site: Site) -> None:
    api, models = site.api, oci.identity.models
    group = models.CreateDynamicGroupDetails(
        compartment_id=api.tenancy, name="one", description="-", matching_rule=f"instance.id = '{site.instance.id}'"
    )
    api.identity.create_dynamic_group(group)
    policy = models.CreatePolicyDetails(
        compartment_id=api.tenancy, name="one", description="-",
        statements=["Allow dynamic-group one to read instances in tenancy"],
    )  # fmt: skip
    api.identity.create_policy(policy)
    program = (
        "import oci\n"
        "signer = oci.auth.signers.InstancePrincipalsSecurityTokenSigner()\n"
        f"compute = oci.core.ComputeClient({{'region': signer.region}}, signer=signer, timeout={PATIENCE_S})\n"
        f"print(compute.get_instance('{site.instance.id}').data.display_name)\n"
    )
    assert run_with_sdk(site, program) == "one"


def run_with_sdk(site: Site, program: str) -> str:
    """The output of a program in the instance's network, with its addresses and its /etc/hosts.

    All other files are this machine's, which has the SDK.
    """
    [pid] = host("podman", "inspect", "--format", "{{.State.Pid}}", site.container).split()
    hosts = site.api.home / "instances" / site.container / "seed" / "hosts"
    return host(
        *("nsenter", "--net", "--target", pid, "unshare", "--mount", "sh", "-c"),
        'mount --bind "$0" /etc/hosts && REQUESTS_CA_BUNDLE="$1" exec "$2" -c "$3"',
        *(str(hosts), str(site.api.home / "credentials" / "ca.pem"), sys.executable, program),
    ).strip()


@pytest.mark.containers
def test_the_api_has_the_names_that_the_sdk_derives_from_the_region(site: Site) -> None:
    program = (
        "import ssl, urllib.request as u\n"
        "c = ssl.create_default_context(cafile='/run/localcloud/ca.pem')\n"
        f"print(u.urlopen('https://iaas.local-1.oraclecloud.com/health', context=c, timeout={PATIENCE_S}).status)\n"
    )
    assert site.sh(f'setpriv --reuid=nobody --clear-groups python3 -c "{program}"') == "200"
    assert site.sh("getent hosts identity.local-1.oci.oraclecloud.com").split()[0] == site.gateway


@pytest.mark.containers
def test_an_instance_that_reboots_itself_boots_again_and_one_that_powers_itself_off_does_not(site: Site) -> None:
    """The API gets no request meanwhile: of a cluster whose controller boots again, the autoscaler runs there."""
    own = site.api.launch(site.subnet, "again")
    listed = ("podman", "ps", "--all", "--filter", f"label=gpucluster.ocid={own.id}", "--format")
    name = host(*listed, "{{.Names}}").strip()

    def since() -> str:
        return host("podman", "inspect", "--format", "{{.State.Running}} {{.State.StartedAt}}", name).strip()

    def state() -> str:
        argv = ["podman", "exec", name, "systemctl", "is-system-running"]
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()

    def booted() -> bool:
        return state() in ("running", "degraded")

    def ask(verb: str) -> None:
        # Not waited for: the container may end before Podman has read how the command ended.
        subprocess.run(["podman", "exec", "--detach", name, "systemctl", verb], check=True, stdout=subprocess.DEVNULL)

    wait_for("it has booted", booted, interval=0.5, state=state)
    before = since()
    ask("reboot")
    wait_for("it runs again", lambda: since().startswith("true") and since() != before, interval=0.5, state=since)
    site.api.wait(site.api.compute.get_instance, own.id, "RUNNING")
    wait_for("it has booted again", booted, interval=0.5, state=state)
    ask("poweroff")
    wait_for("it is off", lambda: since().startswith("false"), interval=0.5, state=since)

    def states() -> list[str]:
        return [
            each.lifecycle_state for each in site.api.compute.list_instances(site.api.tenancy).data if each.id == own.id
        ]

    wait_for("the API shows it", lambda: states() == ["STOPPED"], interval=0.5, state=states)
    site.end(own)


@pytest.mark.containers
def test_a_server_that_was_killed_takes_up_its_networks_again(site: Site) -> None:
    site.api.kill()
    assert site.ask("instance/id").startswith("failed: ")
    assert site.table in tables(), "the instance still must not reach what the host has at the address"
    site.api.start()
    wait_for("the metadata service answers again", lambda: site.ask("instance/id") == site.instance.id)


@pytest.mark.containers
def test_the_rules_go_with_the_last_network(site: Site) -> None:
    other = site.api.home.parent / "other"
    set_paths(other, {no_bridge(): NetworkListeners(nowhere(), 1, 2, 3, 4)})
    try:
        site.api.compute.terminate_instance(site.instance.id)
        site.api.wait(site.api.compute.get_instance, site.instance.id, "TERMINATED")
        for subnet in (site.subnet, site.other):
            site.api.network.delete_subnet(subnet.id)
        site.api.network.delete_vcn(site.subnet.vcn_id)
        wait_for("the rules are gone", lambda: site.table not in tables())
        assert table_name(other) in tables(), "those of another local cloud stay"
    finally:
        set_paths(other, {})
    assert table_name(other) not in tables()


@pytest.mark.containers
def test_rules_of_a_deleted_cloud_do_not_catch_the_bridge_that_has_its_name_now(tmp_path: Path) -> None:
    need_containers()
    killed, now, beside = (tmp_path / name for name in ("killed", "now", "beside"))
    gateway, bridge = nowhere(), no_bridge()
    listeners = NetworkListeners(gateway, 1, 2, 3, 4)
    try:
        set_paths(killed, {bridge: listeners})
        set_paths(beside, {f"{bridge}0": NetworkListeners(f"{gateway}1", 1, 2, 3, 4)})
        set_paths(now, {bridge: NetworkListeners(nowhere(), 1, 2, 3, 4)})
        left = tables().split()
        assert [table_name(home) in left for home in (killed, now, beside)] == [False, True, True]
    finally:
        for home in (killed, now, beside):
            set_paths(home, {})


@pytest.mark.containers
def test_rules_of_a_deleted_cloud_do_not_close_the_addresses_that_another_has_now(tmp_path: Path) -> None:
    need_containers()
    killed, now = tmp_path / "killed", tmp_path / "now"
    listeners = NetworkListeners(nowhere(), 1, 2, 3, 4)
    try:
        set_paths(killed, {no_bridge(): listeners})
        set_paths(now, {no_bridge(): listeners})
        assert [table_name(home) in tables().split() for home in (killed, now)] == [False, True]
    finally:
        for home in (killed, now):
            set_paths(home, {})


@pytest.mark.containers
def test_a_table_that_its_owner_has_replaced_meanwhile_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_containers()
    beside, now, bridge = tmp_path / "beside", tmp_path / "now", no_bridge()
    look, looks = link_local._left_behind, []

    def replaced(own: str, paths: Mapping[str, NetworkListeners]) -> list[str]:
        left = look(own, paths)
        if own == table_name(now):
            looks.append(left)
            if len(looks) == 1:  # the bridge was its own, and the new table has others
                set_paths(beside, {no_bridge(): NetworkListeners(nowhere(), 1, 2, 3, 4)})
        return left

    try:
        set_paths(beside, {bridge: NetworkListeners(nowhere(), 1, 2, 3, 4)})
        monkeypatch.setattr(link_local, "_left_behind", replaced)
        set_paths(now, {bridge: NetworkListeners(nowhere(), 1, 2, 3, 4)})
        assert [len(left) for left in looks] == [1, 0]
        assert [table_name(home) in tables().split() for home in (beside, now)] == [True, True]
    finally:
        monkeypatch.undo()
        for home in (beside, now):
            set_paths(home, {})
