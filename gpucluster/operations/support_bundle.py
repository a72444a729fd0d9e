"""One archive with what a person needs who looks for a fault of a cluster (`gpucluster support-bundle`). Reads only.

It is made of what this machine has (cluster.yml, the run log, evidence, outputs of Terraform and Ansible), of what the
services report (status, exposure, the state's addresses), and of what each host has that answers
(`node_agent.support`). Everything is asked at the same time, and nothing waits for what is gone: the manifest names
what is missing, and why. Every text goes through one scrubber on its way into the archive.
"""

from __future__ import annotations

import base64
import io
import json
import os
import platform
import re
import shlex
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpucluster import __version__
from gpucluster.artifacts import agent_archive
from gpucluster.errors import InputError, ToolError
from gpucluster.events import Sink, info, warn
from gpucluster.node_agent import bounded
from gpucluster.node_agent.interpreter import PYTHON_IN_SHELL
from gpucluster.node_agent.rules import scrubbing
from gpucluster.operations.backup import new_file
from gpucluster.operations.inquiry import Inquiry
from gpucluster.paths import ClusterPaths
from gpucluster.process import Completed
from gpucluster.terraform.state import StateContents
from gpucluster.text import count, printable, reason_of
from gpucluster.workspace.saved_state import SavedHost

#: Seconds for everything together.
TIMEOUT: float = 120.0
#: Hours of the journals.
SINCE_H: int = 24
#: Hosts that are asked at the same time. Seconds by which a host ends before this machine gives it up.
_AT_ONCE, _MARGIN_S = 32, 10.0
#: Bytes of one file of this machine, of all files of a host, and of all hosts together. They are decompressed bytes.
_LARGEST_FILE, _ROOM_OF_HOST, _ROOM_OF_ALL = 4_000_000, 16_000_000, 1_000_000_000
_SMALLEST_ROOM = 500_000
_MANIFEST = "manifest.json"
_SAFE = re.compile(r"[A-Za-z0-9@+=:,_-][A-Za-z0-9@+=:,._-]{0,200}")
#: The program arrives as base64 on standard input, and is gone when it has ended.
_RUN_IT = (
    'f=$(mktemp) && trap \'rm -f "$f"\' EXIT && base64 -d > "$f" && '
    f'timeout -k 5 {{seconds}} {PYTHON_IN_SHELL} -I "$f" {{options}}'
)
_NO_ROOT = re.compile(r"sudo: .*password is required")


@dataclass(frozen=True)
class NotCollected:
    """Something that is not in a bundle, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class SupportBundle:
    """A bundle that was written.

    Args:
        bytes: of the archive.
        files: in it, without the manifest.
        hosts: why each host is not in it, by name; empty for those that are.
        not_collected: what is missing.
        removed: how many texts were taken out because they looked like secrets.
    """

    file: Path
    bytes: int
    files: int
    hosts: Mapping[str, str]
    not_collected: Sequence[NotCollected]
    removed: int

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**asdict(self), "file": str(self.file)}


@dataclass(frozen=True)
class BundleSources:
    """Who is asked. Each may raise GpuClusterError.

    Args:
        status, exposure: as their commands have them in JSON.
        contents: Terraform's state.
        hosts: the hosts, the controller first; empty without a cluster.
        elastic: the names of elastic nodes that are up.
        ask: runs a command on a host: `ControllerConnection.ask`.
    """

    status: Callable[[], Mapping[str, Any]]
    exposure: Callable[[], Mapping[str, Any]]
    contents: Callable[[], StateContents]
    hosts: Callable[[], Sequence[SavedHost]]
    elastic: Callable[[], Sequence[str]]
    ask: Callable[..., Completed]


@dataclass
class _Entry:
    path: str
    bytes: int
    source: str
    cut: bool


@dataclass
class _Archive:
    """The archive while it is written. Several threads add to it.

    Args:
        folder: in which everything in it lies.
        known: secrets of this machine.
    """

    tar: tarfile.TarFile
    folder: str
    known: scrubbing.Scrubber
    entries: list[_Entry] = field(default_factory=list)
    missing: list[NotCollected] = field(default_factory=list)
    removed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    closed: bool = False

    def add(self, path: str, text: str, source: str, *, cut: bool = False) -> None:
        """Add a text without its secrets."""
        clean = self.known.text(text)
        with self.lock:
            if self.closed:
                return
            self.removed += clean.count(scrubbing.HIDDEN)
            self.entries.append(_Entry(path, len(clean.encode(errors="replace")), source, cut))
            self._write(path, clean)

    def lack(self, what: str, why: str) -> None:
        """State what is missing."""
        with self.lock:
            if not self.closed:
                self.missing.append(NotCollected(what, printable(self.known.text(why))[:500]))

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Write the manifest. Nothing is added after it."""
        with self.lock:
            self.closed = True
            manifest = {
                **facts,
                "removed": self.removed,
                "not_collected": [asdict(each) for each in sorted(self.missing, key=lambda each: each.what)],
                "files": [asdict(entry) for entry in sorted(self.entries, key=lambda entry: entry.path)],
            }
            self._write(_MANIFEST, json.dumps(manifest, indent=1) + "\n")

    def _write(self, path: str, text: str) -> None:
        data = text.encode(errors="replace")
        member = tarfile.TarInfo(f"{self.folder}/{path}")
        member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
        self.tar.addfile(member, io.BytesIO(data))


