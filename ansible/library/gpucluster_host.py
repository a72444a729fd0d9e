#!/usr/bin/python3
"""What the roles must know of a host before they touch it, in one cheap task."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: gpucluster_host
short_description: Facts about a host that the roles decide by
description:
  - Sets the fact C(gpucluster_host). It replaces C(setup), which costs four times as much and does not know what a
    container may do.
options:
  user:
    description: The login user whose home directory is looked up.
    type: str
    required: true
  key:
    description: A public key whose text is wanted, relative to that home directory.
    type: str
    required: true
  packages:
    description: For each system, as C(Debian-13), lists of packages by purpose.
    type: dict
    required: true
  purposes:
    description: The lists that this host needs. A host without a time service gets the list C(time) as well.
    type: list
    elements: str
    required: true
author: gpucluster
"""

EXAMPLES = """
- name: Look at the host
  gpucluster_host:
    user: debian
    key: .ssh/gpucluster.pub
    packages: {Debian-13: {every_host: [munge], compute: [slurmd]}}
    purposes: [every_host, compute]
"""

RETURN = """
ansible_facts:
  description: One fact, C(gpucluster_host).
  returned: always
  type: dict
"""

CAP_SYS_TIME, CAP_SYS_RESOURCE = 25, 24
DISTRIBUTIONS = {"debian": "Debian", "ubuntu": "Ubuntu", "ol": "OracleLinux"}
TIME_SERVICES = ("chrony", "chronyd", "ntpsec", "systemd-timesyncd")
FIREWALLS = ("firewalld", "ufw", "netfilter-persistent", "nftables")
UNIT_DIRECTORIES = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
SYSCTLS, APPARMOR = Path("/proc/sys"), Path("/etc/apparmor.d")
# What lets people make user namespaces, where a system has the setting: the least that it may be, and what it becomes
# where it is less. A limit of 1 is none: a container starts others.
NAMESPACE_SYSCTLS = {
    "user.max_user_namespaces": (2, 65536),
    "user.max_mnt_namespaces": (2, 65536),
    "kernel.unprivileged_userns_clone": (1, 1),
}
CGROUP = Path("/sys/fs/cgroup")
CLASSES = Path("/sys/class")
# SELinux's switch for homes on a share; there is none without SELinux.
NFS_HOMES = Path("/sys/fs/selinux/booleans/use_nfs_home_dirs")
# One file for each runtime of containers that its role has set up.
RUNTIMES = Path("/etc/gpucluster/runtimes")
PLUGSTACK = Path("/etc/slurm/plugstack.conf")
# What people mount an image with, and the packages that bring it.
MOUNTERS = {"squashfuse": "squashfuse", "fusermount3": "fuse3"}
# What Slurm's cgroup plugins need to bind and to limit.
CGROUP_NEEDS = frozenset({"cpuset", "memory"})


def read(path: str | Path) -> str:
    """The text of a file, empty where there is none."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def system(os_release: str) -> str:
    """Name and major version, spelled as the files of vars/os are."""
    pairs = (line.split("=", 1) for line in os_release.splitlines() if "=" in line)
    found = {key: value.strip("\"'") for key, value in pairs}
    name = DISTRIBUTIONS.get(found.get("ID", ""), found.get("ID", "unknown"))
    return f"{name}-{found.get('VERSION_ID', '').partition('.')[0]}"


def cgroup(in_container: bool) -> dict[str, Any]:
    """Which controllers there are, and whether Slurm may use them.

    A container sees the version 1 hierarchies of the machine below, but they are not its own.
    """
    unified = read(CGROUP / "cgroup.controllers").split()
    if unified or (CGROUP / "cgroup.controllers").exists():
        return {"version": 2, "controllers": unified, "usable": set(unified) >= CGROUP_NEEDS}
    controllers = sorted(entry.name for entry in CGROUP.iterdir()) if CGROUP.is_dir() else []
    return {
        "version": 1,
        "controllers": controllers,
        "usable": not in_container and set(controllers) >= CGROUP_NEEDS | {"freezer", "devices"},
    }


def capabilities() -> set[int]:
    """Numbers of the effective capabilities of root on this host."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", read("/proc/self/status"), re.MULTILINE)
    mask = int(found.group(1), 16) if found else 0
    return {bit for bit in range(64) if mask >> bit & 1}


def hard_limit(kind: int) -> int | None:
    """The hard limit, None for unlimited."""
    limit = resource.getrlimit(kind)[1]
    return None if limit == resource.RLIM_INFINITY else limit


def has_unit(name: str) -> bool:
    """Whether systemd has a unit file of this service."""
    return any(Path(directory, f"{name}.service").is_file() for directory in UNIT_DIRECTORIES)


def starts_at_boot(name: str) -> bool:
    """Whether something wants this service; user data turns a firewall off that an image brings."""
    return any(any(Path(directory).glob(f"*.wants/{name}.service")) for directory in UNIT_DIRECTORIES)


def host_keys() -> list[str]:
    """The public host keys, as `type key`."""
    files = sorted(Path("/etc/ssh").glob("ssh_host_*_key.pub"))
    return [" ".join(read(file).split()[:2]) for file in files if read(file)]


