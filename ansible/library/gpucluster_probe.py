#!/usr/bin/python
"""The facts of a host for verify.yml; gpucluster/verdict/ judges them.

Instead of plain tasks: about thirty `command`, `stat` and `slurp` tasks on each host in each `verify`, each of which
costs as much as this one does (docs/adr/0028-cost-of-a-task.md).
"""

from __future__ import annotations

import grp
import hashlib
import json
import os
import pwd
import re
import shlex
import shutil
import socket
import stat
import time
import urllib.request
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: gpucluster_probe
short_description: Collect facts inside a host
description:
  - Collects facts, and evaluates none of them. It fails only if it can't collect them.
options:
  home_path: {description: Mount point of the home directories; not set if nothing is shared., type: path}
  token_file: {description: A file that the controller has written to the share., type: path}
  token: {description: Its content., type: str}
  users: {description: "Names of users to look up, when they can be resolved.", type: list, elements: str, default: []}
  mesh:
    description: Log in to another host by ssh, as a user; for clusters without Slurm.
    type: dict
    suboptions:
      user: {description: The user whose key is used., type: str, required: true}
      next: {description: The other host., type: str, required: true}
  access: {description: Whether to read which groups the ssh server lets in., type: bool, default: false}
  slurm: {description: Whether to try Slurm's commands., type: bool, default: false}
  versions: {description: "Path of gpucluster-agent, to ask it which versions the host has.", type: path}
  checks:
    description: Run the host's own checks.
    type: dict
    suboptions:
      program: {description: Path of gpucluster-agent., type: path, required: true}
      profile: {description: Which checks., type: str, required: true}
      seconds: {description: How long they may take., type: int, required: true}
      alone: {description: Do not run them while a step of a job runs., type: bool, default: false}
author: gpucluster
"""

EXAMPLES = """
- name: Collect facts of the host
  gpucluster_probe:
    home_path: /mnt/home
    token_file: /mnt/home/.gpucluster/token
    token: "123"
"""

RETURN = """
ansible_facts:
  description: >-
    One fact, C(gpucluster_facts): hostname, user_ids, user_groups; home_fs and home_token_seen with a share; mesh,
    ssh_groups, slurm_error, versions and agent_check if asked for; local_disk and rdma_addresses if user data wants
    them; cloud_services, what a user without rights reaches of them, and what root does; physical_host, the cloud's id
    of its physical host; certificates and secrets of a host that has made them.
  returned: always
  type: dict
"""

# The settings of user data for this host, and the results of its scripts: see gpucluster/handover/user_data.py.
NODE_DATA = Path("/etc/gpucluster/node.conf")
OUTCOMES = Path("/run/gpucluster")
BLOCK_DEVICES = Path("/sys/class/block")
# What only the controller has, for Terraform's state: certificates of its CAs, and its secrets.
CERTIFICATES = {
    "directory": Path("/etc/gpucluster/authority/ca.pem"),
    "ssh": Path("/etc/gpucluster/authority/ssh_ca.pub"),
}
SECRETS = {"munge": Path("/etc/gpucluster/munge.key")}
# What of the cloud's own services no user may reach: the identity of the instance, and its boot volume.
CLOUD_SERVICES = {"metadata": ("169.254.169.254", 80), "boot volume": ("169.254.0.2", 3260)}
# What an instance learns of its physical host: a document of some hundred bytes.
HOST_URL = "http://169.254.169.254/opc/v2/host/"
HOST_BYTES = 1 << 16
NOBODY = 65534
CONNECT_SECONDS = 3
# NFS may show an old listing of a directory for a moment.
TOKEN_SECONDS = 10.0
SSH_SECONDS = 10
SLURM_SECONDS = 20
VERSIONS_SECONDS = 20
# SSSD caches for a while that a new user did not exist a moment ago, or that the server did not answer.
USERS_SECONDS = 40.0
# A report of checks has a few hundred bytes a check. What is longer is cut off, and with it no report.
REPORT_BYTES = 1 << 20
ERROR_BYTES = 1 << 12
# A program that does not end in time is told to, and killed after so many seconds.
KILL_SECONDS = 5


def unescape(field: str) -> str:
    """Undo the octal escapes of mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), field)


def home_fs(mountinfo: str, path: str) -> dict[str, Any]:
    """The file system that is mounted at the path."""
    found: dict[str, Any] = {"source": "", "fstype": "", "mounted": False}
    for line in mountinfo.splitlines():
        fields, _dash, rest = line.partition(" - ")
        if unescape(fields.split()[4]) == path:
            fstype, source = rest.split()[:2]
            found = {"source": unescape(source), "fstype": fstype, "mounted": True}
    return found


def node_data(text: str) -> dict[str, str]:
    """The shell assignments in the file."""
    pairs = (word.partition("=") for word in shlex.split(text, comments=True))
    return {name: value for name, equals, value in pairs if equals}


