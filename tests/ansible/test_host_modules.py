"""The small modules: facts of a host, mounts."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.ansible.loading import load

gpucluster_host = load("module_utils/gpucluster_host_facts.py")
gpucluster_mount = load("library/gpucluster_mount.py")

MOUNTINFO = (
    "22 1 0:20 / / rw - overlay overlay rw\n"
    "30 22 0:44 / /mnt/home rw,noatime shared:1 - nfs 10.0.1.9:/mnt/home rw,vers=3\n"
    "31 22 0:45 / /mnt/with\\040space rw - nfs 10.0.1.9:/a\\040b rw\n"
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('ID=debian\nVERSION_ID="13"\n', "Debian-13"),
        ('NAME="Ubuntu"\nVERSION_ID="24.04"\nID=ubuntu\n', "Ubuntu-24"),
        ('ID="ol"\nVERSION_ID="9.4"\n', "OracleLinux-9"),
        ("ID=arch\n", "arch-"),
        ("", "unknown-"),
    ],
)
def test_a_system_is_named_as_its_file_is(text: str, name: str) -> None:
    assert gpucluster_host.system(text) == name


@pytest.mark.parametrize(
    ("controllers", "in_container", "usable"),
    [
        ("cpuset cpu memory pids", False, True),
        ("cpuset memory", True, True),
        ("cpu pids", False, False),
        ("", True, False),
    ],
)
def test_cgroups_of_version_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controllers: str, in_container: bool, usable: bool
) -> None:
    (tmp_path / "cgroup.controllers").write_text(controllers + "\n")
    monkeypatch.setattr(gpucluster_host, "CGROUP", tmp_path)
    assert gpucluster_host.cgroup(in_container) == {"version": 2, "controllers": controllers.split(), "usable": usable}


@pytest.mark.parametrize(("in_container", "usable"), [(False, True), (True, False)])
def test_cgroups_of_version_1_do_not_belong_to_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_container: bool, usable: bool
) -> None:
    for name in ("cpuset", "devices", "freezer", "memory"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(gpucluster_host, "CGROUP", tmp_path)
    assert gpucluster_host.cgroup(in_container)["usable"] is usable


ROUTES = """\
Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
rdma0	0000E00A	00000000	0001	0	0	0	0000F0FF	0	0	0
"""
DEFAULT = "{}	00000000	0101000A	0003	0	0	{}	00000000	0	0	0\n"


@pytest.mark.parametrize(
    ("routes", "name"),
    [
        (ROUTES + DEFAULT.format("ens3", 100), "ens3"),
        (ROUTES + DEFAULT.format("docker0", 200) + DEFAULT.format("enp0s6", 100), "enp0s6"),
        (ROUTES + DEFAULT.format("eth0", 0).replace("0003", "0202"), ""),
        (ROUTES, ""),
        ("", ""),
    ],
)
def test_the_interface_of_the_default_route(routes: str, name: str) -> None:
    assert gpucluster_host.default_interface(routes) == name


@pytest.mark.parametrize(
    ("lines", "resolved", "found"),
    [
        ("nameserver 127.0.0.53\noptions edns0\n", True, "resolved"),
        # Oracle Linux; and a system that does not use systemd-resolved.
        ("search example.oraclevcn.com\nnameserver 169.254.169.254\n", False, "resolv.conf"),
        ("nameserver 169.254.169.254\n", True, "resolv.conf"),
        ("nameserver 127.0.0.1\n", False, "resolv.conf"),
    ],
)
def test_pods_ask_name_servers_that_are_not_on_the_loopback_device(
    lines: str, resolved: bool, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpucluster_host, "RESOLVER", tmp_path / "resolv.conf")
    monkeypatch.setattr(gpucluster_host, "RESOLVED", tmp_path / "resolved")
    (tmp_path / "resolv.conf").write_text(lines)
    if resolved:
        (tmp_path / "resolved").write_text("nameserver 169.254.169.254\n")
    assert gpucluster_host.resolver() == str(tmp_path / found)


@pytest.mark.parametrize(("switch", "denied"), [("0 0", True), ("1 1", False), ("", False)])
def test_homes_on_a_share_are_denied_where_selinux_denies_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str, denied: bool
) -> None:
    if switch:
        (tmp_path / "use_nfs_home_dirs").write_text(switch)
    monkeypatch.setattr(gpucluster_host, "NFS_HOMES", tmp_path / "use_nfs_home_dirs")
    assert gpucluster_host.facts("root", "none")["nfs_homes_denied"] is denied


def test_rdma_is_known_by_the_classes_that_the_kernel_has_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("infiniband_verbs", "infiniband_mad"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "abi_version").write_text("6\n")
    (tmp_path / "infiniband_cm").mkdir()
    monkeypatch.setattr(gpucluster_host, "CLASSES", tmp_path)
    assert gpucluster_host.facts("root", "none")["rdma_classes"] == ["infiniband_mad", "infiniband_verbs"]


def test_what_is_mounted_is_found_by_its_mount_point() -> None:
    found = gpucluster_mount.mounted_at(MOUNTINFO, "/mnt/home")
    assert found == {"fstype": "nfs", "source": "10.0.1.9:/mnt/home"}
    assert gpucluster_mount.mounted_at(MOUNTINFO, "/mnt") is None


def test_a_mount_point_has_one_line_in_fstab() -> None:
    entry = "10.0.1.9:/mnt/home /mnt/home nfs defaults 0 0"
    first = gpucluster_mount.with_entry("# <source> /mnt/home\nUUID=1 / ext4 defaults 0 1\n", "/mnt/home", entry)
    assert first == f"# <source> /mnt/home\nUUID=1 / ext4 defaults 0 1\n{entry}\n"
    assert gpucluster_mount.with_entry(first, "/mnt/home", entry) == first
    moved = entry.replace("10.0.1.9", "10.0.1.10")
    assert gpucluster_mount.with_entry(first + entry + "\n", "/mnt/home", moved).count("/mnt/home nfs") == 1


@pytest.mark.parametrize("check_mode", [False, True])
def test_selinux_booleans_are_switched_on_for_good(check_mode: bool) -> None:
    ran: list[list[str]] = []
    params = {
        "source": "a:/b", "path": "/c", "fstype": "nfs", "options": "ro", "selinux_booleans": ["use_nfs_home_dirs"]
    }  # fmt: skip
    module = SimpleNamespace(
        params=params, check_mode=check_mode, run_command=lambda argv, *, check_rc: ran.append([*argv, str(check_rc)])
    )
    assert gpucluster_mount.Mount(module, params).switch_on()
    assert ran == ([] if check_mode else [["setsebool", "-P", "use_nfs_home_dirs", "on", "True"]])
    module.params["selinux_booleans"] = []
    assert not gpucluster_mount.Mount(module, params).switch_on()


SHARE = {
    "name": "data", "server": "10.0.1.9", "export_path": "/data", "mount_path": "/mnt/data", "read_only": False,
    "created": True, "groups": ["controller"],
}  # fmt: skip


class SharesOfAHost:
    """A host whose `mount` and `umount` change a list of its mounts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fstab, self.mountinfo = folder / "fstab", folder / "mountinfo"
        self.top, self.ran = folder / "mnt" / "data", list[list[str]]()
        self.fstab.write_text("UUID=1 / ext4 defaults 0 1\n")
        self.mountinfo.write_text(MOUNTINFO)
        monkeypatch.setattr(gpucluster_mount, "FSTAB", self.fstab)
        monkeypatch.setattr(gpucluster_mount, "MOUNTINFO", self.mountinfo)

    def keep(self, *shares: dict[str, object], check_mode: bool = False) -> bool:
        """Run the module with these further shares, at a place that may be written."""
        self.ran.clear()
        placed = [
            {**share, "mount_path": str(self.top.parent / Path(str(share["mount_path"])).name)} for share in shares
        ]
        params = {"fstype": "nfs", "options": "hard", "shares": placed}
        module = SimpleNamespace(params=params, check_mode=check_mode, run_command=self._run, fail_json=_fail)
        changed: bool = gpucluster_mount.keep_further(module)
        return changed

    def _run(self, argv: list[str], *, check_rc: bool = False) -> tuple[int, str, str]:
        self.ran.append(argv)
        path, rows = argv[-1], self.mountinfo.read_text().splitlines(keepends=True)
        if argv[0] == "mount":
            entry = next(line.split() for line in self.fstab.read_text().splitlines() if line.split()[1] == path)
            rows.append(f"40 22 0:46 / {path} rw - nfs {entry[0]} rw\n")
        if argv[0] == "umount":
            rows = [row for row in rows if f" {path} " not in row]
        self.mountinfo.write_text("".join(rows))
        return 0, "", ""


