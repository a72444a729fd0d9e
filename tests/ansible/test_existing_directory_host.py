"""A cluster with a directory that exists: the roles on a booted host, real SSSD and sudo, and a second real slapd.

What this does not prove: Active Directory, FreeIPA, sshd over a network, Slurm (test_slurm_containers.py has it).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.artifacts import agent_archive
from tests.ansible import other_directory as other
from tests.ansible.booted import Booted, booted
from tests.ansible.directory_role import TASKS, VARIABLES
from tests.ansible.in_container import Played
from tests.controller.users.harness import HOMES
from tests.waiting import wait_for

pytestmark = pytest.mark.containers

AGENT = "/usr/local/bin/gpucluster-agent"
SSSD, CONFIG, STATE = "/etc/sssd/sssd.conf", "/etc/gpucluster/directory.json", "/var/lib/gpucluster-directory"


def serve(host: Booted, data: str) -> None:
    other.serve(host, data)
    wait_for("the server answers", lambda: host.sh("ss -Hltn 'sport = 636'").strip())


class Site:
    """The host with both servers' data, and the certificates that its server has now."""

    def __init__(self, host: Booted, folder: Path) -> None:
        self.host, self.folder = host, folder
        self.good = other.certificates()
        host.connect("--net")
        other.install(host, self.good)

    def apply(self, *, password: str = other.PASSWORD, check: bool = True, **changes: Any) -> Played:
        """Run the role as `apply` does on the controller."""
        file = self.folder / "directory.password"
        file.write_text(f"{password}\n")
        directory = {
            "kind": "ldap", "servers": [f"ldaps://{other.NAME}"], "base": other.BASE, "bind_dn": other.BIND,
            "bind_password_file": str(file), "ca": self.good.ca, "schema": "rfc2307bis", "user_groups": ["hpc"],
            "admin_groups": ["HPC Admins"], "id_mapping": False, "first_id": 2000, "last_id": 600_000_000,
            "shell": "/bin/bash", "ssh_key_attribute": "sshPublicKey", **changes,
        }  # fmt: skip
        return self.host.play(TASKS, VARIABLES | {"users_directory": directory}, name="demo-controller", check=check)

    def follow(self) -> dict[str, Any]:
        found = json.loads(self.host.sh(f"{AGENT} directory follow"))["result"]
        assert isinstance(found, dict)
        return found

    # On a busy machine SSSD gives up a server that answers late, and asks it again after a minute at most. Whom it knew
    # before is in its cache.

    def until_in_hpc(self, name: str, *, is_in: bool = True) -> None:
        """Wait until a user is in the group, or not: before SSSD reaches the server it has the groups of before."""

        def groups() -> str:
            return self.host.sh(f"id -nG {name}", check=False)

        def right() -> bool:
            said = groups()
            return "no such user" not in said and ("hpc" in said.split()) == is_in

        wait_for(f"{name} is {'' if is_in else 'not '}in hpc", right, interval=0.5, state=groups)

    def followed(self, users: set[str]) -> dict[str, Any]:
        """Follow until these are the users that are recorded. Returns the last answer."""
        found: dict[str, Any] = {}

        def all_recorded() -> bool:
            found.update(self.follow())
            return set(self.recorded()["users"]) == users

        wait_for(f"the users are {users}", all_recorded, interval=0.5, state=lambda: found, ignore=AssertionError)
        return found

    def recorded(self) -> dict[str, Any]:
        found = json.loads(self.host.read(f"{STATE}/followed.json"))
        assert isinstance(found, dict)
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with booted(f"--tmpfs={HOMES}:mode=755") as host:
        host.put(AGENT, agent_archive.of_controller(), 0o755)
        host.sh("mkdir -p /etc/gpucluster")
        yield Site(host, tmp_path_factory.mktemp("site"))


