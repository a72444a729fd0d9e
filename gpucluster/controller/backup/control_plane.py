"""The control plane of Kubernetes: etcd's content and the CAs. Its other files are made from them.

A restore makes the certificates and kubeconfigs again with the CAs of the backup and the configuration of this
host, so it also works on a new controller with another address.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpucluster.controller.backup.work import UNIT_SECONDS
from gpucluster.controller.kubernetes import certificates, containers, health_access
from gpucluster.controller.kubernetes.etcd import Etcd
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.kubernetes.kubectl import Kubectl

#: The files of `pki` that can't be made again: CAs and the key that signs tokens of service accounts.
AUTHORITIES = (
    "ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "etcd/ca.crt", "etcd/ca.key", "sa.key", "sa.pub",
)  # fmt: skip
#: The key with which the API server encrypts secrets in etcd, where that was set up.
ENCRYPTION = "encryption.yaml"
_KUBELET = "kubelet-certificates"
_LARGEST_FILE = 1 << 20
_FLAG = re.compile(r"- --(name|initial-advertise-peer-urls|initial-cluster)=(\S+)")
_IMAGE = re.compile(r"^\s*image:\s*(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class ControlPlane:
    """The control plane on this host.

    Args:
        folder: kubeadm's, with `pki` and `manifests`.
        config: the configuration with which kubeadm made it.
        etcd: its member of etcd.
        kubelet: the folder of kubelet's own certificates, which another CA may have signed.
    """

    folder: Path
    config: Path
    etcd: Etcd = field(default_factory=Etcd)
    kubelet: Path = certificates.KUBELET.parent

    @property
    def _fresh(self) -> Path:
        return self.folder / "restore"

    @property
    def _aside(self) -> Path:
        return self.folder / "before"

    @property
    def _member(self) -> Path:
        return self.etcd.data / "member"

    @property
    def _fresh_data(self) -> Path:
        return self.etcd.data / "restore"

    @property
    def _member_aside(self) -> Path:
        return self.etcd.data / "member.before"

    def dump(self, snapshot: Path, authorities: Path) -> int:
        """Write etcd's content and the CAs into two files; returns how many objects it has.

        Raises:
            Failed: etcd gives no answer, or a file is missing.
        """
        objects = self.etcd.objects()
        self.etcd.snapshot(snapshot)
        with tarfile.open(authorities, "w") as archive:
            for name in AUTHORITIES:
                archive.add(self.folder / "pki" / name, arcname=f"pki/{name}", recursive=False)
            if (self.folder / ENCRYPTION).exists():
                archive.add(self.folder / ENCRYPTION, arcname=ENCRYPTION, recursive=False)
        authorities.chmod(0o600)
        return objects

    def copy_files(self, target: Path) -> None:
        """Copy the files as they are, where etcd gives no answer."""
        for source, name in ((self._member, "member"), (self.folder / "pki", "pki")):
            if source.exists():
                shutil.copytree(source, target / name)

    def build(self, snapshot: Path, authorities: Path) -> None:
        """Build the new content beside the present one.

        Raises:
            Refused: a file is not what `dump` writes.
        """
        self.discard()
        self._fresh.mkdir(mode=0o700)
        known = {f"pki/{name}" for name in AUTHORITIES} | {ENCRYPTION}
        try:
            with tarfile.open(authorities) as archive:
                for member in archive:
                    stream = archive.extractfile(member) if member.name in known and member.isreg() else None
                    if stream is None or member.size > _LARGEST_FILE:
                        raise Refused(f"{member.name[:60]!r} does not belong in a backup", "Choose another file")
                    self._write(self._fresh / member.name, stream.read())
        except tarfile.TarError as error:
            raise Refused(f"the CAs in the backup can't be read: {error}", "Choose another file") from None
        missing = [name for name in AUTHORITIES if not (self._fresh / "pki" / name).exists()]
        if missing:
            raise Refused(f"the backup has no {missing[0]} of the control plane", "Choose another file")
        flags = [f"--{name}={value}" for name, value in self._flags()]
        self.etcd.restore(snapshot, self._fresh_data, flags, self._image())

    @staticmethod
    def _write(file: Path, content: bytes) -> None:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mode = 0o644 if file.suffix in (".crt", ".pub") else 0o600
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
            stream.write(content)

    def _manifest(self) -> str:
        file = self.folder / "manifests/etcd.yaml"
        try:
            return file.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise Failed(f"there is no {file}: this host has no control plane yet", "Run: gpucluster apply") from None

    def _flags(self) -> list[tuple[str, str]]:
        return _FLAG.findall(self._manifest())

    def _image(self) -> str:
        match = _IMAGE.search(self._manifest())
        return match[1] if match else ""

    def stop(self) -> None:
        """Stop kubelet, so that it starts nothing, and end the containers of the control plane. Pods run on.

        Raises:
            Failed: one did not end.
        """
        programs.run("systemctl", "stop", "kubelet", seconds=UNIT_SECONDS)
        containers.end_control_plane()

    def exchange(self) -> None:
        """Put the new content in the place of the old, and make what follows from it. Nothing of it may run.

        Raises:
            Failed: kubeadm could not make the certificates.
        """
        self._aside.mkdir(mode=0o700)
        if self._member.exists():
            self._member.rename(self._member_aside)
        (self._fresh_data / "member").rename(self._member)
        for source in (self.folder / "pki", self.folder / ENCRYPTION, *sorted(self.folder.glob("*.conf"))):
            if source.exists():
                source.rename(self._aside / source.name)
        # The new kubelet.conf has a certificate, with which kubelet asks for its own.
        (self._aside / _KUBELET).mkdir()
        for source in self._of_kubelet(self.kubelet):
            shutil.move(str(source), str(self._aside / _KUBELET / source.name))
        for source in sorted(self._fresh.iterdir()):
            source.rename(self.folder / source.name)
        for what, more in (("certs", ()), ("kubeconfig", (f"--kubeconfig-dir={self.folder}",))):
            words = ("kubeadm", "init", "phase", what, "all", f"--config={self.config}", *more)
            programs.run(*words, seconds=UNIT_SECONDS)

    def start(self) -> int:
        """Start it and wait until it answers; returns how many objects it has.

        Raises:
            Failed: the API server is not ready in time.
        """
        programs.run("systemctl", "start", "kubelet", seconds=UNIT_SECONDS)
        certificates.await_server(Kubectl(str(self.folder / "admin.conf")), time.sleep)
        return self.etcd.objects()

    def renew_health_access(self) -> None:
        """Give the health service a token of the control plane that is in use now, if it has one.

        Raises:
            AgentError: the API server did not make it.
        """
        if health_access.is_kept():
            health_access.keep(Kubectl(str(self.folder / "admin.conf")), time.sleep)

    @staticmethod
    def _of_kubelet(folder: Path) -> list[Path]:
        return sorted(folder.glob("kubelet-client-*.pem"))

    def interrupted(self) -> bool:
        """Whether a restore was killed after its exchange began."""
        return self._aside.exists()

    def put_back(self) -> None:
        """Undo the exchange, as far as it came. Nothing of it may run."""
        if self._member_aside.exists():
            shutil.rmtree(self._member, ignore_errors=True)
            self._member_aside.rename(self._member)
        if self._aside.exists():
            if (self._aside / _KUBELET).exists():
                for source in (*self._of_kubelet(self.kubelet), *self._of_kubelet(self._aside / _KUBELET)):
                    if source.parent == self.kubelet:
                        source.unlink()
                    else:
                        shutil.move(str(source), str(self.kubelet / source.name))
                shutil.rmtree(self._aside / _KUBELET)
            for source in sorted(self._aside.iterdir()):
                target = self.folder / source.name
                if target.is_dir():
                    shutil.rmtree(target)
                source.replace(target)
            self._aside.rmdir()

    def discard(self) -> None:
        """Delete what is beside the content in use."""
        for path in (self._fresh, self._aside, self._fresh_data, self._member_aside):
            shutil.rmtree(path, ignore_errors=True)
