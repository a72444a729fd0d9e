"""A container whose controller and node are one machine by two names, with a real sshd and the CA's program.

systemctl is a double: it names the process of sshd, and proves nothing of units.
"""

from __future__ import annotations

import json
from types import TracebackType

from tests.controller.users.harness import CONFIG, Controller

# A double: the unit of sshd. Once it ends the rotation: files are renamed, and sshd does not know it.
SYSTEMCTL = """#!/bin/sh
if rm /run/kill-once 2>/dev/null; then pkill -KILL -f "gpucluster-agent rotate"; exit; fi
pgrep -o -x sshd
"""
#: The CA's program as systemd runs it: one process for each connection.
CA = """
import os, socket, subprocess
ear = socket.create_server(("127.0.0.1", 6822))
open("/run/ca-listens", "w").close()
while True:
    connection, (address, port) = ear.accept()
    env = {**os.environ, "REMOTE_ADDR": address, "REMOTE_PORT": str(port)}
    ends = {"stdin": connection.fileno(), "stdout": connection.fileno()}
    subprocess.run(["gpucluster-agent", "host-certificate", "answer"], env=env, **ends)
    connection.close()
"""
BEFORE = r"""
set -e
mkdir -p /etc/gpucluster/authority
ssh-keygen -q -t ed25519 -N '' -C ca -f /etc/gpucluster/authority/ssh_ca
ca=$(cut -d ' ' -f 1,2 /etc/gpucluster/authority/ssh_ca.pub)
echo '{"hosts": {"127.0.0.1": ["ctl", "node-1"]}, "elastic": [], "domain": ""}' > /etc/gpucluster/host-names.json
settings=/etc/gpucluster/host-certificate.json
echo "{\"address\": \"127.0.0.1\", \"port\": 6822, \"authority\": \"$ca\", \"sshd\": \"ssh\"}" > $settings
echo 'HostCertificate /etc/ssh/ssh_host_ed25519_key-cert.pub' >> /etc/ssh/sshd_config
# Each look at the keys is a connection without a login, which newer releases answer with silence after some.
sshd -t -o PerSourcePenalties=no 2> /dev/null && echo 'PerSourcePenalties no' >> /etc/ssh/sshd_config
pkill -HUP -o -x sshd
"""
AFTER = r"""
set -e
ca=$(cut -d ' ' -f 1,2 /etc/gpucluster/authority/ssh_ca.pub)
cp /etc/ssh/ssh_known_hosts /run/known.before
echo "@cert-authority * $ca" >> /etc/ssh/ssh_known_hosts
mkfifo /run/words
setsid python3 -c "$CA" > /run/ca.log 2>&1 &
setsid ssh -i /etc/gpucluster/key node-1 'read word; echo "$word"' < /run/words > /run/said 2>&1 &
exec 3> /run/words
setsid sleep infinity > /dev/null 2>&1 &
"""
STRICT = ("-i/etc/gpucluster/key", "-oBatchMode=yes", "-oStrictHostKeyChecking=yes")


class SshSite:
    """The container, from `with` to the end of it. `node-1` is how ssh reaches it; /run/said has what a connection of
    before prints when a word is written into /run/words.
    """

    def __init__(self) -> None:
        self.controller = Controller()

    def __enter__(self) -> SshSite:
        self.controller.__enter__()
        try:
            logins = {"key": "/etc/gpucluster/key", "login_user_by_host": {"ctl": "root", "node-1": "root"}}
            self._write("/etc/gpucluster/directory.json", json.dumps({**CONFIG, "hosts": logins}))
            self._write("/usr/local/bin/systemctl", SYSTEMCTL)
            self.controller.run("sh", "-c", BEFORE)
            # One that is asked before it handles the signal answers, and does not listen a moment later.
            again = "test $(grep -c 'Server listening' /run/sshd.log) = 2"
            self.controller.until("sshd listens for the second time", "sh", "-c", again)
            key = ("-i", "/etc/gpucluster/key", "-o", "BatchMode=yes")
            self.controller.until("sshd has read its settings again", "ssh", *key, "node-1", "true")
            self.controller.run("env", f"CA={CA}", "sh", "-c", AFTER)
            self.controller.until("the program of the CA listens", "test", "-e", "/run/ca-listens")
            self.controller.until("a connection lasts", "pgrep", "-f", "--", "-c read word")
        except BaseException:
            self.controller.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.controller.close()

    def _write(self, file: str, text: str) -> None:
        self.controller.run("sh", "-c", 'cat > "$1"; chmod 755 "$1"', "sh", file, given=text)

    def believes(self, known: str, *options: str) -> bool:
        """Whether ssh believes node-1 by what a known_hosts file has.

        Args:
            options: of ssh.
        """
        files = ("-oGlobalKnownHostsFile=/dev/null", f"-oUserKnownHostsFile={known}")
        return self.controller.run("ssh", *STRICT, *files, *options, "node-1", "true", check=False)[0] == 0

    def wait(self) -> None:
        """Wait until sshd listens: it does not for a moment, when it reads its keys again."""
        self.controller.until("sshd listens", "sh", "-c", "ssh-keyscan -t ed25519 node-1 2>/dev/null | grep ed25519")

    def lasts(self) -> bool:
        """Whether the connection of before still brings what is written to it."""
        self.controller.run("sh", "-c", "echo alive > /run/words")
        self.controller.until("the word has come back", "grep", "-x", "alive", "/run/said")
        return True