def _fail(*, msg: str) -> None:
    raise RuntimeError(msg)


@pytest.fixture
def shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharesOfAHost:
    """A host with the home share and no further one."""
    return SharesOfAHost(tmp_path, monkeypatch)


def test_a_further_share_is_mounted_and_nothing_is_to_do_afterwards(shares: SharesOfAHost) -> None:
    assert shares.keep(SHARE)
    line = f"10.0.1.9:/data {shares.top} nfs hard,x-gpucluster.share=data 0 0"
    assert shares.fstab.read_text() == f"UUID=1 / ext4 defaults 0 1\n{line}\n"
    assert not shares.keep(SHARE)
    assert shares.ran == []


def test_a_share_at_another_server_or_with_other_access_is_mounted_again(shares: SharesOfAHost) -> None:
    shares.keep(SHARE)
    assert shares.keep({**SHARE, "server": "10.0.1.10", "read_only": True})
    assert f"10.0.1.10:/data {shares.top} nfs hard,ro,x-gpucluster.share=data 0 0" in shares.fstab.read_text()
    assert [argv[0] for argv in shares.ran] == ["systemctl", "umount", "mount"]


def test_what_somebody_else_has_mounted_there_stays_and_is_an_error(shares: SharesOfAHost) -> None:
    shares.mountinfo.write_text(f"{MOUNTINFO}40 22 0:46 / {shares.top} rw - nfs 10.9.9.9:/theirs rw\n")
    with pytest.raises(RuntimeError, match=r"10\.9\.9\.9:/theirs is mounted there instead"):
        shares.keep(SHARE)
    assert "umount" not in [argv[0] for argv in shares.ran]


