"""Entry point of `gpucluster-agent` on the controller and on Prometheus' host: the commands of nodes, and more."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from gpucluster.node_agent import __main__ as node_agent

#: As on nodes. Three of their commands have more subcommands here.
COMMANDS: Mapping[str, tuple[str, str]] = {
    **node_agent.COMMANDS,
    "users": ("gpucluster.controller.users.__main__", "users and groups of the cluster (the program `cluster`)"),
    "directory": ("gpucluster.controller.users.following", "check and follow a directory that exists"),
    "accounts": ("gpucluster.controller.accounts.__main__", "accounts and QOS of cluster.yml in Slurm's accounting"),
    "backup": (
        "gpucluster.controller.backup.__main__", "back up and restore directory and accounting (`gpucluster-backup`)",
    ),
    "images": (
        "gpucluster.controller.images.__main__", "container images that all jobs share (`gpucluster-image`)",
    ),
    "ca": ("gpucluster.controller.ca", "the cluster's certificate authority"),
    "host-certificate": ("gpucluster.controller.ssh_ca", node_agent.COMMANDS["host-certificate"][1]),
    "munge-keys": ("gpucluster.controller.munge_keys", "give hosts the cluster's munge key"),
    "rotate": ("gpucluster.controller.rotation", "rotate secrets while jobs run"),
    "rest-token": ("gpucluster.controller.rest_tokens", "make a token of a user for Slurm's REST API"),
    "release-server": ("gpucluster.controller.release_server", "serve release files to the cluster's hosts"),
    "cluster-facts": (
        "gpucluster.controller.facts.__main__", "the facts of the cluster that `gpucluster verify` judges",
    ),
    "drift": (
        "gpucluster.controller.drift.__main__", "what of this host and the cluster is not as apply left it",
    ),
    "logs": ("gpucluster.controller.logs.__main__", "keep the journals of all hosts here, and read what is kept"),
    "health": (
        "gpucluster.controller.health.__main__", "the health service: reports of nodes, and drains for failed checks",
    ),
    "monitor": (
        "gpucluster.controller.monitor.__main__", "Slurm's metrics, what is scraped, and questions to Prometheus",
    ),
    "jobs": (
        "gpucluster.controller.jobs.__main__", "submit jobs of users from templates, and bring data sets for them",
    ),
    "kubernetes": (
        "gpucluster.controller.kubernetes.__main__", "nodes, certificates and etcd of the cluster's control plane",
    ),
    "kubeconfig": (
        "gpucluster.controller.kubernetes.own_kubeconfig", "a kubeconfig for who runs this (`gpucluster-kubeconfig`)",
    ),
    "measure": (
        "gpucluster.controller.measure.__main__",
        "measure nodes by Slurm jobs, for level `full` of `gpucluster verify`",
    ),
}  # fmt: skip
#: As on nodes.
LINKS: Mapping[str, str] = {
    **node_agent.LINKS,
    "cluster": "users",
    "gpucluster-backup": "backup",
    "gpucluster-image": "images",
    "gpucluster-kubeconfig": "kubeconfig",
}


def main(argv: Sequence[str] | None = None, called_as: str | None = None) -> int:
    """Run one command and return its exit status; see `node_agent.main`."""
    return node_agent.main(argv, called_as, COMMANDS, LINKS)


if __name__ == "__main__":
    sys.exit(main())
