"""Where release files come from: a folder or a mirror, and other places and spellings in it."""

from __future__ import annotations

import pytest

from gpucluster.artifacts import releases
from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.events import Event, ignore
from tests.artifacts.release_files import DEBS, PYXIS, RPMS, wanted
from tests.artifacts.test_releases import files
from tests.mirror import Mirror, Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cache")]


@pytest.mark.parametrize("kind", ["directory", "http"])
def test_a_mirror_that_is_gone_is_believed_as_it_was(kind: str, mirror: Mirror) -> None:
    """Also where it never had one of the formats, and where no other source has a checksum."""
    said: list[Event] = []
    with mirror.serve() as server:
        location = str(mirror.folder) if kind == "directory" else server.url
        found = releases.ensure(wanted("enroot"), location, ignore)
        assert releases.check(wanted("enroot"), location) == ()
    mirror.folder.rename(mirror.folder.with_name("gone"))
    assert releases.ensure(wanted("enroot"), location, said.append) == found
    (warning,) = said
    assert (warning.status, location in warning.message) == ("warning", True)
    assert [one.level for one in releases.check(wanted("enroot"), location)] == ["warning"]
    states = {one.artifact.file: one.state for one in releases.survey(wanted("enroot"), location, ignore)}
    assert states == {**dict.fromkeys((*DEBS, PYXIS), "cached"), **dict.fromkeys(RPMS, "unknown")}

    # It is believed for its own files, and no other mirror is.
    with pytest.raises((EnvironmentFault, InputError)):
        releases.ensure(wanted("enroot"), f"{location}/other", ignore)
    with pytest.raises((EnvironmentFault, InputError)):
        releases.ensure(wanted("enroot", versions={"pyxis": "0.26.0"}), location, ignore)


def test_a_mirror_that_is_there_is_asked_for_its_word(mirror: Mirror, server: Server) -> None:
    releases.ensure(wanted("enroot"), server.url, ignore)
    mirror.file(PYXIS, "changed")
    found = releases.ensure(wanted("enroot"), server.url, ignore)
    assert found.files[-1]["sha256"] == mirror.sha256(PYXIS)
    server.faults["SHA256SUMS"] = "broken"
    assert releases.ensure(wanted("enroot"), server.url, ignore) == found


@pytest.mark.parametrize(
    ("name", "place"),
    [
        (DEBS[1], f"enroot/{DEBS[1]}"),
        (DEBS[1], f"NVIDIA/enroot/releases/download/v4.1.2/{DEBS[1]}"),
        (DEBS[1], "enroot%2Bcaps_4.1.2-1_amd64.deb"),
        (PYXIS, "v0.25.0.tar.gz"),
        (PYXIS, "NVIDIA/pyxis/archive/refs/tags/v0.25.0.tar.gz"),
    ],
)
@pytest.mark.parametrize("kind", ["directory", "http"])
def test_other_places_and_spellings(name: str, place: str, kind: str, mirror: Mirror) -> None:
    target = mirror.folder / place
    target.parent.mkdir(parents=True, exist_ok=True)
    (mirror.folder / name).rename(target)
    mirror.sums()
    with mirror.serve() as server:
        location = str(mirror.folder) if kind == "directory" else server.url
        if kind == "http" and "%" in place:
            with pytest.raises(InputError):  # a server decodes what it is asked for
                releases.ensure(wanted("enroot"), location, ignore)
        else:
            found = releases.ensure(wanted("enroot"), location, ignore)
            assert files(found) == [*DEBS, PYXIS]
            assert found.directory is not None
            assert (found.directory / name).read_text() == f"content of {name}"
