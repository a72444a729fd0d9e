"""The role enroot without a host: its files for fictitious nodes, its conditions, and its prolog, run as root."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.plugins.loader import init_plugin_loader

from gpucluster import shapes
from tests.ansible.loading import ANSIBLE, load, read
from tests.ansible.render import EMPTY_POOL, GPU_POOL, evaluate, host_facts, render, variables
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

# The template lookup needs it.
init_plugin_loader()
gpucluster_host = load("module_utils/gpucluster_host_facts.py")
ROLE = ANSIBLE / "roles" / "enroot"
FREE: dict[str, Any] = {"supported": True, "boot_option": "", "sysctls": {}, "apparmor": ""}


def known(
    shape: str = "BM.GPU4.8", *, namespaces: Mapping[str, Any] | None = None, container: str = "", **changes: Any
) -> dict[str, Any]:
    """The variables of node compute-1, whose pool has this shape; `changes` are to the pool or the inventory."""
    facts = shapes.get(shape)
    pool = {
        **GPU_POOL,
        "shape": shape,
        "nccl": facts.nccl_environment,
        "gpu_vendor": facts.gpu_vendor if facts.gpus else None,
        "gpu_device_files": list(facts.gpu_device_files),
        "rdma": facts.rdma,
    }
    pool |= {name: changes.pop(name) for name in list(changes) if name in pool}
    inventory = {"slurm_pools": [EMPTY_POOL, pool], "containers_runtimes": ["enroot"], **changes}
    host = {**host_facts(), "container": container, "user_namespaces": {**FREE, **(namespaces or {})}}
    found = variables(inventory, role="enroot", host="compute-1", facts=host)
    return found | {"group_names": ["compute", "pool_compute"], "ansible_search_path": [str(ROLE)]}


def task_of(module: str) -> dict[str, Any]:
    """The task of the role that calls a module; for gpucluster_service, the configuring one."""
    *_marks, found = (task for task in read(ROLE / "tasks" / "present.yml") if module in task)
    return dict(found)


def files(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The files of the task that writes them, by path."""
    task = task_of("gpucluster_service")
    listed = evaluate(task["gpucluster_service"]["files"], {**given, **task["vars"]})
    return {str(item["path"]): item for item in listed}


