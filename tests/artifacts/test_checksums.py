"""Lists of checksums: their forms, where they lie, and lists that contradict themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.artifacts import releases
from gpucluster.errors import InputError
from gpucluster.events import ignore
from tests.artifacts.release_files import DEBS, PYXIS, wanted
from tests.artifacts.test_releases import files
from tests.artifacts.test_selection import refused
from tests.mirror import Mirror, Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cache")]


def test_a_list_beside_the_file_counts(mirror: Mirror) -> None:
    (mirror.folder / "enroot").mkdir()
    for name in DEBS:
        (mirror.folder / name).rename(mirror.folder / "enroot" / name)
    mirror.sums()
    text = (mirror.folder / "SHA256SUMS").read_text()
    (mirror.folder / "enroot" / "SHA256SUMS").write_text(text.replace("enroot/", "*"))
    (mirror.folder / "SHA256SUMS").write_text("\n".join(line for line in text.splitlines() if "pyxis" in line))
    assert files(releases.ensure(wanted("enroot"), str(mirror.folder), ignore)) == [*DEBS, PYXIS]


FORMS = {
    "made one folder up": "{sum}  mirror/{name}\n",
    "absolute": "{sum}  /srv/files/mirror/{name}\n",
    "dots": "{sum}  ././{name}\n",
    "a mark of the byte order": "\ufeff{sum}  {name}\n",
    "tabs": "{sum}\t{name}\n",
    "tab and binary": "{sum}\t*./{name}\r\n",
    "BSD": "SHA256 ({name}) = {sum}\n",
    "BSD, one folder up, large letters": "SHA256 (mirror/{name}) = {SUM}\n",
    "OpenSSL": "SHA2-256({name})= {sum}\n",
    "twice the same": "{sum}  a/{name}\n{sum} *b/{name}\n",
    "others beside it": "{other}  {name}.asc\n# {other}  {name}\n{sum}  x/{name}\nSHA512 ({name}) = {other}\n",
    "exact before the last part": "{other}  old/{name}\n{sum}  {name}\n{other}  /{name}\n",
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("kind", ["directory", "http"])
def test_forms_of_a_list(form: str, kind: str, mirror: Mirror, server: Server) -> None:
    names = (*DEBS, PYXIS)
    sums = {name: mirror.sha256(name) for name in names}
    lines = [form.format(name=name, sum=sums[name], SUM=sums[name].upper(), other="3" * 64) for name in names]
    # A mark of the byte order stands at the beginning of a file, and nowhere else.
    text = lines[0] + "".join(line.removeprefix("\ufeff") for line in lines[1:])
    (mirror.folder / "SHA256SUMS").write_text(text, encoding="utf-8", newline="")
    location = str(mirror.folder) if kind == "directory" else server.url
    assert files(releases.ensure(wanted("enroot"), location, ignore)) == list(names)


def test_a_list_in_another_form_can_be_gone_on_with(mirror: Mirror, tmp_path: Path) -> None:
    """What `fetch` finds in the directory that it fills counts, and other lines of it stay."""
    folder = tmp_path / "own"
    releases.fetch(wanted("enroot"), str(mirror.folder), folder, trust_download=False, on_event=ignore)
    right = (folder / "SHA256SUMS").read_text()
    lines = [f"SHA256 (own/{name}) = {mirror.sha256(name)}" for name in (*DEBS, PYXIS)]
    (folder / "SHA256SUMS").write_text("\n".join([*lines, f"{'2' * 64}  other", f"{'4' * 64}  other"]))
    (mirror.folder / "SHA256SUMS").unlink()
    releases.fetch(wanted("enroot"), str(mirror.folder), folder, trust_download=False, on_event=ignore)
    now = (folder / "SHA256SUMS").read_text()
    assert set(right.splitlines()) | {f"{'2' * 64}  other", f"{'4' * 64}  other"} <= set(now.splitlines())
    # With two checksums for one file it is refused, before anything is taken on trust.
    (folder / "SHA256SUMS").write_text(f"{now}{'4' * 64}  {PYXIS}\n")
    with pytest.raises(InputError, match="more than one checksum"):
        releases.fetch(wanted("enroot"), str(mirror.folder), folder, trust_download=True, on_event=ignore)


@pytest.mark.parametrize("kind", ["directory", "http"])
def test_a_list_that_does_not_name_a_file_is_named(kind: str, mirror: Mirror, server: Server) -> None:
    location = str(mirror.folder) if kind == "directory" else server.url
    (mirror.folder / "SHA256SUMS").write_text(f"{'0' * 64}  another.deb\n")
    why = refused(location)
    silent = f"no checksum is known for it; {location}/SHA256SUMS was read, and does not name it. "
    assert all(why[name].startswith(silent) for name in (*DEBS, PYXIS))
    assert "`gpucluster software lock`" in why[PYXIS]
    (mirror.folder / "SHA256SUMS").unlink()
    assert "SHA256SUMS was read" not in refused(location)[PYXIS]


@pytest.mark.parametrize("listed", ["{name}", "old/{name}"])
def test_a_list_with_two_checksums_for_a_file_is_refused(listed: str, mirror: Mirror, tmp_path: Path) -> None:
    sums = sorted([mirror.sha256(PYXIS), "4" * 64])
    text = (
        (mirror.folder / "SHA256SUMS")
        .read_text()
        .replace(f"  {PYXIS}", "  new/" + PYXIS if "/" in listed else f"  {PYXIS}")
    )
    (mirror.folder / "SHA256SUMS").write_text(f"{text}{'4' * 64}  {listed.format(name=PYXIS)}\n")
    why = refused(str(mirror.folder))
    assert why[PYXIS].startswith(
        f"{mirror.folder}/SHA256SUMS has more than one checksum for it: {sums[0]}, {sums[1]}. "
    )
    assert "software.checksums" in why[PYXIS]
    # Nor is it taken on trust: an entry states what it must be.
    with pytest.raises(InputError, match="unchecked"):
        releases.fetch(wanted("enroot"), str(mirror.folder), tmp_path / "own", trust_download=True, on_event=ignore)
    said = wanted("enroot", checksums={PYXIS: mirror.sha256(PYXIS)})
    assert files(releases.ensure(said, str(mirror.folder), ignore)) == [*DEBS, PYXIS]
