"""Release files on the operator's machine: what is wanted, where it is looked for, what is refused, what is kept."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpucluster.artifacts import catalogue, http_client, releases, sources, store
from gpucluster.artifacts.catalogue import Artifact
from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.events import Event, ignore
from gpucluster.spec import loads
from gpucluster.spec.sections.kubernetes import NEWEST_RELEASE
from tests.mirror import Mirror, Server
from tests.spec.spec_texts import KEY, LOCAL, MINIMAL, OCI
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow

DEBS = ("enroot_4.1.2-1_amd64.deb", "enroot+caps_4.1.2-1_amd64.deb")
RPMS = ("enroot-4.1.2-1.el8.x86_64.rpm", "enroot+caps-4.1.2-1.el8.x86_64.rpm")
# Not the pinned version: no list has its checksum.
UNPINNED = {"pyxis": "0.25.0"}
PYXIS = "pyxis-0.25.0.tar.gz"


def wanted(*runtimes: str, **differs: Any) -> tuple[Artifact, ...]:
    asked: dict[str, Any] = {"gpus_present": False, "versions": UNPINNED, "checksums": {}, "architectures": {"x86_64"}}
    asked |= differs
    return catalogue.needed(runtimes, asked.pop("architectures"), **asked)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, no proxies, and no patience."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(http_client, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(store, "PAUSES", (0.01, 0.01))
    return tmp_path / "cache" / "gpucluster" / "software"


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    """A Debian site's: no rpm."""
    made = Mirror(tmp_path / "mirror")
    for name in (*DEBS, PYXIS):
        made.file(name, f"content of {name}")
    return made


@pytest.fixture
def server(mirror: Mirror) -> Iterator[Server]:
    with mirror.serve() as running:
        yield running


def files(found: releases.ReleaseSet) -> list[str]:
    return [file["file"] for file in found.files]


# --- what is wanted -----


def test_what_runtimes_need() -> None:
    assert wanted() == ()
    assert wanted(gpus_present=True) == ()
    assert {one.file for one in wanted("enroot")} == {*DEBS, *RPMS, PYXIS}
    assert [one.file for one in wanted("containerd")] == ["nerdctl-full-2.3.5-linux-amd64.tar.gz"]
    assert wanted("docker") == ()
    assert {one.component for one in wanted("docker", gpus_present=True)} == {catalogue.TOOLKIT}
    both = wanted("enroot", "containerd", architectures={"x86_64", "aarch64"}, gpus_present=True)
    assert [one.file for one in both].count(PYXIS) == 1
    assert {one.architecture for one in both} == {"x86_64", "aarch64", "any"}


def test_every_pinned_file_is_listed_once_and_by_https() -> None:
    everything = wanted("enroot", "docker", "containerd", architectures={"x86_64", "aarch64"}, gpus_present=True)
    assert len({one.file for one in everything}) == len(everything) == 15
    assert all(one.url.startswith("https://") and "{" not in one.url + one.file for one in everything)
    assert next(one.url for one in everything if one.file == DEBS[1]).endswith("/v4.1.2/enroot+caps_4.1.2-1_amd64.deb")


def test_versions_and_checksums_of_the_file_come_first() -> None:
    (pinned,) = wanted("containerd")
    assert (pinned.checksum, pinned.sha256 and len(pinned.sha256)) == ("pinned", 64)
    (other,) = wanted("containerd", versions={"nerdctl": "2.4.0"})
    assert (other.file, other.sha256) == ("nerdctl-full-2.4.0-linux-amd64.tar.gz", None), (
        "a checksum of another version"
    )
    assert "/v2.4.0/" in other.url
    (said,) = wanted("containerd", versions={"nerdctl": "2.4.0"}, checksums={other.file: "A" * 64})
    assert (said.sha256, said.checksum) == ("a" * 64, "software.checksums")
    with pytest.raises(InputError, match=r"software\.versions names pixis") as caught:
        wanted("enroot", versions={"pixis": "1"})
    assert "Did you mean pyxis?" in caught.value.hint


def test_where_a_file_may_lie() -> None:
    (pyxis,) = (one for one in wanted("enroot") if one.component == "pyxis")
    assert pyxis.places == (
        PYXIS, f"pyxis/{PYXIS}", "v0.25.0.tar.gz", "pyxis/v0.25.0.tar.gz",
        "NVIDIA/pyxis/archive/refs/tags/v0.25.0.tar.gz",
    )  # fmt: skip