def units(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    task = task_of("gpucluster_service")
    found: list[dict[str, Any]] = evaluate(task["gpucluster_service"]["units"], {**given, **task["vars"]})
    return found


# --- settings -----


@pytest.mark.parametrize(
    ("compression", "options"),
    [
        ("zstd", "-comp zstd -Xcompression-level 3 -b 1M -exit-on-error"),
        ("lzo", "-comp lzo -b 1M -exit-on-error"),
        ("none", "-noI -noD -noF -noX -no-duplicates -exit-on-error"),
    ],
)
def test_the_configuration_can_be_read_by_a_shell(compression: str, options: str, tmp_path: Path) -> None:
    file = tmp_path / "enroot.conf"
    file.write_text(render("enroot", "enroot.conf", known(containers_compression=compression)))
    # Enroot refuses a file that bash can't parse, and expands each value with bash's echo.
    subprocess.run(["bash", "-n", file], check=True)
    lines = [line.split(" ", 1) for line in file.read_text().splitlines() if line and not line.startswith("#")]
    names = [name for name, _ in lines]
    assert len(names) == len(set(names)), "the first value wins: a second one is lost"
    settings = {
        name: subprocess.check_output(["bash", "-c", f"echo {text}"], text=True).strip() for name, text in lines
    }
    assert settings["ENROOT_SQUASH_OPTIONS"] == options
    assert settings["ENROOT_RUNTIME_PATH"] == f"/run/enroot/user-{os.getuid()}"
    for kind in ("CACHE", "DATA", "TEMP"):
        place = f"/mnt/localdisk/containers/enroot/{kind.lower()}/user-{os.getuid()}"
        assert settings[f"ENROOT_{kind}_PATH"] == place
    # Never set: the first switches every registry to HTTP; credentials must be read from the homes of users.
    assert not {"ENROOT_ALLOW_HTTP", "ENROOT_CONFIG_PATH"} & set(settings)


@pytest.mark.parametrize(
    ("kernel", "native"),
    [
        ("5.15.0-313.189.5.3.el9uek.x86_64", "no"),
        ("6.5.0-1027-oracle", "no"),
        ("6.6.0", "yes"),
        ("6.12.57+deb13-amd64", "yes"),
        ("6.14.0-rc1", "yes"),
        ("10.0.0", "yes"),
    ],
)
def test_changes_to_a_mounted_image_are_left_to_a_kernel_that_can_keep_them(kernel: str, native: str) -> None:
    given = known()
    given["ansible_facts"]["gpucluster_host"]["kernel"] = kernel
    assert f"\nENROOT_NATIVE_OVERLAYFS {native}\n" in render("enroot", "enroot.conf", given)


@pytest.mark.parametrize("shape", list(shapes.catalogue()))
def test_the_settings_of_a_shape_are_in_nccl_conf(shape: str) -> None:
    found = files(known(shape))
    wanted = shapes.get(shape).nccl_environment
    assert ("/etc/nccl.conf" in found) is bool(wanted)
    if wanted:
        wanted = {**wanted, "NCCL_SOCKET_IFNAME": "=ens3"}
        text = str(found["/etc/nccl.conf"]["content"])
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        assert dict(line.split("=", 1) for line in lines) == wanted
        assert text.endswith("\n")
    # AMD's library reads another file.
    assert ("/etc/rccl.conf" in found) is ("MI3" in shape)
    assert ("/etc/rccl.conf" in str(found["/etc/enroot/mounts.d/50-gpucluster.fstab"]["content"])) is ("MI3" in shape)


def test_nccl_s_sockets_use_the_interface_that_the_node_has() -> None:
    """`eth0` exists on Oracle's HPC images only; on a plain one NCCL would find no interface of that name."""
    given = known("BM.GPU.H100.8")
    assert "NCCL_SOCKET_IFNAME==ens3" in str(files(given)["/etc/nccl.conf"]["content"]).splitlines()
    given["ansible_facts"]["gpucluster_host"]["default_interface"] = ""
    assert "SOCKET_IFNAME" not in str(files(given)["/etc/nccl.conf"]["content"])
    assert not [name for name, shape in shapes.catalogue().items() if "NCCL_SOCKET_IFNAME" in shape.nccl]


def test_nccl_knows_the_devices_of_the_network_by_their_exact_names() -> None:
    settings = shapes.get("BM.GPU.H100.8").nccl_environment
    assert settings["NCCL_IB_HCA"].startswith("=mlx5_0,mlx5_1,mlx5_3")
    assert (settings["NCCL_IB_GID_INDEX"], settings["NCCL_IB_TC"], settings["NCCL_IB_QPS_PER_CONNECTION"]) == (
        "3",
        "41",
        "1",
    )
    assert shapes.get("BM.GPU.MI355X.8").nccl_environment["NCCL_IB_GID_INDEX"] == "1", (
        "the shape's own value counts more"
    )
    assert shapes.get("BM.GPU.A10.4").nccl_environment == {}
    assert shapes.get("BM.HPC2.36").nccl_environment == {}, "there is nothing for NCCL without GPUs"


def test_every_container_sees_the_network_s_settings_and_starts_without_them() -> None:
    text = str(files(known())["/etc/enroot/mounts.d/50-gpucluster.fstab"]["content"])
    (line,) = (line for line in text.splitlines() if not line.startswith("#"))
    source, target, _kind, options = line.split()
    assert source == target == "/etc/nccl.conf"
    assert {"bind", "ro", "nofail", "silent", "x-create=file"} <= set(options.split(","))


# --- devices -----


@pytest.mark.parametrize(
    ("shape", "changes", "expected"),
    [
        ("BM.GPU4.8", {}, True),
        ("BM.GPU4.8", {"rdma": False}, False),
        ("BM.GPU4.8", {"slurm_hardware_emulated": True}, False),
        ("BM.GPU.MI300X.8", {}, True),
        ("BM.GPU.MI355X.8", {}, False),  # its devices are of another maker: the hook would hide them
        ("BM.GPU.A10.4", {}, False),
    ],
)
def test_rdma_devices_are_asked_for_where_the_hook_knows_them(
    shape: str, changes: dict[str, Any], expected: bool
) -> None:
    item = files(known(shape, **changes))["/etc/enroot/environ.d/50-gpucluster.env"]
    assert item["content"] == ("MELLANOX_VISIBLE_DEVICES=all\n" if expected else "")


def test_a_hook_that_could_not_mount_what_the_kernel_lacks_is_not_asked() -> None:
    given = known("BM.GPU4.8")
    given["ansible_facts"]["gpucluster_host"]["rdma_classes"] = ["infiniband_cm", "infiniband_verbs"]
    assert files(given)["/etc/enroot/environ.d/50-gpucluster.env"]["content"] == ""


@pytest.mark.parametrize(
    ("shape", "emulated", "mode"),
    [
        ("BM.GPU4.8", False, "0755"),
        ("BM.GPU4.8", True, "0644"),
        ("BM.GPU.MI300X.8", False, "0644"),
        ("VM.Standard.E5.Flex", False, "0644"),
    ],
)
def test_the_hook_for_gpus_runs_where_there_are_some(shape: str, emulated: bool, mode: str) -> None:
    given = known(shape, slurm_hardware_emulated=emulated)
    assert files(given)["/etc/enroot/hooks.d/98-nvidia.sh"]["mode"] == mode
    task = task_of("gpucluster_software")
    install = task["gpucluster_software"]
    release = [{"component": name} for name in ("enroot", "pyxis", "nvidia-container-toolkit")]
    given |= {**task["vars"], "software_files": release}
    gpus = mode == "0755"
    assert [file["component"] for file in evaluate(install["files"], given)] == [
        "enroot",
        *(["nvidia-container-toolkit"] if gpus else []),
    ]
    assert ("libnvidia-container-tools" in evaluate(install["packages"], given)) is gpus
    assert evaluate(install["packages"], given)[:2] == ["enroot", "enroot+caps"]


@pytest.mark.parametrize(
    ("container", "version", "mode"), [("podman", 1, "0644"), ("podman", 2, "0755"), ("", 1, "0755"), ("", 2, "0755")]
)
def test_the_hook_for_cgroups_rests_where_they_are_another_machine_s(container: str, version: int, mode: str) -> None:
    given = known(container=container)
    given["ansible_facts"]["gpucluster_host"]["cgroup"] = {"version": version, "controllers": [], "usable": False}
    assert files(given)["/etc/enroot/hooks.d/10-cgroups.sh"]["mode"] == mode


# --- user namespaces -----


def namespaces(
    tree: Path, monkeypatch: pytest.MonkeyPatch, command_line: str = "quiet", **sysctls: str
) -> dict[str, Any]:
    for name, text in {"user/max_user_namespaces": "30000", "user/max_mnt_namespaces": "30000", **sysctls}.items():
        (tree / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / "sys" / name).write_text(f"{text}\n")
    monkeypatch.setattr(gpucluster_host, "SYSCTLS", tree / "sys")
    monkeypatch.setattr(gpucluster_host, "APPARMOR", tree / "apparmor.d")
    found: dict[str, Any] = gpucluster_host.user_namespaces(command_line)
    return found


def test_a_kernel_that_allows_user_namespaces_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert namespaces(tmp_path, monkeypatch) == FREE
    given = known(namespaces=namespaces(tmp_path, monkeypatch))
    assert not [path for path in files(given) if path.startswith(("/etc/sysctl.d", "/etc/apparmor.d"))]
    assert units(given) == []


def test_settings_that_are_too_low_are_raised_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    low = {"user/max_user_namespaces": "0", "kernel/unprivileged_userns_clone": "0"}
    found = namespaces(tmp_path, monkeypatch, **low)
    assert found["sysctls"] == {"user.max_user_namespaces": 65536, "kernel.unprivileged_userns_clone": 1}
    given = known(namespaces=found)
    file = files(given)["/etc/sysctl.d/60-gpucluster-enroot.conf"]
    assert file["content"] == "kernel.unprivileged_userns_clone = 1\nuser.max_user_namespaces = 65536\n"
    assert units(given) == [{"name": "systemd-sysctl", "follows": ["/etc/sysctl.d/60-gpucluster-enroot.conf"]}]


def test_apparmor_gets_a_profile_where_it_asks_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "apparmor.d" / "abi").mkdir(parents=True)
    (tmp_path / "apparmor.d" / "abi" / "4.0").touch()
    found = namespaces(tmp_path, monkeypatch, **{"kernel/apparmor_restrict_unprivileged_userns": "1"})
    assert found["apparmor"] == "restricts"
    given = known(namespaces=found)
    profile = str(files(given)["/etc/apparmor.d/gpucluster-enroot"]["content"])
    assert re.search(r"^/usr/bin/enroot-nsenter flags=\(unconfined\) \{\n  userns,\n\}$", profile, re.MULTILINE)
    assert units(given) == [{"name": "apparmor", "follows": ["/etc/apparmor.d/gpucluster-enroot"], "reload": True}]


