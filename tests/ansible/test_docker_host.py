"""The role docker on a booted host, with the real Docker of Debian: who may use it, where things lie, that it goes.

What this does not prove: pulls from a real registry (none is in reach), GPUs in containers, Docker of other systems.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.booted import ROOTFS, Booted, booted
from tests.ansible.in_container import Played
from tests.ansible.loading import load
from tests.ansible.render import INVENTORY

pytestmark = [pytest.mark.containers, pytest.mark.story]

gpucluster_host = load("module_utils/gpucluster_host_facts.py")
STORAGE = "/var/lib/gpucluster/containers"
MESH = "/etc/gpucluster/mesh"
TASKS: list[dict[str, Any]] = [
    {"import_role": {"name": "base", "tasks_from": "gather_facts"}},
    {"import_role": {"name": "docker"}},
]
VARIABLES = INVENTORY | {
    "containers_runtimes": ["docker"],
    "containers_pull": [],
    "containers_storage": STORAGE,
    "users_group": "people",
    "users_gid": 9999,
    "users_privilege_group": "privilege",
    "users_privilege_gid": 9876,
}


def apply(node: Booted, *options: str, check: bool = True, **changes: Any) -> Played:
    # Its unit allows three starts a minute; a user does not change the settings that often.
    node.sh("systemctl reset-failed docker.socket docker.service", check=False)
    return node.play(TASKS, VARIABLES | {"docker_mesh": {"pairs": pairs()}} | changes, *options, check=check)


@cache
def pairs() -> dict[str, dict[str, str]]:
    """The key pairs that the controller has created."""
    made = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("id_ed25519", "ssh_host_ed25519_key"):
            key = Path(folder, name)
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "demo", "-f", key], check=True)
            public = key.with_suffix(".pub").read_text()
            made[name] = {"private": key.read_text(), "public": public, "accepted": public}
    return made


@pytest.fixture(scope="module")
def node() -> Iterator[Booted]:
    with booted() as host:
        host.sh("groupadd -g 9999 people; groupadd -g 9876 privilege")
        host.sh("useradd -u 10001 -g people -G privilege -m alice; useradd -u 10002 -g people -m bob", check=False)
        host.sh(f"sh -s <<'END'\n{ROOTFS}\nEND")
        yield host


@pytest.fixture(scope="module")
def docker(node: Booted) -> Booted:
    # As on an image on which another program uses containerd.
    node.sh("systemctl start containerd")
    assert apply(node, "--check").changed > 0
    assert not node.exists("/etc/docker/daemon.json")
    assert "BEGIN OPENSSH PRIVATE KEY" not in apply(node, "-vvv", "--diff").said
    node.sh("tar -C /root/rootfs -c . | docker import - registry.example/probe:1")
    return node


def test_a_host_that_never_had_it_keeps_what_its_image_brought(node: Booted) -> None:
    assert apply(node, containers_runtimes=[]).changed == 0
    assert node.exists("/usr/sbin/dockerd")


def test_a_directory_that_another_user_has_made_is_not_used(node: Booted) -> None:
    node.sh(f"mkdir -p {STORAGE} && chown 10002 {STORAGE}")
    played = apply(node, "--check", check=False)
    node.sh(f"rmdir {STORAGE}")
    assert f"{STORAGE} and its contents must belong to root only" in played.said
    assert "belongs to user 10002" in played.said


def test_a_second_run_changes_nothing_and_pulls_no_image_that_is_here(docker: Booted) -> None:
    assert apply(docker, containers_pull=["registry.example/probe:1"]).changed == 0


def test_only_a_member_of_the_privileged_group_runs_containers(docker: Booted) -> None:
    said = docker.sh("id -nG; docker run --rm --network=host registry.example/probe:1 /bin/id", user="alice")
    assert "privilege" in said
    assert "uid=0" in said
    refused = docker.sh("docker ps", user="bob", check=False)
    assert "permission denied" in refused
    assert docker.sh("stat -c '%g %a' /run/docker.sock").split() == ["9876", "660"]


def test_a_container_has_its_limits_and_a_privileged_one_no_more_devices_than_its_host(docker: Booted) -> None:
    run = "docker run --rm --network=host {} registry.example/probe:1 /bin/sh -c '{}'"
    limit = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2> /dev/null || cat /sys/fs/cgroup/memory.max"
    assert docker.sh(run.format("--memory=64m", limit)).split()[-1] == str(64 << 20)
    # As the documentation gives it, and as far as the machine lets a host go.
    raised = run.format("--ulimit memlock=-1 --ulimit stack=67108864", "ulimit -l; ulimit -s")
    assert docker.sh(raised).split() == [docker.sh("ulimit -Hl").strip(), "65536"]
    assert docker.sh(run.format("--ulimit memlock=1024", "ulimit -l")).split() == ["1"]
    assert docker.sh(run.format("--privileged", "echo written > /dev/null && echo privileged")).split() == [
        "privileged"
    ]
    docker.sh("mknod /root/disk b 254 0")
    refused = docker.sh(run.format("--privileged --volume=/root/disk:/disk", "exec 3< /disk"), check=False)
    assert "Operation not permitted" in refused


def test_containers_lie_on_the_local_disk_and_their_networks_collide_with_nothing(docker: Booted) -> None:
    info = json.loads(docker.sh("docker info --format '{{json .}}'"))
    assert info["DockerRootDir"] == f"{STORAGE}/docker"
    assert info["LiveRestoreEnabled"] is True
    assert "nvidia" not in info["Runtimes"]
    bridge = json.loads(docker.sh("docker network inspect bridge"))[0]["IPAM"]["Config"][0]["Subnet"]
    docker.sh("docker network create another")
    another = json.loads(docker.sh("docker network inspect another"))[0]["IPAM"]["Config"][0]["Subnet"]
    docker.sh("docker network rm another")
    assert bridge == "198.18.0.0/24"
    assert another.startswith("198.18.")
    assert not docker.exists("/var/lib/docker/overlay2")
    assert docker.sh("systemctl show -P RequiresMountsFor docker").strip().endswith(f"{STORAGE}/docker")


def test_the_socket_moves_to_another_group_and_containers_outlive_that(docker: Booted) -> None:
    docker.sh("groupadd -g 9870 others")
    docker.sh("docker run -d --name long --network=host registry.example/probe:1 /bin/sleep infinity")
    pid = docker.sh("docker inspect -f '{{.State.Pid}}' long").strip()
    assert apply(docker, users_privilege_gid=9870, docker_log={"max-size": "10m"}).changed == 1
    assert docker.sh("docker inspect -f '{{.State.Pid}}' long").strip() == pid
    assert docker.sh("stat -c %g /run/docker.sock").strip() == "9870"
    assert "permission denied" in docker.sh("docker ps", user="alice", check=False)
    docker.sh("docker rm -f long")


def test_an_image_that_is_nowhere_is_named_when_all_else_is_done(docker: Booted) -> None:
    played = apply(docker, containers_pull=["registry.example/missing:2"], check=False)
    assert "the image registry.example/missing:2 could not be pulled" in played.said
    assert "the users who have credentials" in played.said
    # The socket is restored after the previous test.
    assert docker.sh("stat -c %g /run/docker.sock").strip() == "9876"


def test_the_mesh_is_for_containers_alone_and_ssh_goes_through_it(docker: Booted) -> None:
    listed = docker.sh(f"stat -c '%n %U %a' {MESH}/* {MESH}").split("\n")
    assert f"{MESH} root 700" in listed
    assert f"{MESH}/id_ed25519 root 600" in listed
    interface = gpucluster_host.default_interface(docker.read("/proc/net/route"))
    sockets = f"NCCL_SOCKET_IFNAME=={interface}\n" if interface else ""
    assert docker.read("/etc/gpucluster/nccl.env") == f"NCCL_IB_GID_INDEX=3\n{sockets}"
    assert docker.sh(f"cat {MESH}/id_ed25519", user="alice", check=False).count("Permission denied") == 1
    # As a container has it: /root/.ssh is this directory, read-only, and the server is the image's own.
    script = (
        "mkdir -p /root/.ssh /run/sshd && mount --bind -o ro /etc/gpucluster/mesh /root/.ssh && "
        # It listens some time after it has gone into the background.
        "/usr/sbin/sshd -f /root/.ssh/sshd_config && "
        "ssh -o ConnectionAttempts=99 127.0.0.1 echo through the mesh as \\$USER"
    )
    assert "through the mesh as root" in docker.sh(f"unshare --mount sh -c '{script}'")
    docker.sh("kill $(ss -tlnp 2>/dev/null | sed -n 's/.*:12345.*pid=\\([0-9]*\\).*/\\1/p')", check=False)


def test_the_keys_of_the_mesh_are_made_once_and_shown_to_no_user(docker: Booted) -> None:
    docker.sh(f"mv {MESH} {MESH}.kept")
    share = [{"import_role": {"name": "docker", "tasks_from": "share"}}]
    made = docker.play(share, VARIABLES, "-vvv")
    # The service gpucluster-join has a read-only file system.
    docker.sh("mount --bind /etc /etc && mount -o remount,bind,ro /etc")
    assert "Read-only" in docker.sh("chmod 700 /etc/gpucluster/mesh", check=False)
    again = docker.play(share, VARIABLES)
    docker.sh("umount /etc")
    assert (made.changed, again.changed) == (1, 0)
    assert "PRIVATE KEY" not in made.said
    assert docker.sh(f"stat -c '%U %a' {MESH} {MESH}/id_ed25519").split() == ["root", "700", "root", "600"]
    docker.sh(f"rm -r {MESH} && mv {MESH}.kept {MESH}")


def test_it_goes_again_and_reports_what_stays(docker: Booted) -> None:
    docker.sh("docker run -d --stop-signal=KILL --network=host registry.example/probe:1 /bin/sleep 4321")
    kept = "/etc/gpucluster/runtimes/docker-keeps-containerd"
    docker.sh(f"mv {kept} /root/kept")
    rehearsed = apply(docker, "--check", "-v", containers_runtimes=[])
    assert rehearsed.changed > 0
    assert '"stopped": ["containerd.service"]' in rehearsed.said
    docker.sh(f"mv /root/kept {kept}")
    played = apply(docker, containers_runtimes=[])
    assert docker.sh("systemctl is-active containerd").strip() == "active"
    assert f"stay in {STORAGE}/docker" in played.said
    assert docker.exists(f"{STORAGE}/docker")
    assert "sleep 4321" not in docker.sh("ps ax -o args | grep -v grep")
    for path in ("/usr/sbin/dockerd", "/run/docker.sock", "/etc/docker/daemon.json", MESH):
        assert not docker.exists(path), path
    assert apply(docker, containers_runtimes=[]).changed == 0
