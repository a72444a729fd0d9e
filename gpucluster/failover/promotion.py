"""The steps by which the standby becomes the controller: hold the cluster, stop the old host, move what belongs to the
service, start the services. They are those of `gpucluster controller failover`, and may have been done before.

No step is taken without the one before it: the volume stays where it is until the cloud states that the old instance
is stopped or gone.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from gpucluster.cloud.client import CloudAccess, principal_signer
from gpucluster.cloud.lock_tag import LockTag
from gpucluster.cloud.power import InstancePower
from gpucluster.cloud.service_move import ServiceMove
from gpucluster.errors import CloudError, LockedError
from gpucluster.events import Sink
from gpucluster.failover.settings import WatchSettings
from gpucluster.node_agent import durable_file, programs
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.standby import scope
from gpucluster.oci.names import STATE_DEVICE
from gpucluster.oci.run_lock import Holder
from gpucluster.oci.states import LifecycleState
from gpucluster.waiting import wait_until

#: What an operator sees where this program holds the cluster.
COMMAND = "automatic-failover"
# OCI does not tell the two apart.
_NOT_HELD = "the cluster can't be held: its network is gone, or a permission is missing"
_PERMIT = "Run: gpucluster apply; it gives the standby its permissions"
_AGENT = "/usr/local/bin/gpucluster-agent"
_LOCK_ID = f"{scope.FOLDER}/run-lock"
# One request: the loop repeats all of it, so none is repeated here.
_REQUEST_SECONDS = 20.0
# An instance that the cloud is terminating may still write for a moment.
_FENCE_SECONDS = 300.0
_SERVICES_SECONDS = 3600.0
_PING_SECONDS = 120.0
_RELEASE_SECONDS = 60.0
_POLL = 1.0
_STILL = frozenset({LifecycleState.STOPPED, LifecycleState.TERMINATED})


class _OneRequestEach(CloudAccess):
    """Clients that give up soon: what was decided from must not be old when a request arrives."""

    def client(self, service: str, name: str, *, timeout: float | None = None) -> Any:
        return super().client(service, name, timeout=timeout or _REQUEST_SECONDS)


def access_of(settings: WatchSettings) -> CloudAccess:
    """The cloud's API as this instance may use it."""
    endpoint = settings.authentication.get("endpoint") or None

    @cache
    def signer() -> Any:
        return principal_signer("instance_principal", f"{endpoint}/v1/x509" if endpoint else "")

    return _OneRequestEach({"region": settings.region}, endpoint, settings.compartment_id, signer=signer)


