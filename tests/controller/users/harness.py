"""The users program in a container with a real directory server."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from gpucluster.node_agent.errors import UNCONFIRMED, Failed
from tests import waiting
from tests.agent_program import install
from tests.waiting import PATIENCE_S, wait_for

SUFFIX = "dc=demo,dc=local"
HOMES = "/mnt/home"
ACCOUNT = "everybody"
ED25519 = "AAAAC3NzaC1lZDI1NTE5AAAAIB1VxbV0BLLcDFhEcXBQTJKdYDO8MbWOXJTwJvOH3eO8"
KEY = f"ssh-ed25519 {ED25519} alice@laptop"
CONFIG: Mapping[str, Any] = {
    "uri": "ldapi://%2Frun%2Fslapd%2Fldapi",
    "suffix": SUFFIX,
    "group": "people",
    "gid": 9999,
    "privilege_group": "privilege",
    "privilege_gid": 9876,
    "first_uid": 10001,
    "home_base": HOMES,
    "shell": "/bin/bash",
    "slurm": None,
    "hosts_file": "/var/lib/gpucluster-directory/hosts.json",
    "password_scheme": "{ARGON2}",
    # The controller itself, one that answers, and one that does not.
    "hosts": {"login_user_by_host": {"ctl": "opc", "node-1": "root", "gone": "opc"}, "key": "/etc/gpucluster/key"},
}


def host_dn(host: str) -> str:
    """The entry with which a host binds."""
    return f"cn={host},ou=hosts,{SUFFIX}"


def lookup() -> Mapping[str, str]:
    """Files of SSSD as the role writes them; the server, its certificate and the password are the container's own."""
    from tests.ansible.loading import read
    from tests.ansible.render import render, variables

    found = variables(role="ldap")
    pam = next(item for item in read("roles/ldap/vars/main.yml")["ldap_sssd_files"] if "/pam.d/" in item["path"])
    sssd = render("ldap", "sssd.conf", found | {"ldap_password": "PASSWORD", "directory_ca_file": "CERTIFICATE"})
    return {"/etc/sssd/sssd.conf": sssd, pam["path"]: pam["content"]}


def access_rules() -> str:
    """The access rules of the directory, as the role has them."""
    from tests.ansible.render import render, variables

    text = render("ldap", "slapd.conf", variables(role="ldap"))
    return text[text.index("\naccess to") :]