def of_cluster(more: str) -> tuple[Artifact, ...]:
    return catalogue.needed_by(loads(f"{MINIMAL}{more}\n"), hardware_emulated=True)


def test_files_of_kubernetes_are_needed_only_with_it() -> None:
    assert of_cluster("") == of_cluster("scheduler: none") == ()
    found = of_cluster(f"scheduler: kubernetes\nkubernetes: {{release: {NEWEST_RELEASE}, network: routes}}")
    assert [each.component for each in found] == ["kubernetes"] * 3 + ["kubernetes-images", "cri-tools"]
    # The default release is the newest of the catalogue, whose checksums are known.
    assert {each.version for each in found if each.component.startswith("kubernetes")} == {NEWEST_RELEASE}
    assert [each.file for each in found if each.sha256 is None] == [f"kubernetes-images-{NEWEST_RELEASE}-x86_64.tar"]
    assert "calico" in {each.component for each in of_cluster("scheduler: kubernetes")}


def test_nodes_of_kubernetes_need_the_container_toolkit_for_their_gpus_without_any_runtime_for_users() -> None:
    spec = loads(f"{MINIMAL}scheduler: kubernetes\n")
    assert not spec.containers.runtimes
    real = {each.component for each in catalogue.needed_by(spec, hardware_emulated=False)}
    assert catalogue.TOOLKIT in real
    assert catalogue.TOOLKIT not in {each.component for each in catalogue.needed_by(spec, hardware_emulated=True)}
    without = loads(f"{MINIMAL}scheduler: none\n")
    assert catalogue.TOOLKIT not in {each.component for each in catalogue.needed_by(without, hardware_emulated=False)}


@pytest.mark.parametrize(
    ("image", "bundled"),
    [
        ('{operating_system: Canonical Ubuntu, version: "24.04"}', False),
        ('{operating_system: Oracle Linux, version: "9"}', True),
        # It may be of any system.
        ("{ocid: ocid1.image.oc1.iad.a, login_user: ubuntu}", True),
    ],
)
def test_hosts_without_a_package_of_containerd_get_a_release(image: str, bundled: bool) -> None:
    text = OCI.replace("{ocid: ocid1.image.oc1.iad.example, login_user: ubuntu}", image)
    text = text.replace("    max_count: 8\n", "").replace("public_key_file: operator.pub", f"public_keys: [{KEY}]")
    spec = loads(f"{text}scheduler: kubernetes\n")
    assert ("nerdctl" in {each.component for each in catalogue.needed_by(spec, hardware_emulated=False)}) is bundled


def test_files_of_another_release_have_its_address_and_no_checksum_of_the_pinned_one() -> None:
    found = of_cluster("scheduler: kubernetes\nkubernetes: {release: 1.20.2, network: routes}")
    kubelet, images = (each for each in found if each.file.startswith(("kubelet", "kubernetes-images")))
    assert kubelet.url == "https://dl.k8s.io/release/v1.20.2/bin/linux/amd64/kubelet"
    # The page's own name states neither the release nor the architecture: no file in a mirror is taken by it.
    assert kubelet.places == (
        "kubelet-1.20.2-linux-amd64", "kubernetes/kubelet-1.20.2-linux-amd64",
        "release/v1.20.2/bin/linux/amd64/kubelet",
    )  # fmt: skip
    assert (kubelet.sha256, images.url, images.file) == (None, "", "kubernetes-images-1.20.2-x86_64.tar")
    assert images.places == (images.file, f"kubernetes-images/{images.file}")
    with pytest.raises(InputError, match=r"kubernetes\.release sets the release"):
        of_cluster("scheduler: kubernetes\nsoftware: {versions: {kubernetes: 1.30.0}}")


def test_an_archive_of_images_is_asked_for_in_a_mirror_and_on_no_page() -> None:
    found = [each for each in of_cluster("scheduler: kubernetes") if each.component == "kubernetes-images"]
    assert sources.source(None).find(found[0]) is None
    with pytest.raises(InputError) as caught:
        releases.ensure(found, None, ignore)
    assert "software.mirror" in caught.value.findings[0].hint


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


