"""Requests to configure new instances: files that the daemon writes and the join service of root answers.

The daemon has no right to configure a host. It writes a request, `<tail of the instance's id>-<node>.json`, into a
folder of its own, and finds the result beside it as `.result.json`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from gpucluster.errors import GpuClusterError, InputError
from gpucluster.paths import write_private

FOLDER = "join"
RESULT = ".result.json"
_TAIL = 12


def tail(instance_id: str) -> str:
    """The end of an OCID, which is enough to distinguish instances."""
    return instance_id[-_TAIL:]


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A new instance that is to be configured as a node."""

    node: str
    pool: str
    instance_id: str
    address: str

    @property
    def stem(self) -> str:
        """The name of its files, without the suffix."""
        return f"{tail(self.instance_id)}-{self.node}"


@dataclass(frozen=True, slots=True)
class JoinResult:
    """How a request ended."""

    ok: bool
    message: str


class Requests:
    """The folder with requests and results, for the daemon."""

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER

    def submit(self, request: JoinRequest) -> None:
        """Write a request. A second one for the same instance does no harm."""
        write_private(self._folder / f"{request.stem}.json", json.dumps(asdict(request)))

    def waiting(self) -> frozenset[str]:
        """The instances whose configuration was requested and has not ended."""
        return frozenset(request.instance_id for name, request in self._requests() if not self._result(name).exists())

    def results(self) -> Mapping[str, JoinResult]:
        """The results, by instance."""
        results = {}
        for name, request in self._requests():
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                raw = json.loads(self._result(name).read_text())
                results[request.instance_id] = JoinResult(bool(raw["ok"]), str(raw["message"]))
        return results

    def remove(self, instance_id: str) -> None:
        """Remove a request and its result."""
        for name, request in self._requests():
            if request.instance_id == instance_id:
                # The request is removed first: without it the result has no meaning, and root does the work only once.
                (self._folder / name).unlink(missing_ok=True)
                self._result(name).unlink(missing_ok=True)

    def _result(self, name: str) -> Path:
        return self._folder / (name.removesuffix(".json") + RESULT)

    def _requests(self) -> list[tuple[str, JoinRequest]]:
        requests = []
        for path in sorted(self._folder.glob("*.json")):
            if path.is_file() and not path.name.endswith(RESULT):
                with contextlib.suppress(OSError, GpuClusterError):
                    requests.append((path.name, parse(path.read_bytes())))
        return requests


def parse(raw: bytes) -> JoinRequest:
    """Parse a request.

    Raises:
        InputError: this is not a request.
    """
    try:
        fields = json.loads(raw)
        texts = {name: fields[name] for name in ("node", "pool", "instance_id", "address")}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"the request has a wrong form: {error!r}") from error
    if not all(isinstance(text, str) for text in texts.values()):
        raise InputError("the request has a member that is not a string")
    return JoinRequest(**texts)
