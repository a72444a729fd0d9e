"""The way in to a cluster without a public address: a session of OCI's Bastion service.

A session lets one key forward to port 22 of the controller, for at most three hours. It is made when it is needed, used
again while it lasts, and written as the `gateway` of the ssh configuration.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass
from typing import Any

from gpucluster.cloud.client import Access, model, refusals
from gpucluster.errors import CloudError, ToolError
from gpucluster.events import Event, Sink
from gpucluster.paths import ClusterPaths, write_private
from gpucluster.ssh import Gateway, Route

#: Seconds that a session may last at most: OCI's limit, and what a bastion of ours allows.
LONGEST_SESSION = 10_800
#: A run begins with at least so many seconds left: configuring a large cluster takes its time.
LEFT_FOR_A_RUN = 3_600
#: A command that somebody types is served by what has so many seconds left.
LEFT_FOR_A_COMMAND = 300
_PATIENCE = 300.0
_POLL = 1.0
_SSH_PORT = 22


@dataclass(frozen=True)
class Session:
    """A session as it is kept between runs.

    Args:
        address: the private address behind it.
        public_key: the key that it lets in.
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
        """Whether it leads there with this key, until then."""
        return (self.bastion_id, self.address, self.public_key) == (bastion_id, address, public_key) and (
            self.expires_at > until
        )


def meeting_point(command: str) -> tuple[str, int]:
    """Host and port in the ssh command line that the Bastion service gives for a session.

    Raises:
        CloudError: it names none.
    """
    host = re.search(r"\S+@(\S+)\s*$", command)
    ports = re.findall(r"(?:^|\s)-p\s*(\d+)", command)
    if host is None:
        raise CloudError(f"the Bastion service gave no way to its host: {command!r}", hint="Run the command again")
    return host.group(1), int(ports[-1]) if ports else _SSH_PORT


class Bastion:
    """Sessions for one cluster; the present one is in `.gpucluster/bastion.json`."""

    def __init__(self, access: Access, paths: ClusterPaths, on_event: Sink) -> None:
        self._access = access
        self._paths = paths
        self._file = paths.root / "bastion.json"
        self._on_event = on_event

    def open(self, bastion_id: str, address: str, public_key: str, *, left: float) -> None:
        """Let ssh in to an address behind a bastion, by a session that has `left` seconds at least.

        Raises:
            CloudError: the service refused, or the session did not become active.
        """
        kept = self._kept()
        if kept and kept.serves(bastion_id, address, public_key, time.time() + left) and self._active(kept):
            self._take(kept)
        else:
            self._on_event(Event("log", "bastion", "note", f"opening a session to {address}"))
            self._take(self._create(bastion_id, address, public_key))

    def renew(self) -> None:
        """Make the way that was open last open again, where it is about to close. Nothing where there was none.

        Without a word: the output of a command that is run on the controller may be somebody's input.
        """
        kept = self._kept()
        if kept and kept.expires_at < time.time() + LEFT_FOR_A_COMMAND:
            self._take(self._create(kept.bastion_id, kept.address, kept.public_key))

    def forget(self) -> None:
        """Keep nothing more; the sessions went with the bastion."""
        self._file.unlink(missing_ok=True)

    def _take(self, session: Session) -> None:
        write_private(self._file, json.dumps(asdict(session), indent=2) + "\n")
        Route(self._paths, None).write_gateway(Gateway(session.host, session.port, session.id, session.bastion_id))

    def _kept(self) -> Session | None:
        try:
            return Session(**json.loads(self._file.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _active(self, session: Session) -> bool:
        try:
            with refusals("reading a session of the bastion"):
                return bool(self._client().get_session(session.id).data.lifecycle_state == "ACTIVE")
        except CloudError:
            return False

    def _create(self, bastion_id: str, address: str, public_key: str) -> Session:
        client = self._client()
        with refusals("opening a session of the bastion"):
            longest = client.get_bastion(bastion_id).data.max_session_ttl_in_seconds or LONGEST_SESSION
            begun = time.time()
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
                session_ttl_in_seconds=min(int(longest), LONGEST_SESSION),
            )
            session = self._wait(client, client.create_session(details).data.id)
        host, port = meeting_point((session.ssh_metadata or {}).get("command", ""))
        ends = begun + float(session.session_ttl_in_seconds)
        return Session(session.id, bastion_id, address, public_key, host, port, ends)

    def _wait(self, client: Any, session_id: str) -> Any:
        until = time.monotonic() + _PATIENCE
        while True:
            session = client.get_session(session_id).data
            if session.lifecycle_state == "ACTIVE":
                return session
            if session.lifecycle_state != "CREATING":
                why = session.lifecycle_details or "no reason given"
                raise CloudError(
                    f"a session of the bastion is {session.lifecycle_state}: {why}",
                    where=session_id,
                    hint="Run the same command again",
                )
            if time.monotonic() > until:
                raise ToolError(
                    f"a session of the bastion is not active after {_PATIENCE:.0f} s",
                    where=session_id,
                    hint="Run the same command again",
                )
            time.sleep(_POLL)

    def _client(self) -> Any:
        return self._access.client("bastion", "BastionClient")