def read(path: Path) -> str:
    """The text of a file, empty if it does not exist."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def generation(secret: bytes) -> str:
    """Another one for another secret. The secrets are random and long, so trying does not find them."""
    return hashlib.sha256(secret).hexdigest()[:12]


def outcome(name: str) -> dict[str, str]:
    """The result of a script of user data; no state if it has not ended."""
    state, _newline, words = read(OUTCOMES / name).strip().partition("\n")
    return {"state": state, "words": words}


def drives_below(source: str) -> int:
    """The number of block devices of a file system: one, or those of a volume over several."""
    name = os.path.basename(os.path.realpath(source))
    try:
        return len(os.listdir(BLOCK_DEVICES / name / "slaves")) or 1
    except OSError:
        return 1


def local_disk(mountinfo: str, data: dict[str, str]) -> dict[str, Any] | None:
    """The file system on the local drives, None if none is configured."""
    path = data.get("local_disk_mount_path")
    if not path:
        return None
    found: dict[str, Any] = {"path": path, **home_fs(mountinfo, path), **outcome("local-disk"), "drives": 0, "bytes": 0}
    if found["mounted"]:
        size = os.statvfs(path)
        found.update({"drives": drives_below(found["source"]), "bytes": size.f_blocks * size.f_frsize})
    return found


def short_text(file: Path) -> str:
    """The begin of a regular file on the share, where root of another host may have put a link or a pipe."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return os.read(descriptor, 1024).decode(errors="replace").strip() if regular else ""
    finally:
        os.close(descriptor)


def sees(file: Path, token: str) -> bool:
    """Whether the file appears with this content."""
    until = time.monotonic() + TOKEN_SECONDS
    while True:
        try:
            # A listing asks the server; a lookup may be answered from a cache.
            os.listdir(file.parent)
            if short_text(file) == token:
                return True
        except OSError:
            pass  # not there yet, or missing
        if time.monotonic() > until:
            return False
        time.sleep(0.5)


def ids(name: str) -> str:
    """`uid:gid` as this host resolves it, empty for an unknown user."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return ""
    return f"{entry.pw_uid}:{entry.pw_gid}"


def await_users(names: list[str]) -> None:
    """Wait until the users can be resolved; not for ever."""
    until = time.monotonic() + USERS_SECONDS
    while not all(map(ids, names)) and time.monotonic() < until:
        time.sleep(0.5)


def groups(name: str) -> list[str]:
    """The names of the user's groups."""
    try:
        numbers = os.getgrouplist(name, pwd.getpwnam(name).pw_gid)
        return sorted(grp.getgrgid(number).gr_name for number in numbers)
    except KeyError:
        return []


def share(mountinfo: str, params: dict[str, Any]) -> dict[str, Any]:
    """The mount at the homes, and whether it is the same share as on the controller."""
    home = home_fs(mountinfo, params["home_path"].rstrip("/"))
    return {"home_fs": home, "home_token_seen": home["mounted"] and sees(Path(params["token_file"]), params["token"])}


