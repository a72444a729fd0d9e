"""Console histories: captures of the console output of an instance."""

from __future__ import annotations

from functools import partial

from gpucluster.errors import GpuClusterError
from gpucluster.localcloud.api import kinds
from gpucluster.localcloud.api.kinds import TAGS, ResourceKind
from gpucluster.localcloud.state.cloud import CloudState, created, log
from gpucluster.localcloud.state.lifecycle_states import LifecycleState
from gpucluster.localcloud.state.store import Resource
from gpucluster.localcloud.state.wire import CORE, ApiRoute, Call, Reply, invalid, required

_MAX_CONTENT = 1024 * 1024  # bytes (docs: CaptureConsoleHistory: up to a megabyte of the most recent data)
_LENGTH = 10240  # default bytes of a reply (docs: GetConsoleHistoryContent)

HISTORY = ResourceKind(
    "consolehistory", f"{CORE}/instanceConsoleHistories", "ConsoleHistory", "ConsoleHistories",
    "instanceConsoleHistoryId", filters=("compartmentId", "availabilityDomain", "instanceId", "lifecycleState"),
    creatable=False, gone=LifecycleState.DELETED, ending=LifecycleState.DELETING,
)  # fmt: skip


def _capture(cloud: CloudState, call: Call) -> Reply:
    body = call.body()
    required(body, "instanceId")

    def make() -> tuple[Resource, str]:
        instance = cloud.related("instance", body["instanceId"])
        common = {name: instance.body[name] for name in ("compartmentId", "availabilityDomain")}
        tags = {name: body[name] for name in TAGS if name in body}
        row = {**tags, **common, "instanceId": instance.id, "lifecycleState": LifecycleState.REQUESTED}
        return cloud.new(HISTORY.name, row, {"name": instance.hidden["name"], "content": ""}), ""

    history, _, new = cloud.create_once(call, make)
    if new:
        cloud.submit(f"console {history.id}", partial(capture, cloud, history.id))
    return created(history)


def capture(cloud: CloudState, ocid: str) -> None:
    """Read the console. A restarted server calls this again."""
    history = cloud.get(HISTORY.name, ocid)
    try:
        written = cloud.engine.console(history.hidden["name"])
    except GpuClusterError as error:
        log.error("console history %s failed: %s", ocid, error)
        _end(cloud, ocid, LifecycleState.FAILED, b"")
    else:
        _end(cloud, ocid, LifecycleState.SUCCEEDED, written)


def _end(cloud: CloudState, ocid: str, state: LifecycleState, written: bytes) -> None:
    with cloud.store.transaction():
        history = cloud.get(HISTORY.name, ocid)
        if history.state != LifecycleState.REQUESTED:
            return  # it was deleted in the meantime
        history.hidden["content"] = written[-_MAX_CONTENT:].decode(errors="replace")
        cloud.store.save(history)
        cloud.set_state(HISTORY.name, ocid, state)


def _content(cloud: CloudState, call: Call) -> Reply:
    history = cloud.live(HISTORY.name, call.path["instanceConsoleHistoryId"])
    content = str(history.hidden["content"]).encode()
    offset, length = _number(call, "offset", 0), _number(call, "length", _LENGTH)
    part = content[offset : offset + length]
    return Reply(part, headers={"opc-bytes-remaining": str(max(0, len(content) - offset - len(part)))})


def _number(call: Call, name: str, otherwise: int) -> int:
    text = call.query.get(name) or str(otherwise)
    if not text.isdigit():
        raise invalid(f"{name} {text} is not a number of bytes")
    return int(text)


def routes(cloud: CloudState) -> list[ApiRoute]:
    """Console histories."""
    data = f"{HISTORY.path}/{{{HISTORY.param}}}/data"
    return [
        *kinds.routes(cloud, HISTORY),
        ApiRoute("POST", HISTORY.path, "CaptureConsoleHistory", partial(_capture, cloud)),
        ApiRoute("GET", data, "GetConsoleHistoryContent", partial(_content, cloud)),
    ]
