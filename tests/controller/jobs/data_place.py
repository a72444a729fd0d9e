"""A share with data sets, and a server that has their files."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from gpucluster.controller.jobs import datasets, requirements
from tests.controller.jobs.share_harness import home


class Place:
    """A share of 2 MB, with a store on it."""

    def __init__(self, folder: Path, locks: Path) -> None:
        self.share = folder
        self.owner = home(folder)
        self.store = datasets.DataSetStore(folder, locks)
        self.folder = folder.joinpath(*datasets.FOLDER)

    def bring(self, name: str, file: str, content: bytes, **more: Any) -> dict[str, Any]:
        of = wanted(name, file, content, **more)
        with self.store.locked(name):
            begun = self.store.begin(of)
            if begun["present"]:
                return begun
            self.store.add(of, begun["have"], encoded(content[begun["have"] :]))
            return self.store.publish(of)

    def states(self, *needs: tuple[str, str]) -> list[tuple[str, str]]:
        given = [{"need": need, "name": name} for need, name in needs]
        return [(each["state"], each["message"]) for each in requirements.check(self.owner, self.share, given)]


def wanted(name: str, file: str, content: bytes, **more: Any) -> datasets.Upload:
    sha256 = hashlib.sha256(content).hexdigest()
    return datasets.upload({"name": name, "file": file, "sha256": sha256, "size": len(content), **more})


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()