def test_an_older_apparmor_is_spared_a_profile_that_it_can_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "apparmor.d" / "abi").mkdir(parents=True)
    found = namespaces(tmp_path, monkeypatch)
    assert found["apparmor"] == "old"
    item = files(known(namespaces=found))["/etc/apparmor.d/disable/enroot"]
    assert item["link"] == "/etc/apparmor.d/enroot"


@pytest.mark.parametrize(
    ("change", "container", "words"),
    [
        ({"supported": False}, "", "its kernel has none; choose an image with another kernel"),
        ({"boot_option": "user_namespace.enable=0"}, "", "--remove-args=user_namespace.enable=0"),
        (
            {"sysctls": {"user.max_user_namespaces": 65536}},
            "podman",
            "set on its host: user.max_user_namespaces = 65536",
        ),
    ],
)
def test_what_the_role_can_not_change_is_reported(change: dict[str, Any], container: str, words: str) -> None:
    task = task_of("ansible.builtin.assert")["ansible.builtin.assert"]
    given = known(namespaces=change, container=container)
    condition = f"{{{{ {task['that']} }}}}"
    assert not evaluate(condition, given)
    assert words in evaluate(task["fail_msg"], given)
    assert evaluate(condition, known())
    # A container whose kernel has everything works like any host.
    assert evaluate(condition, known(container=container))


