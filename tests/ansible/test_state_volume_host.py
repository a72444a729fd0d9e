"""The units of the state's volume with real systemd: no service starts without the volume, and each when it comes.

The file systems and mounts are real in tests/node_agent/state_volume; here the mount is a double, because a container
may mount no disk. The program that waits, its units and the services' order are the real ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gpucluster.node_agent.state_volume import layout
from gpucluster.node_agent.state_volume.mounting import SETTINGS
from tests.ansible.booted import Booted, booted
from tests.waiting import wait_for

pytestmark = [pytest.mark.containers, pytest.mark.slow]

#: A block device that nothing reads.
DEVICE = "/dev/gpucluster-test-state"
PROGRAM = "/usr/local/bin/state-program"
#: The mount fails as the agent's does while the device is missing (1), and where another host has the volume (2).
MOUNT = f"""#!/bin/sh
[ "$2" = mount ] || exec /usr/local/bin/gpucluster-agent "$@"
[ -e /run/taken ] && exit 2
[ -b {DEVICE} ] || exit 1
"""
SERVICES = ("mariadb.service", "slurmctld.service", "gpucluster-health.service")
SERVICE = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"


@pytest.fixture
def host() -> Iterator[Booted]:
    with booted("--cap-add=MKNOD") as started:
        started.install_agent()
        started.put(PROGRAM, MOUNT, 0o755)
        started.put(SETTINGS, json.dumps({"device": DEVICE, "cluster": "demo", "user": "root"}))
        started.put(layout.UNIT_FILE, layout.unit(PROGRAM))
        started.put(layout.LATE_UNIT_FILE, layout.late_unit(PROGRAM))
        for name in SERVICES:
            started.put(f"/etc/systemd/system/{name}", SERVICE)
        started.sh(f"systemctl daemon-reload; systemctl enable --quiet {layout.UNIT} {' '.join(SERVICES)}")
        yield started


def states(host: Booted, *units: str) -> list[str]:
    return host.sh(f"systemctl is-active {' '.join(units)}", check=False).split()


def boot(host: Booted) -> None:
    """As a boot does it: the services are to start, and systemd does not wait for more."""
    host.sh(f"systemctl start --no-block {' '.join(SERVICES)}")
    wait_for("the volume was not found", lambda: states(host, layout.UNIT) == ["failed"])


def journal(host: Booted) -> str:
    return host.sh(f"journalctl --no-pager -u {layout.LATE_UNIT} | tail -n 12; systemctl --failed", check=False)


def test_services_start_when_a_late_volume_comes_and_not_before(host: Booted) -> None:
    boot(host)
    assert states(host, *SERVICES) == ["inactive"] * len(SERVICES)
    wait_for("it waits", lambda: states(host, layout.LATE_UNIT) == ["active"], state=lambda: journal(host))
    # Also after it was killed.
    host.sh(f"systemctl kill --signal=KILL {layout.LATE_UNIT}")
    host.sh(f"mknod {DEVICE} b 7 250")
    running = [layout.UNIT, *SERVICES]
    wait_for("the services run", lambda: states(host, *running) == ["active"] * 4, state=lambda: journal(host))
    wait_for("it has ended", lambda: states(host, layout.LATE_UNIT) == ["inactive"], state=lambda: journal(host))
    # The order in which they have started is that of a failover.
    began = host.sh("systemctl show -p ExecMainStartTimestampMonotonic --value mariadb slurmctld gpucluster-health")
    moments = [int(line) for line in began.split()]
    assert moments == sorted(moments)


def test_a_volume_of_another_host_is_not_waited_for(host: Booted) -> None:
    host.sh(f"touch /run/taken; mknod {DEVICE} b 7 250")
    boot(host)
    wait_for("it has ended", lambda: states(host, layout.LATE_UNIT) == ["inactive"], state=lambda: journal(host))
    assert states(host, *SERVICES) == ["inactive"] * len(SERVICES)
    # A standby has no volume, and does not wait for one.
    host.sh(f"rm /run/taken {DEVICE}; mkdir -p $(dirname {layout.PASSIVE}); touch {layout.PASSIVE}")
    boot(host)
    wait_for("it has ended", lambda: states(host, layout.LATE_UNIT) == ["inactive"], state=lambda: journal(host))
    assert states(host, *SERVICES) == ["inactive"] * len(SERVICES)
