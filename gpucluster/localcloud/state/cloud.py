"""The state that all services share: the store, the engine, the workers, and operations on rows."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from gpucluster.errors import CloudError
from gpucluster.localcloud.engine.protocol import LABEL_HOME, LABEL_OCID, Engine
from gpucluster.localcloud.state.faults import Effect, Facts, Faults
from gpucluster.localcloud.state.lifecycle_states import ENDING, LifecycleState, WorkAction, WorkRequestStatus
from gpucluster.localcloud.state.names import new_ocid, short
from gpucluster.localcloud.state.store import Json, Resource, ResourceStore, Retry
from gpucluster.localcloud.state.tenancy import Tenancy
from gpucluster.localcloud.state.timers import Timers
from gpucluster.localcloud.state.wire import (
    ApiError,
    Call,
    Reply,
    incorrect_state,
    not_found,
    related_not_found,
    show,
)

log = logging.getLogger("gpucluster.localcloud")
#: Between two looks whether a fault that holds an operation was removed.
HELD_LOOK_SECONDS = 0.05


def timestamp(when: float | None = None) -> str:
    """RFC 3339 with milliseconds, as OCI writes times."""
    moment = datetime.fromtimestamp(time.time() if when is None else when, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


@dataclass(frozen=True)
class SshEndpoint:
    """The address of the ssh server for bastion sessions, and the fingerprint of its host key."""

    host: str
    port: int
    fingerprint: str


def _no_ssh_endpoint() -> SshEndpoint:
    raise CloudError("only the server of the local cloud has an ssh endpoint for bastions")


@dataclass
class CloudState:
    """The state of one home. Handlers of the API and background jobs get this object and nothing else."""

    home: Path
    store: ResourceStore
    engine: Engine
    identity: Tenancy
    faults: Faults
    networks_changed: Callable[[], None] = lambda: None
    member_lost: Callable[[str], None] = lambda _pool: None
    node_folders: Callable[[], Mapping[str, Path]] = dict
    session_ended: Callable[[str], None] = lambda _session: None
    open_ssh_endpoint: Callable[[], SshEndpoint] = _no_ssh_endpoint
    _pool: ThreadPoolExecutor = field(init=False)
    # A pool waits for the launches of its members, so pools need workers of their own.
    _coordinators: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=8, thread_name_prefix="pool")
    )
    _locks: defaultdict[str, threading.RLock] = field(default_factory=lambda: defaultdict(threading.RLock))
    _locks_guard: threading.Lock = field(default_factory=threading.Lock)
    _timers: Timers = field(default_factory=Timers)
    _unfinished: set[Future[None]] = field(default_factory=set)
    closing: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        """Start as many workers as the engine can use."""
        self._pool = ThreadPoolExecutor(max_workers=self.engine.workers, thread_name_prefix="job")

    # work in the background

    def submit(
        self, what: str, job: Callable[[], object], delay: float = 0.0, effect: Effect | None = None
    ) -> Future[None]:
        """Run a job on a worker after `delay` seconds, and when no fault holds it; no worker is occupied until then.

        Exceptions go to the log; the row that the job works on shows how it ended. The future is done when the job has
        ended, or when it is clear that it will not run in this process.
        """
        future: Future[None] = Future()
        with self._locks_guard:
            self._unfinished.add(future)

        def run() -> None:
            _guarded(what, job)
            self._finish(future)

        # While the server is closing, the job does not run any more: its next start continues it.
        def later(seconds: float) -> None:
            if not self._timers.after(seconds, enqueue):
                self._finish(future)

        def enqueue() -> None:
            if effect is not None and self.faults.holds(effect):
                later(HELD_LOOK_SECONDS)
                return
            try:
                self._pool.submit(run)
            except RuntimeError:
                self._finish(future)

        if delay > 0:
            later(delay)
        else:
            enqueue()
        return future

    def _finish(self, future: Future[None]) -> None:
        with self._locks_guard:
            if future in self._unfinished:
                self._unfinished.remove(future)
                future.set_result(None)

    def coordinate(self, what: str, job: Callable[[], object]) -> Future[None]:
        """Run a job that submits other jobs and waits for them."""
        return self._coordinators.submit(_guarded, what, job)

    @contextmanager
    def locked(self, ocid: str) -> Iterator[None]:
        """Hold the lock of one resource: its launch, stop and termination never overlap."""
        with self._locks_guard:
            lock = self._locks[ocid]
        with lock:
            yield

    def close(self) -> None:
        """Wait for running jobs and start no others; the next start of the server continues what is left."""
        self.closing.set()
        self._timers.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        with self._locks_guard:
            unfinished = list(self._unfinished)
        for future in unfinished:
            self._finish(future)
        self._coordinators.shutdown(wait=True, cancel_futures=True)
        self.store.close()

    # reading rows

    def get(self, kind: str, ocid: str) -> Resource:
        """A resource named in the path. One that is gone is still returned, in its last state."""
        resource = self.store.get(kind, ocid)
        if resource is None:
            raise not_found(kind, ocid)
        return resource

    def live(self, kind: str, ocid: str) -> Resource:
        """A resource named in the path that must still exist."""
        resource = self.get(kind, ocid)
        if resource.gone_at is not None:
            raise not_found(kind, ocid)
        return resource

    def related(self, kind: str, ocid: object) -> Resource:
        """A resource named in the body, which must exist."""
        resource = self.store.get(kind, ocid) if isinstance(ocid, str) else None
        if resource is None or resource.gone_at is not None:
            raise related_not_found(kind, str(ocid))
        if resource.state in ENDING:
            raise incorrect_state(f"{kind} {ocid} is {resource.state}")
        return resource

    def compartment(self, ocid: object, *, in_body: bool = True) -> str:
        """Check that a compartment exists; the tenancy is the root compartment."""
        known = ocid == self.identity.tenancy or (isinstance(ocid, str) and self._is_compartment(ocid))
        if not known:
            raise related_not_found("compartment", str(ocid)) if in_body else not_found("compartment", str(ocid))
        return str(ocid)

    def _is_compartment(self, ocid: str) -> bool:
        row = self.store.get("compartment", ocid)
        return row is not None and row.gone_at is None

    # changing rows

    def new(self, kind: str, body: Mapping[str, object], hidden: Json | None = None) -> Resource:
        """Add a row. Sets the id, the times and empty tag maps where they are missing.

        Tag maps are always set: the Terraform provider shows a permanent difference where one is null.
        """
        ocid = str(body.get("id") or new_ocid(kind))
        full: Json = {
            "id": ocid,
            "displayName": f"{kind}-{datetime.now(UTC):%Y%m%d%H%M%S}",
            "timeCreated": timestamp(),
            "freeformTags": {},
            "definedTags": {},
            "systemTags": {},
            **body,
        }
        return self.store.add(Resource(ocid, kind, full, dict(hidden or {})))

    def update(self, kind: str, ocid: str, **members: object) -> Resource:
        """Change members of a body, starting from the current row."""
        with self.store.transaction():
            resource = self.get(kind, ocid)
            resource.body.update(members)
            return self.store.save(resource)

    def set_state(self, kind: str, ocid: str, state: LifecycleState, *, gone: bool = False) -> Resource:
        """Move a resource to a state; `gone` marks it as no longer existing."""
        with self.store.transaction():
            resource = self.get(kind, ocid)
            resource.body["lifecycleState"] = state
            note_state(resource)
            if gone:
                resource.gone_at = time.time()
            return self.store.save(resource)

    def create_once(self, call: Call, make: Callable[[], tuple[Resource, str]]) -> tuple[Resource, str, bool]:
        """Create a resource in one transaction, once per opc-retry-token (valid for 24 h).

        `make` returns the row and the id of its work request ("" if none). Returns these and whether the row is new.
        """
        token = call.retry_token
        with self.store.transaction():
            if token:
                earlier = self.store.retry(token)
                if earlier is not None:
                    return self._repeat(call, earlier)
            resource, work_request = make()
            if token:
                self.store.remember_retry(token, Retry(call.operation, call.digest, resource.id, work_request))
            return resource, work_request, True

    def _repeat(self, call: Call, earlier: Retry) -> tuple[Resource, str, bool]:
        if (earlier.operation, earlier.digest) != (call.operation, call.digest):
            raise ApiError(409, "InvalidatedRetryToken", "The retry token was already used with a different request")
        resource = self.store.get(_kind_of(earlier.resource), earlier.resource)
        if resource is None or resource.gone_at is not None:
            raise ApiError(
                409,
                "InvalidatedRetryToken",
                "The retry token was used in an earlier request, but the resource has since been deleted",
            )
        return resource, earlier.work_request, False

    # work requests

    def begin_work(
        self, operation: str, entity: str, resource: Resource, *, kind: str = "coreservicesworkrequest"
    ) -> str:
        """Open a work request on a resource. Returns its id, for opc-work-request-id. Each service has its own kind."""
        request = self.new(
            kind,
            {
                "operationType": operation,
                "status": WorkRequestStatus.IN_PROGRESS,
                "compartmentId": resource.body.get("compartmentId"),
                "percentComplete": 0.0,
                "timeAccepted": timestamp(),
                "timeStarted": timestamp(),
                "resources": [
                    {
                        "entityType": entity,
                        "actionType": WorkAction.IN_PROGRESS,
                        "identifier": resource.id,
                        "entityUri": f"/{entity}s/{resource.id}",
                    }
                ],
            },
            {"errors": []},
        )
        return request.id

    def end_work(
        self, ocid: str, *, action: WorkAction | None = None, errors: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Close a work request; `errors` are (code, message)."""
        if not ocid:
            return
        with self.store.transaction():
            request = self.store.get(_kind_of(ocid), ocid)
            if request is None or request.body["status"] != WorkRequestStatus.IN_PROGRESS:
                return
            request.body.update(
                status=WorkRequestStatus.FAILED if errors else WorkRequestStatus.SUCCEEDED,
                percentComplete=100.0,
                timeFinished=timestamp(),
            )
            for entry in request.body["resources"]:
                entry["actionType"] = WorkAction.FAILED if errors else action or entry["actionType"]
            request.hidden["errors"] = [
                {"code": code, "message": message, "timestamp": timestamp()} for code, message in errors
            ]
            request.gone_at = time.time()  # clients can read it until the row is deleted
            self.store.save(request)

    # names on this machine

    def exports_dir(self, vcn_id: str) -> Path:
        """The folder that the instances of a VCN see: index.json and the exported file systems."""
        return ensure_private(ensure_private(self.home / "exports") / short(vcn_id))

    def drop_exports_dir(self, vcn_id: str) -> None:
        """Remove the folder of a deleted VCN, unless it still contains the directory of a file system."""
        folder = self.exports_dir(vcn_id)
        for name in ("index.json", "read-only.json"):
            (folder / name).unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()

    def labels(self, ocid: str) -> dict[str, str]:
        """Labels of a container or network: its home and its row."""
        return {LABEL_HOME: str(self.home), LABEL_OCID: ocid}