def test_boot_options_of_the_kernel_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "root=/dev/sda namespace.unpriv_enable=1 user_namespace.enable=0"
    assert namespaces(tmp_path, monkeypatch, line)["boot_option"] == "user_namespace.enable=0"
    assert namespaces(tmp_path, monkeypatch, "xuser_namespace.enable=0")["boot_option"] == ""
    (tmp_path / "sys/user/max_user_namespaces").unlink()
    monkeypatch.setattr(gpucluster_host, "SYSCTLS", tmp_path / "sys")
    assert gpucluster_host.user_namespaces("")["supported"] is False


# --- the prolog -----


class Prolog:
    """The program with paths below a directory of this test, and its journal."""

    def __init__(self, folder: Path) -> None:
        self.base, self.runtime = folder / "disk" / "containers", folder / "run"
        self.storage = self.base / "enroot"
        (folder / "disk").mkdir()
        (folder / "bin").mkdir()
        self._journal = folder / "journal"
        logger = folder / "bin" / "logger"
        logger.write_text(f'#!/bin/sh\nshift 4\n[ "$1" = -- ] && shift\necho "$*" >> {self._journal}\n')
        logger.chmod(0o755)
        given = known(containers_storage=str(self.base)) | {"enroot_runtime": str(self.runtime)}
        text = render("enroot", "prolog-enroot", given)
        assert "PATH=/usr/sbin:" in text
        self._program = folder / "prolog-enroot"
        self._program.write_text(text.replace("PATH=/usr/sbin:", f"PATH={folder}/bin:/usr/sbin:"))
        self._program.chmod(0o755)

    def run(self, uid: str = "4711", gid: str | None = "4712") -> str:
        """Run it for a job; returns its journal. It never fails, and has no other output."""
        self._journal.unlink(missing_ok=True)
        names = {"SLURM_JOB_UID": uid} | ({"SLURM_JOB_GID": gid} if gid else {})
        done = subprocess.run(
            [self._program], env=names, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        return self._journal.read_text() if self._journal.exists() else ""

    def programs_of_a_run(self) -> list[str]:
        """The programs that a run starts. Only `stat` is there, and a run that misses another one fails."""
        programs, started = self._journal.parent / "only", self._journal.parent / "started"
        programs.mkdir()
        (programs / "stat").write_text(f'#!/bin/sh\necho stat >> {started}\nexec /usr/bin/stat "$@"\n')
        (programs / "stat").chmod(0o755)
        text = self._program.read_text()
        path = re.search(r"PATH=\S+", text)
        assert path is not None
        self._program.write_text(text.replace(path[0], f"PATH={programs}"))
        assert self.run() == ""
        return started.read_text().split()

    def places(self, uid: int = 4711) -> list[Path]:
        return [
            parent / f"user-{uid}"
            for parent in (self.runtime, *(self.storage / kind for kind in ("cache", "data", "temp")))
        ]


@pytest.fixture
def prolog(tmp_path: Path) -> Prolog:
    if os.geteuid() != 0:
        pytest.skip("needs root, as the prolog itself")
    tmp_path.chmod(0o755)
    return Prolog(tmp_path)


def state(path: Path) -> tuple[int, int, str]:
    found = path.lstat()
    return found.st_uid, found.st_gid, oct(found.st_mode & 0o7777)


def test_the_prolog_makes_what_a_user_needs(prolog: Prolog) -> None:
    assert prolog.run() == ""
    assert [state(place) for place in prolog.places()] == [(4711, 4712, "0o700")] * 4
    parents = {place.parent for place in prolog.places()} | {prolog.base, prolog.storage}
    assert {state(parent) for parent in parents} == {(0, 0, "0o755")}
    kept = prolog.storage / "data/user-4711/container"
    kept.mkdir()
    assert prolog.run() == ""
    assert kept.is_dir()
    assert prolog.run("4713", None) == ""
    assert state(prolog.places(4713)[1])[0] == 4713


def test_the_prolog_starts_one_program_for_a_user_who_has_all(prolog: Prolog) -> None:
    prolog.run()
    assert prolog.programs_of_a_run() == ["stat"]


@pytest.mark.parametrize("uid", ["", "root", "-1", "1;reboot", "$(id)", "../x"])
def test_the_prolog_takes_only_numbers(prolog: Prolog, uid: str) -> None:
    assert "which is not a uid" in prolog.run(uid)
    assert not prolog.runtime.exists()


def test_modes_are_put_right(prolog: Prolog) -> None:
    prolog.run()
    for place in prolog.places():
        place.chmod(0o777)
        place.parent.chmod(0o1777)
    prolog.storage.chmod(0o700)  # as when root has run enroot first
    assert prolog.run() == ""
    assert [state(place) for place in prolog.places()] == [(4711, 4712, "0o700")] * 4
    assert {state(place.parent) for place in prolog.places()} == {(0, 0, "0o755")}
    assert state(prolog.storage) == (0, 0, "0o755")


def test_a_run_that_was_broken_off_is_finished(prolog: Prolog) -> None:
    prolog.run()
    for place in prolog.places():
        os.chown(place, 0, 0)
    assert prolog.run() == ""
    assert [state(place) for place in prolog.places()] == [(4711, 4712, "0o700")] * 4


@pytest.mark.parametrize("kind", ["link", "file", "other's directory"])
def test_nothing_is_given_away_through_what_another_put_there(prolog: Prolog, tmp_path: Path, kind: str) -> None:
    prolog.run("1")
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o750)
    for place in prolog.places():
        if kind == "link":
            place.symlink_to(victim)
        elif kind == "file":
            place.touch(0o600)
        else:
            place.mkdir(0o700)
            os.chown(place, 666, 666)
    before = [state(place) for place in prolog.places()]
    said = prolog.run()
    assert said.count("is not a directory of user 4711; move it away") == 4
    assert [state(place) for place in prolog.places()] == before
    assert state(victim) == (0, 0, "0o750")


