"""The role enroot on a host: installed, changed, used by a user without rights, taken away. Enroot is a double.

What this does not prove: that the real Enroot reads all of this as its double does, and anything about GPUs and RDMA.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpucluster import shapes
from tests.ansible.in_container import Host, Played, host
from tests.ansible.render import GPU_POOL, INVENTORY, render
from tests.ansible.slurm_render import PATIENT
from tests.ansible.test_enroot import known
from tests.autoscaler.slurm_harness import SlurmHarness, SlurmPool
from tests.doubles.enroot import packages
from tests.mirror import Mirror, Server

pytestmark = pytest.mark.containers

STORAGE = "/var/lib/gpucluster/containers/enroot"
MARKER = "/etc/gpucluster/runtimes/enroot"
PROLOG = "/usr/local/lib/gpucluster/prolog-enroot"
USER = 10001
# One task that gathers facts, and the role.
TASKS: list[dict[str, Any]] = [
    {"import_role": {"name": "base", "tasks_from": "gather_facts"}},
    {"import_role": {"name": "enroot"}},
]
NEW, OLD = "4.1.2", "4.0.1"


class Cluster:
    """A node and the mirror that its release files come from."""

    def __init__(self, node: Host, mirror: Mirror, server: Server) -> None:
        self.node, self.mirror, self.server = node, mirror, server

    def apply(self, version: str | None, *options: str, **changes: Any) -> Played:
        """Run the role with a version of Enroot; None removes it."""
        files = [
            {
                "component": "enroot",
                "version": version,
                "file": name,
                "sha256": self.mirror.sha256(name),
                "format": "deb",
                "architecture": "x86_64",
            }
            for name in (f"enroot_{version}-1_amd64.deb", f"enroot+caps_{version}-1_amd64.deb")
            if version
        ]
        pool = {**GPU_POOL, "nccl": shapes.get(GPU_POOL["shape"]).nccl_environment}
        variables = {
            **INVENTORY,
            "slurm_pools": [pool],
            "slurm_hardware_emulated": True,
            "slurm_gpus_emulated": True,
            "containers_runtimes": ["enroot"] if version else [],
            "containers_storage": "/var/lib/gpucluster/containers",
            "software_files": files,
            "software_server": self.server.url,
            **changes,
        }
        return self.node.play(TASKS, variables, *options)

    def prolog(self, uid: int = USER) -> str:
        return self.node.run(PROLOG, environment={"SLURM_JOB_UID": str(uid), "SLURM_JOB_GID": str(uid)})

    def enroot(self, *words: str, uid: int = USER, check: bool = True) -> str:
        return self.node.run("enroot", *words, uid=uid, check=check, environment={"HOME": f"/home/{uid}"})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    mirror = Mirror(tmp_path_factory.mktemp("mirror"))
    for version in (OLD, NEW):
        packages.add(mirror, version)
    mirror.file("secret_1.tar", packages.root_directory({"marker": "inside\n"}))
    with mirror.serve() as server, host() as node:
        for uid in (USER, USER + 1):
            node.run("install", "-d", "-o", str(uid), "-m", "0700", f"/home/{uid}")
        yield Cluster(node, mirror, server)


def test_a_rehearsal_on_a_fresh_host_changes_nothing(cluster: Cluster) -> None:
    played = cluster.apply(NEW, "--check", "--diff")
    assert played.changed == 3
    assert not cluster.node.exists("/usr/bin/enroot")
    assert not cluster.node.exists("/etc/enroot")
    assert not cluster.node.exists(PROLOG)


def test_it_is_installed_once(cluster: Cluster) -> None:
    node = cluster.node
    assert cluster.apply(NEW, containers_compression="none").changed == 3
    assert cluster.apply(NEW, containers_compression="none").changed == 0
    assert node.run("enroot", "version").strip() == NEW
    assert "ENROOT_SQUASH_OPTIONS -noI -noD -noF -noX -no-duplicates -exit-on-error\n" in node.read(packages.CONFIG)
    for path in ("/run/enroot", STORAGE, *(f"{STORAGE}/{kind}" for kind in ("cache", "data", "temp"))):
        assert node.state(path) == "0 755", path
    assert node.state(PROLOG) == "0 755"
    for name in ("50-slurm-pmi.sh", "50-slurm-pytorch.sh"):
        assert node.read(f"{packages.HOOKS}/{name}") == node.read(f"{packages.EXTRA_HOOKS}/{name}")
        assert node.state(f"{packages.HOOKS}/{name}") == "0 755"
    # Emulated GPUs: the hooks for devices would find none.
    assert node.state(f"{packages.HOOKS}/98-nvidia.sh") == "0 644"
    assert node.read("/etc/enroot/environ.d/50-gpucluster.env") == ""
    # Where the host's own cgroups are version 2, the container has some of its own.
    own = node.exists("/sys/fs/cgroup/cgroup.controllers")
    assert node.state(f"{packages.HOOKS}/10-cgroups.sh") == ("0 755" if own else "0 644")
    # A container does not change the kernel of this machine.
    assert not node.exists("/etc/sysctl.d/60-gpucluster-enroot.conf")


def test_another_version_comes_and_so_do_other_settings(cluster: Cluster) -> None:
    assert cluster.apply(OLD).changed == 2
    assert cluster.node.run("enroot", "version").strip() == OLD, "down"
    config = cluster.node.read(packages.CONFIG)
    assert "ENROOT_SQUASH_OPTIONS -comp zstd -Xcompression-level 3 -b 1M -exit-on-error\n" in config
    installed = cluster.node.run("dpkg-query", "--show", "--showformat=${Package} ${Version}\n", "enroot*").split("\n")
    assert {f"enroot {OLD}-1", f"enroot+caps {OLD}-1"} <= set(installed)


def test_a_user_without_rights_imports_and_runs(cluster: Cluster) -> None:
    node, address = cluster.node, cluster.server.url.removeprefix("http://")
    refused = cluster.enroot("remove", "mine", uid=USER + 1, check=False)
    assert "Permission denied" in refused, "outside of a job there is no place"
    assert cluster.enroot("list", uid=USER + 1) == "", "the plugin asks after jobs that began before Enroot came"
    assert cluster.prolog() == ""
    for place in ("/run/enroot", *(f"{STORAGE}/{kind}" for kind in ("cache", "data", "temp"))):
        assert node.state(f"{place}/user-{USER}") == f"{USER} 700"
    cluster.enroot("import", "--output", f"/home/{USER}/image.sqsh", f"docker://{address}/secret:1")
    assert "Compression zstd" in node.run("unsquashfs", "-s", f"/home/{USER}/image.sqsh")
    assert node.run("ls", f"{STORAGE}/cache/user-{USER}").split() == ["secret_1.tar"]
    cluster.enroot("create", "--name", "mine", f"/home/{USER}/image.sqsh")
    script = "cat /marker /etc/nccl.conf; id; echo home $HOME; echo x > /etc/nccl.conf"
    said = cluster.enroot("start", "mine", "/bin/sh", "-c", script, check=False).splitlines()
    assert said[0] == "inside"
    assert f"NCCL_IB_HCA={shapes.get('BM.GPU4.8').nccl_ib_hca}" in said
    assert any(f"uid={USER}" in line for line in said)
    assert f"home /home/{USER}" in said
    assert "Read-only file system" in said[-1]


def test_a_step_starts_for_who_came_by_ssh_with_a_single_command(cluster: Cluster) -> None:
    """Its bash would read ~/.bashrc instead of the functions that Enroot hands to it."""
    environment = {"HOME": f"/home/{USER}", "SSH_CLIENT": "192.0.2.1 50000 22", "SHLVL": "0"}
    start = ("start", "mine", "/usr/bin/cat", "/marker")
    said = cluster.node.run("/usr/bin/enroot", *start, uid=USER, check=False, environment=environment)
    assert "command not found" in said, "without what the role puts before it"
    assert cluster.node.run("enroot", *start, uid=USER, environment=environment) == "inside\n"


def test_another_user_sees_none_of_it(cluster: Cluster) -> None:
    cluster.prolog(USER + 1)
    assert cluster.enroot("list", uid=USER + 1) == ""
    for kind in ("cache", "data", "temp"):
        said = cluster.node.run("ls", f"{STORAGE}/{kind}/user-{USER}", uid=USER + 1, check=False)
        assert "Permission denied" in said


def test_it_goes_when_it_is_not_wanted_any_more(cluster: Cluster) -> None:
    node = cluster.node
    assert cluster.apply(None, "--check").changed == 2
    assert node.exists("/usr/bin/enroot")
    assert cluster.apply(None).changed == 2
    for path in (
        "/usr/bin/enroot",
        "/usr/local/bin/enroot",
        "/etc/enroot",
        PROLOG,
        "/etc/tmpfiles.d/gpucluster-enroot.conf",
        f"{STORAGE}/cache",
    ):
        assert not node.exists(path), path
    assert node.run("ls", f"{STORAGE}/data/user-{USER}").split() == ["mine"], "what people unpacked is theirs"
    again = cluster.apply(None)
    assert again.changed == 0
    assert "Remove its files" not in again.said, "a host without it pays nothing"
    assert not node.exists(MARKER)


def test_what_an_image_brought_stays_and_a_removal_that_was_broken_off_is_finished(cluster: Cluster) -> None:
    node = cluster.node
    node.run("sh", "-c", "echo '#!/bin/sh' > /usr/bin/enroot && mkdir /etc/enroot")
    assert cluster.apply(None).changed == 0
    # The package was removed already, the settings were not.
    node.run("sh", "-c", f"rm /usr/bin/enroot && touch {MARKER}")
    assert cluster.apply(None).changed == 1
    assert not node.exists("/etc/enroot")
    assert not node.exists(MARKER)


def test_it_comes_back(cluster: Cluster) -> None:
    cluster.apply(NEW)
    cluster.prolog()
    assert cluster.enroot("list").split() == ["mine"]


@pytest.mark.slurm
def test_slurm_runs_the_prolog_before_the_first_step() -> None:
    with SlurmHarness(
        (SlurmPool("n", 1, cloud=False),), extra={"Prolog": PROLOG, "PrologFlags": "Alloc", **PATIENT}
    ) as slurm_harness:
        slurm_harness.run("mkdir", "-p", PROLOG.rpartition("/")[0], "/mnt/localdisk")
        slurm_harness.write(PROLOG, render("enroot", "prolog-enroot", known(container="podman")))
        slurm_harness.run("chmod", "0755", PROLOG)
        slurm_harness.start_slurmd("n1")
        slurm_harness.until("the node is idle", lambda: "IDLE" in slurm_harness.flags("n1"))
        # A user whom every system knows: `daemon`, in the group of the same number.
        places = [f"/mnt/localdisk/containers/enroot/{kind}/user-1" for kind in ("cache", "data", "temp")]
        step = ("stat", "--format=%u %g %a", "/run/enroot/user-1", *places)
        who = ("setpriv", "--reuid=1", "--regid=1", "--clear-groups")
        said = slurm_harness.run(*who, "srun", "--chdir=/tmp", *step).stdout
        assert said.splitlines() == ["1 1 700"] * 4
        slurm_harness.until("the node is idle again", lambda: slurm_harness.flags("n1") == {"IDLE"})
