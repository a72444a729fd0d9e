"""A mirror of releases that a test fills with small packages of its own: a folder, also served by HTTP on loopback.

    mirror = Mirror(tmp_path / "mirror")
    mirror.deb("enroot", "4.1.2-1", {"/usr/bin/enroot": "#!/bin/sh\necho hello\n"}, depends="jq")
    mirror.tar("pyxis-0.24.0.tar.gz", {"pyxis-0.24.0/Makefile": "all:\n"})
    with mirror.serve() as server:
        server.url, server.asked["pyxis-0.24.0.tar.gz"], server.faults["pyxis-0.24.0.tar.gz"] = "wrong"

A file whose content begins with `#!` is executable. SHA256SUMS is kept up to date with every file that is made.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import subprocess
import tarfile
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import unquote

from tests.waiting import PATIENCE_S

Content = str | bytes
Fault = Literal["truncated", "wrong", "missing", "broken", "slow", "stuck", "endless", "redirect"]
SUMS = "SHA256SUMS"
# Seconds between two parts of a slow answer. It goes on until the client leaves, or the server is stopped.
_PAUSE = 0.05


def _bytes(content: Content) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _mode(content: bytes) -> int:
    return 0o755 if content.startswith(b"#!") else 0o644


@dataclass
class Server:
    """The HTTP server: its address, its requests, and its faults.

    Args:
        asked: the number of GET requests by path, decoded and without its first slash (`enroot/x.deb`).
        looked: the number of HEAD requests by path.
        faults: what it does wrong, by the path or the name of the file.
    """

    url: str = ""
    asked: Counter[str] = field(default_factory=Counter)
    looked: Counter[str] = field(default_factory=Counter)
    faults: dict[str, Fault] = field(default_factory=dict)


class Mirror:
    """A folder with release files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def deb(
        self,
        name: str,
        version: str,
        files: Mapping[str, Content],
        *,
        depends: str = "",
        scripts: Mapping[str, Content] | None = None,
        architecture: str = "amd64",
        place: str = "",
    ) -> Path:
        """A real Debian package, `NAME_VERSION_ARCHITECTURE.deb`.

        Args:
            files: by their absolute path on the host.
            scripts: of the maintainer, by name: `postinst`, `prerm`, ...
            place: a folder inside the mirror.
        """
        target = self.folder / place / f"{name}_{version}_{architecture}.deb"
        target.parent.mkdir(parents=True, exist_ok=True)
        control = (
            f"Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: test <test@example.org>\n"
        )
        control += f"Depends: {depends}\n" if depends else ""
        control += "Description: a double that a test has made\n"
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch)
            root.chmod(0o755)
            tree = {path.lstrip("/"): content for path, content in files.items()}
            tree |= {"DEBIAN/control": control}
            tree |= {f"DEBIAN/{script}": content for script, content in (scripts or {}).items()}
            for path, content in tree.items():
                data = _bytes(content)
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(data)
                (root / path).chmod(_mode(data))
            subprocess.run(
                ["dpkg-deb", "--build", "--root-owner-group", "-Zgzip", "-z1", str(root), str(target)],
                check=True,
                capture_output=True,
            )
        self.sums()
        return target

    def tar(self, name: str, tree: Mapping[str, Content]) -> Path:
        """A tar archive, compressed as its name states. The same content gives the same bytes."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for path, content in sorted(tree.items()):
                data = _bytes(content)
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode = len(data), _mode(data)
                archive.addfile(entry, io.BytesIO(data))
        return self.file(name, _compressed(buffer.getvalue(), name))

    def file(self, name: str, content: Content) -> Path:
        """Any file; `name` may have folders."""
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(_bytes(content))
        self.sums()
        return target

    def sha256(self, name: str) -> str:
        """The checksum of a file of the mirror."""
        return hashlib.sha256((self.folder / name).read_bytes()).hexdigest()

    def sums(self) -> None:
        """Write SHA256SUMS again. A test without one removes it afterwards."""
        files = sorted(file for file in self.folder.rglob("*") if file.is_file() and file.name != SUMS)
        names = [file.relative_to(self.folder).as_posix() for file in files]
        (self.folder / SUMS).write_text("".join(f"{self.sha256(name)}  {name}\n" for name in names))

    @contextlib.contextmanager
    def serve(self, address: str = "127.0.0.1") -> Iterator[Server]:
        """Plain HTTP on a free port, until the end of the block."""
        server = Server()
        listener = _Listener((address, 0), self.folder, server)
        server.url = f"http://{address}:{listener.server_port}"
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listener.stopped.set()
            listener.shutdown()
            listener.server_close()
            thread.join(PATIENCE_S)


def _compressed(data: bytes, name: str) -> bytes:
    if name.endswith((".gz", ".tgz")):
        return gzip.compress(data, compresslevel=1, mtime=0)
    return data


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], folder: Path, server: Server) -> None:
        super().__init__(address, _Handler)
        self.folder, self.recorded, self.stopped = folder, server, threading.Event()


class _Handler(BaseHTTPRequestHandler):
    server: _Listener

    def do_HEAD(self) -> None:
        self.server.recorded.looked[self._name()] += 1
        self._answer(body=False)

    def do_GET(self) -> None:
        self.server.recorded.asked[self._name()] += 1
        self._answer(body=True)

    def log_message(self, *_args: object) -> None:
        pass

    def _name(self) -> str:
        return unquote(self.path).lstrip("/")

    def _answer(self, *, body: bool) -> None:
        name = self._name()
        faults = self.server.recorded.faults
        fault = faults.get(name) or faults.get(PurePosixPath(name).name)
        file = self.server.folder / name
        if fault == "redirect":
            self.send_response(302)
            self.send_header("Location", self.path)
            self.end_headers()
        elif fault == "broken":
            self.send_error(500)
        elif fault == "missing" or ".." in PurePosixPath(name).parts or not file.is_file():
            self.send_error(404)
        else:
            data = file.read_bytes()
            self.send_response(200)
            if fault != "endless":
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                with contextlib.suppress(OSError):  # the client has closed the connection
                    self._send(data, fault)

    def _send(self, data: bytes, fault: Fault | None) -> None:
        if fault == "truncated":
            self.wfile.write(data[: len(data) // 2])
        elif fault == "wrong":
            self.wfile.write(b"\0" * len(data))
        elif fault == "stuck":
            self.wfile.write(data[: len(data) // 2])
            self.server.stopped.wait()
        elif fault == "slow":
            self._send_slowly([data[at : at + 1] for at in range(len(data))])
        elif fault == "endless":
            self._send_slowly(repeat(bytes(65536)))
        else:
            self.wfile.write(data)

    def _send_slowly(self, parts: Iterable[bytes]) -> None:
        for part in parts:
            if self.server.stopped.wait(_PAUSE):
                break
            self.wfile.write(part)
            self.wfile.flush()