@pytest.mark.parametrize("which", ["runtime", "storage", "data"])
def test_a_parent_that_is_another_s_is_refused(prolog: Prolog, tmp_path: Path, which: str) -> None:
    prolog.run("1")
    parent = {"runtime": prolog.runtime, "storage": prolog.storage, "data": prolog.storage / "data"}[which]
    own = tmp_path / "own"
    own.mkdir()
    os.chown(own, 666, 666)
    parent.rename(tmp_path / "gone")
    parent.symlink_to(own)
    assert f"{parent} is not a directory of root" in prolog.run()
    assert list(own.iterdir()) == []
    parent.unlink()
    own.rename(parent)
    assert f"{parent} is not a directory of root" in prolog.run()
    assert list(parent.iterdir()) == []


def test_a_disk_that_others_may_write_to_is_not_trusted(prolog: Prolog) -> None:
    prolog.base.mkdir()
    prolog.base.chmod(0o1777)
    assert "other users than root can write to" in prolog.run()
    assert not prolog.storage.exists()
    assert prolog.runtime.is_dir()
    prolog.base.chmod(0o711)
    assert prolog.run() == ""
    assert state(prolog.places()[1])[0] == 4711


def test_a_full_disk_stops_no_job(prolog: Prolog) -> None:
    """A tmpfs with no inode left: mkdir fails as on a full disk."""
    disk = prolog.base.parent
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "nr_inodes=6", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("this machine mounts no tmpfs")
    try:
        said = prolog.run()
        assert "No space left on device" in said
        assert state(prolog.places()[0]) == (4711, 4712, "0o700"), "what lies in memory is made all the same"
    finally:
        subprocess.run(["umount", disk], check=True)


