"""Which files are taken, and what is reported of each that can't be taken."""

from __future__ import annotations

import pytest

from gpucluster.artifacts import releases
from gpucluster.artifacts.catalogue import Artifact
from gpucluster.errors import InputError
from gpucluster.events import ignore
from tests.artifacts.release_files import DEBS, PYXIS, RPMS, wanted
from tests.mirror import Mirror

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cache")]


# --- what is refused -----


def refused(location: str | None, asked: tuple[Artifact, ...] | None = None) -> dict[str, str]:
    """By file: why, with what to do."""
    with pytest.raises(InputError) as caught:
        releases.ensure(asked or wanted("enroot"), location, ignore)
    assert caught.value.exit_code == 2
    found = releases.check(asked or wanted("enroot"), location)
    assert [one.level for one in found] == ["error"] * len(caught.value.findings)
    return {finding.file: f"{finding.message}. {finding.hint}" for finding in caught.value.findings}


def test_everything_that_is_missing_is_listed_with_its_places(mirror: Mirror) -> None:
    for name in DEBS:
        (mirror.folder / name).unlink()
    why = refused(str(mirror.folder))
    assert set(why) == {*DEBS, *RPMS}
    assert f"{mirror.folder}/enroot/{DEBS[0]}" in why[DEBS[0]]
    assert "https://" in why[DEBS[0]]


def test_half_of_a_format_is_not_left_out_in_silence(mirror: Mirror) -> None:
    (mirror.folder / DEBS[1]).unlink()
    assert set(refused(str(mirror.folder))) == {DEBS[1], *RPMS}
    for name in RPMS:
        mirror.file(name, name)
    assert set(refused(str(mirror.folder))) == {DEBS[1]}


def test_a_file_without_a_checksum_is_refused_with_what_to_do(mirror: Mirror) -> None:
    (mirror.folder / "SHA256SUMS").unlink()
    why = refused(str(mirror.folder))
    assert set(why) == {*DEBS, *RPMS, PYXIS}
    assert "`gpucluster software lock`" in why[PYXIS]
    assert f"`{PYXIS}: <the checksum>` to software.checksums" in why[PYXIS]
    (mirror.folder / "SHA256SUMS").write_text("no list at all\n" + "0" * 63 + "  " + PYXIS)
    assert set(refused(str(mirror.folder))) == {*DEBS, *RPMS, PYXIS}
