"""The facts of a host that the roles need before they change it, and that a later run compares.

Without Ansible's library: `gpucluster apply` sends this file to hosts, to learn whether they are as it left them.
"""

from __future__ import annotations

import grp
import hashlib
import json
import os
import platform
import pwd
import re
import resource
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.gpucluster_gpus import survey

PROGRAM_MODE = 0o755
CAP_SYS_TIME, CAP_SYS_RESOURCE = 25, 24
DISTRIBUTIONS = {"debian": "Debian", "ubuntu": "Ubuntu", "ol": "OracleLinux"}
TIME_SERVICES = ("chrony", "chronyd", "ntpsec", "systemd-timesyncd")
UNIT_DIRECTORIES = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
# The host's resolvers: what all programs read, and behind systemd-resolved's address on the loopback device.
RESOLVER, RESOLVED = Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf")
SYSCTLS, APPARMOR = Path("/proc/sys"), Path("/etc/apparmor.d")
# Settings that let users create user namespaces: the minimum, and the value that is set below it. A limit of 1 is not
# enough: a container creates nested namespaces.
NAMESPACE_SYSCTLS = {
    "user.max_user_namespaces": (2, 65536),
    "user.max_mnt_namespaces": (2, 65536),
    "kernel.unprivileged_userns_clone": (1, 1),
}
ROUTE_UP = 1  # RTF_UP of linux/route.h
CGROUP = Path("/sys/fs/cgroup")
CLASSES = Path("/sys/class")
# SELinux boolean for homes on a share; missing without SELinux.
NFS_HOMES = Path("/sys/fs/selinux/booleans/use_nfs_home_dirs")
SITE = Path("/etc/gpucluster/site")
# One marker file for each container runtime that a role has installed.
RUNTIMES = Path("/etc/gpucluster/runtimes")
SLURM_PACKAGES = Path("/etc/gpucluster/slurm-packages")
SSH_AUTHORITY = Path("/etc/gpucluster/authority/ssh_ca.pub")
# https://docs.cloud-init.io/en/latest/explanation/instancedata.html
INSTANCE_DATA = Path("/run/cloud-init/instance-data.json")
# Of /etc/passwd; users have ids from 1000 to 65533 on every system.
PASSWD_COLONS, FIRST_UID, NOBODY = 6, 1000, 65534
SLURM_LIMITS = Path("/etc/gpucluster/slurm-limits")
SLURM_ACCOUNTS = Path("/var/lib/gpucluster-directory/slurm-accounts.json")
SLURM_CONF = Path("/etc/slurm/slurm.conf")
SLURMRESTD = Path("/usr/sbin/slurmrestd")
SLURM_REST = Path("/etc/gpucluster/rest")
PLUGSTACK = Path("/etc/slurm/plugstack.conf")
# PAM's module, by the directories of Debian's packages, those of the release's own recipe, and Enterprise Linux.
ADOPT = ("lib/security", "usr/lib/*/security", "usr/lib64/security")
# Programs that mount an image, and their packages.
MOUNTERS = {"squashfuse": "squashfuse", "fusermount3": "fuse3"}
# The metadata service of OCI, and the members of its document of the host that state the place in an RDMA network.
METADATA, METADATA_SECONDS, METADATA_BYTES = ("169.254.169.254", 80), 3, 1 << 16
PLACE = ("networkBlockId", "rackId", "rdmaTopologyData")
# Controllers that Slurm's cgroup plugins need for binding and limits.
CGROUP_NEEDS = frozenset({"cpuset", "memory"})


