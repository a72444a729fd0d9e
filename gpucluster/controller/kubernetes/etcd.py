"""etcd of the control plane: its space and snapshots. etcdctl is that of the host, else that of etcd's container."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gpucluster.controller.kubernetes import containers
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed

DATA = Path("/var/lib/etcd")
_PKI = "/etc/kubernetes/pki/etcd"
_TLS = (
    f"--cacert={_PKI}/ca.crt", f"--cert={_PKI}/healthcheck-client.crt", f"--key={_PKI}/healthcheck-client.key",
)  # fmt: skip
_ENDPOINT = "https://127.0.0.1:2379"
_NOSPACE = "NOSPACE"
#: Seconds: a question; and what reads or writes the whole database.
_SECONDS, _DATA_SECONDS = 30.0, 600.0
_LOOK = "See its log: gpucluster ssh -- sudo crictl logs $(sudo crictl ps -a --name etcd -q | head -1)"


class Space(NamedTuple):
    """What etcd stores.

    Attributes:
        size: bytes of its file, which has a limit.
        used: bytes of it that hold something.
        revision: of the last change.
        full: it refuses every change until space is freed and the alarm is ended.
    """

    size: int
    used: int
    revision: int
    full: bool


def space_of(status: str, alarms: str) -> Space:
    """What `endpoint status` (JSON) and `alarm list` print.

    Raises:
        Failed: that is not an answer of etcdctl.
    """
    try:
        one = json.loads(status)[0]["Status"]
        size = int(one["dbSize"])
        return Space(size, int(one.get("dbSizeInUse", size)), int(one["header"]["revision"]), _NOSPACE in alarms)
    except (ValueError, LookupError, TypeError):
        raise Failed(f"etcdctl reports nothing of etcd's state: {status.strip()[:80]!r}", _LOOK) from None


class Etcd:
    """One member, on this host.

    Args:
        endpoint: its address.
        tls: the options for its certificates.
        data: its folder, which its container sees under the same path.
    """

    def __init__(self, endpoint: str = _ENDPOINT, tls: Sequence[str] = _TLS, data: Path = DATA) -> None:
        self._options = [f"--endpoints={endpoint}", *tls]
        self.data = data

    def space(self) -> Space:
        """What it stores.

        Raises:
            Failed: it gives no answer.
        """
        return space_of(self._ask("endpoint", "status", "--write-out=json"), self._ask("alarm", "list"))

    def compact(self) -> tuple[Space, Space]:
        """Forget old versions of objects, give their space back, and end the alarm. Returns what it stored before and
        after.

        Raises:
            Failed: a step failed; all of them can be done again.
        """
        before = self.space()
        result = self._run(["compact", str(before.revision)], _DATA_SECONDS)
        if result.returncode != 0 and "has been compacted" not in result.stderr:
            raise _failed("compact", result)
        self._ask("defrag", "--command-timeout=300s", seconds=_DATA_SECONDS)
        if before.full:
            self._ask("alarm", "disarm")
        return before, self.space()

    def snapshot(self, file: Path) -> None:
        """Write all that it stores, as of one moment, into a new file; it keeps working.

        Raises:
            Failed: no snapshot was written.
        """
        # Its container sees its own folder alone.
        part = self.data / f"gpucluster-{uuid.uuid4().hex}.db"
        try:
            self._ask("snapshot", "save", str(part), seconds=_DATA_SECONDS)
            part.chmod(0o600)
            shutil.move(str(part), str(file))
        finally:
            for left in (part, Path(f"{part}.part")):
                left.unlink(missing_ok=True)

    def objects(self) -> int:
        """How many objects of Kubernetes it stores.

        Raises:
            Failed: it gives no answer.
        """
        answer = self._ask("get", "/registry/", "--prefix", "--limit=1", "--keys-only", "--write-out=json")
        try:
            return int(json.loads(answer).get("count", 0))
        except (ValueError, AttributeError):
            raise Failed(f"etcdctl does not count: {answer.strip()[:80]!r}", _LOOK) from None

    @staticmethod
    def restore(snapshot: Path, folder: Path, flags: Sequence[str], image: str) -> None:
        """Make the folder of a new member from a snapshot. Nothing that runs is touched.

        Args:
            folder: it must not exist.
            flags: the member's name and addresses, as its own options have them.
            image: of etcd, in containerd's store; its programs are used where the host has none.

        Raises:
            Failed: the snapshot is damaged, or it does not fit on the disk.
        """
        shutil.rmtree(folder, ignore_errors=True)
        words = ["snapshot", "restore", str(snapshot), f"--data-dir={folder}", *flags]
        # etcdutl restores since etcd 3.5, and etcdctl not any more since 3.6.
        for program in ("etcdutl", "etcdctl"):
            if shutil.which(program):
                result = programs.call([program, *words], seconds=_DATA_SECONDS)
                break
        else:
            result = _in_image(image, snapshot, folder, words)
        if result.returncode != 0:
            raise _failed("snapshot restore", result)

    def _ask(self, *words: str, seconds: float = _SECONDS) -> str:
        result = self._run(words, seconds)
        if result.returncode != 0:
            raise _failed(words[0], result)
        return result.stdout

    def _run(self, words: Sequence[str], seconds: float) -> programs.Completed[str]:
        argv = ["etcdctl", *self._options, *words]
        if shutil.which("etcdctl"):
            return programs.call(argv, seconds=seconds)
        container_ids = containers.running("etcd")
        if not container_ids:
            raise Failed("etcd does not run on the controller", _LOOK)
        inside = [
            "ctr",
            "--namespace=k8s.io",
            "tasks",
            "exec",
            f"--exec-id=gpucluster-{uuid.uuid4().hex}",
            container_ids[0],
        ]
        return programs.call([*inside, *argv], seconds=seconds)


def _in_image(image: str, snapshot: Path, folder: Path, words: Sequence[str]) -> programs.Completed[str]:
    mounts = [
        f"--mount=type=bind,src={each},dst={each},options=rbind:rw"
        for each in dict.fromkeys((snapshot.parent, folder.parent))
    ]
    result = programs.call(["ctr", "--version"])
    for program in ("etcdutl", "etcdctl"):
        name = f"gpucluster-{uuid.uuid4().hex}"
        argv = ["ctr", "--namespace=k8s.io", "run", "--rm", *mounts, image, name, program, *words]
        result = programs.call(argv, seconds=_DATA_SECONDS)
        if "executable file not found" not in result.stderr:
            break
    return result


def _failed(what: str, result: programs.Completed[str]) -> Failed:
    lines = (result.stderr.strip() or result.stdout.strip() or f"status {result.returncode}").splitlines()
    # etcd 3.4 and 3.5 log in JSON beside their errors.
    match = re.search(r'"error":"([^"]+)"', lines[-1])
    return Failed(f"etcd does not do `{what}`: {match[1] if match else lines[-1]}", _LOOK)