@pytest.mark.story
def test_what_is_wrong_is_found_before_sssd_is_changed(site: Site) -> None:
    host = site.host
    before = host.sh(f"cat {SSSD}", check=False)
    said = site.apply(check=False).said
    assert "failed=1" in said
    assert "can't be reached: Connection refused" in said
    assert "'d" not in said, "the password"
    serve(host, "bis")
    asked = json.loads(host.read(CONFIG))

    def refused(ca: str = site.good.ca, password: str = other.PASSWORD, **how: Any) -> str:
        files = {
            CONFIG: json.dumps({**asked, "existing": {**asked["existing"], **how}}),
            f"{STATE}/existing.password": password,
            f"{STATE}/existing-ca.pem": ca,
        }
        write = [
            f"echo {base64.b64encode(text.encode()).decode()} | base64 -d > {path}" for path, text in files.items()
        ]
        done = host.sh("; ".join([*write, f"{AGENT} directory check; echo status $?"]), check=False)
        assert "status 1\n" in done, done
        return done

    said = refused(password="hunter2")
    assert "the password in users.directory.bind_password_file is wrong" in said
    assert "hunter2" not in said
    assert f"has no entry dc=wrong,dc=test, or {other.BIND} may not read it" in refused(base="dc=wrong,dc=test")
    assert "there is no group nobodys below dc=example,dc=test" in refused(user_groups=["nobodys"])
    assert "the group hpc lists entries (member): write `ldap_schema: rfc2307bis`" in refused(schema="rfc2307")
    assert "the gid of the group hpc, 4000, is outside of" in refused(first_id=5000)
    assert "nowhere.example.test does not resolve" in refused(servers=["ldaps://nowhere.example.test"])
    assert "is not of the CA in users.directory.ca_certificate" in refused(ca=other.certificates().ca)
    for certificate, words in (
        (other.certificates(days=-1), "has expired"),
        (other.certificates(name="else.example.test"), "is for another name than ldap.example.test"),
    ):
        other.put_certificates(host, certificate)
        serve(host, "bis")
        assert words in refused(ca=certificate.ca)
    assert host.sh(f"cat {SSSD}", check=False) == before
    other.put_certificates(host, site.good)


@pytest.mark.story
@pytest.mark.parametrize("schema", ["rfc2307bis", "rfc2307"])
def test_users_of_the_directory_are_users_of_the_host(site: Site, schema: str) -> None:
    host, nested = site.host, schema == "rfc2307bis"
    serve(host, "bis" if nested else "plain")
    assert site.apply(schema=schema).changed > 0
    if nested:
        assert site.apply(schema=schema).changed == 0
    host.sh("sss_cache --everything", check=False)

    # In small letters, with the Japanese name, and with the home and the shell of the cluster.
    site.until_in_hpc("yamada.taro")
    site.until_in_hpc("sato", is_in=nested)
    expected = f"yamada.taro:*:3001:4999:山田太郎:{HOMES}/yamada.taro:/bin/bash"
    assert host.sh("getent passwd Yamada.Taro").strip() == expected
    assert host.sh("sss_ssh_authorizedkeys yamada.taro").strip().split()[:2] == other.KEY.split()[:2]
    assert host.sh("getent passwd low", check=False) == "", "its uid is below first_id"

    found = site.followed({"yamada.taro", "prime", "boss", "ended", *(["sato"] if nested else [])})
    assert site.recorded()["left"] == ({} if nested else {"sato": 3002}), "names in `memberUid` have no groups in them"
    # The home of who has left stays.
    assert set(host.sh(f"ls {HOMES}").split()) == {"yamada.taro", "prime", "boss", "ended", "sato"}
    assert host.sh(f"stat -c '%a %u' {HOMES}/yamada.taro").split() == ["700", "3001"]
    assert host.exists(f"{HOMES}/yamada.taro/.bashrc")
    said = "; ".join(found["warnings"])
    assert "daemon is also an account of the system" in said
    assert "SSSD does not know low" in said
    assert "鈴木" in said
    assert site.follow()["changed"] is False
    assert host.sh(f"{AGENT} directory follow --quiet").count("\n") == 1, "what is wrong with users"


@pytest.mark.story
def test_who_may_log_in_and_become_root(site: Site) -> None:
    host = site.host
    # What sshd asks of PAM beside the groups: an account that has expired is refused, whatever its key.
    access = (
        "import ctypes,sys;sys.path.insert(0,'/usr/local/bin/gpucluster-agent');"
        "from gpucluster.controller.users.on_host import access;print(access(sys.argv[1]))"
    )
    assert host.sh(f'python3 -c "{access}" yamada.taro').strip() == "0"
    assert host.sh(f'python3 -c "{access}" ended').strip() == "13"
    assert "parsed OK" in host.sh("visudo -c")
    wait_for("boss may become root", lambda: "(ALL : ALL) ALL" in host.sh("sudo -l -U boss", check=False))
    assert "not allowed" in host.sh("sudo -l -U yamada.taro", check=False)
    refused = json.loads(host.sh('echo \'{"operation": "user.list"}\' | /usr/local/bin/cluster request', check=False))
    assert "are in a directory that exists, ldaps://ldap.example.test" in refused["error"]["message"]


@pytest.mark.story
def test_a_server_that_is_gone_takes_nothing_away(site: Site) -> None:
    host = site.host
    host.sh("systemctl stop other-directory")
    assert "no server of the directory can be used" in host.sh(f"{AGENT} directory follow", check=False)
    # From the cache.
    assert "3001" in host.sh("getent passwd yamada.taro")
    assert "code=exited, status=1" in host.sh(
        "systemctl start gpucluster-directory; systemctl status gpucluster-directory", check=False
    )
    serve(host, "plain")
    # In its sandbox.
    host.sh("systemctl start gpucluster-directory || { journalctl -u gpucluster-directory -o cat; exit 1; }")