def read(path: str | Path) -> str:
    """The text of a file, empty if it does not exist."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def default_interface(routes: str) -> str:
    """The network interface of the default route, from the text of /proc/net/route; empty without one.

    Its name depends on the image: eth0 on Oracle's HPC images, ens3 or enp0s6 on others.
    """
    found = []
    for line in routes.splitlines()[1:]:
        name, destination, _gateway, flags, _references, _use, metric, mask, *_ = line.split()
        if destination == mask == "00000000" and int(flags, 16) & ROUTE_UP:
            found.append((int(metric), name))
    return min(found)[1] if found else ""


def resolver() -> str:
    """The file with the name servers that a pod can ask: the loopback device of the host is not its own."""
    servers = re.findall(r"^\s*nameserver\s+(\S+)", read(RESOLVER), re.MULTILINE)
    return str(RESOLVED if RESOLVED.is_file() and all(each.startswith("127.") for each in servers) else RESOLVER)


def launch_keys(instance_data: str) -> list[str]:
    """The keys that the cloud gives the login user of this instance, as `type key`: those of its launch, for ever.

    Args:
        instance_data: cloud-init's record of the instance, which it writes at each boot.
    """
    try:
        keys = json.loads(instance_data)["v1"]["public_ssh_keys"]
    except (ValueError, KeyError, TypeError):
        return []
    return sorted({" ".join(str(key).split()[:2]) for key in keys or ()})


def system(os_release: str) -> str:
    """Name and major version, as in the file names of vars/os."""
    pairs = (line.split("=", 1) for line in os_release.splitlines() if "=" in line)
    found = {key: value.strip("\"'") for key, value in pairs}
    name = DISTRIBUTIONS.get(found.get("ID", ""), found.get("ID", "unknown"))
    return f"{name}-{found.get('VERSION_ID', '').partition('.')[0]}"


def cgroup(in_container: bool) -> dict[str, Any]:
    """The available controllers, and whether Slurm can use them.

    A container sees the cgroup v1 hierarchies of its host, but can't use them.
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


def host_keys() -> list[str]:
    """The public host keys, as `type key`."""
    files = sorted(Path("/etc/ssh").glob("ssh_host_*_key.pub"))
    return [" ".join(read(file).split()[:2]) for file in files if read(file)]


def local_users(passwd: str) -> list[str]:
    """Users of this host's own database who can log in: root, and those of the image or of an administrator."""
    accounts = [line.split(":") for line in passwd.splitlines() if line.count(":") == PASSWD_COLONS]
    shells = ("/nologin", "/false", "/sync", "/halt", "/shutdown")
    return [
        name
        for name, _password, uid, _gid, _gecos, _home, shell in accounts
        if uid.isdigit() and (int(uid) == 0 or FIRST_UID <= int(uid) < NOBODY) and not shell.endswith(shells)
    ]


def missing_packages(wanted: list[str]) -> list[str]:
    """The packages that are not installed."""
    status = Path("/var/lib/dpkg/status")
    if status.is_file():
        stanzas = re.findall(r"^Package: (\S+)\nStatus: \S+ \S+ installed$", read(status), re.MULTILINE)
        return sorted(set(wanted) - set(stanzas))
    return [
        name
        for name in wanted
        if subprocess.run(["rpm", "--query", "--quiet", "--whatprovides", name], check=False).returncode != 0
    ]


def group_of(user: str) -> str:
    """The name of a user's primary group; empty if there is no such user."""
    try:
        return grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name
    except KeyError:
        return ""


def slurm_version() -> str:
    """The version of the installed daemon, or on a login node of the commands; empty if there are none.

    An image may have the commands: only with a configuration they are those of a login node.
    """
    commands = ["sinfo"] if SLURM_CONF.exists() else []
    program = next((path for path in map(shutil.which, ("slurmctld", "slurmd", *commands)) if path), None)
    if not program:
        return ""
    output = subprocess.run([program, "-V"], capture_output=True, text=True, check=False).stdout.split()
    return output[-1] if output else ""


def program_checksum(path: Path) -> str:
    """The SHA-256 of a program, empty if it is not one that all may run and only root may change."""
    try:
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode) or stat.S_IMODE(state.st_mode) != PROGRAM_MODE or state.st_uid != 0:
            return ""
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def container_demand(plugstack: str) -> str:
    """The line of plugstack.conf that requires the container plugin, empty if there is none."""
    lines = (line.strip() for line in plugstack.splitlines())
    return next((line for line in lines if line.startswith("required ") and "/spank_pyxis.so" in line), "")