class Controller:
    """A container with slapd and the program, from `with` to the end of it.

    Args:
        slurm: with a real slurmdbd, its database and slurmctld.
    """

    def __init__(self, *, slurm: bool = False) -> None:
        self._slurm = slurm
        self._container: subprocess.Popen[str] | None = None

    def __enter__(self) -> Controller:
        from gpucluster.localcloud.podman.host import settings
        from tests.containers import base_image, of_this_run

        image = base_image()
        self._folder = tempfile.TemporaryDirectory(prefix="gpucluster-agent-")
        agent = install(Path(self._folder.name))
        options = settings().run_options()
        argv = [
            *("podman", "--runtime", settings().runtime, "run", "--rm", "--interactive", "--pull=never"),
            *("--network=none", "--hostname=ctl", of_this_run(), *options),
            f"--mount=type=bind,source={agent},destination=/usr/local/bin/gpucluster-agent,ro",
            f"--mount=type=bind,source={waiting.__file__},destination=/usr/local/lib/gpucluster-tests/tests/waiting.py,ro",
            *(f"--tmpfs={HOMES}:mode=755,exec", "--entrypoint=python3", image, "-uBc"),
            Path(__file__).with_name("in_container.py").read_text(),
        ]
        self._container = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        config = dict(CONFIG) | ({"slurm": {"cluster": "demo", "account": ACCOUNT}} if self._slurm else {})
        try:
            for link in ("bin/cluster", "sbin/gpucluster-backup"):
                self.run("ln", "-s", "/usr/local/bin/gpucluster-agent", f"/usr/local/{link}")
            self.ask("start", config=config, slurm=self._slurm, access=access_rules(), lookup=lookup())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything: the first process ends with its standard input, and the container with it."""
        if self._container is not None:
            assert self._container.stdin is not None
            self._container.stdin.close()
            try:
                self._container.wait(timeout=PATIENCE_S)
            finally:
                self._container.kill()
            self._container = None
            self._folder.cleanup()

    def ask(self, what: str, /, **words: Any) -> Any:
        """What in_container.py answers."""
        assert self._container is not None
        assert self._container.stdin is not None
        assert self._container.stdout is not None
        self._container.stdin.write(json.dumps({"do": what, **words}) + "\n")
        self._container.stdin.flush()
        line = self._container.stdout.readline()
        if not line:
            pytest.fail("the container has ended")
        said = json.loads(line)
        if "fault" in said:
            pytest.fail(said["fault"])
        return said["answer"]

    def request(self, operation: str, /, **arguments: Any) -> Any:
        """The result of an operation, which has to work. Host `gone` never confirms a change of rights."""
        status, said = self.answer(operation, **arguments)
        if status == UNCONFIRMED:
            assert "gone does not answer" in said["error"]["message"]
            return said["done"]
        assert status == 0, said
        return said["result"]

    def answer(self, operation: str, /, **arguments: Any) -> tuple[int, Any]:
        """Exit status and answer of an operation."""
        text = json.dumps({"operation": operation, "arguments": arguments})
        status, said = self.ask("request", text=text)
        return status, said

    def refused(self, operation: str, /, **arguments: Any) -> str:
        """Why an operation is refused."""
        status, said = self.answer(operation, **arguments)
        assert status == 2, said
        return str(said["error"]["message"])

    def run(self, *argv: str, given: str = "", check: bool = True) -> tuple[int, str, str]:
        """A program in the container."""
        status, output, errors = self.ask("run", argv=list(argv), text=given)
        assert status == 0 or not check, (argv, output, errors)
        return status, output, errors

    def until(self, what: str, *argv: str) -> None:
        """Wait until a program in the container ends well; a failure has what it prints."""
        self.ask("until", what=what, argv=list(argv))

    def rotation(self, what: str, status: int) -> tuple[str, str]:
        """What a rotation of a secret prints that ends with this status.

        A host that does not answer in time takes no part in it. The same command then goes on, as its hint states.
        """
        given = json.dumps({"operation": "rotate", "arguments": {"what": [what]}})
        ends: list[tuple[int, str, str]] = []

        def ended() -> bool:
            ends.append(self.run("gpucluster-agent", "rotate", "request", given=given, check=False))
            assert ends[-1][0] in (status, Failed.status, UNCONFIRMED), ends
            return ends[-1][0] == status

        wait_for(f"the rotation of {what} ends with {status}", ended, state=lambda: ends[-1])
        return ends[-1][1:]

    def content(self) -> str:
        """All of the directory, as a backup has it."""
        return self.run("slapcat", "-f", "/etc/ldap/test.conf", "-o", "ldif-wrap=no")[1]

    def entries(self) -> dict[str, dict[str, Any]]:
        """The controller's file with the passwords of hosts: what it has of each."""
        found = json.loads(self.run("cat", CONFIG["hosts_file"])[1])["hosts"]
        assert isinstance(found, dict)
        return found

    def bound(self, host: str, password: str, *argv: str, given: str = "") -> tuple[int, str]:
        """A program of OpenLDAP with the entry of a host: its exit status, and what it reports."""
        self.run("sh", "-c", "umask 077; cat >/run/test.password", given=password)
        words = ("-x", "-H", CONFIG["uri"], "-D", host_dn(host), "-y", "/run/test.password", *argv[1:])
        status, output, errors = self.run(argv[0], *words, given=given, check=False)
        return status, output + errors

    def files(self) -> str:
        """Every file that a user name could have caused: path, owner, mode and size."""
        places = ("/etc", "/home", "/mnt", "/opt", "/root", "/tmp", "/usr/local", "/var/lib", "/var/tmp", "/var/spool")
        prune = ("-path", "/var/lib/ldap", "-prune", "-o", "-printf", "%p %U:%G %m %s\n")
        return self.run("find", *places, "-xdev", *prune)[1] + self.run("find", HOMES, "-ls")[1]