def test_a_share_that_left_is_unmounted_and_other_lines_stay(shares: SharesOfAHost) -> None:
    shares.keep(SHARE, {**SHARE, "name": "more", "mount_path": "/mnt/more", "export_path": "/more"})
    assert shares.keep({**SHARE, "name": "more", "mount_path": "/mnt/more", "export_path": "/more"})
    assert ["umount", "--lazy", "--no-canonicalize", str(shares.top)] in shares.ran
    assert not shares.top.exists()
    assert shares.fstab.read_text().count("x-gpucluster.share") == 1
    assert shares.keep()
    assert shares.fstab.read_text() == "UUID=1 / ext4 defaults 0 1\n"
    assert not shares.keep()


def test_without_a_change_nothing_is_written_and_in_check_mode_nothing_is_done(shares: SharesOfAHost) -> None:
    assert shares.keep(SHARE, check_mode=True)
    assert shares.ran == []
    assert shares.fstab.read_text() == "UUID=1 / ext4 defaults 0 1\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="the top directory of a share belongs to root")
def test_every_user_may_write_into_a_new_share_until_somebody_sets_its_mode(shares: SharesOfAHost) -> None:
    shares.top.mkdir(parents=True, mode=0o755)
    (shares.top / ".snapshot").mkdir()
    shares.keep({**SHARE, "created": False})
    assert shares.top.stat().st_mode & 0o7777 == 0o755
    assert shares.keep(SHARE)
    assert shares.top.stat().st_mode & 0o7777 == 0o1777
    shares.top.chmod(0o770)
    assert not shares.keep(SHARE)
    shares.top.chmod(0o755)
    (shares.top / "dataset").write_text("")
    assert not shares.keep(SHARE)


def test_the_host_name_is_that_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server may have asked for it before it was changed, and platform.node() remembers the answer."""
    platform.node()
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="renamed", machine="x", release="y"))
    assert gpucluster_host.facts("root", "key")["hostname"] == "renamed"


def test_the_agent_is_known_by_its_checksum_only_if_it_can_be_trusted(tmp_path: Path) -> None:
    program = tmp_path / "agent"
    assert gpucluster_host.program_checksum(program) == ""
    program.write_text("agent")
    program.chmod(0o755)
    expected = hashlib.sha256(b"agent").hexdigest() if os.geteuid() == 0 else ""
    assert gpucluster_host.program_checksum(program) == expected
    program.chmod(0o777)
    assert gpucluster_host.program_checksum(program) == ""
