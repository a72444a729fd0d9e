"""The ssh connection to a cluster's hosts: keys, one configuration file, and waiting until the hosts are ready.

Nodes are reached through the controller, on both clouds. A controller without a public address is reached through a
gateway (see `cloud.bastion`). Host keys are stored by the instance's OCID: a new instance at an old address is a new
host, not a changed key. A host whose key is known answers with that key, or nothing is sent to it. The first contact of
the run that builds a host is trusted; every later run, on any machine, has the key from Terraform's state.

It imports programs, files and events; nothing of the cloud.
"""

from gpucluster.ssh.client import SshClient
from gpucluster.ssh.hosts import (
    CONNECT_SECONDS,
    GATEWAY,
    SSH_FAILED,
    Host,
    JumpHost,
    host_key_error,
    host_key_refused,
    unreachable,
)
from gpucluster.ssh.keys import ensure_key, own_key, public_key

__all__ = [
    "CONNECT_SECONDS",
    "GATEWAY",
    "SSH_FAILED",
    "Host",
    "JumpHost",
    "SshClient",
    "ensure_key",
    "host_key_error",
    "host_key_refused",
    "own_key",
    "public_key",
    "unreachable",
]
