"""Entry point of `gpucluster-agent`: chooses the command by its first argument, or by the name of the link.

The links of LINKS on hosts lead to the same file. A command's
module is imported when it is chosen, because each import costs time, also of bytecode (`compiled`).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

#: Command -> the module whose `main` runs it, and its line in `--help`.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "users": ("users.__main__", "users and groups of the cluster (the program `cluster`)"),
    "backup": ("backup.__main__", "back up and restore directory and accounting (`gpucluster-backup`)"),
    "images": ("images.__main__", "container images that all jobs share (`gpucluster-image`)"),
    "ca": ("ca", "the cluster's certificate authority"),
    "host-certificate": ("host_certificates", "certificates for the ssh host keys of the cluster's hosts"),
    "release-server": ("release_server", "serve release files to the cluster's hosts"),
    "rootless": ("rootless_containers", "prepare a user's rootless containers"),
    "share": ("share", "a file of `gpucluster verify` on the home share"),
    "home-files": ("home_files", "count the files of users on the home share"),
    "seal": ("seal", "remove the identity of a host before its disk becomes an image"),
    "seff": ("seff", "how much of its resources a job has used (`seff`)"),
    "health": ("health.__main__", "the health service: reports of nodes, and drains for failed checks"),
    "monitor": ("monitor.__main__", "Slurm's metrics, what is scraped, and questions to Prometheus"),
    "record": ("record.__main__", "the record of a job on a node: its counters before and after"),
    "nccl": ("nccl.__main__", "judge the output of nccl-tests"),
    "jobs": ("jobs.__main__", "submit jobs of users from templates, and bring data sets for them"),
    "kubernetes": ("kubernetes.__main__", "nodes, certificates and etcd of the cluster's control plane"),
    "kubeconfig": ("kubernetes.own_kubeconfig", "a kubeconfig for who runs this (`gpucluster-kubeconfig`)"),
    "measure": ("measure.__main__", "measure nodes by Slurm jobs, for level `full` of `gpucluster verify`"),
    "exporter": ("exporter.__main__", "metrics of this host for Prometheus"),
    "watch": ("watch.__main__", "say which jobs of this node are hung, or leave their GPUs idle"),
    "mig": ("mig.__main__", "divide the GPUs of this node as its pool says (MIG)"),
    "gpu-links": ("gpu_links", "links to the GPUs of this node that Slurm's configuration names"),
    "check": ("checks.__main__", "check this host: GPUs, RDMA, services, file systems"),
}
#: Name of a link -> the command that it stands for.
LINKS: Mapping[str, str] = {
    "cluster": "users",
    "gpucluster-backup": "backup",
    "gpucluster-image": "images",
    "seff": "seff",
    "gpucluster-kubeconfig": "kubeconfig",
}


#: Where the roles install kubectl, kubeadm and others. sudo of Oracle Linux leaves it out (secure_path of its sudoers).
_LOCAL_PROGRAMS = "/usr/local/bin"


def main(argv: Sequence[str] | None = None, called_as: str | None = None) -> int:
    """Run one command and return its exit status.

    Args:
        argv: the arguments without the program's name; those of this process by default.
        called_as: the program's path; that of this process by default.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if _LOCAL_PROGRAMS not in folders:
        os.environ["PATH"] = os.pathsep.join([*folders, _LOCAL_PROGRAMS])
    command = LINKS.get(Path(sys.argv[0] if called_as is None else called_as).name)
    if command is None:
        if words == ["--version"]:
            from gpucluster.node_agent import version  # what it imports, no other command needs

            sys.stdout.write(f"gpucluster-agent {version.package_version()} (sha256 {version.checksum()})\n")
            return 0
        if not words or words[0] not in COMMANDS:
            help_wanted = bool(words) and words[0] in ("-h", "--help")
            (sys.stdout if help_wanted else sys.stderr).write(_usage())
            return 0 if help_wanted else 2
        command, words = words[0], words[1:]
    module = importlib.import_module(f"gpucluster.node_agent.{COMMANDS[command][0]}")
    status: int = module.main(words)
    return status


def _usage() -> str:
    rows = "".join(f"  {name:<17} {text}\n" for name, (_module, text) in COMMANDS.items())
    return (
        f"usage: gpucluster-agent [--version] COMMAND ...\n\n{rows}\nfor more, run: gpucluster-agent COMMAND --help\n"
    )


if __name__ == "__main__":
    sys.exit(main())
