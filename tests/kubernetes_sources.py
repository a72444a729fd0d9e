"""Kubernetes 1.20.2 for tests that run it: built from Debian's source package, and a cache of what was made.

    ~/.cache/gpucluster/tests/kubernetes/sources/         Debian's source package
    ~/.cache/gpucluster/tests/kubernetes/programs-HASH/   kubeadm, kubelet, kubectl and the parts of the control plane
    ~/.cache/gpucluster/tests/kubernetes/mirror-HASH/     a folder for `software.mirror`, with SHA256SUMS
    ~/.cache/gpucluster/tests/kubernetes/rehearsal-HASH/  the same programs, which call themselves NEXT
    ~/.cache/gpucluster/tests/kubernetes/tools-HASH/      an archive with the image TOOLS, for jobs
    ~/.cache/gpucluster/tests/kubernetes/torch-HASH/      an archive with the image TORCH, for trainings

No archive that the tests may rely on has a binary of these. Debian 12 has the newest source. Real: all programs of
Kubernetes, etcd (Debian's), pause. Doubles (tests/doubles): CoreDNS, crictl. `python -m tests.kubernetes_sources` makes
all, prints the mirror's folder, and removes files of other versions of this file that were not used for a day.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucluster.errors import EnvironmentFault
from gpucluster.localcloud.image import package_mirror
from gpucluster.localcloud.image.suites import SUITES
from gpucluster.localcloud.podman.command import probe
from gpucluster.paths import cache_dir
from tests import image_archive
from tests.cache_lock import locked
from tests.image_archive import Image

RELEASE = "1.20.2"
#: What the same programs call themselves for a rehearsal of an upgrade: no other source can be built here.
NEXT = "1.20.3"
#: The version of the double of crictl; the catalogue pins the checksum of the real one's.
CRICTL = "1.20.0"
#: The image of jobs: Python, Open MPI and a C compiler, ssh, the tools of a network. From packages of Debian 13, as
#: the nodes.
TOOLS = "gpucluster.test/tools:1"
#: The image of trainings: Debian 13's PyTorch, for processors only.
TORCH = "gpucluster.test/torch:1"
CACHE = cache_dir() / "tests" / "kubernetes"
REGISTRY = "k8s.gcr.io"
PARTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy")
PROGRAMS = (*PARTS, "kubeadm", "kubelet", "kubectl")
_DOUBLES = Path(__file__).parent / "doubles"
_OF_THE_CACHE = re.compile(r"\.?(?P<name>(programs|rehearsal|mirror|tools|torch|gpucluster)-[a-z0-9_-]+)(\.part)?")
_KEPT_S = 86400.0
_TOOLS_PACKAGES = (
    "iproute2,iputils-ping,openmpi-bin,libopenmpi-dev,gcc,libc6-dev,openssh-client,openssh-server,python3,procps,curl"
)
_TORCH_PACKAGES = "python3-torch,procps,iproute2,iputils-ping"
_TORCH_WITHOUT = ("include/*",)
#: What the build and the images need on this machine. Debian 13 has no Go that is old enough.
PACKAGES = {
    "/usr/lib/go-1.19/bin/go": "golang-1.19-go",
    "/usr/share/gocode/src/github.com/modern-go/reflect2": "golang-github-modern-go-reflect2-dev",
    "/usr/bin/dpkg-source": "dpkg-dev",
    "/usr/bin/gcc": "gcc",
    "/usr/bin/etcd": "etcd-server",
    "/usr/bin/etcdctl": "etcd-client",
    "/usr/sbin/conntrack": "conntrack",
    "/usr/sbin/xtables-nft-multi": "iptables",
    "/usr/bin/mmdebstrap": "mmdebstrap",
}
# $1: the source tree; $2: the folder for the programs; $3: the release; $4: the double of CoreDNS; then the programs.
# GOPATH mode: the tree's go.mod is refused.
_BUILD = r"""
set -eu
programs=$2
version=v$3
minor=${3#1.}
minor=${minor%.*}
export GOPATH=$PWD/go GOCACHE=$PWD/cache GO111MODULE=off CGO_ENABLED=0 GOFLAGS= PATH=/usr/lib/go-1.19/bin:$PATH
mkdir -p "$GOPATH/src/k8s.io" "$programs"
mv "$1" "$GOPATH/src/k8s.io/kubernetes"
cd "$GOPATH/src/k8s.io/kubernetes"
# The reflect2 of that time does not work with Go of 1.18 and later: kubeadm ends with a nil pointer.
rm -rf vendor/github.com/modern-go/reflect2
cp -rL /usr/share/gocode/src/github.com/modern-go/reflect2 vendor/github.com/modern-go/reflect2
flags='-s -w'
for package in component-base/version client-go/pkg/version; do
    for place in k8s.io k8s.io/kubernetes/vendor/k8s.io; do
        at=$place/$package
        flags="$flags -X $at.gitVersion=$version -X $at.gitMajor=1 -X $at.gitMinor=$minor -X $at.gitTreeState=clean"
        flags="$flags -X $at.gitCommit=0000000000000000000000000000000000000000 -X $at.buildDate=1970-01-01T00:00:00Z"
    done
done
# The source package lacks the definitions of the API's types, which the API server reads.
go build -o "$GOPATH/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
described=$(grep -rlE '\+k8s:openapi-gen=' --include='*.go' staging/src/k8s.io pkg cmd | xargs -n1 dirname | sort -u |
    grep -v /testdata | paste -sd, |
    sed -e 's,staging/src/k8s.io/,k8s.io/kubernetes/vendor/k8s.io/,g' \
        -e 's#\(^\|,\)\(pkg\|cmd\)/#\1k8s.io/kubernetes/\2/#g')
"$GOPATH/openapi-gen" -O zz_generated.openapi -p k8s.io/kubernetes/pkg/generated/openapi --input-dirs "$described" \
    -h /dev/null -r /dev/null --output-base "$GOPATH/src"
mkdir cmd/dns
cp "$4" cmd/dns/main.go
shift 4
for program; do
    echo "building $program" >&2
    go build -ldflags "$flags" -o "$programs/$program" "k8s.io/kubernetes/cmd/$program"
done
gcc -Os -static -s -DVERSION=$version -o "$programs/pause" build/pause/linux/pause.c
"""


def need_kubernetes() -> None:
    """Skip the test where Kubernetes is not asked for. Where it is, what is missing fails the test."""
    if os.environ.get("GPUCLUSTER_TEST_KUBERNETES") != "1":
        pytest.skip("it may build Kubernetes for five minutes: GPUCLUSTER_TEST_KUBERNETES=1, or make test-kubernetes")
    if lacking := _lacking():
        pytest.fail(f"missing packages of Debian: apt-get install {' '.join(lacking)}", pytrace=False)
    if problems := probe():
        pytest.fail(f"this machine runs no containers: {'; '.join(problems)}", pytrace=False)


def programs_folder() -> Path:
    """Where `programs` makes them: their folder of the cache for this version of this file. It may not exist yet."""
    return CACHE / f"programs-{_hash(_BUILD, (_DOUBLES / 'coredns' / 'main.go').read_text())}"


def programs() -> Path:
    """The folder with all programs. Builds them where the cache has none: five minutes on two cores."""

    def build(folder: Path) -> None:
        if lacking := _lacking():
            raise EnvironmentFault(f"to build Kubernetes needs {' '.join(lacking)} of Debian")
        with tempfile.TemporaryDirectory(prefix="gpucluster-kubernetes-", dir=CACHE) as scratch:
            tree = Path(scratch, "tree")
            subprocess.run(["dpkg-source", "--extract", _source(), tree], check=True, stdout=sys.stderr)
            dns = _DOUBLES / "coredns" / "main.go"
            argv = ["sh", "-c", _BUILD, "build", str(tree), str(folder), RELEASE, str(dns), *PROGRAMS, "dns"]
            subprocess.run(argv, check=True, cwd=scratch, stdout=sys.stderr)

    return _made(programs_folder(), build)


def rehearsal_programs() -> Path:
    """The folder with the same programs under another release: they differ in the release that they name, and in
    nothing else. The linker stores it as a text of this length, so it is written over as another link would write it.
    """
    made = programs()

    def rename(folder: Path) -> None:
        for program in made.iterdir():
            renamed = program.read_bytes().replace(f"v{RELEASE}".encode(), f"v{NEXT}".encode())
            (folder / program.name).write_bytes(renamed)
            (folder / program.name).chmod(0o755)

    return _made(_rehearsal_folder(), rename)


def mirror(*, rehearsal: bool = False) -> Path:
    """A folder for `software.mirror` that has the release files of this Kubernetes, and SHA256SUMS.

    Args:
        rehearsal: those of the release NEXT as well.
    """
    releases = {RELEASE: programs(), **({NEXT: rehearsal_programs()} if rehearsal else {})}

    def fill(folder: Path) -> None:
        for release, made in releases.items():
            for name in ("kubeadm", "kubelet", "kubectl"):
                os.link(made / name, folder / f"{name}-{release}-linux-amd64")
            image_archive.write(folder / f"kubernetes-images-{release}-x86_64.tar", _images(made, release))
        with tarfile.open(folder / f"crictl-v{CRICTL}-linux-amd64.tar.gz", "w:gz") as tar:
            double = _DOUBLES / "crictl" / "crictl"
            entry = tar.gettarinfo(double, "crictl")
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = "root"
            entry.mode = 0o755
            with double.open("rb") as content:
                tar.addfile(entry, content)
        lines = [f"{_sha256(file)}  {file.name}\n" for file in sorted(folder.iterdir())]
        (folder / "SHA256SUMS").write_text("".join(lines))

    return _made(_mirror_folder(rehearsal=rehearsal), fill)


def _rehearsal_folder() -> Path:
    return CACHE / f"rehearsal-{_hash(programs_folder().name, NEXT)}"


def _mirror_folder(*, rehearsal: bool) -> Path:
    made = [programs_folder().name, *([_rehearsal_folder().name] if rehearsal else [])]
    recipe = inspect.getsource(mirror) + inspect.getsource(_images) + Path(image_archive.__file__).read_text()
    values = repr((CRICTL, REGISTRY, PARTS))
    return CACHE / f"mirror-{_hash(*made, recipe, values, (_DOUBLES / 'crictl' / 'crictl').read_text())}"


def _tools_folder() -> Path:
    return _archive_folder("tools", _TOOLS_PACKAGES)


def _torch_folder() -> Path:
    return _archive_folder("torch", _TORCH_PACKAGES, *_TORCH_WITHOUT)


def _archive_folder(name: str, packages: str, *left_out: str) -> Path:
    return CACHE / f"{name}-{_hash(packages, *left_out)}"


def tools_archive() -> Path:
    """An archive with the image TOOLS."""
    return _archive("tools", TOOLS, _TOOLS_PACKAGES)


def torch_archive() -> Path:
    """An archive with the image TORCH. Headers are left out: they are half of it."""
    return _archive("torch", TORCH, _TORCH_PACKAGES, *_TORCH_WITHOUT)


def _archive(name: str, image: str, packages: str, *left_out: str) -> Path:
    """An archive with an image of packages of Debian 13, without what `left_out` names below /usr."""

    def pack(folder: Path) -> None:
        suite = SUITES["trixie"]
        found = package_mirror.find(suite, CACHE)
        keys = [f"--keyring={found.keyring}"] if found.keyring else []
        options = [f"--aptopt={option}" for option in found.apt_options]
        without = (*(f"share/{part}/*" for part in ("doc", "man", "locale")), *left_out)
        slim = [f"--dpkgopt=path-exclude=/usr/{pattern}" for pattern in without]
        argv = ["mmdebstrap", "--mode=root", "--variant=minbase", *keys, *options, *slim]
        argv += [f"--include={packages}", "--customize-hook=rm -rf $1/var/cache/apt $1/var/lib/apt/lists"]
        with tempfile.TemporaryDirectory(prefix=f"gpucluster-{name}-", dir=CACHE) as scratch:
            root = Path(scratch, "root.tar")
            subprocess.run([*argv, suite.name, root, *found.lines(suite)], check=True, stdout=sys.stderr)
            image_archive.write(folder / f"{name}.tar", {image: Image(root=root)})

    return _made(_archive_folder(name, packages, *left_out), pack) / f"{name}.tar"


def _images(made: Path, release: str) -> dict[str, Image]:
    """The images that `kubeadm config images list` names."""
    firewall = {"/usr/sbin/xtables-nft-multi": Path("/usr/sbin/xtables-nft-multi")}
    firewall |= {str(file): file for file in Path("/usr/lib/x86_64-linux-gnu/xtables").glob("*.so")}
    called = [f"{kind}{verb}" for kind in ("iptables", "ip6tables") for verb in ("", "-save", "-restore")]
    extra = {
        "kube-proxy": Image(
            {**firewall, "/usr/sbin/conntrack": Path("/usr/sbin/conntrack")},
            {f"/usr/sbin/{name}": "xtables-nft-multi" for name in called},
        )
    }
    found = {
        f"{REGISTRY}/{name}:v{release}": Image(
            {f"/usr/local/bin/{name}": made / name, **extra.get(name, Image()).files}, extra.get(name, Image()).links
        )
        for name in PARTS
    }
    etcd = {f"/usr/local/bin/{name}": Path("/usr/bin", name) for name in ("etcd", "etcdctl")}
    return {
        **found,
        f"{REGISTRY}/pause:3.2": Image({"/pause": made / "pause"}, entrypoint=("/pause",)),
        f"{REGISTRY}/etcd:3.4.13-0": Image(etcd),
        f"{REGISTRY}/coredns:1.7.0": Image({"/coredns": made / "dns"}, entrypoint=("/coredns",)),
    }


def _source() -> Path:
    """Debian's description of the source package, beside its files. apt checks their signatures."""
    folder = CACHE / "sources"
    if not (found := sorted(folder.glob("kubernetes_*.dsc"))):
        suite = SUITES["bookworm"]
        archive = package_mirror.find(suite, CACHE)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="gpucluster-apt-", dir=CACHE) as scratch:
            keys = f"[signed-by={archive.keyring}] " if archive.keyring else ""
            Path(scratch, "list").write_text(f"deb-src {keys}{archive.uri} {suite.name} main\n")
            Path(scratch, "lists", "partial").mkdir(parents=True)
            settings = {"Dir::Etc::SourceList": f"{scratch}/list", "Dir::Etc::SourceParts": "/dev/null"}
            settings |= {"Dir::State::Lists": f"{scratch}/lists", "APT::Sandbox::User": "root"}
            options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
            subprocess.run(["apt-get", *options, "-qq", "update"], check=True, stdout=sys.stderr)
            fetch = ["apt-get", *options, "-qq", "source", "--download-only", "kubernetes"]
            subprocess.run(fetch, check=True, cwd=folder, stdout=sys.stderr)
        found = sorted(folder.glob("kubernetes_*.dsc"))
    return found[-1]


