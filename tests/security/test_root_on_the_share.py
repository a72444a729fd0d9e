"""Root of a node against root of the controller, on the home share, which squashes no user.

The attacker can change everything on the share at any moment. What it gets is what it has anyway: the files of users.
It must get nothing of the controller: no file there may change, appear or go, and no content of one may come to the
share.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller import share as shares
from gpucluster.controller.backup import directory, schedule, scheduled
from gpucluster.controller.backup import site as sites
from gpucluster.controller.images.store import ImageStore as Images
from gpucluster.controller.jobs import datasets
from gpucluster.controller.users.homes import REMOVED, Homes
from gpucluster.controller.users.state import DirectoryUser
from gpucluster.node_agent.accounts import Account, account
from gpucluster.node_agent.errors import AgentError
from gpucluster.node_agent.foreign_folder import Folder
from tests.controller.jobs.share_harness import share
from tests.security.hostile import TRIES, Victim, at_every_step, empty, racing, victim

__all__ = ["victim"]
EXPECTED = (AgentError, OSError)
pytestmark = pytest.mark.slow
BOB = DirectoryUser("bob", 4_000_001, 4_000_001, "Bob", "", "/bin/bash")
IMAGE = b"hsqs and layers"


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with share("16m") as folder:
        yield folder


@pytest.fixture
def locks() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def bob(place: Path) -> DirectoryUser:
    return DirectoryUser(BOB.name, BOB.uid, BOB.gid, BOB.full_name, str(place / "bob"), BOB.shell)


def home(place: Path, owner: int, *files: str) -> Path:
    folder = place / "bob"
    folder.mkdir(mode=0o700)
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("bob's")
    os.chown(folder, owner, owner)
    return folder


# --- at every step -----


def test_a_home_that_is_made(place: Path) -> None:
    at_every_step(place, lambda: None, lambda _: Homes(place).make(bob(place)), EXPECTED)


def test_an_empty_folder_of_root_that_becomes_a_home(place: Path) -> None:
    at_every_step(place, lambda: home(place, 0), lambda _: Homes(place).make(bob(place)), EXPECTED)


def test_a_home_that_is_deleted_with_what_earlier_runs_left(place: Path) -> None:
    def prepare() -> None:
        home(place, BOB.uid, "thesis", "code/main.c")
        store = place / REMOVED
        store.mkdir(mode=0o700)
        (store / ".eve.deleting").mkdir()
        (store / ".eve.deleting" / "file").write_text("eve's")
        (store / ".eve.tar.gz.partial").write_text("half")

    def delete(_: None) -> None:
        homes = Homes(place)
        homes.sweep("bob", homes.set_aside("bob"))

    at_every_step(place, prepare, delete, EXPECTED)


def test_a_home_that_is_archived(place: Path) -> None:
    at_every_step(place, lambda: home(place, BOB.uid, "thesis"), lambda _: Homes(place).archive("bob"), EXPECTED)


def archive(*names: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as opened:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(name)
            opened.addfile(member, io.BytesIO(name.encode()))
    return made.getvalue()


def wanted(content: bytes, *, unpack: bool) -> datasets.Upload:
    found = {"name": "mnist", "file": "mnist.bin", "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    return datasets.upload({**found, "unpack": unpack, "force": True})


def bring(place: Path, locks: Path, content: bytes, *, unpack: bool) -> None:
    of, store = wanted(content, unpack=unpack), datasets.DataSetStore(place, locks)
    with store.locked(of.name):
        if not store.begin(of)["present"]:
            store.add(of, 0, base64.b64encode(content).decode())
            store.publish(of)


@pytest.mark.parametrize("unpack", [True, False])
def test_a_data_set_that_replaces_another(place: Path, locks: Path, unpack: bool) -> None:
    content = archive("a", "deep/b") if unpack else b"bytes"

    def prepare() -> None:
        old = place.joinpath(*datasets.FOLDER, "mnist")
        old.mkdir(parents=True)
        (old / "old").write_text("old")
        (old / datasets.MANIFEST).write_text(json.dumps({"sha256": "0", "files": {"old": 3}}))

    at_every_step(place, prepare, lambda _: bring(place, locks, content, unpack=unpack), EXPECTED)


class Entries(directory.Directory):
    """A directory of which the dump is one line."""

    def dump(self, file: Path) -> None:
        file.write_text("dn: dc=demo\n")


def test_a_backup_on_a_schedule(place: Path, locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is encrypted by a double of openssl: the real one gets files that are open, and would be started each time."""
    folder = place / ".gpucluster-backups" / "demo"
    monkeypatch.setattr(sites, "KEPT", locks)
    monkeypatch.setattr(scheduled, "_encrypted", lambda _certificate, archive, out: out.write(archive.read() * 2))
    # The attacker knows the name in advance.
    monkeypatch.setattr(time, "strftime", lambda *_: "20260102T030405Z")
    plan = schedule.Schedule(locks / "certificate.pem", folder, place, 1, 60, locks)
    site = sites.Site("demo", Entries("dc=demo", place, place, "nobody"), None, None, plan)
    old = "demo-20200101T000000Z.tar.gz.cms"

    def prepare() -> None:
        folder.mkdir(parents=True)
        for name in (old, f"{old}.part"):
            (folder / name).write_text("old")

    def work(_: None) -> None:
        made = scheduled.make(site)
        scheduled.listed(site)
        scheduled.send(site, made["name"], io.BytesIO())

    at_every_step(place, prepare, work, EXPECTED)


