"""The role containerd on a booted host: root's containerd, one for each user without root, and that all of it goes.

Real: Debian's containerd, rootlesskit, slirp4netns and runc, systemd's sessions and units, sudo. A double: the bundle
around them, nerdctl above all. What this does not prove: the real nerdctl and its networks, pulls, bypass4netns, GPUs
in containers, layers over layers (this disk is one, so files are copied), limits where control groups are version 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ansible.booted import ROOTFS, Booted, booted
from tests.ansible.in_container import Played
from tests.ansible.test_docker_host import VARIABLES as DOCKER
from tests.ansible.test_docker_host import pairs
from tests.doubles.nerdctl import OCI, bundle
from tests.mirror import Mirror, Server
from tests.waiting import wait_for

pytestmark = [pytest.mark.containers, pytest.mark.story]

DATA = "/var/lib/gpucluster/containers/containerd"
IMAGES = "/var/lib/gpucluster/containers/images"
# A double: systemd of Oracle Linux 8, which does not know the form USER@HOST of --machine. The rest is the real one.
SYSTEMCTL_OF_239 = """\
#!/bin/sh
case "$*" in *--machine=*@*) echo "Failed to connect to bus: Host is down" >&2; exit 1 ;; esac
exec /usr/bin/systemctl "$@"
"""
REQUESTS = "/var/lib/gpucluster/linger"
IMAGE = "registry.example/probe:1"
BUNDLE = "/opt/gpucluster/nerdctl"
TASKS: list[dict[str, Any]] = [
    {"import_role": {"name": "base", "tasks_from": "gather_facts"}},
    {"gpucluster_service": {"files": "{{ agent_files }}"}},
    {"import_role": {"name": "containerd"}},
]


class Cluster:
    """A node and the mirror that the bundle comes from."""

    def __init__(self, node: Booted, mirror: Mirror, server: Server) -> None:
        self.node, self.mirror, self.server = node, mirror, server

    def apply(self, *options: str, version: str = "2.2.0", check: bool = True, **changes: Any) -> Played:
        variables = DOCKER | {
            "containers_runtimes": ["containerd"],
            "docker_mesh": {"pairs": pairs()},
            "software_server": self.server.url,
            "software_files": [bundle(self.mirror, version)],
        }
        return self.node.play(TASKS, variables | changes, *options, check=check)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    mirror = Mirror(tmp_path_factory.mktemp("mirror"))
    with mirror.serve() as server, booted() as node:
        node.sh("groupadd -g 9999 people; groupadd -g 9876 privilege")
        node.sh("useradd -u 10001 -g people -G privilege -m alice; useradd -u 10002 -g people -m bob", check=False)
        # Like users of the directory: useradd has given them no ranges.
        node.sh(": > /etc/subuid; : > /etc/subgid")
        node.sh(f"sh -s <<'END'\n{ROOTFS}\nEND")
        node.put("/root/image.py", OCI)
        node.sh(f"python3 /root/image.py /root/rootfs {IMAGE} /tmp/probe.tar")
        made = Cluster(node, mirror, server)
        assert made.apply("--check").changed > 0
        assert not node.exists("/usr/local/bin/nerdctl")
        made.apply()
        yield made


def test_a_user_without_rights_runs_containers_without_any_preparation(cluster: Cluster) -> None:
    said = cluster.node.sh(f"nerdctl load -i /tmp/probe.tar && nerdctl run --rm {IMAGE} /bin/id", user="bob")
    assert "uid=0" in said
    said = cluster.node.sh("nerdctl info", user="bob")
    assert f"XDG_DATA_HOME={DATA}/user-10002" in said
    assert "CONTAINERD_SNAPSHOTTER=native" in said
    assert cluster.node.sh(f"stat -c '%u %a' {DATA}/user-10002 {DATA}").split() == ["10002", "700", "0", "711"]
    # Nothing is in the home, which may be a share: the networks belong to this host and are not there either.
    left = cluster.node.sh("find /home/bob -name '*containerd*' -o -name cni -o -name nerdctl")
    assert left.strip() == ""
    assert cluster.node.exists(f"{DATA}/user-10002/config/cni/net.d/nerdctl-bridge.conflist")
    assert "Permission denied" in cluster.node.sh(f"ls {DATA}/user-10002", user="alice", check=False)


def test_containers_outlive_the_session(cluster: Cluster) -> None:
    def lingers(user: str) -> bool:
        return "Linger=yes" in cluster.node.sh(f"loginctl show-user {user} -p Linger", check=False)

    def service() -> str:
        return cluster.node.sh("systemctl status gpucluster-linger", check=False)

    cluster.node.sh(f"nerdctl run --rm {IMAGE} /bin/true", user="bob")
    wait_for("bob's containers may outlive the session", lambda: lingers("bob"), interval=0.1, state=service)
    # A request for another user is ignored.
    cluster.node.sh(f"touch {REQUESTS}/10001; mkdir {REQUESTS}/x", user="bob")
    done = lambda: not cluster.node.sh(f"ls {REQUESTS}").strip()  # noqa: E731
    wait_for("no request is left", done, interval=0.1, state=service)
    assert not lingers("alice")


def test_the_network_around_such_containers_hides_no_subnet(cluster: Cluster) -> None:
    # In a session: containerd ended with the one before if the request for more came late.
    said = cluster.node.sh("nerdctl info > /dev/null && ps ax -o args | grep [s]lirp4netns", user="bob")
    assert "--cidr=198.18.255.0/24" in said
    assert "10.0.2." not in said


def test_ranges_are_given_by_number_once_and_never_overlap(cluster: Cluster) -> None:
    cluster.node.sh("true", user="alice")
    text = cluster.node.read("/etc/subuid")
    assert text == cluster.node.read("/etc/subgid")
    found = {int(owner): int(first) for owner, first, _count in re.findall(r"(\d+):(\d+):(\d+)", text)}
    assert set(found) == {10001, 10002}
    assert found[10002] - found[10001] == 65536
    assert "root" not in text


def test_members_of_the_privileged_group_have_roots_and_others_have_not(cluster: Cluster) -> None:
    script = f"sudo -n nerdctl load -i /tmp/probe.tar && sudo -n nerdctl image inspect {IMAGE}"
    said = cluster.node.sh(script, user="alice")
    assert "probe" in said
    assert "password is required" in cluster.node.sh("sudo -n nerdctl info", user="bob", check=False)
    refused = cluster.node.sh("ctr -a /run/gpucluster-containerd/containerd.sock version", user="bob", check=False)
    assert "permission denied" in refused


def test_who_has_no_session_is_told_how_to_get_one(cluster: Cluster) -> None:
    said = cluster.node.sh(f"setpriv --reuid=10009 --regid=9999 --clear-groups nerdctl run {IMAGE} true", check=False)
    assert "log in by ssh" in said


def test_the_usual_set_up_command_works_as_well(cluster: Cluster) -> None:
    said = cluster.node.sh("containerd-rootless-setuptool.sh install", user="bob")
    assert "Your containerd runs" in said
    said = cluster.node.sh("containerd-rootless-setuptool.sh install-bypass4netnsd", user="bob")
    assert "nerdctl/bypass4netns=true" in said
    assert "own set-up tool: check" in cluster.node.sh("containerd-rootless-setuptool.sh check", user="bob")


def test_images_are_there_for_all_users_and_a_second_run_changes_nothing(cluster: Cluster) -> None:
    played = cluster.apply(containers_pull=[IMAGE])
    assert played.changed == 1  # root has it already: only the file for the others is new
    assert cluster.apply(containers_pull=[IMAGE]).changed == 0
    archive = cluster.node.sh(f"ls {IMAGES}").strip()
    cluster.node.sh(f"nerdctl load -i {IMAGES}/{archive}", user="alice")
    assert "hello" in cluster.node.sh(f"nerdctl run --rm {IMAGE} /bin/echo hello", user="alice")


def test_a_disk_that_is_empty_after_a_boot_gets_its_directories(cluster: Cluster) -> None:
    cluster.node.sh(f"systemctl stop gpucluster-containerd && mv {DATA} {DATA}.kept")
    cluster.node.sh("systemctl start gpucluster-containerd")
    assert cluster.node.sh(f"stat -c %a {DATA} {REQUESTS}").split() == ["711", "1733"]
    cluster.node.sh(f"systemctl stop gpucluster-containerd && rm -r {DATA} && mv {DATA}.kept {DATA}")
    cluster.node.sh("systemctl start gpucluster-containerd")


def test_a_new_bundle_takes_the_place_of_the_old_one(cluster: Cluster) -> None:
    before = cluster.node.sh("systemctl show -P MainPID gpucluster-containerd")
    assert cluster.apply(version="2.3.5").changed > 0
    assert not cluster.node.exists(IMAGES)  # no image is to be in it any more
    assert "2.3.5" in cluster.node.sh("nerdctl --version", user="bob")
    assert cluster.node.sh("systemctl show -P MainPID gpucluster-containerd") != before


def test_it_goes_again_and_reports_what_stays(cluster: Cluster) -> None:
    cluster.node.sh(f"nerdctl run {IMAGE} /bin/true", user="bob")
    cluster.node.put("/usr/local/sbin/systemctl", SYSTEMCTL_OF_239, 0o755)
    played = cluster.apply(containers_runtimes=[])
    assert f"stay in {DATA}" in played.said
    sudo, mesh = "/etc/sudoers.d/50-gpucluster-nerdctl", "/etc/gpucluster/mesh"
    for path in ("/usr/local/bin/nerdctl", BUNDLE, sudo, mesh, REQUESTS):
        assert not cluster.node.exists(path), path
    assert cluster.node.sh("find /var/cache/gpucluster/software -name 'nerdctl*'").strip() == ""
    assert cluster.node.exists(f"{DATA}/user-10002")
    assert "rootlesskit" not in cluster.node.sh("ps ax -o args | grep -v grep")
    assert cluster.apply(containers_runtimes=[]).changed == 0
