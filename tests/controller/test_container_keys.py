"""Rotation of the keys of containers: any container with what its host has reaches any other one, at every step.

The first part has doubles of the hosts, which know what their folder has. The second one has ssh servers as containers
run them, in a container whose host has the agent's real program.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller import container_keys, shared_keys
from gpucluster.controller.host_commands import Answer
from gpucluster.node_agent.errors import Failed, Refused, Unconfirmed
from gpucluster.node_agent.shared_keys import LOGIN, SERVER
from tests.controller.host_keys import pair
from tests.controller.rotated_hosts import CONFIG, ELASTIC, HERE, NAMES, Killed, RotatedHosts, killed_at_a_rename
from tests.controller.ssh_site import SshSite

AWAY = "ssh: connect to host 10.0.1.3 port 22: No route to host"


class Site(RotatedHosts):
    """Hosts with what the folder of containers has there: as `document["containers"]`.

    Args:
        silent: host -> why it fails, from a round of the rotation on: 1, 2, ...
        servers: host -> ssh servers with the host key of before.
    """

    def __init__(self, mesh: Path) -> None:
        super().__init__()
        self.mesh = mesh
        for name in (LOGIN, SERVER):
            pair(mesh / name)
        self.first = shared_keys.document(CONFIG, mesh)["containers"]
        self.has = dict.fromkeys(NAMES, self.first)
        self.silent: dict[str, tuple[int, str]] = {}
        self.servers: dict[str, int] = {}
        self.rounds = 0
        self.kill_round = (0, "")

    def answer(self, host: str, words: Sequence[str], text: str) -> Answer:
        if host == "compute-1":
            self.rounds += 1
        if (self.rounds, host) == self.kill_round:
            raise Killed
        since, why = self.silent.get(host, (99, ""))
        if host in self.off or self.rounds >= since:
            return Answer("", why or AWAY)
        assert list(words) == ["shared-keys", "take"]
        document = json.loads(text)["document"]
        assert list(document) == ["containers"], "how the controller logs in stays"
        self.has[host] = document["containers"]
        self.steps.append((str(self.rounds), host))
        self.check(f"round {self.rounds} on {host}")
        servers = self.servers.get(host, 0) if self.has[host]["server"] != self.first["server"] else 0
        return Answer(json.dumps({"servers": servers}) + "\n", "")

    def check(self, when: str) -> None:
        """Each host in service reaches each other one, and believes it."""
        there = [self.has[name] for name in NAMES if name not in self.off]
        for client in there:
            for server in there:
                assert self.public(client["login"]) in server["authorized"], when
                assert self.public(server["server"]) in client["known"], when

    def public(self, private: str) -> str:
        """The public key of one of the site's pairs."""
        for file in self.mesh.iterdir():
            if file.suffix != ".pub" and file.read_text() == private:
                return file.with_name(f"{file.name}.pub").read_text().strip()
        known = {self.first["login"]: self.first["authorized"][0], self.first["server"]: self.first["known"][0]}
        return str(known[private])

    def rotate(self) -> dict[str, Any]:
        self.rounds = 0
        return container_keys.rotate(CONFIG, lambda _text: None, self.mesh)

    @property
    def state(self) -> str:
        (row,) = container_keys.state(self.mesh)
        return str(row["state"])

    @property
    def is_complete(self) -> bool:
        now = shared_keys.document(CONFIG, self.mesh)["containers"]
        files = {file.name for file in self.mesh.iterdir()}
        return (
            all(self.has[name] == now for name in set(NAMES) - self.off)
            and len(now["authorized"]) == len(now["known"]) == 1
            and now["login"] != self.first["login"]
            and now["server"] != self.first["server"]
            and files == {LOGIN, SERVER, f"{LOGIN}.pub", f"{SERVER}.pub"}
            and self.state == "complete"
            and json.loads(shared_keys.DOCUMENT.read_text())["containers"] == now
        )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    (tmp_path / "mesh").mkdir()
    made = Site(tmp_path / "mesh")
    made.stand_in(monkeypatch)
    monkeypatch.setattr(container_keys, "UNCONFIRMED", tmp_path / "unconfirmed")
    monkeypatch.setattr(shared_keys, "DOCUMENT", tmp_path / "document")
    return made