def test_the_pin_is_over_the_mirrors_word(mirror: Mirror) -> None:
    mirror.file("nerdctl-full-2.3.5-linux-amd64.tar.gz", "something else")
    with pytest.raises(InputError, match="pinned states b697295c"):
        releases.ensure(wanted("containerd"), str(mirror.folder), ignore)


@pytest.mark.parametrize("fault", ["truncated", "wrong", "broken", "redirect"])
def test_a_mirror_that_misbehaves(fault: Any, server: Server, cache: Path) -> None:
    server.faults[PYXIS] = fault
    with pytest.raises(InputError if fault == "wrong" else EnvironmentFault) as caught:
        releases.ensure(wanted("enroot"), server.url, ignore)
    assert PYXIS in str(caught.value)
    assert not list(cache.rglob(PYXIS))
    assert not list(cache.rglob(".new-*"))
    if fault in ("truncated", "broken"):
        assert server.asked[PYXIS] + server.looked[PYXIS] >= 3, "a passing fault is tried again"
    server.faults.clear()
    assert files(releases.ensure(wanted("enroot"), server.url, ignore)) == [*DEBS, PYXIS]


def test_endless_and_slow_answers_come_to_an_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_MAX_BYTES", 100_000)
    monkeypatch.setattr(store, "_CHUNK", 4)
    server.faults[PYXIS] = "endless"
    with pytest.raises(EnvironmentFault, match="larger than 100000 bytes"):
        releases.ensure(wanted("enroot"), server.url, ignore)
    server.faults[PYXIS] = "slow"
    monkeypatch.setattr(store, "_MAX_SECONDS", 0.2)
    with pytest.raises(EnvironmentFault, match=r"did not arrive within 0\.2 s"):
        releases.ensure(wanted("enroot"), server.url, ignore)


def test_no_mirror_answers(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="no answer") as caught:
        releases.ensure(wanted("enroot"), "http://127.0.0.1:9/mirror", ignore)
    assert caught.value.exit_code == 5
    assert "software.mirror" in caught.value.hint
    (finding,) = releases.check(wanted("enroot"), "http://127.0.0.1:9/mirror")
    assert (finding.level, finding.check) == ("error", "software")
    with pytest.raises(InputError, match="not a directory"):
        releases.ensure(wanted("enroot"), str(tmp_path / "none"), ignore)
    with pytest.raises(InputError, match="password") as refusal:
        releases.ensure(wanted("enroot"), "http://me:geheim@127.0.0.1:9/", ignore)
    assert "geheim" not in str(refusal.value)


def test_who_is_on_the_way_can_forge_plain_http(
    mirror: Mirror, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sources.source("http://registry.example/x").forgeable
    for location in (
        "https://registry.example",
        "http://localhost:80",
        "http://127.0.0.2",
        "http://[::1]:1",
        "/m",
        None,
    ):
        assert not sources.source(location).forgeable, location
    assert releases.check(wanted("enroot"), server.url) == ()
    monkeypatch.setattr(sources, "is_loopback", lambda _host: False)
    (warning,) = releases.check(wanted("enroot"), server.url)
    assert (warning.level, warning.check, server.url in warning.reason) == ("warning", "software", True)
    assert all(name in warning.action for name in (*DEBS, PYXIS))
    # A file with all checksums does not depend on it.
    sums = {name: mirror.sha256(name) for name in (*DEBS, PYXIS)}
    assert releases.check(wanted("enroot", checksums=sums), server.url) == ()
    asked = server.asked.copy()
    with pytest.raises(InputError, match="nothing that comes by plain http"):
        releases.fetch(wanted("enroot"), server.url, tmp_path / "own", trust_download=True, on_event=ignore)
    assert server.asked == asked
    assert not (tmp_path / "own").exists()


def test_https_never_leads_to_http() -> None:
    handler = http_client.Redirects(("https",))
    request = urllib.request.Request("https://registry.example/x")
    with pytest.raises(EnvironmentFault, match="leads to http"):
        handler.redirect_request(request, None, 302, "", {}, "http://registry.example/x")  # type: ignore[arg-type]
    with pytest.raises(EnvironmentFault, match="leads to file"):
        handler.redirect_request(request, None, 302, "", {}, "file:///etc/passwd")  # type: ignore[arg-type]


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
