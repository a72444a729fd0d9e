"""Rotation of the cluster's CA: no server has a certificate of it before all hosts trust it, and the former one ends
when all trust the next one alone.

The first part has doubles of the hosts and a real openssl. The second one has a real slapd, SSSD, sshd and the program
in a container; systemctl is a double there, which starts them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller import ca, directory_authority
from gpucluster.controller.host_commands import Answer
from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed, Refused, Unconfirmed
from gpucluster.node_agent.standby import keeping
from tests.controller.rotated_hosts import CONFIG, NAMES, Killed, RotatedHosts
from tests.controller.ssh_site import CA as CA_SERVER
from tests.controller.users.harness import CONFIG as DIRECTORY
from tests.controller.users.harness import Controller, lookup
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


class Site(RotatedHosts):
    """Hosts with what each trusts, and a server with the certificate that it has read.

    Args:
        silent: host -> why it fails, at a step.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.silent: dict[tuple[str, str], str] = {}
        self.commands: list[str] = []
        self.apply()
        self.trusted = dict.fromkeys(NAMES, ca.trusted())
        self.shown = (folder / "slapd" / "server.pem").read_text()
        self._call = programs.call

    def apply(self) -> None:
        """The controller's part of an apply."""
        argv = ["--cluster=demo", "--name=ctl", f"--directory={self.folder}/slapd", "--group=openldap"]
        assert ca.main([*argv, f"--publish={self.folder}/etc/authority.pem"]) == 0

    def call(self, argv: Sequence[str], *more: Any, **how: Any) -> Any:
        if argv[0] != "systemctl":
            return self._call(argv, *more, **how)
        self.commands.append(" ".join(argv[1:]))
        if argv[1] == "restart":
            if self.kill_at[0] == "restart":
                raise Killed
            self.shown = (self.folder / "slapd" / "server.pem").read_text()
            self.check("the server starts")
        return subprocess.CompletedProcess(list(argv), 0, "", "")

    def answer(self, host: str, words: Sequence[str], text: str) -> Answer:
        assert list(words) == ["directory-authority", "trust"]
        bundle = json.loads(text)
        part = "both" if bundle.count("BEGIN") > 1 else "alone"
        if (part, host) == self.kill_at:
            raise Killed
        if (part, host) in self.silent or host in self.off:
            return Answer("", self.silent.get((part, host), "no route to host"))
        self.steps.append((part, host))
        self.trusted[host] = bundle
        self.check(f"{part} on {host}")
        return Answer("", "")

    def check(self, step: str) -> None:
        for bundle in {self.trusted[name] for name in NAMES if name not in self.off}:
            assert verifies(self.folder, bundle, self.shown), step

    def rotate(self) -> dict[str, Any]:
        return directory_authority.rotate(CONFIG, lambda _text: None)

    @property
    def is_complete(self) -> bool:
        there = {self.trusted[name] for name in NAMES if name not in self.off}
        files = {file.name for file in ca.FOLDER.iterdir()}
        self.apply()
        return (
            there == {ca.authority()} == {(self.folder / "etc" / "authority.pem").read_text()}
            and self.shown == (self.folder / "slapd" / "server.pem").read_text()
            and files == {"ca.key", "ca.pem", "links.pem", "server.json"}
        )


def verifies(folder: Path, trusted: str, certificate: str) -> bool:
    for name, text in (("trusted.test", trusted), ("certificate.test", certificate)):
        (folder / name).write_text(text)
    argv = ["openssl", "verify", "-CAfile", str(folder / "trusted.test"), str(folder / "certificate.test")]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    before = os.umask(0o022)
    monkeypatch.setattr(ca, "FOLDER", tmp_path / "etc" / "authority")
    monkeypatch.setattr(shutil, "chown", lambda *_: None)
    real = tempfile.TemporaryDirectory
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda prefix, **_: real(prefix=prefix))
    made = Site(tmp_path)
    monkeypatch.setattr(programs, "call", made.call)
    made.stand_in(monkeypatch)
    monkeypatch.setattr(directory_authority, "_UNITS", tmp_path / "units")
    yield made
    os.umask(before)


def state() -> str:
    (row,) = directory_authority.state()
    return str(row["state"])


def test_every_host_trusts_the_next_ca_before_it_signs_and_the_former_one_ends_last(site: Site) -> None:
    first = ca.authority()
    done = site.rotate()
    assert (done["new"], done["hosts"], done["away"], done["unconfirmed"]) == (True, 3, [], [])
    assert done["authority"] == ca.authority() != first
    assert [part for part, _host in site.steps] == ["both"] * 3 + ["alone"] * 3
    assert not verifies(site.folder, first, site.shown)
    assert site.is_complete
    assert site.commands == ["is-enabled --quiet slapd.service", "restart slapd.service"]
    (row,) = directory_authority.state()
    assert (row["state"], row["unconfirmed"]) == ("complete", [])
    assert int(row["expires"][:4]) - int(row["changed"][:4]) in (9, 10)


