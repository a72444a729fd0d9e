"""What a release consists of, built from this tree with the build backend and the packages of this environment.

No package index is asked: that the packages of requirements.lock can be installed is a part of `make release`, and the
image is built by `make test-image`.
"""

from __future__ import annotations

import subprocess
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.tools.test_release import git
from tools import release_build
from tools.release import RefusedError, version_of

ROOT = Path(__file__).parents[2]
PACKAGES = Path(sysconfig.get_path("purelib"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose one commit has the files of this tree, without what git ignores."""
    folder = tmp_path_factory.mktemp("tree")
    listed = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    # Tests and pages are in no wheel, and are most of the files.
    kept = [name for name in listed if name and not name.startswith(("tests/", "docs/", "benchmarks/"))]
    for name in kept:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
            (folder / name).chmod((ROOT / name).stat().st_mode)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=All")
    return folder


@pytest.mark.slow
def test_a_release_is_built_twice_with_the_same_bytes_and_its_wheel_works(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "release"
    release_build.make_wheel(tree, target, dependencies=PACKAGES)
    version = version_of((tree / "gpucluster" / "__init__.py").read_text())
    assert {file.name for file in target.iterdir()} == {
        f"gpucluster-{version}.tar.gz", f"gpucluster-{version}-py3-none-any.whl", "SHA256SUMS",
    }  # fmt: skip
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=target, check=True, capture_output=True)
    with tarfile.open(target / f"gpucluster-{version}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CHANGELOG.md", "Containerfile", "requirements.lock", release_build.SHIPPED} <= names
    assert not any(".git/" in name or "__pycache__" in name for name in names)
    with zipfile.ZipFile(target / f"gpucluster-{version}-py3-none-any.whl") as wheel:
        times = {each.date_time for each in wheel.infolist()}
    assert len(times) == 1, "that of the commit"

    # What is not committed is not released.
    (tree / "README.md").write_text("other")
    try:
        with pytest.raises(RefusedError, match=r"not committed.*\n.*README.md"):
            release_build.make_wheel(tree, target, dependencies=PACKAGES)
    finally:
        git(tree, "checkout", "--quiet", "README.md")


def test_builds_that_differ_are_named(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        (folder / "same").write_text("same")
        (folder / release_build.SUMS).write_text(str(folder))
    (one / "a.whl").write_text("a")
    (other / "a.whl").write_text("b")
    (other / "b.whl").write_text("b")
    assert release_build.differing(one, other) == ["a.whl", "b.whl"]
    assert release_build.differing(one, one) == []


@pytest.mark.slow
def test_a_wheel_that_is_none_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "gpucluster-1.0.0-py3-none-any.whl"
    wheel.write_text("no wheel")
    with pytest.raises(RefusedError, match="failed"):
        release_build.check_wheel(wheel, "1.0.0", ROOT / release_build.SHIPPED, PACKAGES, tmp_path)
