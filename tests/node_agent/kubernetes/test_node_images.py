"""The images of the cluster's own software on a host.

`ctr` is a double: a store of names and labels in a file, which an archive (text, or a tar with a manifest) fills. The
real one is in the tests with a whole cluster.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.kubernetes import __main__ as program
from gpucluster.node_agent.kubernetes import node_images
from tests import image_archive
from tests.image_archive import Image

CTR = """#!{python} -IS
import io, json, pathlib, sys
store = pathlib.Path({store!r})
images = json.loads(store.read_text())
assert sys.argv[1:3] == ["--namespace=k8s.io", "images"], sys.argv
verb, *words = sys.argv[3:]
if verb == "list":
    wanted = [word.partition("==") for word in words if word.startswith("labels.")]
    for name, labels in images.items():
        if all(labels.get(key[8:-1]) == value for key, _, value in wanted):
            print(name)
elif verb == "import":
    import tarfile
    data = sys.stdin.buffer.read() if words[0] == "-" else pathlib.Path(words[0]).read_bytes()
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            names = [tag for image in json.load(tar.extractfile("manifest.json")) for tag in image["RepoTags"]]
    except tarfile.TarError:
        names = data.decode().split()
    for name in names:
        images.setdefault(name, {{}})
        images[name]["imports"] = images[name].get("imports", 0) + 1
elif verb == "label":
    for key, _, value in (word.partition("=") for word in words[1:]):
        images[words[0]].pop(key, None)
        if value:
            images[words[0]][key] = value
store.write_text(json.dumps(images))
"""
PAUSE, PROXY = "registry.k8s.io/pause:3.10", "registry.k8s.io/kube-proxy:v1.36.4"
ETCD = "registry.k8s.io/etcd:3.6.4-0"
NODE, CNI = "quay.io/calico/node:v3.31.7", "quay.io/calico/cni:v3.31.7"
MANIFEST = f"""\
spec:
  containers:
    - name: calico-node
      image: {NODE}
  initContainers:
    - image: "{CNI}"  # twice in the real one
    - image: {CNI}
data:
  note: the image: of a sentence is none
"""


class Host:
    """A store of images, an archive and a manifest."""

    def __init__(self, folder: Path) -> None:
        self.store, self.archive, self.marker = folder / "store", folder / "archive.tar", folder / "marker"
        self.manifest = folder / "calico.yaml"
        self.store.write_text("{}")
        self.manifest.write_text(MANIFEST)
        self.archive.write_text(f"{PAUSE} {PROXY} {NODE} {CNI}")
        ctr = folder / "bin" / "ctr"
        ctr.parent.mkdir()
        ctr.write_text(CTR.format(python=sys.executable, store=str(self.store)))
        ctr.chmod(0o755)

    def images(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = json.loads(self.store.read_text())
        return found

    def keep(
        self, checksum: str = "a", images: tuple[str, ...] = (PAUSE, PROXY), unused: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        given = {"archive": str(self.archive), "checksum": checksum, "images": list(images), "unused": list(unused)}
        return node_images.keep({**given, "manifests": [str(self.manifest)]}, self.marker)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return made


def test_images_that_a_manifest_names_are_wanted_like_those_of_kubeadm(host: Host) -> None:
    host.archive.write_text(f"{PAUSE} {PROXY} {NODE}")
    with pytest.raises(Failed) as caught:
        host.keep()
    assert caught.value.message == f"archive.tar lacks 1 of 4 images: {CNI}"
    # The archive that has it is taken, although all of kubeadm's are here.
    host.archive.write_text(f"{PAUSE} {PROXY} {NODE} {CNI}")
    assert host.keep()["imported"]
    assert set(host.images()) == {PAUSE, PROXY, NODE, CNI}


def test_an_archive_is_imported_again_only_when_it_is_another_one(host: Host) -> None:
    assert host.keep("a")["imported"]
    assert host.keep("a") == {"imported": False, "pinned": [], "unpinned": []}
    assert host.keep("b")["imported"]
    assert host.images()[PAUSE]["imports"] == 2
    # A store that was lost: the record may be the only file that is left.
    host.store.write_text("{}")
    assert host.keep("b")["imported"]


def test_images_are_pinned_while_they_are_wanted(host: Host) -> None:
    host.archive.write_text(f"{host.archive.read_text()} registry.k8s.io/kube-proxy:v1.36.5 ghcr.io/person/work:1")
    assert host.keep()["pinned"] == sorted([PAUSE, PROXY, NODE, CNI])
    assert host.images()[PAUSE]["io.cri-containerd.pinned"] == "pinned"
    # One that another program has pinned stays so.
    state = host.images()
    state["ghcr.io/person/work:1"]["io.cri-containerd.pinned"] = "pinned"
    host.store.write_text(json.dumps(state))
    done = host.keep("a", (PAUSE, "registry.k8s.io/kube-proxy:v1.36.5"))
    assert (done["pinned"], done["unpinned"]) == (["registry.k8s.io/kube-proxy:v1.36.5"], [PROXY])
    assert "io.cri-containerd.pinned" not in host.images()[PROXY]
    assert host.images()["ghcr.io/person/work:1"]["io.cri-containerd.pinned"] == "pinned"


def test_a_host_leaves_out_what_it_does_not_run(host: Host) -> None:
    image_archive.write(host.archive, {name: Image() for name in (ETCD, PAUSE, "private:1")})
    host.manifest.write_text("")
    assert host.keep(images=(PAUSE,), unused=(ETCD,))["imported"]
    assert set(host.images()) == {PAUSE, "private:1"}
    # An image that is wanted as well is imported, and an archive that can't be divided is imported as it is.
    assert host.keep("b", images=(PAUSE, ETCD), unused=(ETCD,))["imported"]
    host.archive.write_text(f"{PAUSE} {PROXY}")
    assert host.keep("c", images=(PAUSE,), unused=(PROXY,))["imported"]
    assert set(host.images()) == {PAUSE, ETCD, PROXY, "private:1"}


def test_a_containerd_that_ends_during_an_import_is_named(host: Host, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    layer.write_bytes(bytes(1 << 20))
    image_archive.write(host.archive, {PAUSE: Image(root=layer)})
    host.manifest.write_text("")
    (tmp_path / "bin" / "ctr").write_text(
        "#!/bin/sh\n[ $3 = list ] && exit\necho 'ctr: no space left on device' >&2\nexit 1\n"
    )
    with pytest.raises(Failed, match="containerd can't import images: ctr: no space left on device"):
        host.keep(images=(PAUSE,), unused=(ETCD,))


def test_what_containerd_reports_is_passed_on(host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bin" / "ctr").write_text("#!/bin/sh\necho 'ctr: no space left on device' >&2\nexit 1\n")
    with pytest.raises(Failed, match="containerd can't list images: ctr: no space left on device"):
        host.keep()
    with pytest.raises(Refused):
        node_images.keep({"archive": "x"})
    assert program.keep_images("{") == 2
    assert program.keep_images("{}") == 2
    assert "the request needs" in capsys.readouterr().err
