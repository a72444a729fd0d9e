"""One run at a time changes a cluster, whatever machine and folder it runs in (docs/adr/0074-run-lock.md).

The lock of the folder and that of Terraform's remote state hold for those who share the folder or the state. This one
is a tag in the cloud, where all see it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from gpucluster.cloud.clusters import Sighting
from gpucluster.cloud.lock_tag import LockTag
from gpucluster.cloud.providers import CloudProvider
from gpucluster.errors import GpuClusterError, InputError, LockedError
from gpucluster.events import Sink, info, warn
from gpucluster.oci.run_lock import Holder
from gpucluster.pages.units import duration
from gpucluster.text import printable
from gpucluster.workspace.saved_state import SavedState

# Seconds for a request at the end of a run, which must not hang if the network is gone.
_RELEASE_TIMEOUT = 20.0


class RunLock:
    """The lock of one cluster. Only `take` within `begin` and `end` changes something.

    Args:
        origin: who works here, and where.
        remote: the state is in a remote backend: its lock keeps others out, and this one is only respected.
        named: the identity of the cluster, where the operator has named it: another command has to name it, too.
    """

    def __init__(
        self,
        saved: SavedState,
        cloud: CloudProvider,
        on_event: Sink,
        *,
        origin: str,
        remote: bool = False,
        named: str = "",
    ) -> None:
        self._saved = saved
        self._cloud = cloud
        self._on_event = on_event
        self._origin = origin
        self._remote = remote
        self._named = named
        self._command = ""
        self._tag: LockTag | None = None
        self._held: Holder | None = None

    def begin(self, command: str) -> None:
        """A run begins. It holds the lock of its folder."""
        self._command = command

    def take(self, sightings: Sequence[Sighting], *, only_look: bool = False) -> None:
        """Hold the cluster, if this run does not yet. Without a network or a controller there is nothing to hold.

        Args:
            sightings: what the cloud has of it.
            only_look: the run changes nothing, and shows what it would change.

        Raises:
            LockedError: a run of another machine or folder holds it.
            CloudError: the cloud refused, or can't be reached.
        """
        if not self._command or self._held or (tag := self._tag_of(sightings)) is None:
            return
        if only_look or self._remote:
            self._require_free(tag.read())
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")

        def ours(present: Holder | None) -> Holder:
            held = self._next(present, now)
            # Before the request: a stop while it is answered, or a lost answer, must not leave it. `end` compares.
            self._tag, self._held = tag, held
            return held

        try:
            tag.change(ours)
        except LockedError:
            self.forget()
            raise

    def follow(self, sightings: Sequence[Sighting]) -> None:
        """Hold the cluster by the resource that has the lock now, if this run has replaced the one that did.

        Args:
            sightings: what the cloud has of it.

        Raises:
            LockedError: a run of another machine or folder holds it.
            CloudError: the cloud refused, or can't be reached.
        """
        if self._held and self._tag_of(sightings) != self._tag:
            self.forget()
            self.take(sightings)

    def end(self) -> None:
        """The run ends, and lets others change the cluster. If the cloud does not answer, that is a warning: the next
        run of this folder knows the lock as its own."""
        tag, held, self._command, self._tag, self._held = self._tag, self._held, "", None, None
        if tag is None or held is None:
            return
        try:
            replace(tag, timeout=_RELEASE_TIMEOUT).change(
                lambda present: None if present is not None and present.id == held.id else present
            )
        except GpuClusterError as error:
            text = f"the lock of this run could not be removed; the next run of this folder does it: {error.what}"
            warn(self._on_event, "cluster", text)

    def forget(self) -> None:
        """The cluster was removed, and its lock with it. Its local cloud may have ended, too."""
        self._tag = self._held = None

    def remove(self, sightings: Sequence[Sighting], lock_id: str) -> Holder:
        """Remove the lock of a run that does not run any more. Returns its holder.

        Raises:
            InputError: there is no such lock.
            CloudError: the cloud refused, or can't be reached.
        """
        removed: list[Holder] = []

        def without(present: Holder | None) -> None:
            if present is None:
                raise InputError("no run holds the cluster", hint="There is nothing to do")
            if present.id != lock_id:
                hint = f"If that is the one: {self._unlocking(present)}"
                raise InputError(f"the lock is another one: {self.described(present)}", hint=hint)
            removed[:] = [present]

        if (tag := self._tag_of(sightings)) is None:
            raise InputError("no run holds the cluster: the cloud has nothing of it", hint="There is nothing to do")
        tag.change(without)
        return removed[0]

    @staticmethod
    def described(holder: Holder) -> str:
        """Which run it is, where, and since when."""
        age = holder.age(datetime.now(UTC))
        since = holder.since.replace("T", " ").removesuffix("+00:00")
        when = f"since {since} UTC ({duration(age)} ago)" if age >= 0 else "since an unknown time"
        return printable(f"{holder.command or 'a run'} by {holder.origin or 'an unknown user'}, {when}")

    def _tag_of(self, sightings: Sequence[Sighting]) -> LockTag | None:
        return LockTag.of(self._cloud.access(), sightings) if sightings else None

    def _next(self, present: Holder | None, now: str) -> Holder:
        """Our lock, in the place of none or of one that a killed run of this folder has left."""
        if present is None:
            # Written here first: who is killed right after the change must know the lock again.
            self._saved.lock_id = secrets.token_hex(4)
        else:
            self._require_free(present)
            text = f"taking over the lock that a killed run of this folder has left: {self.described(present)}"
            info(self._on_event, "cluster", text)
        return Holder(self._saved.lock_id, now, self._command, self._origin)

    def _require_free(self, present: Holder | None) -> None:
        own = Holder("", "", "", self._origin)
        if present is None or (present.id == self._saved.lock_id and present.same_place(own)):
            return
        raise LockedError(
            f"another run holds the cluster: {self.described(present)}",
            hint="Wait until it ends. If you are sure that it does not run any more, remove its lock: "
            f"{self._unlocking(present)}",
        )

    def _unlocking(self, present: Holder) -> str:
        """The command that removes this lock from here."""
        named = f" --cluster-id {self._named}" if self._named else ""
        return f"gpucluster state unlock {printable(present.id)}{named}"