@pytest.mark.parametrize("part", ["both", "restart", "alone"])
@pytest.mark.parametrize("applied", [False, True], ids=["", "with an apply in between"])
def test_it_goes_on_after_a_kill_at_any_step(site: Site, part: str, applied: bool) -> None:
    site.kill_at = (part, "compute-1")
    with pytest.raises(Killed):
        site.rotate()
    assert state() == ("prepared" if part == "both" else "unconfirmed")
    following = ca.FOLDER / ("next.pem" if part == "both" else "ca.pem")
    wanted, bundle = following.read_text(), ca.trusted()
    site.kill_at = ("", "")
    if applied:
        # It brings hosts what the controller publishes, and starts the directory if its certificate is another one.
        site.apply()
        assert (site.folder / "etc" / "authority.pem").read_text() == bundle == ca.trusted()
        site.trusted = dict.fromkeys(NAMES, bundle)
        site.call(["systemctl", "restart", "slapd.service"])
    assert site.rotate()["new"] is False
    assert ca.authority() == wanted, "no other CA is made"
    assert site.is_complete


@pytest.mark.parametrize("moment", ["former.pem", "links.pem", "ca.key", "ca.pem"])
@pytest.mark.parametrize("applied", [False, True], ids=["", "with an apply in between"])
def test_it_goes_on_after_a_kill_while_the_ca_changes(
    site: Site, monkeypatch: pytest.MonkeyPatch, moment: str, applied: bool
) -> None:
    original = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if target == ca.FOLDER / moment:
            raise Killed
        return original(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(Killed):
        site.rotate()
    monkeypatch.setattr(Path, "replace", original)
    wanted = (ca.FOLDER / "next.pem").read_text()
    if applied:
        site.apply()
        site.call(["systemctl", "restart", "slapd.service"])
    assert site.rotate()["new"] is False
    assert ca.authority() == wanted
    assert site.is_complete


def test_a_host_in_service_that_does_not_answer_leaves_the_present_ca(site: Site) -> None:
    first, site.silent = ca.authority(), {("both", "compute-1"): "timed out"}
    with pytest.raises(Failed, match="the present CA still signs: compute-1: timed out"):
        site.rotate()
    assert ca.authority() == first
    site.silent = {}
    assert site.rotate()["new"] is False
    assert site.is_complete


def test_the_former_ca_stays_in_the_published_file_until_all_trust_the_next_one_alone(site: Site) -> None:
    first, site.silent = ca.authority(), {("alone", "compute-1"): "timed out"}
    with pytest.raises(Unconfirmed, match="compute-1: timed out") as caught:
        site.rotate()
    assert caught.value.partial_result is not None
    assert caught.value.partial_result["unconfirmed"] == ["compute-1"]
    assert first in ca.trusted()
    (row,) = directory_authority.state()
    assert (row["state"], row["unconfirmed"]) == ("unconfirmed", ["compute-1"])
    site.silent = {}
    assert site.rotate()["new"] is False
    assert site.is_complete


def test_a_host_that_is_off_is_named_and_not_waited_for(site: Site) -> None:
    first, site.off = ca.authority(), {"compute-1"}
    done = site.rotate()
    assert (done["hosts"], done["away"]) == (2, ["compute-1"])
    assert site.trusted["compute-1"] == first
    assert site.is_complete


def test_the_standby_has_the_certificates_before_the_former_ca_ends(site: Site) -> None:
    (site.folder / "units").mkdir()
    (site.folder / "units" / keeping.SERVICE).touch()
    site.rotate()
    assert site.commands[-1] == f"start {keeping.SERVICE}"
    assert site.is_complete


def test_a_record_of_an_earlier_release_begins_nothing(site: Site) -> None:
    record = ca.FOLDER / "server.json"
    raw = json.loads(record.read_text())
    record.write_text(json.dumps({key: raw[key] for key in raw if key not in ("directory", "group")}))
    with pytest.raises(Refused, match="does not tell where the certificate is"):
        site.rotate()
    assert state() == "complete"
    site.apply()
    site.shown = (site.folder / "slapd" / "server.pem").read_text()
    site.rotate()
    assert site.is_complete


def test_without_a_ca_there_is_nothing_to_rotate(site: Site) -> None:
    shutil.rmtree(ca.FOLDER)
    with pytest.raises(Refused, match="there is no CA"):
        site.rotate()
    assert directory_authority.state() == []


# ---- with a real slapd and SSSD

# A double: the units of slapd and SSSD. It ends the rotation where the test asks for it.
SYSTEMCTL = r"""#!/bin/sh
gone() { pkill -x "$1"; while pgrep -r R,S,D,T "$1" > /dev/null; do :; done; }
case "$*" in
is-enabled*) exec test "$3" = slapd.service ;;
"restart slapd.service")
    if rm /run/kill-once 2> /dev/null; then pkill -KILL -f "gpucluster-agent rotate"; exit; fi
    gone slapd
    at="ldapi://%2Frun%2Fslapd%2Fldapi ldaps://127.0.0.1"
    setsid slapd -d 0 -f /etc/ldap/test.conf -h "$at" > /run/slapd.log 2>&1 &
    ;;
*"try-restart sssd.service")
    gone sssd
    find /var/lib/sss/pipes -type s -delete
    setsid sssd -i --logger=stderr > /run/sssd.log 2>&1 &
    timeout PATIENCE sh -c "until test -S /var/lib/sss/pipes/nss; do :; done"
    ;;
*) exit 1 ;;
esac
"""
TRUSTED = "/etc/gpucluster/authority.pem"
# Nothing but an answer of the directory, over TLS: SSSD has forgotten what it knew.
GROUP = (
    "pkill -x sssd; while pgrep -r R,S,D,T sssd > /dev/null; do :; done; rm -f /var/lib/sss/db/*.ldb /var/lib/sss/mc/*;"
    "systemctl try-restart sssd.service; getent group people || { cat /run/sssd.log; false; }"
)


@pytest.fixture
def controller() -> Iterator[Controller]:
    with Controller() as started:
        logins = {"key": "/etc/gpucluster/key", "login_user_by_host": {"ctl": "root", "node-1": "root"}}
        files = {
            "/etc/gpucluster/directory.json": json.dumps({**DIRECTORY, "hosts": logins}),
            "/etc/gpucluster/host-names.json": json.dumps({"hosts": {}, "elastic": [], "domain": ""}),
            "/etc/gpucluster/host-certificate.json": json.dumps({"address": "127.0.0.1", "port": 6822}),
            "/usr/local/bin/systemctl": SYSTEMCTL.replace("PATIENCE", str(PATIENCE_S)),
        }
        started.request("base_tree", hosts={"demo-controller": "ocid"})
        password = started.entries()["demo-controller"]["password"]
        for path, text in lookup().items():
            server = text.replace("ldaps://demo-controller", "ldaps://127.0.0.1")
            files[path] = server.replace("PASSWORD", password).replace("CERTIFICATE", TRUSTED)
        for path, text in files.items():
            mode = "755" if path.startswith("/usr") else "600"
            started.run("sh", "-c", f'mkdir -p "${{1%/*}}"; cat > "$1"; chmod {mode} "$1"', "sh", path, given=text)
        folder = "/etc/ldap/gpucluster"
        started.run(
            *("gpucluster-agent", "ca", "--cluster=demo", "--name=ctl", "--address=127.0.0.1", f"--directory={folder}"),
            *(f"--publish={TRUSTED}", "--group=openldap"),
        )
        names = "passwd: files sss\\ngroup: files sss\\nhosts: files\\n"
        keys = f"s,/etc/ldap/test.key,{folder}/server.key,; s,CertificateFile .*,CertificateFile {folder}/server.pem,"
        started.run("sh", "-c", f"printf '{names}' > /etc/nsswitch.conf; sed -i '{keys}' /etc/ldap/test.conf")
        started.run("systemctl", "restart", "slapd.service")
        started.run("sh", "-c", 'setsid python3 -c "$0" > /run/ca.log 2>&1 &', CA_SERVER)
        started.until("the program of the CA listens", "test", "-e", "/run/ca-listens")
        yield started


@pytest.mark.containers
@pytest.mark.slow
def test_users_are_known_throughout_and_a_host_that_was_off_learns_the_next_ca(controller: Controller) -> None:
    def known(why: str) -> None:
        # On a busy machine SSSD may give up before slapd answers, and then it does not ask again for a minute. One that
        # does not believe the directory never knows the group.
        controller.until(f"users are known {why}", "sh", "-c", GROUP)

    known("at first")
    controller.run("cp", TRUSTED, "/run/first.pem")
    for number in (1, 2):
        # The program is killed when the next CA signs, and slapd has not started with its certificate.
        controller.run("touch", "/run/kill-once")
        controller.rotation("directory-ca", -9)
        assert controller.run("grep", "-c", "BEGIN", TRUSTED)[1] == "2\n"
        known("with the certificate of the former CA")
        controller.run("systemctl", "restart", "slapd.service")
        known("with the certificate of the next CA")
        done = json.loads(controller.rotation("directory-ca", 0)[0])["result"]["directory-ca"]
        assert (done["new"], done["hosts"], done["unconfirmed"]) == (False, 2, []), number
        assert controller.run("cat", TRUSTED)[1] == done["authority"]
        known("by the next CA alone")

    # A host that was off during both: SSSD does not believe the directory, until it has learned the CA.
    controller.run("cp", "/run/first.pem", TRUSTED)
    assert controller.run("sh", "-c", GROUP, check=False)[0] != 0

    def learned() -> str:
        # The unit on a host tries again where the controller does not answer in time.
        status, _output, said = controller.run("gpucluster-agent", "directory-authority", "learn", check=False)
        return "" if status == Failed.status else said

    assert wait_for("the host learns the CA", learned).startswith("the CA of the directory is")
    assert controller.run("cat", TRUSTED)[1] == done["authority"]
    known("by what the host has learned")
    # What the directory does not prove is not trusted.
    refused = controller.run(
        "gpucluster-agent", "directory-authority", "trust", check=False,
        given=json.dumps(controller.run("cat", "/run/first.pem")[1]),
    )  # fmt: skip
    assert refused[0] == 1
    assert "does not prove itself" in refused[2]
    assert controller.run("cat", TRUSTED)[1] == done["authority"]