class Promotion:
    """What belongs to the service of one cluster, as its standby moves it.

    Args:
        access: to the cloud's API.
        root: of the host's file system; another one for tests.
    """

    def __init__(self, settings: WatchSettings, access: CloudAccess, on_event: Sink, root: Path = Path("/")) -> None:
        self._settings = settings
        self._power = InstancePower(access, on_event)
        self._move = ServiceMove(access, settings.cluster, on_event, tags=settings.tags)
        self._tag = LockTag(access, "vcn", settings.lock)
        self._root = root

    # --- what the cloud knows -----

    def state(self) -> str:
        """The lifecycle state of the instance in service.

        Raises:
            CloudError: the cloud refused, or can't be reached.
        """
        return self._power.state(self._settings.other)

    def holder(self) -> str:
        """The instance that has the volume; empty if none has it. As `state`."""
        return self._move.holder(self._settings.volume)

    def held_by(self) -> str:
        """The run that holds the cluster, for a message; empty if none does, or this program.

        Raises:
            LockedError: it can't be held: its network is gone, or may not be seen.
            CloudError: as `state`.
        """
        if not self._tag.stands():
            raise LockedError(_NOT_HELD, where=self._settings.lock, hint=_PERMIT)
        present = self._tag.read()
        if present is None or present.id == self._lock_id():
            return ""
        return f"{present.command} by {present.origin}, since {present.since} ({present.id})"

    # --- the steps -----

    def carry_out(self, still_lost: Callable[[], bool]) -> bool:
        """Go on in the place of the controller. May be killed at any point and called again.

        Args:
            still_lost: asked once the cluster is held: a run that has just ended may have brought the controller back.

        Returns:
            False if it was not lost any more; nothing was changed then.

        Raises:
            LockedError: a run holds the cluster. Nothing was changed.
            CloudError: the cloud refused, or does not confirm that the old host is stopped. The volume has not moved.
            Failed: a service does not start. This host has the volume.
        """
        settings = self._settings
        with self._holding():
            if not still_lost():
                return False
            if self.holder() != settings.own:
                self._fence()
            self._move.give_volume(settings.volume, settings.own)
            self._move.give_address(settings.address, settings.own)
            self._start_services()
        return True

    def _fence(self) -> None:
        """Stop the old instance, and wait until the cloud states that it has ended.

        Raises:
            CloudError: it does not.
        """
        other, name = self._settings.other, self._settings.other_name
        self._power.stop(other, name, at_once=True)
        if not wait_until(lambda: self._power.state(other) in _STILL, _FENCE_SECONDS, _POLL):
            raise CloudError(
                f"the cloud does not confirm that {name} is stopped: its volume is not given to another host",
                where=other,
                hint="Stop it in the console of the cloud",
            )

    def _start_services(self) -> None:
        settings = self._settings
        words = [_AGENT, "state-volume", "take-over", "--name", settings.name, "--device", STATE_DEVICE]
        words += ["--cluster", settings.cluster, "--user", settings.user, "--address", settings.address]
        words += [word for network in settings.networks for word in ("--network", network)]
        ended = programs.call(words, seconds=_SERVICES_SECONDS)
        if ended.returncode != 0:
            raise Failed(f"the services do not start: {' '.join(ended.stderr.split())}", "Run: gpucluster apply")
        if not wait_until(_slurm_answers, _PING_SECONDS, _POLL):
            raise Failed("Slurm does not answer", "See: journalctl -u slurmctld -u slurmdbd -u mariadb")

    # --- the lock -----

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Hold the cluster as a run of an operator does, so that neither begins while the other works.

        Raises:
            LockedError: a run holds it, or it can't be held.
        """
        since = datetime.now(UTC).isoformat(timespec="seconds")
        ours = Holder(self._lock_id(), since, COMMAND, self._settings.own_name)

        def take(present: Holder | None) -> Holder:
            if present is not None and present.id != ours.id:
                raise LockedError(
                    f"a run holds the cluster: {present.command} by {present.origin}",
                    hint="Wait until it ends; if it was killed, run: gpucluster state unlock",
                )
            return ours

        self._tag.change(take)
        held = self._tag.read()
        if held is None or held.id != ours.id:
            raise LockedError(_NOT_HELD, where=self._settings.lock, hint=_PERMIT)
        try:
            yield
        finally:
            # Without an answer it stays, and names this host: the next attempt knows it as its own.
            wait_until(lambda: self._let_go(ours), _RELEASE_SECONDS, _POLL)

    def _let_go(self, ours: Holder) -> bool:
        """Returns whether the cloud has confirmed it."""
        try:
            self._tag.change(lambda present: None if present is not None and present.id == ours.id else present)
        except CloudError:
            return False
        return True

    def _lock_id(self) -> str:
        """The same after a restart: the program knows a lock that it has left."""
        file = self._root / _LOCK_ID.lstrip("/")
        try:
            return file.read_text().strip()
        except FileNotFoundError:
            durable_file.replace(file, secrets.token_hex(4), mode=0o600)
            return file.read_text().strip()


def _slurm_answers() -> bool:
    try:
        ended = programs.call(["scontrol", "ping"], seconds=30.0)
    except Failed:
        return False  # slurmctld listens before it answers, and the ping waits as long for it
    return ended.returncode == 0 and "UP" in ended.stdout
