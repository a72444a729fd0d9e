"""Downloaded files: what a full disk, a kill, a second process and a changed file leave."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpucluster.artifacts import releases, store
from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.events import ignore
from tests.artifacts.release_files import DEBS, PYXIS, wanted
from tests.artifacts.test_releases import files
from tests.mirror import Mirror, Server
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cache")]


def test_a_wrong_checksum_names_both_and_keeps_nothing(mirror: Mirror, cache: Path) -> None:
    right = mirror.sha256(PYXIS)
    asked = wanted("enroot", checksums={PYXIS: "1" * 64})
    with pytest.raises(InputError, match=f"{right}.*software.checksums states {'1' * 64}"):
        releases.ensure(asked, str(mirror.folder), ignore)
    assert not list(cache.rglob(PYXIS))
    (mirror.folder / PYXIS).write_text("replaced")
    with pytest.raises(InputError, match=f"SHA256SUMS states {right}"):
        releases.ensure(wanted("enroot"), str(mirror.folder), ignore)
    assert not list(cache.rglob(PYXIS))
    mirror.sums()
    assert files(releases.ensure(wanted("enroot"), str(mirror.folder), ignore)) == [*DEBS, PYXIS]


def test_a_full_disk_is_told_and_leaves_nothing(mirror: Mirror, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_bounded_copy", full)
        with pytest.raises(EnvironmentFault, match="No space left") as caught:
            releases.ensure(wanted("enroot"), str(mirror.folder), ignore)
    assert "Free some space" in caught.value.hint
    assert not list(cache.rglob("*.*"))[1:], "more than the lock is left"


# --- accidents -----

PROGRAM = """
import sys
from gpucluster.artifacts import catalogue, releases
wanted = catalogue.needed(["enroot"], {"x86_64"}, gpus_present=False, versions={"pyxis": "0.25.0"}, checksums={})
print(len(releases.ensure(wanted, sys.argv[1], lambda event: print(event.message, flush=True)).files))
"""


def started(url: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_who_is_stopped_half_way_leaves_a_cache_that_works(number: int, server: Server, cache: Path) -> None:
    server.faults[PYXIS] = "stuck"
    with started(server.url) as run:
        wait_for("it fetches the file that never comes", lambda: server.asked[PYXIS])
        run.send_signal(number)
    assert bool(list(cache.rglob(".new-*"))) == (number == signal.SIGKILL)
    server.faults.clear()
    found = releases.ensure(wanted("enroot"), server.url, ignore)
    assert files(found) == [*DEBS, PYXIS]
    assert not list(cache.rglob(".new-*")), "what the dead run left is still there"
    assert server.asked[DEBS[0]] == 1, "what had come was fetched again"


def test_two_at_once_fetch_once(server: Server) -> None:
    results: list[releases.ReleaseSet] = []
    runs = [
        threading.Thread(target=lambda: results.append(releases.ensure(wanted("enroot"), server.url, ignore)))
        for _ in range(4)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert len(results) == 4
    assert len({result.directory for result in results}) == 1
    assert {name: server.asked[name] for name in (*DEBS, PYXIS)} == dict.fromkeys((*DEBS, PYXIS), 1)


def test_a_kept_file_that_changed_is_fetched_again(mirror: Mirror, cache: Path) -> None:
    found = releases.ensure(wanted("enroot"), str(mirror.folder), ignore)
    assert found.directory is not None
    for path in cache.rglob(PYXIS):  # one file, by its links
        path.write_text("bit rot")
    for file in found.directory.iterdir():
        file.unlink()
    found.directory.rmdir()
    with pytest.raises(EnvironmentFault, match="has changed since"):
        releases.ensure(wanted("enroot"), str(mirror.folder), ignore)
    again = releases.ensure(wanted("enroot"), str(mirror.folder), ignore)
    assert again == found
    assert (found.directory / PYXIS).read_text() == f"content of {PYXIS}"
