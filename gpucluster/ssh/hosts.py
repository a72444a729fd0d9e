"""The hosts that ssh connects to, and what it means if one has another key."""

from __future__ import annotations

from dataclasses import dataclass

from gpucluster.errors import ProcessError, ToolError
from gpucluster.text import printable

# What ssh prints last, whether the key is another one, or one of another type.
_KEY_REFUSED = "Host key verification failed"

#: The exit status of ssh itself, if it reaches no host. A command on the host may end with it, too.
SSH_FAILED = 255
#: Seconds until a host that does not answer is unreachable for gpucluster itself. A busy one needs more than the ten
#: that users wait.
CONNECT_SECONDS = 30
#: The name under which ssh knows the gateway.
GATEWAY = "oci-bastion"


@dataclass(frozen=True)
class Host:
    """One host.

    Args:
        name: also its name in Slurm.
        address: where ssh connects to.
        user: the login user.
        instance_id: its OCID, under which its host key is stored.
        jump: the name of the host through which it is reached; empty if directly.
        alias: another name under which ssh knows it; empty for none.
    """

    name: str
    address: str
    user: str
    instance_id: str
    jump: str = ""
    alias: str = ""

    @property
    def is_entry_point(self) -> bool:
        """Whether it is reached without another host of the cluster in between."""
        return self.jump in ("", GATEWAY)


@dataclass(frozen=True)
class JumpHost:
    """A host in front of the controller: a session of OCI's Bastion service.

    Args:
        user: the session's OCID.
        key_alias: the name under which its host key is stored: the bastion's OCID.
    """

    host: str
    port: int
    user: str
    key_alias: str


def host_key_refused(stderr: str) -> bool:
    """Whether ssh has ended because a host's key is not the one that is known."""
    return _KEY_REFUSED in stderr


def host_key_error(host: str) -> ToolError:
    """The error for a host that answers with another key than the known one."""
    return ToolError(
        f"{host} answers with another ssh host key than the one that is known of it: nothing was sent there",
        hint="Another machine may be in between. The console history of the instance shows the key that it made at its "
        "first boot. If its keys were made again on purpose, run: gpucluster apply --accept-host-keys",
    )


def unreachable(host: str, stderr: str) -> ToolError:
    """The error for a host of which ssh has ended with `SSH_FAILED`.

    Args:
        host: its name, or what it is.
        stderr: what ssh has printed; its last line states why.
    """
    if host_key_refused(stderr):
        return host_key_error(host)
    reason = printable(stderr.strip().rpartition("\n")[2]) or "ssh gives no reason"
    return ProcessError(
        f"{host} can't be reached: {reason}",
        hint="See whether it runs: gpucluster status",
        returncode=SSH_FAILED,
        stderr=stderr,
    )