def is_reached(address: tuple[str, int]) -> bool:
    """Whether this process can connect there."""
    try:
        socket.create_connection(address, CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def connects(uid: int, services: dict[str, tuple[str, int]]) -> list[str]:
    """The names of the services to which a process of this user can connect."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            found = [name for name, address in services.items() if is_reached(address)]
            os.write(writing, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        told = answer.read()
    os.waitpid(child, 0)
    return list(json.loads(told))


def cloud_services() -> dict[str, Any]:
    """Which services a user without rights reaches; and whether root does, without which the first has no meaning."""
    metadata = {"metadata": CLOUD_SERVICES["metadata"]}
    return {"nobody": connects(NOBODY, CLOUD_SERVICES), "root": connects(0, metadata)}


def physical_host() -> str:
    """The cloud's id of the physical host of this instance; empty where the metadata service reports none.

    The OCID is reported in dedicated capacity (docs of oci-hpc-oke: "Using RDMA Network Locality"), the other id by
    the same document elsewhere (Oracle's oci-dr-hpc-v2).
    """
    # Not by the proxy of the site, which would answer for itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(HOST_URL, headers={"Authorization": "Bearer Oracle"})
    try:
        with opener.open(request, timeout=CONNECT_SECONDS) as answer:
            document = json.loads(answer.read(HOST_BYTES))
        rdma = document.get("rdmaTopologyData") or {}
        return next((value for value in (rdma.get("customerHostId"), document.get("id")) if is_id(value)), "")
    except (OSError, ValueError, AttributeError):
        return ""


def is_id(value: Any) -> bool:
    """Whether this can be an id of the cloud."""
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9._:-]{1,255}", value) is not None


def hop(module: AnsibleModule, mesh: dict[str, str]) -> dict[str, str]:
    """The host that responds when a user logs in to the next one."""
    argv = ["runuser", "-u", mesh["user"], "--", "ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={SSH_SECONDS}"]
    _status, output, words = module.run_command([*argv, mesh["next"], "hostname"], cwd="/")
    return {"next": mesh["next"], "reached": output.strip(), "error": words.strip()}


def ssh_groups(module: AnsibleModule) -> list[str] | None:
    """The groups whose members the ssh server lets in; empty if it lets in all, None if it does not report it."""
    status, output, _words = module.run_command([shutil.which("sshd") or "/usr/sbin/sshd", "-T"])
    lines = (line.split() for line in output.splitlines())
    return [name for words in lines if words[:1] == ["allowgroups"] for name in words[1:]] if status == 0 else None


def slurm_error(module: AnsibleModule) -> str:
    """Why Slurm's commands get no answer here; empty if they get one."""
    status, _output, words = module.run_command(["timeout", str(SLURM_SECONDS), "sinfo", "--noheader"])
    return "" if status == 0 else words.strip() or f"sinfo ended with {status}"


def runs_jobs() -> bool:
    """Whether a step of a Slurm job runs here."""
    return any(read(file).strip() == "slurmstepd" for file in Path("/proc").glob("[0-9]*/comm"))


def agent_check(module: AnsibleModule, checks: dict[str, Any]) -> dict[str, Any]:
    """What the host's own checks have written, and this host's clocks around them."""
    if checks["alone"] and runs_jobs():
        return {"busy": True}
    limit = ["timeout", f"--kill-after={KILL_SECONDS}", str(checks["seconds"])]
    began, since = time.time(), time.monotonic()
    status, output, words = module.run_command(
        [*limit, checks["program"], "check", "--profile", checks["profile"], "--output", "json"]
    )
    return {
        "output": output[:REPORT_BYTES],
        "error": words[-ERROR_BYTES:],
        "exit_status": status,
        "began": began,
        "ended": time.time(),
        "took": time.monotonic() - since,
    }


def versions(module: AnsibleModule, program: str) -> Any:
    """The versions of this host, from the agent; None if it does not know the question, or prints no JSON."""
    limit = ["timeout", f"--kill-after={KILL_SECONDS}", str(VERSIONS_SECONDS)]
    status, output, _words = module.run_command([*limit, program, "versions"])
    try:
        return json.loads(output) if status == 0 and len(output) <= REPORT_BYTES else None
    except ValueError:
        return None


def main() -> None:
    """Entry point."""
    mesh = {"user": {"type": "str", "required": True}, "next": {"type": "str", "required": True}}
    checks = {
        "program": {"type": "path", "required": True},
        "profile": {"type": "str", "required": True},
        "seconds": {"type": "int", "required": True},
        "alone": {"type": "bool", "default": False},
    }
    spec: dict[str, Any] = {
        "home_path": {"type": "path"},
        "token_file": {"type": "path"},
        "token": {"type": "str", "no_log": False},
        "users": {"type": "list", "elements": "str", "default": []},
        "mesh": {"type": "dict", "options": mesh},
        "access": {"type": "bool", "default": False},
        "slurm": {"type": "bool", "default": False},
        "versions": {"type": "path"},
        "checks": {"type": "dict", "options": checks},
    }
    module = AnsibleModule(
        argument_spec=spec, required_together=[["home_path", "token_file", "token"]], supports_check_mode=True
    )
    params = module.params
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    data = node_data(read(NODE_DATA))
    await_users(params["users"])
    facts = {
        "hostname": os.uname().nodename,
        **(share(mounts, params) if params["home_path"] else {}),
        **({"mesh": hop(module, params["mesh"])} if params["mesh"] else {}),
        **({"ssh_groups": ssh_groups(module)} if params["access"] else {}),
        **({"slurm_error": slurm_error(module)} if params["slurm"] else {}),
        **({"versions": versions(module, params["versions"])} if params["versions"] else {}),
        **({"agent_check": agent_check(module, params["checks"])} if params["checks"] else {}),
        "user_ids": {name: ids(name) for name in params["users"]},
        "user_groups": {name: groups(name) for name in params["users"]},
        "firewall": outcome("firewall"),
        "local_disk": local_disk(mounts, data),
        "rdma_addresses": outcome("rdma-addresses") if data.get("rdma_interfaces") else None,
        "cloud_services": cloud_services(),
        "physical_host": physical_host(),
        "certificates": {
            name: file.read_text(encoding="utf-8") for name, file in CERTIFICATES.items() if file.is_file()
        },
        "secrets": {name: generation(file.read_bytes()) for name, file in SECRETS.items() if file.is_file()},
    }
    module.exit_json(changed=False, ansible_facts={"gpucluster_facts": facts})


if __name__ == "__main__":
    main()