def mounts_images(wanted: list[str], missing: list[str]) -> bool:
    """Whether users can mount an image.

    Args:
        wanted: the packages of this host. If it needs none of the mount programs, only the device decides.
        missing: those of them that this run will install.
    """
    programs = [name for name, package in MOUNTERS.items() if package in wanted and package not in missing]
    return Path("/dev/fuse").is_char_device() and all(map(shutil.which, programs))


def user_namespaces(command_line: str) -> dict[str, Any]:
    """Whether users can create user namespaces, which rootless containers need, and what prevents it.

    Args:
        command_line: command line of the kernel.
    """
    found = {name: read(SYSCTLS / name.replace(".", "/")) for name in NAMESPACE_SYSCTLS}
    options = re.findall(r"(?<!\S)(?:user_namespace\.enable|namespace\.unpriv_enable)=0(?!\S)", command_line)
    restricts = (SYSCTLS / "kernel/apparmor_restrict_unprivileged_userns").exists()
    old = (APPARMOR / "abi").is_dir() and not (APPARMOR / "abi/4.0").exists()
    return {
        "supported": bool(found["user.max_user_namespaces"]),
        "boot_option": options[0] if options else "",
        # Settings that are too low, with the value to set.
        "sysctls": {
            name: wanted
            for name, (least, wanted) in NAMESPACE_SYSCTLS.items()
            if found[name].isdigit() and int(found[name]) < least
        },
        # `restricts`: only programs with a profile may. `old`: it can't parse the rules of such a profile.
        "apparmor": "restricts" if restricts else "old" if old else "",
    }


def facts(user: str, key: str) -> dict[str, Any]:
    """All facts."""
    home = os.path.expanduser(f"~{user}")
    container = read("/run/systemd/container")
    rights = capabilities()
    return {
        # platform.node() answers with the name of when this process, or the one that it was forked from, first asked.
        "hostname": os.uname().nodename,
        "system": system(read("/etc/os-release")),
        "machine": platform.machine(),
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
        "nvidia_gpus": len(survey(Path("/"), platform.release(), {}).gpus),
        "time_service": next((name for name in TIME_SERVICES if has_unit(name)), ""),
        # Only classes whose modules are loaded.
        "rdma_classes": sorted(path.parent.name for path in CLASSES.glob("infiniband_*/abi_version")),
        "default_interface": default_interface(read("/proc/net/route")),
        "resolver": resolver(),
        "ssh_host_keys": host_keys(),
        # Of the cluster's own CA for host keys; only the controller has it.
        "ssh_authority": " ".join(read(SSH_AUTHORITY).split()[:2]),
        "local_users": local_users(read(Path("/etc/passwd"))),
        "slurm_version": slurm_version(),
        # The controller of a cluster; an image may have the packages already.
        "slurm_configured": SLURM_CONF.exists(),
        # The checksum of the archive whose packages of Slurm are installed; empty for those of the distribution.
        "slurm_packages": read(SLURM_PACKAGES),
        "slurm_adopt": any(any(Path("/").glob(f"{place}/pam_slurm_adopt.so")) for place in ADOPT),
        # The program of the REST API is installed; the role slurm has configured it.
        "slurmrestd": SLURMRESTD.exists(),
        "slurm_rest": SLURM_REST.exists(),
        # Limits of users that the role slurm has set.
        "slurm_limits": SLURM_LIMITS.exists(),
        # Accounts and QOS of cluster.yml that it has made.
        "slurm_accounts": SLURM_ACCOUNTS.exists(),
        "autoscaler": has_unit("gpucluster-autoscaler"),
        "maintenance": has_unit("gpucluster-maintenance"),
        "failover": has_unit("gpucluster-failover"),
        "health": has_unit("gpucluster-health"),
        "exporters": has_unit("gpucluster-exporter"),
        "backups": has_unit("gpucluster-backup"),
        # The role people has installed the timer that looks for drift.
        "drift": has_unit("gpucluster-drift"),
        # And the one that keeps the journals of all hosts.
        "logs": has_unit("gpucluster-logs"),
        # GPUs of this host have been divided by the role mig.
        "mig": has_unit("gpucluster-mig"),
        "grafana": has_unit("gpucluster-grafana"),
        "monitoring": has_unit("gpucluster-monitor"),
        # Runtimes that the roles installed; those of an image are not in it.
        "runtimes": sorted(path.name for path in RUNTIMES.iterdir()) if RUNTIMES.is_dir() else [],
        "container_demand": container_demand(read(PLUGSTACK)),
        "software": has_unit("gpucluster-software"),
        # Whether the role base has configured certificates or a proxy of the site.
        "site": SITE.exists(),
        "user_namespaces": user_namespaces(read("/proc/cmdline")),
        # The kernel reports the current and the pending value.
        "nfs_homes_denied": read(NFS_HOMES).startswith("0"),
        "launch_keys": launch_keys(read(INSTANCE_DATA)),
        "user_home": home,
        "user_group": group_of(user),
        # While it is rotated, hosts accept the next one, too: gpucluster/controller/controller_key.
        "cluster_key": "\n".join(filter(None, map(read, (f"{home}/{key}", f"{home}/{key[: -len('.pub')]}.next.pub")))),
    }


