"""The operations: import, list and remove images."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

from gpucluster.controller.images.job import ImportJob, ImportPool
from gpucluster.controller.images.references import SUFFIX, Reference, checked_name, reference, shown
from gpucluster.controller.images.requester import report
from gpucluster.controller.images.store import ImageStore
from gpucluster.controller.rules import srun_messages
from gpucluster.controller.rules.srun_messages import End
from gpucluster.node_agent.accounts import Account, account, account_of
from gpucluster.node_agent.errors import Failed, Refused

_CREDENTIALS = (
    "The registry requires credentials: a line `machine HOST login NAME password SECRET` in "
    "{home}/.config/enroot/.credentials, which only {user} may read. HOST is without its port"
)
#: Messages of Enroot and Slurm, as regular expressions, and what helps.
HINTS = (
    (r"\b40[13]\b|[Uu]nauthorized|denied: ", _CREDENTIALS),
    (r"\b404\b|manifest unknown", "Check the name and the tag; some registries require NAME/NAME"),
    (r"[Cc]ould not resolve|[Ff]ailed to connect|[Cc]onnection (?:refused|timed out|reset)|SSL|certificate",
     "Check from the node: it must reach the registry, and trust its certificate"),
    (r"No space left|[Dd]isk quota",
     "Free space on the share or on the node's disk; run: gpucluster ssh -- df -h {directory}"),
    (r"oom_kill|[Oo]ut of memory|OUT_OF_MEMORY",
     "Packing needs more memory than the job has: choose a pool with more memory for each processor"),
    (r"failed to set capabilities", "The node lacks the package enroot+caps. Run: gpucluster apply"),
    (r"execve\(\).*enroot|enroot: (?:command )?not found", "The node has no Enroot yet. Run: gpucluster apply"),
    (r"[Ii]nvalid account|association", "The user has no account in Slurm; run: gpucluster user show {user}"),
    # With basic authentication Enroot (4.1) ends here without a word about the refusal.
    (r"Authenticating with user: [^;]*(?:; [^;]*Using credentials from file[^;]*)?(?:; srun: [^;]*)*$", _CREDENTIALS),
)  # fmt: skip

#: Ends of a job after which the same import may succeed.
_AGAIN = (End.NODE_FAILED, End.REVOKED, End.NO_STEP)


class Importer:
    """Carries out the operations."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._pools = {name: ImportPool(**pool) for name, pool in config["pools"].items()}
        self._default = str(config["default_pool"])
        self._store = ImageStore(Path(config["share"]), Path(config["directory"]), Path(config["locks"]))

    def do(self, operation: Any, arguments: Any) -> dict[str, Any]:
        """Carry out one operation."""
        ways = {"image.import": self._import, "image.list": self._list, "image.remove": self._remove}
        if operation not in ways:
            raise Refused(f"there is no operation {shown(operation)}", f"One of: {', '.join(ways)}")
        if not isinstance(arguments, dict):
            raise Refused("the arguments are not an object", 'Write {"name": ...}')
        return ways[operation](arguments)

    def _list(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"images": self._store.images()}

    def _remove(self, arguments: dict[str, Any]) -> dict[str, Any]:
        name = checked_name(arguments.get("name"))
        with self._store.locked(name, wait=False):
            if self._store.image(name) is None:
                raise Refused(f"there is no image {name}", "Run: gpucluster image list")
            self._store.remove(name)
        return {"name": name}

    def _import(self, arguments: dict[str, Any]) -> dict[str, Any]:
        target = reference(arguments.get("uri"), arguments.get("name"))
        owner = account(arguments.get("user"))
        pool = self._pool(arguments.get("pool", self._default))
        self._store.prepare()
        with self._store.locked(target.name, wait=True):
            present = self._store.image(target.name)
            if present and arguments.get("force") is not True:
                if present["uri"] != target.uri:
                    origin = f"from {present['uri']}" if present["uri"] else "of unknown origin"
                    raise Refused(
                        f"there is an image {target.name} already, {origin}",
                        "Choose a name with --name, or replace it with --force",
                    )
                return {"image": present, "changed": False}
            self._fetch(target, owner, pool)
            return {"image": self._store.image(target.name), "changed": True}

    def _fetch(self, target: Reference, owner: Account, pool: ImportPool) -> None:
        self._clean_up(target.name)
        place = self._store.begin(target.name, owner)
        try:
            made = f"image{SUFFIX}"
            report(f"importing {target.uri} as {target.name}: a job of {owner.name} in partition {pool.partition}")
            status, words = ImportJob(owner, target.name).run(
                pool, ["enroot", "import", "--output", str(place / made), target.uri]
            )
            if status != 0:
                raise self._failure(status, words, owner)
            self._store.publish(target.name, made, {"uri": target.uri, "user": owner.name})
        finally:
            self._store.clear(target.name)

    def _clean_up(self, name: str) -> None:
        """Cancel the job of an import that was killed, and delete what it left."""
        uid = self._store.begun_by(name)
        if uid is None:
            return
        report(f"an earlier import of {name} was killed; removing what it left")
        with contextlib.suppress(Refused):
            ImportJob(account_of(uid), name).cancel()
        self._store.clear(name)

    def _failure(self, status: int, words: list[str], owner: Account) -> Failed:
        text = "; ".join(words)
        room = {"user": owner.name, "home": owner.home, "directory": self._store.directory}
        end = srun_messages.end(text)
        if end in _AGAIN:
            hint = f"Not because of the image: {end.value}. Run the same command again"
        else:
            hint = next((help_.format(**room) for pattern, help_ in HINTS if re.search(pattern, text)), "")
        return Failed(f"the import failed with status {status}: {text or 'it printed nothing'}", hint)

    def _pool(self, name: Any) -> ImportPool:
        if name not in self._pools:
            raise Refused(f"there is no pool {shown(name)}", f"The pools are {', '.join(self._pools)}")
        return self._pools[name]
