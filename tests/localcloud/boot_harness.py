"""Instances of the local cloud's engine that boot with user data of gpucluster, in a network of the test's own."""

from __future__ import annotations

import dataclasses
import json
import secrets
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpucluster import process
from gpucluster.handover.user_data import BootSettings, user_data
from gpucluster.localcloud.engine import containers
from gpucluster.localcloud.engine.containers import ContainerLaunch
from gpucluster.localcloud.image.base_image import ensure_image
from gpucluster.localcloud.image.contents import DEBIAN_13, Contents
from gpucluster.localcloud.podman.host import HostSettings
from gpucluster.localcloud.podman.host import settings as host_settings
from tests.containers import free_network, need_containers
from tests.waiting import PATIENCE_S, wait_for


@dataclass(frozen=True)
class WithDrives(HostSettings):
    """The settings of this host, with block devices for an instance; by default an instance has none."""

    drives: tuple[str, ...] = ()

    def run_options(self) -> list[str]:
        return [*super().run_options(), *(f"--device={drive}" for drive in self.drives)]


@dataclass(frozen=True)
class World:
    """A network for the instances of this file."""

    prefix: str
    home: Path
    subnet: str

    def boot(
        self,
        short: str,
        host: int,
        machine: BootSettings,
        drives: tuple[str, ...] = (),
        contents: Contents = DEBIAN_13,
    ) -> Instance:
        """Launch an instance with these drives."""
        request = ContainerLaunch(
            name=f"{self.prefix}-{short}",
            hostname=short,
            image=ensure_image(self.home, contents=contents).reference,
            network=self.prefix,
            ip=f"{self.subnet}.{host}",
            user_data=user_data(machine).encode(),
            metadata={},
            ssh_authorized_keys=(),
            labels={"gpucluster.home": str(self.home), "gpucluster.ocid": f"ocid1.instance.local..{short}"},
            exports_dir=self.home / "exports",
            home=self.home,
        )
        settings = WithDrives(**dataclasses.asdict(host_settings()), drives=drives)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(containers, "settings", lambda: settings)
            containers.launch(request)
        return Instance(request.name)


@dataclass(frozen=True)
class Instance:
    """A booted instance."""

    name: str

    def sh(self, script: str, *, status: int | None = 0) -> str:
        done = process.run(["podman", "exec", self.name, "sh", "-c", script], check=False, timeout=PATIENCE_S)
        assert status is None or done.returncode == status, done
        return (done.stdout + done.stderr).strip()

    def errors(self) -> list[str]:
        """The errors that cloud-init reports for this boot, after it has ended."""
        told = wait_for(
            f"cloud-init ends in {self.name}",
            lambda: self.sh("cat /run/cloud-init/result.json 2> /dev/null", status=None),
            interval=0.2,
            state=lambda: self.sh("systemctl list-jobs; cat /var/log/cloud-init-output.log", status=None),
        )
        return [str(error) for error in json.loads(told)["v1"]["errors"]]

    def outcome(self, name: str) -> tuple[str, str]:
        """The state and the message that a script has recorded."""
        state, _newline, words = self.sh(f"cat /run/gpucluster/{name}").partition("\n")
        return state, words

    def fingerprint(self, drive: str) -> str:
        """Changes with each mkfs."""
        return self.sh(f"blkid -p -o value -s UUID {drive}")

    def reads_boot_volume(self, user: str) -> str:
        """Whether a user's program reaches the address of the boot volume's iSCSI, where a listener of the test is."""
        return "read" if (done := self.reaches(user, "169.254.0.2", 3260)) == "connected" else done

    def reaches(self, user: str, address: str, port: int) -> str:
        """Whether a user's program connects to an address, at which a listener of the test is: connected or refused."""
        self.sh(f"ip address show dev lo | grep -q {address}/ || ip address add {address}/32 dev lo")
        self.listen(address, port)
        # From another address: rules about the way there must not meet the listener's answer.
        own = self.sh("hostname -I").split()[0]
        done = self.sh(f"setpriv --reuid={user} --clear-groups -- {_connect(address, port, own)}", status=None)
        return "refused" if "refused" in done else done

    def listen(self, address: str, port: int) -> None:
        """Have something that accepts connections at an address of the instance."""
        unit, program = f"listener-{port}", f"python3 -m http.server --bind {address} {port}"
        self.sh(f"systemctl is-active --quiet {unit} || systemd-run --quiet --unit={unit} {program}")
        wait_for(
            f"something listens at port {port} of {self.name}",
            lambda: self.sh(f"ss -Hltn sport = :{port}"),
            interval=0.1,
            state=lambda: self.sh(f"systemctl status {unit}", status=None),
        )

    def connect(self, address: str, port: int, source: str, namespace: str = "") -> str:
        """ "connected", or the error of a connection from an own address, of a network namespace if one is named."""
        within = f"ip netns exec {namespace} " if namespace else ""
        return self.sh(within + _connect(address, port, source), status=None)

    def reboot(self) -> None:
        containers.stop(self.name)
        containers.start(self.name)


def _connect(address: str, port: int, source: str = "") -> str:
    code = f"socket.create_connection(({address!r}, {port}), {PATIENCE_S / 3}, ({source!r}, 0))"
    code = f"import socket\ntry:\n    {code}\n    print('connected')\nexcept OSError as error:\n    print(error)"
    return f"python3 -Ic {shlex.quote(code)}"


@contextmanager
def a_world(home: Path) -> Iterator[World]:
    """A network to the end of the block, and what was booted in it. Without containers: skipped."""
    need_containers()
    prefix = f"gcinit-{secrets.token_hex(4)}"
    with free_network(prefix, {"gpucluster.home": str(home)}) as subnet:
        try:
            yield World(prefix, home, subnet)
        finally:
            for machine in containers.listing(f"gpucluster.home={home}"):
                containers.terminate(machine.name, home)
