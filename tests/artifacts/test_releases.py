"""Release files on the operator's machine: what is wanted, where it is looked for, what is refused, what is kept."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpucluster.artifacts import releases
from gpucluster.errors import InputError
from gpucluster.events import Event, ignore
from tests.artifacts.release_files import DEBS, PYXIS, RPMS, wanted
from tests.mirror import Mirror, Server
from tests.spec.spec_texts import LOCAL
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cache")]


def files(found: releases.ReleaseSet) -> list[str]:
    return [file["file"] for file in found.files]


# --- getting them -----


def test_nothing_wanted_touches_nothing(cache: Path) -> None:
    assert releases.ensure((), "http://127.0.0.1:9", ignore) == releases.ReleaseSet(None, ())
    assert releases.check((), "http://127.0.0.1:9") == ()
    assert releases.survey((), "http://127.0.0.1:9", ignore) == ()
    assert not cache.exists()


@pytest.mark.parametrize("kind", ["directory", "http"])
def test_files_come_once_and_one_format_is_enough(kind: str, mirror: Mirror, server: Server) -> None:
    location = str(mirror.folder) if kind == "directory" else server.url
    said: list[Event] = []
    found = releases.ensure(wanted("enroot"), location, said.append)
    assert files(found) == [*DEBS, PYXIS]
    assert len([event for event in said if "downloading" in event.message]) == 3
    assert found.directory is not None
    for file in found.files:
        path = found.directory / file["file"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == file["sha256"] == mirror.sha256(file["file"])
        assert path.stat().st_mode & 0o777 == 0o644
    assert {**found.files[0], "sha256": ""} == {
        "component": "enroot", "version": "4.1.2", "file": DEBS[0], "sha256": "", "format": "deb",
        "architecture": "x86_64",
    }  # fmt: skip
    asked = server.asked.copy()
    assert releases.ensure(wanted("enroot"), location, lambda event: pytest.fail(str(event))) == found
    assert set(server.asked - asked) <= {"SHA256SUMS", *(place for one in wanted("enroot") for place in one.places)}
    assert not set(server.asked - asked) & {*DEBS, PYXIS}


def test_what_is_kept_and_known_needs_no_network(mirror: Mirror, server: Server) -> None:
    sums = {name: mirror.sha256(name) for name in DEBS}
    only = [one for one in wanted("enroot", checksums=sums) if one.file in sums]
    found = releases.ensure(only, server.url, ignore)
    assert releases.ensure(only, "http://127.0.0.1:9", ignore) == found


def test_the_pin_is_over_the_mirrors_word(mirror: Mirror) -> None:
    mirror.file("nerdctl-full-2.3.5-linux-amd64.tar.gz", "something else")
    with pytest.raises(InputError, match="pinned states b697295c"):
        releases.ensure(wanted("containerd"), str(mirror.folder), ignore)


# --- the side of users -----


def test_survey_reports_the_state_of_each_file(mirror: Mirror) -> None:
    (mirror.folder / "SHA256SUMS").write_text(f"{mirror.sha256(PYXIS)}  {PYXIS}\n")
    sums = {DEBS[0]: mirror.sha256(DEBS[0])}
    seen = {
        one.artifact.file: one for one in releases.survey(wanted("enroot", checksums=sums), str(mirror.folder), ignore)
    }
    assert {name: (one.state, one.checksum) for name, one in seen.items()} == {
        DEBS[0]: ("there", "software.checksums"),
        DEBS[1]: ("unchecked", "unknown"),
        PYXIS: ("there", "SHA256SUMS"),
        **dict.fromkeys(RPMS, ("missing", "unknown")),
    }
    json.dumps([one.to_dict() for one in seen.values()])


def test_fetch_makes_a_mirror(mirror: Mirror, server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    taken = releases.fetch(wanted("enroot"), server.url, folder, trust_download=False, on_event=ignore)
    assert [one.artifact.file for one in taken] == [*DEBS, PYXIS]
    assert sorted(os.listdir(folder)) == sorted(["SHA256SUMS", *DEBS, PYXIS])
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True, capture_output=True)
    asked = server.asked.copy()
    releases.fetch(wanted("enroot"), server.url, folder, trust_download=False, on_event=ignore)
    assert {name: server.asked[name] for name in (*DEBS, PYXIS)} == {name: asked[name] for name in (*DEBS, PYXIS)}
    assert releases.check(wanted("enroot"), str(folder)) == ()

    # Files of its own in there, and their lines, stay.
    (folder / "other").write_text("other")
    with (folder / "SHA256SUMS").open("a") as sums:
        sums.write(f"{'2' * 64}  other\n")
    (folder / PYXIS).unlink()
    releases.fetch(wanted("enroot"), server.url, folder, trust_download=False, on_event=ignore)
    assert f"{'2' * 64}  other" in (folder / "SHA256SUMS").read_text()
    assert (folder / PYXIS).read_text() == f"content of {PYXIS}"


def test_fetch_takes_nothing_on_trust_unless_told(mirror: Mirror, server: Server, tmp_path: Path) -> None:
    (mirror.folder / "SHA256SUMS").unlink()
    folder = tmp_path / "own"
    with pytest.raises(InputError, match="can't be checked"):
        releases.fetch(wanted("enroot"), server.url, folder, trust_download=False, on_event=ignore)
    assert os.listdir(folder) == []
    taken = releases.fetch(wanted("enroot"), server.url, folder, trust_download=True, on_event=ignore)
    assert {one.artifact.file: one.checksum for one in taken} == dict.fromkeys((*DEBS, PYXIS), "unknown")
    assert files(releases.ensure(wanted("enroot"), str(folder), ignore)) == [*DEBS, PYXIS]
    # The next time it holds to what it has noted.
    (mirror.folder / PYXIS).write_text("another one")
    (folder / PYXIS).unlink()
    for path in (tmp_path / "cache").rglob(PYXIS):
        path.unlink()
    with pytest.raises(InputError, match="has another checksum"):
        releases.fetch(wanted("enroot"), server.url, folder, trust_download=True, on_event=ignore)


def told(tmp_path: Path, *words: str, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "gpucluster", *words],
        cwd=tmp_path, env={**os.environ, **(environment or {})},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_the_commands(mirror: Mirror, tmp_path: Path) -> None:
    settings = "  mirror: mirror\n  versions: {pyxis: 0.25.0}\ncontainers:\n  runtimes: [enroot]\n"
    (tmp_path / "cluster.yml").write_text(LOCAL + settings)  # its last section is `software`
    code, said = told(tmp_path, "software", "list", "--output=json")
    assert code == 0, said
    result = json.loads(said.splitlines()[-1])
    assert {file["file"]: file["state"] for file in result["data"]["files"]}[PYXIS] == "there"
    code, said = told(tmp_path, "software", "fetch", "copy")
    assert (code, sorted(os.listdir(tmp_path / "copy"))) == (0, sorted(["SHA256SUMS", *DEBS, PYXIS])), said
    # From elsewhere: the path that it tells to write is relative to cluster.yml.
    below = tmp_path / "below"
    below.mkdir()
    code, said = told(below, "software", "fetch", "--file=../cluster.yml", "../copy")
    assert (code, "`mirror: copy`" in said) == (0, True), said
    (mirror.folder / PYXIS).unlink()
    code, said = told(tmp_path, "software", "fetch", "copy2", environment={"XDG_CACHE_HOME": str(tmp_path / "new")})
    assert (code, "Traceback" in said, f"{mirror.folder}/{PYXIS}" in said) == (2, False, True), said
