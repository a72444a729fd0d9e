"""What a release consists of: the source, the wheel and the image of one commit, with their checksums.

    python -m tools.release_build wheel FOLDER               the source and the wheel, built twice and compared
    python -m tools.release_build image FOLDER [--base IMAGE] [--options "..."]     the image, by podman

Everything is made from the commit and not from the tree. The source and the wheel have the same bytes wherever they
are built; the image has what the package index of its base offers on the day. SHA256SUMS has a line for each file.
Exit code 2: nothing was built.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.lock import LOCK, sections
from tools.release import ROOT, VERSION_FILE, RefusedError, git, require_clean, version_of

SUMS = "SHA256SUMS"
BASE = "docker.io/library/debian:13-slim"
#: A file of a cluster that the source ships, which the installed wheel has to accept.
SHIPPED = "inventories/local/cluster.yml"
#: Packages without a wheel.
_SOURCE_ONLY = "python-terraform"


def run(argv: Sequence[str | Path], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """The output of a program.

    Raises:
        RefusedError: it failed.
    """
    words = [str(word) for word in argv]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RefusedError(f"{shlex.join(words)} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def export(root: Path, target: Path) -> None:
    """Write the files of the commit into a folder."""
    target.mkdir(parents=True)
    archive = target.with_suffix(".tar")
    git(root, "archive", "--format=tar", f"--output={archive}", "HEAD")
    run(["tar", "--extract", "--file", archive], target)
    archive.unlink()


def build(source: Path, target: Path, epoch: int) -> None:
    """Build the source archive, and from it the wheel, with the build backend of this environment.

    Args:
        epoch: the time that all files in them have, in seconds since 1970.
    """
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", target, source], source, environment)


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file of a folder, by name."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.name != SUMS)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def write_sums(folder: Path) -> None:
    """Write the checksums as `sha256sum --check` reads them."""
    (folder / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in digests(folder).items()))


def differing(one: Path, other: Path) -> list[str]:
    """The names of files of two folders that are not the same."""
    first, second = digests(one), digests(other)
    return sorted(name for name in {**first, **second} if first.get(name) != second.get(name))


def check_wheel(wheel: Path, version: str, cluster_yml: Path, dependencies: Path | None, scratch: Path) -> None:
    """Install the wheel into a fresh virtual environment, and use it in a folder of its own.

    Args:
        dependencies: a folder with installed packages to use; None: those of requirements.lock are installed, for
            which a package index is asked.

    Raises:
        RefusedError: it can't be installed, has another version, or refuses the file of a cluster.
    """
    place = scratch / "venv"
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", f"--python={python}", "--disable-pip-version-check", "install", "--quiet"]
    pip.append("--no-deps")
    if dependencies is None:
        _install_locked(pip, scratch)
    else:
        (packages,) = (place / "lib").glob("python3*/site-packages")
        (packages / "dependencies.pth").write_text(f"{dependencies}\n")
    run([*pip, "--no-index", wheel], scratch)
    folder = scratch / "cluster"
    folder.mkdir()
    shutil.copy(cluster_yml, folder / "cluster.yml")
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    program = place / "bin" / "gpucluster"
    where = run([python, "-c", "import gpucluster; print(gpucluster.__file__)"], folder, environment).strip()
    if not Path(where).is_relative_to(place):
        raise RefusedError(f"another gpucluster than that of the wheel was imported: {where}")
    printed = run([program, "--version"], folder, environment)
    if not re.search(rf"\b{re.escape(version)}$", printed.strip()):
        raise RefusedError(f"the wheel of {version} prints {printed.strip()!r}")
    run([program, "validate"], folder, environment)


def _install_locked(pip: Sequence[str], scratch: Path) -> None:
    locked = sections(LOCK.read_text())
    for number, names in enumerate((("build",), ("controller", "run"))):
        requirements = scratch / f"requirements-{number}.txt"
        requirements.write_text("".join(locked[name] for name in names))
        options = ["--require-hashes", "--no-build-isolation", "--only-binary=:all:", f"--no-binary={_SOURCE_ONLY}"]
        run([*pip, *options, "--requirement", requirements], scratch)


def make_wheel(root: Path, target: Path, dependencies: Path | None = None) -> None:
    """Build and check source and wheel of the commit, and write them and their checksums into an empty folder.

    Raises:
        RefusedError: the tree differs from its commit, two builds differ, or the wheel does not work.
    """
    require_clean(root)
    epoch = int(git(root, "log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory(prefix="gpucluster-release-") as name:
        scratch = Path(name)
        for attempt in ("one", "other"):
            export(root, scratch / attempt / "source")
            build(scratch / attempt / "source", scratch / attempt / "built", epoch)
        if names := differing(scratch / "one" / "built", scratch / "other" / "built"):
            raise RefusedError(f"two builds of the same commit differ: {', '.join(names)}")
        source = scratch / "one" / "source"
        (wheel,) = (scratch / "one" / "built").glob("*.whl")
        version = version_of((source / VERSION_FILE).read_text())
        check_wheel(wheel, version, source / SHIPPED, dependencies, scratch)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(scratch / "one" / "built", target)
    write_sums(target)


def make_image(root: Path, target: Path, base: str, options: Sequence[str]) -> str:
    """Build the image of the commit, run it, and write it beside the wheel. Returns its name.

    Args:
        options: of `podman build`, to reach the package indexes.

    Raises:
        RefusedError: the tree differs from its commit, or podman failed.
    """
    require_clean(root)
    revision, epoch = git(root, "rev-parse", "HEAD"), git(root, "log", "-1", "--format=%ct")
    with tempfile.TemporaryDirectory(prefix="gpucluster-release-") as name:
        source = Path(name) / "source"
        export(root, source)
        version = version_of((source / VERSION_FILE).read_text())
        image = f"localhost/gpucluster:{version}"
        labels = {"version": version, "revision": revision, "licenses": "Apache-2.0"}
        words = [f"--label=org.opencontainers.image.{key}={value}" for key, value in labels.items()]
        command = ["podman", "build", f"--build-arg=BASE={base}", f"--timestamp={epoch}", f"--tag={image}"]
        run([*command, *words, *options, source], root)
    # The limits of this process: podman asks for larger ones, which not every machine permits.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = ["--network=none", "--cap-drop=all", f"--ulimit=nofile={soft}:{hard}", "--ulimit=nproc=4096:4096"]
    printed = run(["podman", "run", "--rm", *limits, image, "gpucluster", "--version"], root)
    if version not in printed:
        raise RefusedError(f"the image of {version} prints {printed.strip()!r}")
    file = target / f"gpucluster-{version}-image.tar"
    target.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    run(["podman", "save", "--format=oci-archive", f"--output={file}", image], root)
    write_sums(target)
    return image


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.release_build", description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["wheel", "image"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--base", default=BASE)
    parser.add_argument("--options", default="")
    asked = parser.parse_args(argv)
    try:
        if asked.what == "wheel":
            make_wheel(ROOT, asked.folder)
        else:
            print(make_image(ROOT, asked.folder, asked.base, shlex.split(asked.options)))
    except RefusedError as error:
        print(f"tools.release_build: {error}", file=sys.stderr)
        return 2
    print((asked.folder / SUMS).read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
