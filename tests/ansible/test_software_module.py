"""gpucluster_software with real dpkg and apt in a container of the base image, and with archives that mean harm.

The packages are doubles that the test makes, served on the container's own loopback by the server of the role
`software`. The distribution that has their dependencies is a local one as well.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ansible
from gpucluster import process
from gpucluster.localcloud.image.base_image import ensure_image
from gpucluster.localcloud.podman.host import settings
from tests.agent_program import install
from tests.ansible.loading import ANSIBLE, ModuleFailed
from tests.containers import of_this_run
from tests.image_home import image_home
from tests.mirror import Mirror
from tests.waiting import PATIENCE_S

ARCHITECTURE = "amd64" if os.uname().machine == "x86_64" else "arm64"
MACHINE = os.uname().machine
PORT = 8471
CAPS = "#!/bin/sh\nchmod u+x /usr/bin/box\ntouch /run/caps-configured\n"


class Host:
    """A container with the module in it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.mirror = Mirror(folder / "served")
        self.distribution = Mirror(folder / "distribution")

    def sh(self, script: str, *, status: int = 0) -> str:
        done = process.run(["podman", "exec", self.name, "sh", "-ec", script], check=False, timeout=PATIENCE_S)
        assert done.returncode == status, done
        return done.stdout.strip()

    def module(self, *, check: bool = False, **arguments: Any) -> dict[str, Any]:
        """Call it as Ansible would, with its answer."""
        request = {"ANSIBLE_MODULE_ARGS": {"_ansible_check_mode": check, "_ansible_tmpdir": "/tmp", **arguments}}
        done = process.run(
            ["podman", "exec", "--interactive", "--env=PYTHONPATH=/lib-of-test", "--env=PYTHONDONTWRITEBYTECODE=1",
             self.name, "python3", "/library/gpucluster_software.py"],
            input=json.dumps(request), check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            pytest.fail(f"no answer: {done}")
        if answer.get("failed"):
            raise ModuleFailed(answer["msg"])
        return answer

    def install(self, *files: dict[str, str], packages: list[str], **more: Any) -> dict[str, Any]:
        server = f"http://127.0.0.1:{PORT}"
        return self.module(server=server, files=list(files), packages=packages, timeout=600, **more)

    def versions(self, *names: str) -> dict[str, str]:
        out = self.sh(f"dpkg-query -Wf '${{Package}} ${{Version}} ${{db:Status-Status}}\\n' {' '.join(names)} || true")
        rows = [line.split() for line in out.splitlines()]
        return {row[0]: row[1] for row in rows if row[-1] == "installed"}

    def file(self, name: str, **differs: str) -> dict[str, str]:
        known = {"component": "box", "version": "1", "file": name, "sha256": self.mirror.sha256(name)}
        return known | {"format": "deb", "architecture": MACHINE} | differs

    def box(self, version: str) -> list[dict[str, str]]:
        """Two packages of a release, of which the second one changes a file of the first."""
        tool = f"#!/bin/sh\necho {version}\n"
        one = self.mirror.deb("box", version, {"/usr/bin/box": tool}, architecture=ARCHITECTURE)
        two = self.mirror.deb(
            "box+caps", version, {"/usr/share/box/caps": ""}, depends=f"box (= {version})", scripts={"postinst": CAPS},
            architecture=ARCHITECTURE,
        )  # fmt: skip
        return [self.file(path.name, version=version) for path in (one, two)]


def library(folder: Path) -> Path:
    """The module_utils that a module imports, as Ansible would send them."""
    target = folder / "ansible"
    source = Path(ansible.__file__).parent
    shutil.copytree(source / "module_utils", target / "module_utils", ignore=shutil.ignore_patterns("__pycache__"))
    (target / "__init__.py").touch()
    shutil.copy(source / "release.py", target)
    for file in (ANSIBLE / "module_utils").glob("*.py"):
        shutil.copy(file, target / "module_utils" / file.name)
    return folder


@contextlib.contextmanager
def container(folder: Path) -> Iterator[Host]:
    image = ensure_image(image_home()).reference
    name = f"gpucluster-test-software-{secrets.token_hex(4)}"
    host = Host(name, folder)
    lib = library(folder / "lib")
    argv = ["podman", "--runtime", settings().runtime, "run", "--detach", "--rm", "--pull=never", "--network=none"]
    argv += [f"--name={name}", of_this_run(), *settings().run_options()]
    argv += [f"--volume={lib}:/lib-of-test:ro", f"--volume={ANSIBLE / 'library'}:/library:ro"]
    argv += [f"--volume={host.mirror.folder}:/served:ro", f"--volume={host.distribution.folder}:/distribution:ro"]
    argv += [f"--volume={install(folder)}:/agent:ro", "--entrypoint=/agent"]
    process.run([*argv, image, "release-server", "127.0.0.1", str(PORT), "/served"], timeout=PATIENCE_S)
    try:
        host.sh("rm -rf /etc/apt/sources.list* /var/lib/apt/lists/*; mkdir -p /etc/apt/sources.list.d")
        host.sh("echo 'deb [trusted=yes] file:/distribution ./' > /etc/apt/sources.list.d/test.list")
        yield host
    finally:
        process.run(["podman", "rm", "--force", "--volumes", "--time=0", name], check=False, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with container(tmp_path_factory.mktemp("software")) as made:
        yield made


@pytest.mark.containers
def test_packages_come_go_up_go_down_and_go(host: Host) -> None:
    first, second = host.box("1.0-1"), host.box("1.1-1")
    names = ["box", "box+caps"]

    assert host.install(*first, packages=names, check=True)["changed"]
    assert host.versions(*names) == {}

    done = host.install(*first, packages=names)
    assert (done["changed"], done["installed"]) == (True, ["box=1.0-1", "box+caps=1.0-1"])
    assert host.versions(*names) == {"box": "1.0-1", "box+caps": "1.0-1"}
    assert host.sh("box") == "1.0-1"
    assert [host.sh(f"cat '{path}' | sha256sum").split()[0] for path in done["paths"].values()] == [
        file["sha256"] for file in first
    ]

    # Again: nothing is fetched (there is no server at that port), nothing installed.
    again = host.module(server="http://127.0.0.1:9", files=first, packages=names, timeout=0)
    assert (again["changed"], again["installed"]) == (False, [])

    # One was removed by hand: both are installed, because one changes files of the other.
    host.sh("dpkg --purge box+caps; rm -f /run/caps-configured")
    assert host.install(*first, packages=names)["installed"] == ["box+caps=1.0-1"]
    host.sh("test -e /run/caps-configured")

    assert host.install(*second, packages=names)["changed"]
    assert host.versions(*names) == {"box": "1.1-1", "box+caps": "1.1-1"}
    assert "box_1.0-1" not in host.sh("ls /var/cache/gpucluster/software"), "files of the version before are left"
    assert host.install(*first, packages=names)["changed"], "an older version was not installed"
    assert host.versions(*names) == {"box": "1.0-1", "box+caps": "1.0-1"}

    assert host.module(absent=names, check=True)["removed"] == names
    gone = host.module(absent=names)
    assert (gone["changed"], gone["removed"], host.versions(*names)) == (True, names, {})
    assert host.sh("ls /var/cache/gpucluster/software") == ""
    assert not host.module(absent=names)["changed"]


@pytest.mark.containers
def test_dependencies_come_from_the_distribution_which_is_asked_when_it_must_be(host: Host) -> None:
    path = host.mirror.deb("needy", "1", {"/usr/share/needy": ""}, depends="helper-of-needy", architecture="all")
    file = host.file(path.name, component="needy")
    (host.distribution.folder / "Packages").write_text("")
    with pytest.raises(ModuleFailed, match="helper-of-needy"):
        host.install(file, packages=["needy"])

    host.distribution.deb("helper-of-needy", "3", {"/usr/share/helper": ""}, architecture="all")
    (host.distribution.folder / "Packages").write_text(index(host.distribution))
    assert host.install(file, packages=["needy"])["changed"]
    assert host.versions("needy", "helper-of-needy") == {"needy": "1", "helper-of-needy": "3"}
    host.module(absent=["needy"])
    assert host.versions("helper-of-needy"), "what others may need as well stays"


def index(mirror: Mirror) -> str:
    """The list of a flat repository."""
    parts = []
    for file in sorted(mirror.folder.glob("*.deb")):
        fields = subprocess.run(["dpkg-deb", "--field", file], check=True, capture_output=True, text=True).stdout
        facts = f"Filename: ./{file.name}\nSize: {file.stat().st_size}\nSHA256: {mirror.sha256(file.name)}\n"
        parts.append(f"{fields.strip()}\n{facts}")
    return "\n".join(parts)


@pytest.mark.containers
def test_packages_in_an_archive(host: Host, tmp_path: Path) -> None:
    inner = Mirror(tmp_path)
    debs = [inner.deb(name, "2", {f"/usr/share/{name}": ""}, architecture=ARCHITECTURE) for name in ("kit", "kit-base")]
    extra = inner.deb("kit-dev", "2", {"/usr/share/kit-dev": ""}, architecture=ARCHITECTURE)
    tree = {f"release/packages/some/{deb.name}": deb.read_bytes() for deb in [*debs, extra]}
    host.mirror.tar("kit_deb.tar.gz", tree)
    file = host.file("kit_deb.tar.gz", component="kit")
    assert host.install(file, packages=["kit", "kit-base"])["changed"]
    assert host.versions("kit", "kit-base", "kit-dev") == {"kit": "2", "kit-base": "2"}
    assert not host.install(file, packages=["kit", "kit-base"])["changed"]
    with pytest.raises(ModuleFailed, match=r"kit_deb\.tar\.gz do not contain the package absentee"):
        host.install(file, packages=["absentee"])
    assert host.module(absent=["kit", "kit-base"])["removed"] == ["kit", "kit-base"]


@pytest.mark.containers
def test_what_is_wrong_is_refused_and_changes_nothing(host: Host) -> None:
    wrong = host.box("3.0-1")
    other = {**wrong[0], "sha256": "0" * 64}
    with pytest.raises(ModuleFailed, match=rf"has the checksum {wrong[0]['sha256']} instead of 0000"):
        host.install(other, wrong[1], packages=["box"])

    foreign = "arm64" if ARCHITECTURE == "amd64" else "amd64"
    path = host.mirror.deb("strange", "1", {"/usr/share/strange": ""}, architecture=foreign)
    with pytest.raises(ModuleFailed, match=f"is for {foreign}, and this host is {ARCHITECTURE}"):
        host.install(host.file(path.name, component="strange"), packages=["strange"])
    with pytest.raises(ModuleFailed, match=r"no release file is for this host \(deb"):
        host.install(host.file(path.name, format="rpm"), packages=["strange"])
    with pytest.raises(ModuleFailed, match="does not exist; run apply again"):
        host.install({**wrong[0], "file": "missing.deb"}, packages=["box"])
    with pytest.raises(ModuleFailed, match=r"can't be downloaded: .*refused"):
        host.module(server="http://127.0.0.1:9", files=[wrong[0]], packages=["box"], timeout=0)
    assert host.versions("box", "strange") == {}
    assert not [name for name in host.sh("ls -A /var/cache/gpucluster/software").split() if "part" in name]


@pytest.mark.containers
def test_an_installation_that_was_killed_is_finished(host: Host) -> None:
    files = host.box("4.0-1")
    host.install(*files, packages=["box", "box+caps"])
    # What dpkg leaves when it is killed between unpacking and configuring.
    host.sh("sed -i '/^Package: box+caps$/,/^$/s/^Status: .*/Status: install ok unpacked/' /var/lib/dpkg/status")
    assert "box+caps" not in host.versions("box+caps")
    assert host.install(*files, packages=["box", "box+caps"])["changed"]
    assert host.versions("box", "box+caps") == {"box": "4.0-1", "box+caps": "4.0-1"}
    host.module(absent=["box", "box+caps"])


@pytest.mark.containers
def test_an_archive_is_unpacked_whole_and_replaced_whole(host: Host) -> None:
    host.mirror.tar("tree.tar.gz", {"bin/run": "#!/bin/sh\necho one\n", "share/old": "x"})
    options: dict[str, Any] = {"server": f"http://127.0.0.1:{PORT}", "unpack": "/opt/tree"}
    files = [host.file("tree.tar.gz", format="any")]
    assert host.module(files=files, check=True, **options)["unpacked"]
    assert host.sh("test -e /opt/tree || echo none") == "none"
    assert host.module(files=files, **options)["unpacked"]
    assert host.sh("/opt/tree/bin/run; stat -c '%U %a' /opt/tree /opt/tree/bin/run") == "one\nroot 755\nroot 755"
    assert not host.module(files=files, **options)["changed"]

    host.mirror.tar("tree.tar.gz", {"bin/run": "#!/bin/sh\necho two\n"})
    files = [host.file("tree.tar.gz", format="any")]
    assert host.module(files=files, **options)["unpacked"]
    assert host.sh("/opt/tree/bin/run; ls /opt/tree; ls -A /opt | grep tree") == "two\nbin\ntree"

    escape = io.BytesIO()
    with tarfile.open(fileobj=escape, mode="w") as archive:
        entry = tarfile.TarInfo("../escaped")
        archive.addfile(entry, io.BytesIO())
    host.mirror.file("tree.tar.gz", escape.getvalue())
    with pytest.raises(ModuleFailed, match="escaped is outside of the directory"):
        host.module(files=[host.file("tree.tar.gz", format="any")], **options)
    assert host.sh("/opt/tree/bin/run; ls -A /opt | grep -e tree -e escaped") == "two\ntree", "what was there is gone"
    assert "tree.tar.gz" in host.module(forget=["box"])["forgotten"]
    assert host.sh("ls /var/cache/gpucluster/software | grep tree || echo none") == "none"
    assert not host.module(forget=["box"])["changed"]