def test_two_jobs_at_a_time_report_nothing(prolog: Prolog) -> None:
    prolog.run("1")
    for uid in range(5000, 5010):
        names = {"SLURM_JOB_UID": str(uid), "SLURM_JOB_GID": str(uid)}
        jobs = [subprocess.Popen([prolog._program], env=names) for _ in range(3)]
        assert [job.wait(PATIENCE_S) for job in jobs] == [0, 0, 0]
        assert {state(place) for place in prolog.places(uid)} == {(uid, uid, "0o700")}
    assert not prolog._journal.exists()


def test_the_device_for_mounts_is_opened_to_users_in_containers_alone() -> None:
    assert "chmod 0666 /dev/fuse" in render("enroot", "prolog-enroot", known(container="podman"))
    assert "/dev/fuse" not in render("enroot", "prolog-enroot", known())


# --- the whole -----


def test_only_nodes_have_it() -> None:
    given = known()
    assert evaluate("{{ enroot_wanted }}", given) is True
    assert evaluate("{{ enroot_wanted }}", given | {"inventory_hostname": "demo-controller"}) is False
    assert evaluate("{{ enroot_wanted }}", known(containers_runtimes=["docker"])) is False


def test_an_elastic_node_finds_its_pool_by_its_groups() -> None:
    given = known("BM.GPU.H100.8", name="my-gpus") | {
        "group_names": ["joining", "pool_my_gpus"],
        "inventory_hostname": "my-gpus-e3",
    }
    assert "BM.GPU.H100.8" in str(files(given)["/etc/nccl.conf"]["content"])


@pytest.mark.parametrize("emulated", [True, False])
def test_a_login_node_belongs_to_no_pool_and_has_it_without_settings_of_a_shape(emulated: bool) -> None:
    given = known(slurm_hardware_emulated=emulated) | {"group_names": ["login"], "inventory_hostname": "demo-login-1"}
    found = files(given)
    assert found["/etc/enroot/hooks.d/98-nvidia.sh"]["mode"] == "0644"
    assert found["/etc/enroot/environ.d/50-gpucluster.env"]["content"] == ""
    assert "/etc/nccl.conf" not in found


def test_all_that_is_written_is_taken_away_again() -> None:
    kept = {"/etc/nccl.conf", "/etc/rccl.conf"}
    removed = [
        item["path"]
        for task in read(ROLE / "tasks" / "absent.yml")
        for item in task.get("gpucluster_service", {}).get("files", [])
    ]
    gone = [evaluate(path, known()) for path in removed]
    every = [
        known("BM.GPU.MI300X.8"),
        known(namespaces={"apparmor": "restricts", "sysctls": {"user.max_user_namespaces": 1}}),
        known(namespaces={"apparmor": "old"}),
    ]
    for given in every:
        written = [path for path, item in files(given).items() if not item.get("directory") and path not in kept]
        assert [path for path in written if not any(path == one or path.startswith(f"{one}/") for one in gone)] == []
    data = evaluate("{{ enroot_storage }}/data", known())
    assert not any(data == one or data.startswith(f"{one}/") for one in gone), "what people unpacked is theirs"


def test_the_double_reports_what_it_is() -> None:
    text = (Path(__file__).parents[1] / "doubles" / "enroot" / "enroot").read_text()
    assert text.splitlines()[1].startswith("# A double of Enroot")


def test_the_packages_that_enroot_asks_for_are_on_the_list() -> None:
    lists = yaml.safe_load((ANSIBLE / "group_vars" / "all" / "packages.yml").read_text())["packages"]
    needed = {"curl", "jq", "parallel", "squashfs-tools", "zstd", "squashfuse", "fuse-overlayfs"}
    assert all(needed <= set(system["enroot"]) for system in lists.values())
