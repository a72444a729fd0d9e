"""The lock file beside cluster.yml: what is written into it, what later runs do with it, and the lists of projects."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpucluster.artifacts import catalogue, http_client, lock_file, releases, sources, store
from gpucluster.artifacts.http_client import HttpClient
from gpucluster.artifacts.lock_file import LockedFile
from gpucluster.cli import cli
from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.events import ignore
from gpucluster.spec import ClusterSpec, load
from tests.mirror import Mirror
from tests.spec.spec_texts import LOCAL

pytestmark = pytest.mark.slow

DEBS = ("enroot_4.1.2-1_amd64.deb", "enroot+caps_4.1.2-1_amd64.deb")
PYXIS = "pyxis-0.25.0.tar.gz"
NEEDED = (*DEBS, PYXIS)
SETTINGS = "  mirror: mirror\n  versions: {pyxis: 0.25.0}\ncontainers:\n  runtimes: [enroot]\n"


@pytest.fixture(autouse=True)
def fresh_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Each call is another machine: without any file that was downloaded before."""
    numbers = iter(range(100))

    def change() -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache{next(numbers)}"))

    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(http_client, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(store, "PAUSES", (0.01, 0.01))
    change()
    return change


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    """Files without a published checksum."""
    made = Mirror(tmp_path / "mirror")
    for name in NEEDED:
        made.file(name, f"content of {name}")
    (made.folder / "SHA256SUMS").unlink()
    return made


def spec(folder: Path, settings: str = SETTINGS) -> ClusterSpec:
    file = folder / "cluster.yml"
    file.write_text(LOCAL + settings)  # its last section is `software`
    return load(file)


def lock(of: ClusterSpec, *, upgrade: bool = False) -> dict[str, tuple[str | None, str | None]]:
    """What has changed: the checksums before and after, by file."""
    _files, changes = releases.lock(of, hardware_emulated=True, upgrade=upgrade, on_event=ignore)
    return {each.file: (getattr(each.before, "sha256", None), getattr(each.after, "sha256", None)) for each in changes}


def ensured(of: ClusterSpec) -> dict[str, str]:
    needed = releases.needed_by(of, hardware_emulated=True)
    found = releases.ensure(needed, of.software.mirror_location, ignore)
    return {file["file"]: file["sha256"] for file in found.files}


def test_what_has_no_published_checksum_is_locked_once_and_checked_on_every_machine(
    mirror: Mirror, tmp_path: Path, fresh_machine: Callable[[], None]
) -> None:
    cluster = spec(tmp_path)
    with pytest.raises(InputError, match="can't be checked"):
        ensured(cluster)
    sums = {name: mirror.sha256(name) for name in NEEDED}
    assert lock(cluster) == {name: (None, checksum) for name, checksum in sums.items()}
    assert lock(cluster) == {}
    assert {name: each.sha256 for name, each in lock_file.read(tmp_path / "software.lock").items()} == sums
    fresh_machine()
    assert ensured(cluster) == sums

    fresh_machine()
    (mirror.folder / PYXIS).write_text("another one")
    with pytest.raises(InputError) as caught:
        ensured(cluster)
    assert f"{mirror.sha256(PYXIS)}; software.lock states {sums[PYXIS]}" in caught.value.what
    assert "`gpucluster software lock --upgrade`" in caught.value.hint
    assert lock(cluster) == {}, "without --upgrade what is locked stays"
    assert lock(cluster, upgrade=True) == {PYXIS: (sums[PYXIS], mirror.sha256(PYXIS))}
    assert ensured(cluster)[PYXIS] == mirror.sha256(PYXIS)


def test_the_lock_is_over_a_list_of_the_mirror(
    mirror: Mirror, tmp_path: Path, fresh_machine: Callable[[], None]
) -> None:
    """The mirror's list counts when the file is locked, and can't change it later."""
    mirror.sums()
    cluster = spec(tmp_path)
    lock(cluster)
    assert lock_file.read(tmp_path / "software.lock")[PYXIS].source == f"listed at {mirror.folder}: {PYXIS}"
    fresh_machine()
    (mirror.folder / PYXIS).write_text("another one")
    mirror.sums()
    with pytest.raises(InputError, match=r"software\.lock states"):
        ensured(cluster)


def test_a_wrong_list_locks_nothing(mirror: Mirror, tmp_path: Path) -> None:
    (mirror.folder / "SHA256SUMS").write_text(f"{'1' * 64}  {PYXIS}\n")
    with pytest.raises(InputError, match=f"SHA256SUMS states {'1' * 64}"):
        lock(spec(tmp_path))
    (mirror.folder / "SHA256SUMS").write_text(f"{'1' * 64}  {PYXIS}\n{'2' * 64}  {PYXIS}\n")
    with pytest.raises(InputError, match="unchecked"):
        lock(spec(tmp_path))
    assert not (tmp_path / "software.lock").exists()


def test_what_has_a_checksum_elsewhere_is_not_in_the_lock(mirror: Mirror, tmp_path: Path) -> None:
    """One owner per fact: cluster.yml and catalogue.toml come first."""
    checksums = "".join(f"    {name}: {mirror.sha256(name)}\n" for name in DEBS)
    cluster = spec(tmp_path, SETTINGS.replace("containers:", f"  checksums:\n{checksums}containers:"))
    assert set(lock(cluster)) == {PYXIS}
    # It is removed when it is not needed any more.
    cluster = spec(tmp_path, SETTINGS.replace("[enroot]", "[docker]"))
    assert lock(cluster) == {PYXIS: (mirror.sha256(PYXIS), None)}
    assert lock_file.read(tmp_path / "software.lock") == {}
    # Where all files have published checksums, there is no lock file at all.
    (tmp_path / "software.lock").unlink()
    assert lock(cluster) == {}
    assert not (tmp_path / "software.lock").exists()


def test_another_version_is_not_what_was_locked(mirror: Mirror, tmp_path: Path) -> None:
    lock(spec(tmp_path))
    mirror.file("pyxis-0.26.0.tar.gz", "new")
    (mirror.folder / "SHA256SUMS").unlink()
    cluster = spec(tmp_path, SETTINGS.replace("0.25.0", "0.26.0"))
    with pytest.raises(InputError) as caught:
        ensured(cluster)
    (finding,) = caught.value.findings
    assert (finding.file, "`gpucluster software lock`" in finding.hint) == ("pyxis-0.26.0.tar.gz", True)
    new = mirror.sha256("pyxis-0.26.0.tar.gz")
    assert lock(cluster) == {PYXIS: (mirror.sha256(PYXIS), None), "pyxis-0.26.0.tar.gz": (None, new)}


def test_plain_http_is_not_a_source_of_a_lock(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror.sums()
    with mirror.serve() as server:
        cluster = spec(tmp_path, SETTINGS.replace("mirror: mirror", f"mirror: {server.url}"))
        monkeypatch.setattr(sources, "is_loopback", lambda _host: False)
        with pytest.raises(InputError, match="nothing that comes by plain http"):
            lock(cluster)
        assert not {*NEEDED} & {*server.asked}
        lock(spec(tmp_path))
        assert lock(cluster) == {}, "what is locked does not depend on how it arrives"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<<<<<<< HEAD\nversion = 1\n", "Invalid"),
        ("version = 2\n", "version is 2"),
        ("", "version is None"),
        ('version = 1\n["a"]\nsha256 = "00"\n', "sha256"),
        ('version = 1\n["a"]\nmd5 = "00"\n', "sha256|md5"),
        ("version = 1\na = 3\n", "an entry"),
    ],
)
def test_a_damaged_lock_file_is_named_with_what_to_do(text: str, why: str, tmp_path: Path, mirror: Mirror) -> None:
    (tmp_path / "software.lock").write_text(text)
    for act in (ensured, lock):
        with pytest.raises(InputError, match=why) as caught:
            act(spec(tmp_path))
        assert str(tmp_path / "software.lock") in str(caught.value)
        assert "`gpucluster software lock`" in caught.value.hint
    assert (tmp_path / "software.lock").read_text() == text