class SupportBundles:
    """Makes bundles of one cluster.

    `name` is that of the cluster.

    Args:
        file: its cluster.yml, which may have errors.
        sources: None where cluster.yml can't be read: then only what this machine has is taken.
    """

    def __init__(
        self, *, name: str, file: Path, paths: ClusterPaths, sources: BundleSources | None, on_event: Sink
    ) -> None:
        self.name = name
        self._file = file
        self._paths = paths
        self._sources = sources
        self._on_event = on_event

    def create(
        self,
        path: Path,
        *,
        since_h: int = SINCE_H,
        hosts: Sequence[str] = (),
        timeout: float = TIMEOUT,
        problem: str = "",
    ) -> SupportBundle:
        """Write a bundle into a new file that only its owner may read.

        Args:
            path: of the archive, `.tar.gz`.
            since_h: hours of the journals.
            hosts: take these hosts alone; empty for all.
            timeout: seconds for everything that is asked.
            problem: why there are no sources.

        Raises:
            InputError: the file exists already, or can't be written there; there is no such host.
            EnvironmentFault: there is no room for it.
        """
        until = time.monotonic() + timeout
        made = datetime.now(UTC)
        with new_file(path, "bundle") as part, tarfile.open(part, "w:gz", compresslevel=6) as tar:
            folder = f"{self.name}-support-{made:%Y%m%dT%H%M%SZ}"
            archive = _Archive(tar, folder, scrubbing.Scrubber(self._known_secrets()))
            services = self._ask_services()
            workspace = Inquiry(lambda: self._take_workspace(archive))
            answered: dict[str, str] = {}
            if self._sources is None:
                archive.lack("hosts, status, state", problem or "cluster.yml can't be read")
            else:
                answered = self._take_hosts(archive, self._sources, hosts, since_h, until)
            for name, inquiry in services.items():
                answer = inquiry.answer(until)
                if answer.value is None:
                    archive.lack(f"{name}.json", answer.error)
                else:
                    archive.add(f"{name}.json", json.dumps(answer.value, indent=1, default=str), name)
            workspace.result()  # this machine's own files have no limit
            archive.finish(
                {
                    "cluster": self.name,
                    "made": made.isoformat(timespec="seconds"),
                    "gpucluster": __version__,
                    "python": platform.python_version(),
                    "machine": platform.platform(),
                    "journals_since_h": since_h,
                    "hosts": answered,
                }
            )
        info(self._on_event, "support-bundle", f"{path} is written")
        return SupportBundle(
            path, path.stat().st_size, len(archive.entries), answered, tuple(archive.missing), archive.removed
        )

    # --- this machine -----

    def _known_secrets(self) -> list[str | bytes]:
        """Those of this machine: of the environment, and the private keys of the cluster."""
        secrets: list[str | bytes] = [
            value for name, value in os.environ.items() if scrubbing.is_secret_name(name) and not os.path.exists(value)
        ]
        for file in self._paths.ssh.glob("*_ed25519"):
            try:
                lines = file.read_text(errors="replace").splitlines()
            except OSError:
                continue
            secrets += [line for line in lines if not line.startswith("-----")]
        return secrets

    def _take_workspace(self, archive: _Archive) -> None:
        """cluster.yml, the run log with evidence, the evidence against hosts, what Terraform and Ansible have printed;
        names of the other files."""
        self._take_file(archive, self._file, "cluster.yml")
        root = self._paths.root
        for file in sorted(self._paths.runs.rglob("*")):
            if file.is_file() and not file.is_symlink() and file.suffix != ".errored":
                self._take_file(archive, file, f"runs/{file.relative_to(self._paths.runs)}")
        for file in sorted(self._paths.host_reports.glob("*.json")):
            self._take_file(archive, file, f"host-reports/{file.name}")
        for file in sorted((self._paths.ansible / "artifacts").glob("*/stdout")):
            self._take_file(archive, file, f"ansible/{file.parent.name}.log")
        if not root.is_dir():
            archive.lack("the workspace", f"there is no {root}")
            return
        listed = []
        for file in sorted(root.rglob("*")):
            try:
                facts = file.lstat()
            except OSError:
                continue
            when = datetime.fromtimestamp(facts.st_mtime, UTC).isoformat(timespec="seconds")
            listed.append(f"{facts.st_mode:o} {facts.st_size:>10} {when} {file.relative_to(root)}")
        archive.add("workspace.txt", "\n".join(listed) + "\n", "names of files in .gpucluster")

    def _take_file(self, archive: _Archive, file: Path, path: str) -> None:
        try:
            with file.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                cut = size > _LARGEST_FILE
                stream.seek(max(0, size - _LARGEST_FILE))
                text = stream.read(_LARGEST_FILE).decode(errors="replace")
        except OSError as error:
            archive.lack(path, f"{file}: {reason_of(error)}")
            return
        archive.add(path, text.partition("\n")[2] if cut else text, str(file), cut=cut)

    # --- services -----

    def _ask_services(self) -> dict[str, Inquiry[Any]]:
        if self._sources is None:
            return {}
        sources = self._sources

        def state() -> list[dict[str, Any]]:
            """Addresses and OCIDs, and no values: the state has secrets."""
            entries = sources.contents().entries
            return [{"address": each.address, "id": each.id, "deposed": each.deposed} for each in entries]

        return {
            "status": Inquiry(sources.status),
            "exposure": Inquiry(sources.exposure),
            "state": Inquiry(state),
        }

    # --- hosts -----

    def _take_hosts(
        self, archive: _Archive, sources: BundleSources, chosen: Sequence[str], since_h: int, until: float
    ) -> dict[str, str]:
        """Take what each host has. Returns why one is not in the archive, by its name; empty for those that are."""
        listed = Inquiry(sources.hosts).answer(until)
        if listed.value is None:
            archive.lack("hosts", listed.error)
            return {}
        names = [host.name for host in listed.value]
        if not names:
            archive.lack("hosts", "there is no cluster: nothing was applied, or it was destroyed")
            return {}
        elastic = Inquiry(sources.elastic).answer(until)
        if elastic.value is None:
            archive.lack("elastic nodes", elastic.error)
        names += [name for name in elastic.value or () if name not in names]
        unknown = sorted(set(chosen) - set(names))
        if unknown:
            raise InputError(
                f"there is no host {', '.join(unknown)}", where="--host", hint=f"The hosts are {', '.join(names)}"
            )
        asked = [name for name in names if not chosen or name in chosen]
        room = max(_SMALLEST_ROOM, min(_ROOM_OF_HOST, _ROOM_OF_ALL // len(asked)))
        program = base64.encodebytes(agent_archive.of_support()).decode()
        slots = threading.Semaphore(_AT_ONCE)
        margin = min(_MARGIN_S, (until - time.monotonic()) / 6)
        controller = names[0]

        def ask(name: str) -> int:
            with slots:
                seconds = until - time.monotonic()
                if seconds < margin:
                    raise ToolError("there was no time left to ask it")
                options = ["--since", str(since_h), "--room", str(room), "--seconds", f"{seconds - margin:.1f}"]
                if name == controller:
                    options.append("--controller")
                text = _RUN_IT.format(seconds=f"{seconds - margin / 2:.1f}", options=shlex.join(options))
                command = f"sudo -n sh -c {shlex.quote(text)}"
                place = None if name == controller else name
                result = sources.ask(command, host=place, text=program, timeout=seconds)
                content = _content(result, room)
            return _take(archive, f"hosts/{name}", content)

        info(self._on_event, "support-bundle", f"asking {count(len(asked), 'host')}")
        inquiries = {name: Inquiry(lambda name=name: ask(name)) for name in asked}  # type: ignore[misc]
        errors: dict[str, str] = {}
        for number, (name, inquiry) in enumerate(inquiries.items(), 1):
            answer = inquiry.answer(until)
            errors[name] = archive.known.text(answer.error)
            place = f"{name} ({number} of {len(asked)})"
            if answer.error:
                archive.lack(f"hosts/{name}", errors[name])
                warn(self._on_event, "support-bundle", f"{place}: {errors[name]}")
            else:
                info(self._on_event, "support-bundle", f"{place}: {count(answer.value or 0, 'file')}")
        return errors


def _take(archive: _Archive, folder: str, content: Mapping[str, Any]) -> int:
    """Add what a host has sent. Returns the number of its files. Names that could leave the folder are refused."""
    files, cut = content.get("files"), content.get("cut")
    taken = 0
    for name, text in files.items() if isinstance(files, dict) else ():
        if not isinstance(text, str) or not all(_SAFE.fullmatch(part) for part in name.split("/")):
            archive.lack(f"{folder}/{printable(name)[:80]}", "the host has sent a name or a content of an unknown form")
            continue
        archive.add(f"{folder}/{name}", text, folder, cut=isinstance(cut, list) and name in cut)
        taken += 1
    missing = content.get("missing")
    for name, why in missing.items() if isinstance(missing, dict) else ():
        archive.lack(f"{folder}/{printable(name)[:200]}", str(why))
    return taken


def _content(result: Completed, room: int) -> Mapping[str, Any]:
    """What a host has sent: at most what it was told, whatever it sends.

    Raises:
        ToolError: it has sent something else.
    """
    said = printable(result.stderr.strip().rpartition("\n")[2])[:200]
    lines = result.stdout.split()
    if result.returncode and not lines:
        if _NO_ROOT.search(result.stderr):
            said = "sudo asks for a password there"
        raise ToolError(said or f"its program ended with {result.returncode}")
    try:
        largest = 3 * room + 1_000_000  # JSON writes a sign of two bytes with six
        unpack = zlib.decompressobj()
        data = unpack.decompress(base64.b64decode(lines[-1], validate=True), largest)
        if unpack.unconsumed_tail:
            raise ToolError("it has sent more than it was asked for")
        content = bounded.loads(data, largest)
    except (IndexError, ValueError, zlib.error):
        raise ToolError(f"its answer can't be read{f': {said}' if said else ''}") from None
    if not isinstance(content, dict):
        raise ToolError("its answer can't be read")
    return content


def of_workspace(file: Path, on_event: Sink) -> SupportBundles:
    """For a cluster.yml that can't be read: what this machine has."""
    name = re.sub(r"[^A-Za-z0-9-]", "-", file.resolve().parent.name) or "cluster"
    return SupportBundles(name=name, file=file, paths=ClusterPaths.of(file), sources=None, on_event=on_event)