def launch_facts(cloud: CloudState, details: Json) -> Facts:
    """The attributes of an instance, or of launch details, that a fault can filter by."""
    configuration = str(details.get("instanceConfigurationId") or "")
    row = cloud.store.get("instanceconfiguration", configuration)
    source: Json = details.get("sourceDetails") or {}
    image = str(source.get("imageId") or details.get("imageId") or "")
    of_image = cloud.store.get("image", image)
    return {
        "shape": (str(details.get("shape")),),
        "availability_domain": (str(details.get("availabilityDomain")),),
        "display_name": (str(details.get("displayName")),),
        "instance_configuration": (configuration, *([str(row.body["displayName"])] if row else [])),
        "image": (image, *([str(of_image.body["displayName"])] if of_image else [])),
    }


def note_state(resource: Resource) -> None:
    """Record when an instance reached its state, for lists that are stale because of a fault."""
    if resource.kind == "instance":
        resource.hidden.setdefault("states", []).append([round(time.time(), 3), resource.state])


def _guarded(what: str, job: Callable[[], object]) -> None:
    try:
        job()
    except Exception:  # in a thread: no caller waits for it
        log.exception("%s failed", what)


def created(resource: Resource, work_request: str = "") -> Reply:
    """The reply to a create."""
    return show(resource, {"opc-work-request-id": work_request} if work_request else None)


def _kind_of(ocid: str) -> str:
    return ocid.split(".", 2)[1]


def ensure_private(folder: Path) -> Path:
    """Make a folder that only the user of this process may enter."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(folder, 0o700)
    return folder