def test_the_same_files_give_the_same_text_and_a_full_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "software.lock"
    entries = {"b": LockedFile("1" * 64, 'a "quoted" source'), "a+1.deb": LockedFile("2" * 64, "")}
    lock_file.write(file, entries)
    text = file.read_text()
    assert lock_file.read(file) == entries
    lock_file.write(file, dict(reversed(entries.items())))
    assert file.read_text() == text

    def full(*_args: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(EnvironmentFault, match="No space left"):
        lock_file.write(file, {})
    assert (file.read_text(), os.listdir(tmp_path)) == (text, ["software.lock"])


def test_the_list_of_a_project_counts(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    """The form that NVIDIA's hack/prepare-artifacts.sh gives to its list, with the folder of its build."""
    (toolkit, *_others) = (
        artifact
        for artifact in catalogue.needed(["docker"], ["x86_64"], gpus_present=True, versions={}, checksums={})
        if artifact.format == "deb"
    )
    assert toolkit.checksums_url == (
        "https://github.com/NVIDIA/nvidia-container-toolkit/releases/download/v1.20.0/"
        "nvidia-container-toolkit_1.20.0_checksums.txt"
    )
    mirror.file(toolkit.file, "an archive")
    checksum = mirror.sha256(toolkit.file)
    (mirror.folder / "sums.txt").write_text(f"{checksum}  /go/dist/packages/{toolkit.file}\n")

    def pages(url: str) -> dict[str, Any]:
        origin = sources.ProjectPages()
        monkeypatch.setattr(origin, "_http", HttpClient(("http",)))
        monkeypatch.setattr(releases, "source", lambda _mirror: origin)
        here = replace(toolkit, url=f"{url}/{toolkit.file}", checksums_url=f"{url}/sums.txt")
        (found,) = releases.ensure([here], None, ignore).files
        return dict(found)

    with mirror.serve() as server:
        assert pages(server.url)["sha256"] == checksum
        # As long as the project does not publish the list there is no checksum.
        (mirror.folder / "sums.txt").unlink()
        with pytest.raises(InputError, match="unchecked"):
            pages(server.url)


def test_every_checksum_of_the_catalogue_is_of_a_file_once() -> None:
    everything = catalogue.needed(
        ["enroot", "docker", "containerd"], ["x86_64", "aarch64"], gpus_present=True, versions={}, checksums={}
    )
    pinned = [artifact.sha256 for artifact in everything if artifact.sha256]
    assert len(pinned) == len(set(pinned)) == 3
    # Everything else has a list of its project, except Enroot.
    without = {each.component for each in everything if each.sha256 is None and each.checksums_url is None}
    assert without == {"enroot"}


def test_the_command(mirror: Mirror, tmp_path: Path) -> None:
    spec(tmp_path)

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["--file", str(tmp_path / "cluster.yml"), "software", *words])
        return done.exit_code, done.output

    code, text = run("lock")
    assert code == 0, text
    assert f"added: {PYXIS}  {mirror.sha256(PYXIS)}" in text
    assert f"Commit {tmp_path}/software.lock" in text
    code, text = run("list", "--output=json")
    listed = {file["file"]: file["checksum"] for file in json.loads(text.splitlines()[-1])["data"]["files"]}
    assert (code, listed[PYXIS]) == (0, "software.lock")
    # A locked file needs no trust where a mirror is made.
    code, text = run("fetch", str(tmp_path / "copy"))
    assert (code, (tmp_path / "copy" / PYXIS).exists()) == (0, True), text
    (tmp_path / "software.lock").write_text("<<<<<<<")
    code, text = run("lock")
    assert (code, "damaged" in text, "Traceback" in text) == (2, True, False)
