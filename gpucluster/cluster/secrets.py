"""`cluster.secrets`: rotation of what the hosts trust each other by."""

from __future__ import annotations

from collections.abc import Sequence

from gpucluster import handover
from gpucluster.cluster.composition import Parts
from gpucluster.errors import InputError
from gpucluster.handover.outputs import DIRECTORY_AUTHORITY
from gpucluster.operations.rotation import (
    DIRECTORY_CA,
    HOST_KEYS,
    SSH_CA,
    RotatableSecret,
    RotatedSecret,
    Rotation,
    Rotations,
    chosen,
)
from gpucluster.terraform.runner import Terraform


class SecretOperations:
    """Rotates the secrets of one cluster."""

    def __init__(self, parts: Parts) -> None:
        connections = parts.connections
        self._parts = parts
        self._rotations = Rotations(parts.spec, connections.controller, connections.control_plane, parts.on_event)

    def list(self) -> tuple[RotatableSecret, ...]:
        """The secrets that `rotate` can change, when that was last done, and what was interrupted. Reads only.

        Raises:
            InputError: the cluster has nothing to rotate.
            ToolError: there is no cluster, or the controller does not answer.
        """
        return self._rotations.present()

    def rotate(self, what: Sequence[str]) -> Rotation:
        """Change secrets of the cluster on all hosts while jobs run.

        "munge", the key of a cluster with Slurm: slurmctld stops for some seconds, no job starts then, and commands of
        users wait. "jwt", the key of the REST API's tokens: those that were made before are refused, and slurmctld
        starts again. "passwords", with which hosts read the directory: SSSD starts again on each host. "host-keys", the
        ssh host keys of permanent hosts, and "ssh-ca", the CA that certifies those of all hosts: connections live on.
        "directory-ca", the CA of the directory and of other servers of the controller: the directory starts again, and
        SSSD on each host. "controller-key", with which the controller logs in to other hosts, "container-keys", those
        of MPI in containers, and "join-key", with which new nodes are configured: nothing starts again. "grafana", the
        password of its administrator. "kubernetes", the certificates of a control plane on the controller: the API
        server stops for up to a minute. May be killed at any point; the same call goes on. It also completes a rotation
        that hosts have not confirmed.

        Args:
            what: names of `list`, or "all".

        Raises:
            InputError: one of them can't be rotated, or the cluster does not have it.
            UnconfirmedError: the secret is changed, and hosts have not confirmed that they use it. What follows was
                rotated nevertheless; `done` has all of it.
            GpuClusterError: see `errors`; a host in service that does not answer ends it before anything is switched.
        """
        names, parts = chosen(what, self._parts.spec), self._parts
        if not {HOST_KEYS, SSH_CA, DIRECTORY_CA} & {*names}:
            with parts.identity.runs.run("rotate"):
                return self._rotations.rotate(names)
        with parts.identity.runs.run("rotate", prepares=True) as run:
            terraform = parts.phases.provisioning.prepare(run, keep_variables=True)
            if {HOST_KEYS, SSH_CA} & {*names}:
                self._believe(terraform)
            return self._rotations.rotate(names, lambda done: self._learn(terraform, done))

    def _believe(self, terraform: Terraform) -> None:
        """Let this machine believe the ssh CA: if it learns nothing of the next host keys, it still reaches the hosts.

        Raises:
            InputError: the state does not have the CA: the last apply has not ended.
        """
        authority = handover.Identity.parse(terraform.outputs()).ssh_authority
        if not authority:
            message = "Terraform's state does not have the ssh CA of this cluster"
            raise InputError(message, where=str(self._parts.spec.file), hint="Run: gpucluster apply")
        self._parts.programs.ssh().learn_authority(authority)

    def _learn(self, terraform: Terraform, done: RotatedSecret) -> None:
        """Let this machine and the state expect the host keys, and the CAs, that hosts have now."""
        provisioning, ssh_client = self._parts.phases.provisioning, self._parts.programs.ssh()
        if done.name == SSH_CA and done.authority:
            ssh_client.learn_authority(" ".join(done.authority.split()[:2]))
            provisioning.note_authority(terraform, handover.SSH_AUTHORITY, done.authority)
        if done.name == DIRECTORY_CA and done.authority:
            provisioning.note_authority(terraform, DIRECTORY_AUTHORITY, done.authority)
        instances = {host.name: host.booted for host in self._parts.connections.controller.hosts()}
        keys = {instance: each for name, each in done.keys.items() if (instance := instances.get(name))}
        others = ssh_client.learn_others(keys)
        if others:
            provisioning.note_host_keys(terraform, others)