def missing_packages(wanted: list[str]) -> list[str]:
    """Those that are not installed."""
    status = Path("/var/lib/dpkg/status")
    if status.is_file():
        stanzas = re.findall(r"^Package: (\S+)\nStatus: \S+ \S+ installed$", read(status), re.MULTILINE)
        return sorted(set(wanted) - set(stanzas))
    return [
        name
        for name in wanted
        if subprocess.run(["rpm", "--query", "--quiet", "--whatprovides", name], check=False).returncode != 0
    ]


def slurm_version() -> str:
    """The version of the daemon that is installed, empty if there is none."""
    program = next((path for path in map(shutil.which, ("slurmctld", "slurmd")) if path), None)
    if not program:
        return ""
    said = subprocess.run([program, "-V"], capture_output=True, text=True, check=False).stdout.split()
    return said[-1] if said else ""


def container_demand(plugstack: str) -> str:
    """The line by which Slurm demands its plugin for containers of every host, empty where it does not."""
    lines = (line.strip() for line in plugstack.splitlines())
    return next((line for line in lines if line.startswith("required ") and "/spank_pyxis.so" in line), "")


def mounts_images(wanted: list[str], missing: list[str]) -> bool:
    """Whether people can mount an image.

    Args:
        wanted: the packages of this host. Where it is to have none of those that it takes, the device alone decides.
        missing: those of them that are installed in a moment.
    """
    programs = [name for name, package in MOUNTERS.items() if package in wanted and package not in missing]
    return Path("/dev/fuse").is_char_device() and all(map(shutil.which, programs))


def user_namespaces(command_line: str) -> dict[str, Any]:
    """Whether people may make user namespaces, as containers without root need them, and what is in the way.

    Args:
        command_line: of the kernel.
    """
    found = {name: read(SYSCTLS / name.replace(".", "/")) for name in NAMESPACE_SYSCTLS}
    options = re.findall(r"(?<!\S)(?:user_namespace\.enable|namespace\.unpriv_enable)=0(?!\S)", command_line)
    restricts = (SYSCTLS / "kernel/apparmor_restrict_unprivileged_userns").exists()
    old = (APPARMOR / "abi").is_dir() and not (APPARMOR / "abi/4.0").exists()
    return {
        "supported": bool(found["user.max_user_namespaces"]),
        "boot_option": options[0] if options else "",
        # Settings that are too low, with the value that they need.
        "sysctls": {
            name: wanted
            for name, (least, wanted) in NAMESPACE_SYSCTLS.items()
            if found[name].isdigit() and int(found[name]) < least
        },
        # `restricts`: only programs with a profile may. `old`: it does not know the rules of such a profile.
        "apparmor": "restricts" if restricts else "old" if old else "",
    }


def facts(user: str, key: str) -> dict[str, Any]:
    """All of it."""
    home = os.path.expanduser(f"~{user}")
    container = read("/run/systemd/container")
    rights = capabilities()
    return {
        "hostname": platform.node(),
        "system": system(read("/etc/os-release")),
        "kernel": platform.release(),
        "container": container,
        "memory_mib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20,
        "cgroup": cgroup(bool(container)),
        "can_raise_limits": CAP_SYS_RESOURCE in rights,
        "can_set_time": CAP_SYS_TIME in rights and not container,
        "hard_limits": {
            "nofile": hard_limit(resource.RLIMIT_NOFILE),
            "memlock": hard_limit(resource.RLIMIT_MEMLOCK),
        },
        "time_service": next((name for name in TIME_SERVICES if has_unit(name)), ""),
        "firewalls": [name for name in FIREWALLS if has_unit(name) and starts_at_boot(name)],
        # As far as their modules are loaded.
        "rdma_classes": sorted(path.parent.name for path in CLASSES.glob("infiniband_*/abi_version")),
        "ssh_host_keys": host_keys(),
        "slurm_version": slurm_version(),
        "autoscaler": has_unit("gpucluster-autoscaler"),
        # What this cluster has put here; what an image brought is nobody's.
        "runtimes": sorted(path.name for path in RUNTIMES.iterdir()) if RUNTIMES.is_dir() else [],
        "container_demand": container_demand(read(PLUGSTACK)),
        "software": has_unit("gpucluster-software"),
        "user_namespaces": user_namespaces(read("/proc/cmdline")),
        # The kernel tells what counts now, and what was asked for.
        "nfs_homes_denied": read(NFS_HOMES).startswith("0"),
        "user_home": home,
        "cluster_key": read(f"{home}/{key}"),
    }


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "user": {"type": "str", "required": True},
            "key": {"type": "str", "required": True, "no_log": False},
            "packages": {"type": "dict", "required": True},
            "purposes": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )
    user = module.params["user"]
    found = facts(user, module.params["key"])
    lists = module.params["packages"].get(found["system"])
    if lists is None:
        module.fail_json(
            msg=f"{found['system']} is none of {', '.join(module.params['packages'])}; choose an image of one of these "
            "or describe this system in vars/packages.yml and vars/os"
        )
    for_time = ["time"] if found["can_set_time"] and not found["time_service"] else []
    wanted = [name for kind in (*module.params["purposes"], *for_time) for name in lists[kind]]
    found["missing_packages"] = missing_packages(wanted)
    found["fuse"] = mounts_images(wanted, found["missing_packages"])
    # ~ of an unknown user stays as it is.
    if found["user_home"].startswith("~"):
        module.fail_json(msg=f"there is no user {user} on this host; set ansible_user to the image's login user")
    module.exit_json(changed=False, ansible_facts={"gpucluster_host": found})


if __name__ == "__main__":
    main()
