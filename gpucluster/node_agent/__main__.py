"""Entry point of `gpucluster-agent` on nodes: chooses the command by its first argument, or by the name of the link.

The links of LINKS on hosts lead to the same file. A command's module is imported when it is chosen: each import costs
time, also of bytecode (`compiled`).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

#: Command -> the module whose `main` runs it, and its line in `--help`.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "host-certificate": ("gpucluster.node_agent.host_certificates", "certificates for the ssh host keys of hosts"),
    "host-keys": ("gpucluster.node_agent.host_keys", "other ssh host keys for this host"),
    "munge-key": ("gpucluster.node_agent.munge_key", "the munge key of this host, from the controller"),
    "directory-password": ("gpucluster.node_agent.directory_password", "this host's password for the directory"),
    "directory-authority": ("gpucluster.node_agent.directory_authority", "the CA of the directory, for this host"),
    "shared-keys": ("gpucluster.node_agent.shared_keys", "keys of the controller and of containers, for this host"),
    "rootless": ("gpucluster.node_agent.rootless_containers", "prepare a user's rootless containers"),
    "home-files": ("gpucluster.node_agent.home_files", "count the files of users on the home share"),
    "seal": ("gpucluster.node_agent.host_identity", "remove the identity of a host before its disk becomes an image"),
    "seff": ("gpucluster.node_agent.seff", "how much of its resources a job has used (`seff`)"),
    "health": ("gpucluster.node_agent.health.__main__", "run the checks of a profile, and report them"),
    "record": ("gpucluster.node_agent.record.__main__", "the record of a job on a node: its counters before and after"),
    "nccl": ("gpucluster.node_agent.nccl.__main__", "judge the output of nccl-tests"),
    "kubernetes": ("gpucluster.node_agent.kubernetes.__main__", "this host in the cluster's Kubernetes"),
    "exporter": ("gpucluster.node_agent.exporter.__main__", "metrics of this host for Prometheus"),
    "watch": (
        "gpucluster.node_agent.watch.__main__", "report which jobs of this node are hung, or leave their GPUs idle",
    ),
    "mig": ("gpucluster.node_agent.mig.__main__", "divide the GPUs of this node as its pool defines (MIG)"),
    "gpu-links": (
        "gpucluster.node_agent.gpu_links", "links to the GPUs of this node that Slurm's configuration names",
    ),
    "slurm-place": (
        "gpucluster.node_agent.slurm_place", "put this node under Slurm's switch of its place in the RDMA network",
    ),
    "state-volume": ("gpucluster.node_agent.state_volume.__main__", "the controller's state on a volume of its own"),
    "standby": ("gpucluster.node_agent.standby.__main__", "keep a second host like the controller"),
    "versions": ("gpucluster.node_agent.versions", "versions of Slurm, container runtimes, the driver and others here"),
    "facts": ("gpucluster.node_agent.facts.__main__", "the facts of this host that `gpucluster verify` judges"),
    "drift": ("gpucluster.node_agent.drift.__main__", "what on this host is not as the last apply left it"),
    "journal": ("gpucluster.node_agent.journal", "print the lines of this host's journal that the controller lacks"),
    "support": ("gpucluster.node_agent.support", "print what a support bundle takes from this host, as one line"),
    "check": ("gpucluster.node_agent.checks.__main__", "check this host: GPUs, RDMA, services, file systems"),
}  # fmt: skip
#: Name of a link -> the command that it stands for.
LINKS: Mapping[str, str] = {"seff": "seff"}

#: Where the roles install kubectl, kubeadm and others. sudo of Oracle Linux leaves it out (secure_path of its sudoers).
_LOCAL_PROGRAMS = "/usr/local/bin"


def main(
    argv: Sequence[str] | None = None,
    called_as: str | None = None,
    commands: Mapping[str, tuple[str, str]] = COMMANDS,
    links: Mapping[str, str] = LINKS,
) -> int:
    """Run one command and return its exit status.

    Args:
        argv: the arguments without the program's name; those of this process by default.
        called_as: the program's path; that of this process by default.
        commands: as COMMANDS. `links`: as LINKS.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if _LOCAL_PROGRAMS not in folders:
        os.environ["PATH"] = os.pathsep.join([*folders, _LOCAL_PROGRAMS])
    command = links.get(Path(sys.argv[0] if called_as is None else called_as).name)
    if command is None:
        if words == ["--version"]:
            from gpucluster.node_agent import version  # what it imports, no other command needs

            sys.stdout.write(f"gpucluster-agent {version.package_version()} (sha256 {version.checksum()})\n")
            return 0
        if not words or words[0] not in commands:
            help_wanted = bool(words) and words[0] in ("-h", "--help")
            (sys.stdout if help_wanted else sys.stderr).write(_usage(commands))
            return 0 if help_wanted else 2
        command, words = words[0], words[1:]
    status: int = importlib.import_module(commands[command][0]).main(words)
    return status


def _usage(commands: Mapping[str, tuple[str, str]]) -> str:
    rows = "".join(f"  {name:<19} {text}\n" for name, (_module, text) in commands.items())
    return (
        f"usage: gpucluster-agent [--version] COMMAND ...\n\n{rows}\nfor more, run: gpucluster-agent COMMAND --help\n"
    )


if __name__ == "__main__":
    sys.exit(main())