def nobody() -> Account:
    return account("nobody")


def images(place: Path, locks: Path) -> Images:
    return Images(place, place / ".gpucluster" / "images", locks)


def _job(place: Path, made: Path) -> None:
    """A double of the job: it writes on a node, where no file of the controller is."""
    with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
        last = opened.enter_context(Folder.open(place))
        for name in made.parent.relative_to(place).parts:
            last = opened.enter_context(last.folder(name))
        last.write(made.name, IMAGE, 0o644)


def import_(place: Path, locks: Path) -> None:
    store = images(place, locks)
    with contextlib.suppress(*EXPECTED):  # what an earlier import left
        store.clear("tool")
    made = store.begin("tool", nobody()) / "image.sqsh"
    _job(place, made)
    store.publish("tool", made.name, {"uri": "docker://tool", "user": "nobody"})
    store.clear("tool")


def test_an_image_that_is_imported_again(place: Path, locks: Path) -> None:
    def prepare() -> None:
        store = images(place, locks)
        store.prepare()
        for name in ("tool.sqsh", "tool.json"):
            (store.directory / name).write_bytes(IMAGE)

    at_every_step(place, prepare, lambda _: import_(place, locks), EXPECTED)


def test_an_image_that_is_listed_and_removed(place: Path, locks: Path) -> None:
    def prepare() -> None:
        store = images(place, locks)
        store.prepare()
        for name in ("tool.sqsh", "tool.json"):
            (store.directory / name).write_bytes(IMAGE)

    def remove(_: None) -> None:
        store = images(place, locks)
        assert b"secret" not in json.dumps(store.images()).encode()
        store.remove("tool")

    at_every_step(place, prepare, remove, EXPECTED)


def test_the_file_of_verify(place: Path) -> None:
    def put_and_remove(_: None) -> None:
        shares.put(place, ".gpucluster-verify", "token", b"word")
        shares.remove(place, ".gpucluster-verify")

    at_every_step(place, lambda: None, put_and_remove, EXPECTED)


# --- in a race -----


def race(place: Path, victim: Victim, prepare: Callable[[], Path], operation: Callable[[], object]) -> None:
    """Repeat an operation while the path that `prepare` returns is exchanged with a link to the victim."""
    for _ in range(TRIES):
        empty(place)
        attacked = prepare()
        link = place / ".link"
        link.symlink_to(victim.folder)
        with racing(attacked, link), contextlib.suppress(*EXPECTED):
            operation()
        difference = victim.difference(place)
        assert not difference, "\n".join(difference)