def _made(folder: Path, make: Callable[[Path], None]) -> Path:
    """A folder of the cache, which one process makes while others wait; it is there when it is complete."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with locked(CACHE / f".{folder.name}.lock"):
        if folder.exists():
            os.utime(folder)  # `clean` sees when it was used last
        else:
            part = CACHE / f".{folder.name}.part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            make(part)
            part.rename(folder)
    return folder


def clean(now: float) -> list[str]:
    """Remove from the cache what this version of this file would not make. Returns the names of what was removed.

    What was used in the last day stays: another checkout of this repository may be testing with it.

    Args:
        now: seconds since 1970.
    """
    mirrors = [_mirror_folder(rehearsal=rehearsal) for rehearsal in (False, True)]
    current = {
        folder.name for folder in (programs_folder(), _rehearsal_folder(), *mirrors, _tools_folder(), _torch_folder())
    }
    removed = []
    for entry in sorted(CACHE.iterdir()):
        # Made, half made (.NAME.part), or the folder of a build that was killed.
        found = _OF_THE_CACHE.fullmatch(entry.name)
        if found and found["name"] not in current and now - entry.stat().st_mtime > _KEPT_S:
            with locked(CACHE / f".{found['name']}.lock"):
                shutil.rmtree(entry)
            (CACHE / f".{found['name']}.lock").unlink()
            removed.append(entry.name)
    return removed


def _lacking() -> list[str]:
    return [package for path, package in PACKAGES.items() if not Path(path).exists()]


def _hash(*texts: str) -> str:
    return hashlib.sha256("\0".join((RELEASE, *texts)).encode()).hexdigest()[:12]


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


if __name__ == "__main__":
    tools_archive()
    torch_archive()
    mirror(rehearsal=True)
    print(mirror())
    for name in clean(time.time()):
        print(f"removed from the cache: {name}", file=sys.stderr)