def rdma_host() -> dict[str, Any]:
    """What OCI's metadata service reports of the place of this host in its RDMA network; empty where that is nothing.

    `gpucluster.node_agent.rules.rdma_place` reads it.
    """
    # Here, because most hosts do not need it, and it takes longer to load than everything else.
    import http.client

    connection = http.client.HTTPConnection(*METADATA, timeout=METADATA_SECONDS)
    try:
        connection.request("GET", "/opc/v2/host/", headers={"Authorization": "Bearer Oracle"})
        answer = connection.getresponse()
        document = json.loads(answer.read(METADATA_BYTES)) if answer.status == http.client.OK else {}
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return {name: document[name] for name in PLACE if document.get(name)} if isinstance(document, dict) else {}


class UnsuitableHost(Exception):
    """The host can't be configured: its system is not supported, or it has no such login user."""


def wanted_packages(asked: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The packages that a host of this kind has.

    Args:
        asked: see `collected`. `found`: the facts of the host.

    Raises:
        UnsuitableHost: its system is not supported.
    """
    lists = asked["packages"].get(found["system"])
    if lists is None:
        raise UnsuitableHost(
            f"{found['system']} is not supported; choose an image of {', '.join(asked['packages'])}, "
            "or add this system to group_vars/all/packages.yml and vars/os"
        )
    for_time = ["time"] if found["can_set_time"] and not found["time_service"] else []
    return [name for kind in (*asked["purposes"], *for_time) for name in lists[kind]]


def collected(asked: Mapping[str, Any]) -> dict[str, Any]:
    """All facts, and those that depend on what this cluster wants of the host.

    Args:
        asked: `user`, the login user; `key`, the path of a public key below that user's home directory; `agent`, the
            path of the agent; `packages`, lists of packages by system and purpose; `purposes` of this host; `rdma`,
            whether it is in an RDMA network.

    Raises:
        UnsuitableHost: see there.
    """
    found = facts(asked["user"], asked["key"])
    wanted = wanted_packages(asked, found)
    found["agent"] = program_checksum(Path(asked["agent"]))
    found["missing_packages"] = missing_packages(wanted)
    found["fuse"] = mounts_images(wanted, found["missing_packages"])
    if asked.get("rdma"):
        found["rdma_host"] = rdma_host()
    # expanduser does not change the ~ of an unknown user.
    if found["user_home"].startswith("~"):
        raise UnsuitableHost(
            f"there is no user {asked['user']} on this host; set ansible_user to the image's login user"
        )
    return found