def test_containers_reach_each_other_at_every_step(site: Site) -> None:
    assert site.rotate() == {"new": True, "hosts": 3, "away": [], "unconfirmed": []}
    assert site.is_complete
    assert site.rounds == 4


@pytest.mark.parametrize("number", range(1, 5))
@pytest.mark.parametrize("host", ["compute-1", HERE])
def test_it_goes_on_after_a_kill_at_any_step(site: Site, number: int, host: str) -> None:
    site.kill_round = (number, host)
    with pytest.raises(Killed):
        site.rotate()
    assert site.state == ("prepared" if number == 1 else "unconfirmed" if number < 4 else "complete")
    site.kill_round = (0, "")
    next_one = site.mesh / f"{LOGIN}.next"
    following = (next_one if next_one.exists() else site.mesh / LOGIN).read_text()
    if number < 4:
        assert site.rotate()["new"] is False
        assert (site.mesh / LOGIN).read_text() == following, "no other key is made"
        assert site.is_complete


@pytest.mark.parametrize("renames", range(4))
def test_it_goes_on_after_a_kill_between_two_files(site: Site, renames: int) -> None:
    with killed_at_a_rename(renames, lambda file, _: ".next" in file.name and not file.name.startswith(".")):
        site.rotate()
    assert site.rotate()["new"] is False
    assert site.is_complete


def test_a_host_in_service_that_does_not_answer_leaves_the_present_keys(site: Site) -> None:
    site.silent = {"compute-1": (1, "Connection timed out")}
    with pytest.raises(Failed, match="no host has switched: compute-1: Connection timed out"):
        site.rotate()
    assert (site.mesh / LOGIN).read_text() == site.first["login"]
    site.silent = {}
    assert site.rotate()["new"] is False
    assert site.is_complete


@pytest.mark.parametrize("number", [2, 3])
def test_the_former_keys_are_accepted_until_all_have_the_next_ones(site: Site, number: int) -> None:
    site.silent = {"compute-1": (number, "Connection timed out")}
    with pytest.raises(Unconfirmed, match="compute-1: Connection timed out") as caught:
        site.rotate()
    assert caught.value.partial_result == {"new": True, "hosts": 2, "away": [], "unconfirmed": ["compute-1"]}
    (row,) = container_keys.state(site.mesh)
    assert (row["state"], row["unconfirmed"]) == ("unconfirmed", ["compute-1"])
    site.silent = {}
    assert site.rotate()["new"] is False
    assert site.is_complete


def test_a_host_that_misses_the_last_step_is_asked_again(site: Site) -> None:
    site.silent = {"compute-1": (4, "Connection timed out")}
    with pytest.raises(Unconfirmed):
        site.rotate()
    assert len(site.has["compute-1"]["known"]) == 2
    site.silent = {}
    assert site.rotate()["new"] is False
    assert site.is_complete


def test_a_former_host_key_is_believed_while_a_server_may_have_it(site: Site) -> None:
    site.servers = {ELASTIC: 2}
    with pytest.raises(Unconfirmed, match=f"{ELASTIC}: ssh servers in containers have begun before"):
        site.rotate()
    for name in NAMES:
        assert len(site.has[name]["authorized"]) == 1, "the former key logs in nowhere"
        assert len(site.has[name]["known"]) == 2
    with pytest.raises(Unconfirmed):
        site.rotate()
    site.servers = {}
    assert site.rotate()["new"] is False
    assert site.is_complete


def test_a_host_that_is_off_is_named_and_not_waited_for(site: Site) -> None:
    site.off = {"compute-1"}
    assert site.rotate() == {"new": True, "hosts": 2, "away": ["compute-1"], "unconfirmed": []}
    assert site.is_complete
    assert site.has["compute-1"] == site.first


