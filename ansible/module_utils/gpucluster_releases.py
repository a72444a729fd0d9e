"""Release files on a host: downloaded from the controller, checked, and cached with a record of each."""

from __future__ import annotations

import hashlib
import http.client
import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import quote

RECORD = ".known.json"
FACTS = {"component", "sha256", "looks", "packages", "sought"}
CHUNK = 1024 * 1024
SILENCE = 60.0
PAUSES = (0.5, 1.0, 2.0, 5.0)


class Refused(Exception):
    """The download failed, and a retry would not help."""


class Store:
    """The files on this host with a record of each: a file with the same size and time is not read again.

    Args:
        check: write nothing, whatever is learned.
    """

    def __init__(self, folder: Path, *, check: bool = False) -> None:
        self.folder, self.check = folder, check
        try:
            known: dict[str, dict[str, Any]] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}
        self.known = {name: facts for name, facts in known.items() if facts.keys() == FACTS}

    def has(self, file: dict[str, Any]) -> bool:
        """Whether the file exists and has its checksum."""
        path = self.folder / file["file"]
        try:
            state = path.stat()
        except OSError:
            return False
        known = self.known.get(file["file"], {})
        looks = [state.st_size, state.st_mtime_ns]
        if known.get("sha256") == file["sha256"] and known.get("looks") == looks:
            return True
        if sha256(path) != file["sha256"]:
            return False
        self.learn(file)
        return True

    def learn(
        self, file: dict[str, Any], packages: dict[str, list[str]] | None = None, sought: Collection[str] = ()
    ) -> None:
        """Record a file that was checked, and its packages.

        Args:
            packages: by name: the version, and the path of the package.
            sought: the names of the packages that were searched for.
        """
        state = (self.folder / file["file"]).stat()
        self.known[file["file"]] = {
            "component": file["component"],
            "sha256": file["sha256"],
            "looks": [state.st_size, state.st_mtime_ns],
            "packages": packages or {},
            "sought": sorted(sought),
        }
        self._write()

    def strays(self) -> list[str]:
        """Files without a record."""
        names = sorted(entry.name for entry in self.folder.iterdir()) if self.folder.is_dir() else []
        return [name for name in names if not name.startswith(".") and name.removesuffix(".d") not in self.known]

    def forget(self, name: str) -> None:
        """Delete a file and the files extracted from it."""
        self.known.pop(name, None)
        for path in (self.folder / name, self.folder / f"{name}.d"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self._write()

    def _write(self) -> None:
        if self.check:
            return
        part = self.folder / f"{RECORD}.part"
        part.write_text(json.dumps(self.known, indent=1), encoding="utf-8")
        part.replace(self.folder / RECORD)


def sha256(path: Path) -> str:
    """The checksum of a file."""
    checksum = hashlib.sha256()
    with path.open("rb") as stream:
        for data in iter(lambda: stream.read(CHUNK), b""):
            checksum.update(data)
    return checksum.hexdigest()


def fetch(server: str, name: str, wanted: str, target: Path, timeout: float) -> None:
    """Download one file; retries while the controller is busy or does not respond.

    Raises:
        Refused: it does not exist, it is another file, or the time is up.
    """
    # Never through a proxy: the controller is in the same network.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    url = f"{server}/{quote(name)}"
    part = target.with_name(f".{target.name}.part")
    until = time.monotonic() + timeout
    attempt = 0
    while True:
        try:
            with opener.open(url, timeout=SILENCE) as answer, part.open("wb") as out:
                shutil.copyfileobj(answer, out, CHUNK)
                size = int(answer.headers.get("Content-Length", "-1"))
            if size not in (-1, part.stat().st_size):
                raise http.client.HTTPException(f"it ended after {part.stat().st_size} of {size} bytes")
            found = sha256(part)
            if found != wanted:
                raise Refused(f"{url} has the checksum {found} instead of {wanted}; run apply again")
            part.replace(target)
            return
        except urllib.error.HTTPError as error:
            if error.code == http.client.NOT_FOUND:
                raise Refused(f"{url} does not exist; run apply again to copy it to the controller") from error
            why = f"it returned {error.code}"
        except (http.client.HTTPException, ConnectionError, TimeoutError, urllib.error.URLError) as error:
            why = str(getattr(error, "reason", error))
        finally:
            part.unlink(missing_ok=True)
        if time.monotonic() > until:
            raise Refused(
                f"{url} can't be downloaded: {why}; see `systemctl status gpucluster-software` on the controller"
            )
        time.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
        attempt += 1
