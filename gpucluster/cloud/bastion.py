"""Access to a cluster without a public address: a session of OCI's Bastion service.

A session lets one key forward to port 22 of the controller, for at most three hours. It is created when it is needed,
used again while it lasts, and written as the `gateway` of the ssh configuration.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass
from typing import Any

from gpucluster.cloud.client import CloudAccess, all_pages, model, refusals
from gpucluster.errors import CloudError, ToolError
from gpucluster.events import Sink, info
from gpucluster.node_agent import bounded
from gpucluster.oci import tags
from gpucluster.oci.states import LifecycleState
from gpucluster.paths import ClusterPaths, write_private
from gpucluster.ssh import JumpHost, SshClient
from gpucluster.waiting import wait_until

#: The longest time to live of a session, in seconds: OCI's limit, and what a bastion of ours allows.
LONGEST_SESSION = 10_800
#: The time that must be left at the beginning of a run, in seconds: configuring a large cluster takes long.
LEFT_FOR_A_RUN = 3_600
#: The time that must be left for a single command, in seconds.
LEFT_FOR_A_COMMAND = 300
_TIMEOUT = 300.0
_POLL = 1.0
_SSH_PORT = 22


@dataclass(frozen=True)
class BastionSession:
    """A session as it is saved between runs.

    Args:
        address: the private address that it forwards to.
        public_key: the key that it accepts.
        host: where ssh connects to, with `port`.
        expires_at: seconds since 1970.
    """

    id: str
    bastion_id: str
    address: str
    public_key: str
    host: str
    port: int
    expires_at: float

    def serves(self, bastion_id: str, address: str, public_key: str, until: float) -> bool:
        """Whether it forwards to this address with this key, at least until then."""
        return (self.bastion_id, self.address, self.public_key) == (bastion_id, address, public_key) and (
            self.expires_at > until
        )


def endpoint_of(command: str) -> tuple[str, int]:
    """Host and port in the ssh command line that the Bastion service gives for a session.

    Raises:
        CloudError: there is no host in it.
    """
    host = re.search(r"\S+@(\S+)\s*$", command)
    ports = re.findall(r"(?:^|\s)-p\s*(\d+)", command)
    if host is None:
        raise CloudError(
            f"the Bastion service named no host to connect to: {command!r}", hint="Run the same command again"
        )
    return host.group(1), int(ports[-1]) if ports else _SSH_PORT


class Bastion:
    """Sessions for one cluster. The current one is saved in `.gpucluster/bastion.json`."""

    def __init__(self, access: CloudAccess, paths: ClusterPaths, on_event: Sink) -> None:
        self._access = access
        self._paths = paths
        self._file = paths.root / "bastion.json"
        self._on_event = on_event

    def open(self, bastion_id: str, address: str, public_key: str, *, left: float) -> None:
        """Let ssh reach an address behind a bastion, by a session that lasts at least `left` more seconds.

        Raises:
            CloudError: the service refused.
            ToolError: the session did not become active in time.
        """
        saved = self._saved()
        if saved and saved.serves(bastion_id, address, public_key, time.time() + left) and self._active(saved):
            self._use(saved)
        else:
            info(self._on_event, "bastion", f"opening a session to {address}")
            self._use(self._create(bastion_id, address, public_key))

    def renew(self) -> None:
        """Replace the saved session if it is about to expire. Does nothing where there is none.

        Announces nothing: the output of a command that runs on the controller may be the input of another program.
        """
        saved = self._saved()
        if saved and saved.expires_at < time.time() + LEFT_FOR_A_COMMAND:
            self._use(self._create(saved.bastion_id, saved.address, saved.public_key))

    @property
    def saved(self) -> bool:
        """Whether there is a session of an earlier command."""
        return self._saved() is not None

    def find(self, cluster: str) -> str | None:
        """The OCID of a cluster's bastion, found by its tag; None if it has none.

        Raises:
            CloudError: the cloud refused.
        """
        with refusals("listing the bastions of the cluster"):
            for bastion in all_pages(self._client().list_bastions, self._access.compartment_id):
                if tags.of_cluster(bastion.freeform_tags, cluster) and bastion.lifecycle_state == LifecycleState.ACTIVE:
                    return str(bastion.id)
        return None

    def forget(self) -> None:
        """Delete the saved session: the bastion and its sessions do not exist any more."""
        self._file.unlink(missing_ok=True)

    def _use(self, session: BastionSession) -> None:
        write_private(self._file, json.dumps(asdict(session), indent=2) + "\n")
        SshClient(self._paths, None).write_gateway(JumpHost(session.host, session.port, session.id, session.bastion_id))

    def _saved(self) -> BastionSession | None:
        try:
            return BastionSession(**bounded.load(self._file))
        except (OSError, ValueError, TypeError):
            return None

    def _active(self, session: BastionSession) -> bool:
        try:
            with refusals("reading a session of the bastion"):
                return bool(self._client().get_session(session.id).data.lifecycle_state == LifecycleState.ACTIVE)
        except CloudError:
            return False

    def _create(self, bastion_id: str, address: str, public_key: str) -> BastionSession:
        client = self._client()
        with refusals("opening a session of the bastion"):
            longest_ttl = client.get_bastion(bastion_id).data.max_session_ttl_in_seconds or LONGEST_SESSION
            began = time.time()
            target = model(
                "bastion",
                "CreatePortForwardingSessionTargetResourceDetails",
                target_resource_private_ip_address=address,
                target_resource_port=_SSH_PORT,
            )
            details = model(
                "bastion",
                "CreateSessionDetails",
                bastion_id=bastion_id,
                display_name="gpucluster",
                target_resource_details=target,
                key_details=model("bastion", "PublicKeyDetails", public_key_content=public_key),
                session_ttl_in_seconds=min(int(longest_ttl), LONGEST_SESSION),
            )
            session = self._wait(client, client.create_session(details).data.id)
        host, port = endpoint_of((session.ssh_metadata or {}).get("command", ""))
        ends = began + float(session.session_ttl_in_seconds)
        return BastionSession(session.id, bastion_id, address, public_key, host, port, ends)

    def _wait(self, client: Any, session_id: str) -> Any:
        session = wait_until(lambda: _created(client, session_id), _TIMEOUT, _POLL)
        if session is None:
            raise ToolError(
                f"a session of the bastion is not active after {_TIMEOUT:.0f} s",
                where=session_id,
                hint="Run the same command again",
            )
        if session.lifecycle_state != LifecycleState.ACTIVE:
            why = session.lifecycle_details or "no reason given"
            raise CloudError(
                f"a session of the bastion is {session.lifecycle_state}: {why}",
                where=session_id,
                hint="Run the same command again",
            )
        return session

    def _client(self) -> Any:
        return self._access.client("bastion", "BastionClient")


def _created(client: Any, session_id: str) -> Any:
    """The session once its creation has ended; None as long as it continues."""
    session = client.get_session(session_id).data
    return None if session.lifecycle_state == LifecycleState.CREATING else session
