"""What the standby has in common with the controller, and what each host has of its own."""

from __future__ import annotations

import pytest

from gpucluster.node_agent.standby import scope
from gpucluster.node_agent.state_volume import layout

FSTAB = """\
UUID=one / ext4 defaults 0 1
10.0.0.5:/home /mnt/home nfs4 hard 0 0
# 10.0.0.5:/old /old nfs hard 0 0
"""


@pytest.mark.parametrize(
    "path",
    [
        "/etc/machine-id",
        "/etc/netplan/50-cloud-init.yaml",
        "/etc/ssh/ssh_host_ed25519_key",
        "/usr/lib/modules/6.1/kernel",
        "/var/lib/cloud/instance",
        layout.MOUNT,
        *layout.DIRECTORIES.values(),
        *(f"{place}/file" for place in layout.DIRECTORIES.values()),
        "/var/lib/mysql.before-state-volume/ibdata1",
        f"{scope.FOLDER}/agent",
        "/var/lib/gpucluster/metrics/health.prom",
    ],
)
def test_what_belongs_to_one_host_alone(path: str) -> None:
    assert scope.is_own(path)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/slurm/slurm.conf",
        "/etc/machine-id.bak",
        "/etc/gpucluster/munge.key",
        "/etc/ssh/ssh_host_ed25519_key-cert.pub",
        "/var/lib/dpkg/status",
        "/usr/local/bin/gpucluster-agent",
        "/etc/systemd/system/slurmctld.service",
    ],
)
def test_what_both_have(path: str) -> None:
    assert not scope.is_own(path)


def test_shares_are_the_same_and_disks_are_not() -> None:
    lines = scope.shares(FSTAB)
    assert lines == ["10.0.0.5:/home /mnt/home nfs4 hard 0 0"]
    other = "UUID=two / xfs defaults 0 1\n10.0.0.5:/gone /gone nfs hard 0 0\n"
    assert scope.with_shares(other, lines) == f"UUID=two / xfs defaults 0 1\n{lines[0]}\n"