def test_without_keys_there_is_nothing_to_rotate(site: Site, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no keys for containers"):
        container_keys.rotate(CONFIG, lambda _text: None, tmp_path / "none")
    assert container_keys.state(tmp_path / "none") == []


# ---- with real ssh servers


#: The folder as the role `docker` writes it, and a server that has begun before, as a container runs it.
BEFORE = r"""
set -e
mesh=/etc/gpucluster/mesh
mkdir -p -m 700 $mesh
for name in id_ed25519 ssh_host_ed25519_key; do ssh-keygen -q -t ed25519 -N '' -C demo -f $mesh/$name; done
cp $mesh/id_ed25519.pub $mesh/authorized_keys
echo "[*]:12345 $(cat $mesh/ssh_host_ed25519_key.pub)" > $mesh/known_hosts
printf 'Host *\n    Port 12345\n    IdentityFile /root/.ssh/id_ed25519\n' > $mesh/config
printf 'Port 12345\nHostKey /root/.ssh/ssh_host_ed25519_key\n' > $mesh/sshd_config
printf 'AuthorizedKeysFile /root/.ssh/authorized_keys\nUsePAM no\n' >> $mesh/sshd_config
echo 'PidFile none' >> $mesh/sshd_config
sshd -T -o PerSourcePenalties=no > /dev/null 2>&1 && echo 'PerSourcePenalties no' >> $mesh/sshd_config
"""
#: What a container sees: the folder in the place of root's own.
INSIDE = "mount --bind -o ro /etc/gpucluster/mesh /root/.ssh && "
SSH = "ssh -oBatchMode=yes -oStrictHostKeyChecking=yes -oUserKnownHostsFile=/root/.ssh/known_hosts 127.0.0.1 true"


@pytest.fixture
def ssh_site() -> Iterator[SshSite]:
    with SshSite() as started:
        yield started


@pytest.mark.containers
@pytest.mark.slow
def test_containers_that_run_reach_each_other_before_and_afterwards(ssh_site: SshSite) -> None:
    controller = ssh_site.controller

    def inside(command: str, *, check: bool = True) -> int:
        return int(controller.run("unshare", "--mount", "sh", "-c", INSIDE + command, check=check)[0])

    controller.run("sh", "-c", BEFORE)
    controller.run("cp", "-rp", "/etc/gpucluster/mesh", "/run/mesh.before")
    inside("exec /usr/sbin/sshd -f /root/.ssh/sshd_config < /dev/null > /dev/null 2>&1")
    controller.until("the server listens", "sh", "-c", "ssh-keyscan -p 12345 127.0.0.1 2>/dev/null | grep ed25519")
    assert inside(SSH) == 0
    # A process may have begun in the same tick as the file.
    error, _ = controller.rotation("container-keys", 8)
    answer = json.loads(error)
    assert "ssh servers in containers have begun before" in answer["error"]["message"]
    assert inside(SSH) == 0, "the server of before is believed"
    former = f"{SSH.partition(' 127')[0]} -F/dev/null -p12345 -i/run/mesh.before/id_ed25519 127.0.0.1 true"
    assert inside(former, check=False) != 0, "the former key logs in nowhere"
    controller.run("pkill", "-f", "/root/.ssh/sshd_config")
    controller.until("the server has ended", "sh", "-c", "! pgrep -f '[s]shd -f'")
    done = json.loads(controller.rotation("container-keys", 0)[0])["result"]["container-keys"]
    assert (done["new"], done["unconfirmed"]) == (False, [])
    inside("exec /usr/sbin/sshd -f /root/.ssh/sshd_config < /dev/null > /dev/null 2>&1")
    controller.until("the next one listens", "sh", "-c", "ssh-keyscan -p 12345 127.0.0.1 2>/dev/null | grep ed25519")
    assert inside(SSH) == 0
    believes_former = SSH.replace("/root/.ssh/known_hosts", "/run/mesh.before/known_hosts")
    assert inside(believes_former, check=False) != 0, "it has another host key"
    controller.run("pkill", "-f", "/root/.ssh/sshd_config")