def test_a_race_for_a_new_home(place: Path, victim: Victim) -> None:
    race(place, victim, lambda: home(place, 0), lambda: Homes(place).make(bob(place)))


def test_a_race_for_an_archive(place: Path, victim: Victim) -> None:
    race(place, victim, lambda: home(place, BOB.uid, "thesis", "deep/file"), lambda: Homes(place).archive("bob"))


def test_a_race_for_the_folder_of_removed_homes(place: Path, victim: Victim) -> None:
    def prepare() -> Path:
        home(place, BOB.uid, "thesis", "deep/file")
        (place / REMOVED).mkdir(mode=0o700)
        return place / REMOVED

    def delete() -> None:
        homes = Homes(place)
        homes.archive("bob")
        homes.sweep("bob", homes.set_aside("bob"))

    race(place, victim, prepare, delete)


def test_a_race_for_what_is_deleted(place: Path, victim: Victim) -> None:
    victim.has_too({f"file-{number}" for number in range(20)})

    def prepare() -> Path:
        folder = home(place, BOB.uid, *(f"below/file-{number}" for number in range(20)))
        return folder / "below"

    def delete() -> None:
        homes = Homes(place)
        homes.sweep("bob", homes.set_aside("bob"))

    race(place, victim, prepare, delete)


def test_a_race_for_a_new_data_set(place: Path, victim: Victim, locks: Path) -> None:
    content = archive(*(f"deep/{number}" for number in range(20)))

    def prepare() -> Path:
        folder = place.joinpath(*datasets.FOLDER)
        folder.mkdir(parents=True)
        (folder / ".new-mnist").mkdir()
        return folder / ".new-mnist"

    race(place, victim, prepare, lambda: bring(place, locks, content, unpack=True))


def test_a_race_for_an_image(place: Path, victim: Victim, locks: Path) -> None:
    def prepare() -> Path:
        store = images(place, locks)
        store.prepare()
        (store.directory / ".import-tool").mkdir()
        return store.directory / ".import-tool"

    race(place, victim, prepare, lambda: import_(place, locks))


# --- other bytes -----


def test_what_is_unpacked_is_what_was_summed(place: Path, locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part is exchanged, and rewritten in place, right after its checksum was found to be right."""
    good, bad = archive("good"), archive("evil")
    of, store = wanted(good, unpack=True), datasets.DataSetStore(place, locks)
    part = place.joinpath(*datasets.FOLDER) / f".part-{of.sha256}"
    summed = datasets._sha256

    def replace() -> None:
        part.unlink()
        part.write_bytes(bad)

    for exchange in (lambda: part.write_bytes(bad), replace):
        empty(place)

        def then(given: Any, exchange: Callable[[], object] = exchange) -> str:
            found = summed(given)
            exchange()
            return found

        monkeypatch.setattr(datasets, "_sha256", then)
        store.begin(of)
        store.add(of, 0, base64.b64encode(good).decode())
        with contextlib.suppress(AgentError):
            store.publish(of)
        assert not (place.joinpath(*datasets.FOLDER) / "mnist" / "evil").exists()


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_a_part_that_is_not_a_file_is_begun_again(place: Path, locks: Path, victim: Victim, kind: str) -> None:
    empty(place)
    content = b"bytes"
    part = place.joinpath(*datasets.FOLDER) / f".part-{wanted(content, unpack=False).sha256}"
    part.parent.mkdir(parents=True)
    {"pipe": os.mkfifo, "folder": os.mkdir, "link": lambda path: os.symlink(victim.file, path)}[kind](part)
    bring(place, locks, content, unpack=False)
    assert (part.parent / "mnist" / "mnist.bin").read_bytes() == content
    assert not victim.difference(place)


def test_what_is_deep_is_deleted(place: Path) -> None:
    """The depth of a tree runs root out of neither descriptors nor stack."""
    empty(place)
    descriptor = os.open(place, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("x", dir_fd=descriptor)
        inner = os.open("x", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    with Folder.open(place) as folder:
        folder.remove("x")
        assert folder.names() == []
