"""The CA of the directory on a booted host: the role's unit with real systemd, slapd and SSSD, before and after a
rotation. The host is the controller, too, and proves nothing of networks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gpucluster.artifacts import agent_archive
from tests.ansible.booted import Booted, booted
from tests.ansible.directory_role import TASKS, VARIABLES
from tests.ansible.loading import ANSIBLE
from tests.controller.users.harness import HOMES
from tests.waiting import wait_for

pytestmark = [pytest.mark.containers, pytest.mark.slow]

AGENT, TRUSTED = "/usr/local/bin/gpucluster-agent", "/etc/gpucluster/authority.pem"
CONFIG, UNIT = "/etc/gpucluster/directory.json", "gpucluster-directory-authority.service"
ROTATE = '{"operation": "rotate", "arguments": {"what": ["directory-ca"]}}'
FORGET = "rm -f /var/lib/sss/db/*.ldb /var/lib/sss/mc/*"
#: As at a boot: systemd does not count the starts before.
START_EMPTY = f"systemctl stop sssd; {FORGET}; systemctl reset-failed sssd; systemctl start sssd"


@pytest.fixture
def host() -> Iterator[Booted]:
    with booted(f"--tmpfs={HOMES}:mode=755") as started:
        started.put(AGENT, agent_archive.of_controller(), 0o755)
        started.sh("mkdir -p /etc/gpucluster; ip link set lo up; echo 127.0.0.1 demo-controller >> /etc/hosts")
        started.play(TASKS, VARIABLES, name="demo-controller")
        # No other host is there, and the role base has not run.
        config = json.loads(started.read(CONFIG))
        started.put(CONFIG, json.dumps({**config, "hosts": {}}))
        started.put("/etc/gpucluster/host-certificate.json", json.dumps({"address": "127.0.0.1", "port": 6822}))
        for name in ("gpucluster-ssh-authority.socket", "gpucluster-ssh-authority@.service"):
            started.put(f"/etc/systemd/system/{name}", (ANSIBLE / "roles/base/files" / name).read_text())
        started.sh("systemctl daemon-reload; systemctl start gpucluster-ssh-authority.socket")
        yield started


def test_a_host_that_was_off_learns_the_present_ca_before_sssd_starts_or_as_soon_as_the_controller_answers(
    host: Booted,
) -> None:
    group = json.loads(host.read(CONFIG))["group"]

    def known() -> bool:
        return host.sh(f"getent group {group}", check=False).startswith(f"{group}:")

    def users_become_known() -> None:
        # On a busy machine SSSD may give up before slapd answers, and then it does not ask again for a minute or more.
        wait_for("users are known", known, state=lambda: journal(host))

    users_become_known()
    first = host.read(TRUSTED)
    done = json.loads(host.sh(f"echo '{ROTATE}' | {AGENT} rotate request 2>/dev/null"))["result"]["directory-ca"]
    present = host.read(TRUSTED)
    assert (done["hosts"], done["unconfirmed"], done["authority"]) == (1, [], present)
    assert present != first
    host.sh(START_EMPTY)
    users_become_known()

    def learned_before_sssd() -> bool:
        host.put(TRUSTED, first)
        host.sh(f"systemctl stop {UNIT}; {START_EMPTY}")
        state = host.sh(f"systemctl is-active {UNIT}", check=False).strip()
        learned = host.read(TRUSTED) == present
        # On a busy machine the directory or the controller answers late: then the unit lets SSSD start, and goes on.
        assert learned or state == "active", (state, journal(host))
        return learned

    wait_for("the host learns the CA before SSSD starts", learned_before_sssd, state=lambda: journal(host))
    users_become_known()

    # Without the controller SSSD starts, and knows no users. Then the unit has SSSD start again.
    host.sh("systemctl stop gpucluster-ssh-authority.socket")
    host.put(TRUSTED, first)
    host.sh(START_EMPTY)
    assert host.sh(f"systemctl is-active sssd {UNIT}").split() == ["active", "active"]
    assert not known()
    host.sh("systemctl start gpucluster-ssh-authority.socket")
    wait_for("the host has learned the CA", lambda: host.read(TRUSTED) == present, state=lambda: journal(host))
    users_become_known()
    wait_for("the unit has ended", lambda: "inactive" in host.sh(f"systemctl is-active {UNIT}", check=False))


def journal(host: Booted) -> str:
    return host.sh(f"journalctl --no-pager -o cat -n 30 -u {UNIT} -u sssd -u slapd", check=False)
